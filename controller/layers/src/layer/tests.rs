use super::*;
use std::process::Command;

fn listed(bytes: &[u8]) -> io::Result<Vec<Entry>> {
    let (mut archive, mut all) = (bytes, vec![]);
    while let Some(entry) = next(&mut archive)? {
        skip_contents(&mut archive, entry.size, 0)?;
        all.push(entry);
    }
    Ok(all)
}

#[test]
fn archives_of_the_usual_programs_are_read() {
    let directory = tempfile::tempdir().unwrap();
    let long = format!("disk/{}", "n".repeat(180));
    std::fs::create_dir_all(directory.path().join("disk")).unwrap();
    std::fs::write(directory.path().join("disk/a.img"), [7; 1000]).unwrap();
    std::fs::write(directory.path().join(&long), b"x").unwrap();
    for format in ["gnu", "pax", "ustar"] {
        let output = Command::new("tar")
            .args(["--format", format, "-C"])
            .arg(directory.path())
            .args(["-c", "./disk/a.img"])
            .args(if format == "ustar" { None } else { Some(&long) })
            .output()
            .unwrap();
        let found = listed(&output.stdout).unwrap();
        assert_eq!(found[0], Entry { path: "disk/a.img".to_owned(), kind: b'0', size: 1000 }, "{format}");
        assert_eq!(found[0].disk(), Some("a.img"));
        if format != "ustar" {
            assert_eq!((found[1].path.as_str(), found[1].size), (long.as_str(), 1), "{format}");
        }
    }
}

#[test]
fn a_size_that_octal_digits_cannot_hold_is_read() {
    let size = 9u64 << 30;
    let mut header = tar::Header::new_gnu();
    header.set_path("disk/a").unwrap();
    header.set_size(size);
    header.set_cksum();
    let entry = next(&mut header.as_bytes().as_slice()).unwrap().unwrap();
    assert_eq!(entry.size, size);

    // Go writes it as a setting.
    let mut archive = vec![];
    let mut builder = tar::Builder::new(&mut archive);
    builder.append_pax_extensions([("size", size.to_string().as_bytes())]).unwrap();
    drop(builder);
    archive.truncate(1024);
    let mut header = tar::Header::new_ustar();
    header.set_path("disk/a").unwrap();
    header.set_size(0);
    header.set_cksum();
    archive.extend_from_slice(header.as_bytes());
    assert_eq!(next(&mut archive.as_slice()).unwrap().unwrap().size, size);
}

#[test]
fn only_files_directly_in_the_disk_directory_are_disks() {
    let entry = |path: &str, kind| Entry { path: path.to_owned(), kind, size: 0 };
    for path in ["disk", "disks/a", "disk/a/b", "disk/.wh.a", "disk/.wh..wh..opq", "a/disk/b"] {
        assert_eq!(entry(path, b'0').disk(), None, "{path}");
    }
    assert_eq!(entry("disk/a", b'5').disk(), None);
    let link = entry("disk/a", b'2');
    assert!(link.disk().is_some() && !link.is_file());
}

#[test]
fn an_invalid_layer_is_refused_early() {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::GNULongName);
    header.set_size(1 << 40);
    header.set_path("x").unwrap();
    header.set_cksum();
    let endless = io::Read::chain(header.as_bytes().as_slice(), io::repeat(b'a'));
    assert!(next(&mut { endless }).unwrap_err().to_string().contains("too long"));
    assert!(next(&mut io::repeat(b'a')).is_err());
    assert!(next(&mut [7u8; 100].as_slice()).is_err());
    assert_eq!(next(&mut io::empty()).unwrap(), None);
    let mut header = tar::Header::new_gnu();
    header.set_path("disk/a").unwrap();
    header.set_size(5);
    header.set_cksum();
    assert!(listed(header.as_bytes()).is_err(), "cut short");
}
