//! Images are written here as docker, podman and skopeo write them; digests are not those of the contents.

use super::contents::{BLOBS, INDEX, LAYOUT};
use super::*;
use serde_json::{Value, json};
use std::io::Read;
use std::process::Command;
use tar::{Builder, EntryType, Header};

type Files = Vec<(String, Vec<u8>)>;

fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = Builder::new(vec![]);
    for (name, bytes) in files {
        let mut header = Header::new_ustar();
        header.set_entry_type(if name.ends_with('/') { EntryType::Directory } else { EntryType::Regular });
        header.set_size(bytes.len() as u64);
        builder.append_data(&mut header, name, *bytes).unwrap();
    }
    builder.into_inner().unwrap()
}

fn digits(number: usize) -> String {
    format!("{number:064x}")
}

fn described(number: usize, size: usize) -> Value {
    json!({ "digest": format!("sha256:{}", digits(number)), "size": size })
}

/// OCI's layout with those blobs, in which an index leads to the first one.
fn layout(index: &Value, blobs: Vec<Vec<u8>>) -> Files {
    let mut files = vec![
        (LAYOUT.to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
        (INDEX.to_owned(), index.to_string().into_bytes()),
    ];
    files.extend(blobs.into_iter().enumerate().map(|(at, blob)| (format!("{BLOBS}{}", digits(at)), blob)));
    files
}

/// An image of those layers, the lowest first.
fn image(layers: Vec<Vec<u8>>) -> Files {
    let listed: Vec<Value> =
        layers.iter().enumerate().map(|(at, layer)| described(at + 1, layer.len())).collect();
    let manifest = json!({ "schemaVersion": 2, "layers": listed }).to_string().into_bytes();
    let index = json!({ "manifests": [described(0, manifest.len())] });
    layout(&index, [vec![manifest], layers].concat())
}

fn packed(files: &[(String, Vec<u8>)]) -> tempfile::NamedTempFile {
    let files: Vec<(&str, &[u8])> =
        files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), archive(&files)).unwrap();
    file
}

fn disk_of(path: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    let Some(mut file) = open(path)? else { return Ok(None) };
    let mut bytes = vec![];
    file.read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

fn disk(layers: Vec<Vec<u8>>) -> Result<String, String> {
    disk_in(&image(layers))
}

/// The disk as a text, or the error without the name of the file.
fn disk_in(files: &[(String, Vec<u8>)]) -> Result<String, String> {
    let file = packed(files);
    match disk_of(file.path()) {
        Ok(found) => Ok(String::from_utf8(found.unwrap()).unwrap()),
        Err(error) => {
            let text = format!("{error:#}");
            let before = format!("container disk {}: ", file.path().display());
            Err(text.strip_prefix(&before).unwrap_or_else(|| panic!("{text}")).to_owned())
        }
    }
}

fn compressed(program: &str, bytes: &[u8]) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let output = Command::new(program).args(["-q", "-c"]).arg(file.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

#[test]
fn the_disk_of_an_archive_and_of_a_folder_is_copied() {
    // With holes, and an end within a piece.
    let mut content: Vec<u8> = (0..1_500_000_u32).map(|at| (at % 251) as u8).collect();
    content[300_000..1_200_000].fill(0);
    content.extend([0; 5000]);
    let layer = archive(&[("etc/", b""), ("etc/hosts", b"x"), ("disk/", b""), ("disk/a.img", &content)]);
    for layer in [layer.clone(), compressed("gzip", &layer), compressed("zstd", &layer)] {
        let files = image(vec![layer]);
        assert!(disk_of(packed(&files).path()).unwrap().unwrap() == content);
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join(BLOBS)).unwrap();
        for (name, bytes) in files {
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        assert!(disk_of(folder.path()).unwrap().unwrap() == content);
    }
}

#[test]
fn the_disk_of_an_archive_of_docker_is_copied() {
    let saved = |list: &Value, layers: &[&[(&str, &[u8])]]| -> Files {
        let layers = layers.iter().enumerate().map(|(at, layer)| (format!("{at}/layer.tar"), archive(layer)));
        layers.chain([("manifest.json".to_owned(), list.to_string().into_bytes())]).collect()
    };
    let one = json!({ "Config": "c.json", "RepoTags": null, "Layers": ["0/layer.tar", "1/layer.tar"] });
    let layers: [&[(&str, &[u8])]; 2] = [&[("disk/a", b"lower")], &[("disk/a", b"upper")]];
    assert_eq!(disk_in(&saved(&json!([one]), &layers)).unwrap(), "upper");
    let two = disk_in(&saved(&json!([one, one]), &layers)).unwrap_err();
    assert_eq!(two, "it has 2 images: save one alone");
    let elsewhere = json!([{ "Layers": ["../../../etc/passwd"] }]);
    let elsewhere = disk_in(&saved(&elsewhere, &layers)).unwrap_err();
    assert_eq!(elsewhere, "layer \"../../../etc/passwd\" is not a file of the archive");
    let many = json!([{ "Layers": vec!["0/layer.tar"; 128] }]);
    assert_eq!(disk_in(&saved(&many, &layers)).unwrap_err(), "it has 128 layers, more than 127");
    let other = disk_in(&saved(&json!({ "name": "an app" }), &layers)).unwrap_err();
    assert!(other.starts_with("manifest.json is not what docker save writes: "), "{other}");
}

#[test]
fn upper_layers_win_and_delete() {
    let lower = || archive(&[("disk/", b""), ("disk/a", b"lower")]);
    for (upper, expected) in [
        (&[("etc/hosts", &b"x"[..])][..], "lower"),
        (&[("disk/a", b"upper")], "upper"),
        (&[("disk/.wh.a", b""), ("disk/b", b"upper")], "upper"),
        (&[("disk/b", b"upper"), ("disk/.wh..wh..opq", b"")], "upper"),
        (&[("disk/", b""), ("disk/b", b"upper"), (".wh.disk", b"")], "upper"),
        // It deletes only what is below.
        (&[("disk/.wh.a", b""), ("disk/a", b"upper")], "upper"),
        (&[("disk/.wh.other", b"")], "lower"),
    ] {
        assert_eq!(disk(vec![lower(), archive(upper)]).as_deref(), Ok(expected), "{upper:?}");
    }
    let nothing = "it has no disk: no layer has a file in /disk";
    for upper in [".wh.disk", ".wh..wh..opq", "disk/.wh..wh..opq", "disk/.wh.a", "disk", "disk/a/"] {
        assert_eq!(disk(vec![lower(), archive(&[(upper, b"")])]).unwrap_err(), nothing, "{upper}");
    }
    let restored = vec![lower(), archive(&[("disk/.wh.a", b"")]), archive(&[("disk/a", b"again")])];
    assert_eq!(disk(restored).unwrap(), "again");
}

#[test]
fn an_image_without_exactly_one_disk_is_refused_with_what_it_has() {
    assert_eq!(disk(vec![]).unwrap_err(), "it has no disk: no layer has a file in /disk");
    let two = disk(vec![archive(&[("disk/a", b"x")]), archive(&[("disk/b\n", b"y")])]).unwrap_err();
    assert_eq!(two, "it has 2 files in /disk (/disk/a, /disk/b\\n): only one is allowed");
    let names: Vec<String> = (0..6).map(|at| format!("disk/{at}")).collect();
    let many: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b"x"[..])).collect();
    let many = disk(vec![archive(&many)]).unwrap_err();
    assert_eq!(
        many,
        "it has 6 files in /disk (/disk/0, /disk/1, /disk/2, /disk/3, ...): only one is allowed"
    );
    let twice = disk(vec![archive(&[("disk/a", b"x"), ("./disk/a", b"y")])]).unwrap_err();
    assert_eq!(twice, "layer 1 of 1: it has /disk/a twice");
    let mut builder = Builder::new(vec![]);
    let mut header = Header::new_ustar();
    header.set_entry_type(EntryType::Symlink);
    header.set_size(0);
    builder.append_link(&mut header, "disk/a", "/etc/shadow").unwrap();
    let link = disk(vec![builder.into_inner().unwrap()]).unwrap_err();
    assert_eq!(link, "/disk/a is not a regular file");
}

/// An index of images for those platforms, `system/architecture`, each with a disk that contains the number of its image.
fn platforms(names: &[&str]) -> Files {
    let mut blobs = vec![];
    let mut images = vec![];
    for (at, name) in names.iter().enumerate() {
        let layer = archive(&[("disk/a", at.to_string().as_bytes())]);
        let layers = [described(2 * at + 1, layer.len())];
        let manifest = json!({ "layers": layers }).to_string().into_bytes();
        let mut image = described(2 * at, manifest.len());
        if let Some((os, architecture)) = name.split_once('/') {
            image["platform"] = json!({ "os": os, "architecture": architecture });
        }
        images.push(image);
        blobs.extend([manifest, layer]);
    }
    layout(&json!({ "manifests": images }), blobs)
}

#[test]
fn of_several_platforms_that_of_guests_is_taken() {
    assert_eq!(disk_in(&platforms(&["linux/arm64", "linux/amd64", "unknown/unknown"])).unwrap(), "1");
    // The only one may be for any.
    assert_eq!(disk_in(&platforms(&["linux/s390x"])).unwrap(), "0");
    assert_eq!(disk_in(&platforms(&[""])).unwrap(), "0");
    for (names, why) in [
        (
            &["linux/s390x", "windows/amd64"][..],
            "it does not exist for amd64, only for linux/s390x, windows/amd64",
        ),
        (&["linux/amd64", "linux/amd64"], "it has 2 images for linux/amd64: save one alone"),
        (&["", ""], "it has 2 images: save one alone"),
    ] {
        assert_eq!(disk_in(&platforms(names)).unwrap_err(), why);
    }
    // Two tags of one image, by an index of an index.
    let mut files = platforms(&["linux/arm64", "linux/amd64"]);
    let inner = std::mem::take(&mut files[1].1);
    let outer = described(9, inner.len());
    files[1].1 = json!({ "manifests": [outer, outer] }).to_string().into_bytes();
    files.push((format!("{BLOBS}{}", digits(9)), inner));
    assert_eq!(disk_in(&files).unwrap(), "1");
}

#[test]
fn a_hostile_or_damaged_image_is_refused() {
    let layer = || archive(&[("disk/a", &[7; 5000])]);
    let digest = format!("sha256:{}", digits(1));
    let mut short = image(vec![layer()]);
    short[3].1.truncate(2000);
    let whole = layer().len();
    let short = disk_in(&short).unwrap_err();
    assert_eq!(short, format!("{digest} has 2000 bytes, but should have {whole}"));
    let mut missing = image(vec![layer()]);
    missing.pop();
    assert_eq!(disk_in(&missing).unwrap_err(), format!("{digest} is missing"));
    let mut cut = layer();
    cut.truncate(2000);
    let cut = disk(vec![cut]).unwrap_err();
    assert!(cut.starts_with("layer 1 of 1: read the disk: "), "{cut}");
    let mut damaged = compressed("gzip", &layer());
    let end = damaged.len() - 8;
    damaged[end] ^= 1;
    let damaged = disk(vec![damaged]).unwrap_err();
    assert!(damaged.starts_with("layer 1 of 1: "), "{damaged}");
    let other = disk(vec![b"{}".to_vec()]).unwrap_err();
    assert!(other.starts_with("layer 1 of 1: "), "{other}");

    let path = json!({ "manifests": [{ "digest": "sha256:../../etc/passwd", "size": 1 }] });
    let path = disk_in(&layout(&path, vec![])).unwrap_err();
    assert!(path.contains("is not sha256: and 64 hexadecimal digits"), "{path}");
    let large = layout(&json!(" ".repeat(4 << 20)), vec![]);
    assert_eq!(disk_in(&large).unwrap_err(), "index.json has 4194306 bytes, more than 4194304");
    let mut circle = json!({ "manifests": [described(0, 0)] });
    // Its size has three digits.
    let size = circle.to_string().len() + 2;
    circle["manifests"][0]["size"] = json!(size);
    let circle = layout(&circle, vec![circle.to_string().into_bytes()]);
    assert_eq!(disk_in(&circle).unwrap_err(), "more than 4 indexes lead to each other");
    let names: Vec<String> = (0..1025).map(|at| format!("disk/.wh.{at}")).collect();
    let names: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
    let names = disk(vec![archive(&names)]).unwrap_err();
    assert_eq!(names, "layer 1 of 1: it has more than 1024 names in /disk");
}

#[test]
fn other_files_are_sent_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("disk.qcow2"), b"QFI\xfb and more").unwrap();
    std::fs::write(at("files.tar"), archive(&[("index.json", b"{}"), ("disk/a", b"x")])).unwrap();
    std::fs::write(at("raw"), [0; 4096]).unwrap();
    for name in ["disk.qcow2", "files.tar", "raw", "", "missing"] {
        assert!(open(&at(name)).unwrap().is_none(), "{name}");
    }
    let mut cut = archive(&[("disk/a", &[7; 5000])]);
    cut.truncate(2000);
    std::fs::write(at("cut.tar"), cut).unwrap();
    let cut = format!("{:#}", open(&at("cut.tar")).unwrap_err());
    assert_eq!(cut, format!("read archive {}: it ends too early", at("cut.tar").display()));
}
