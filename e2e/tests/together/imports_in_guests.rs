//! DataVolumes without CDI of every source, and of every format of an image: guests that have booted read them whole.

use super::imports::{FILLED, data_volume, filled, host_of, publish, publish_on, sha256, shell};
use super::imports_block::{has, with_disks};
use super::imports_in_a_row::volumes;
use super::imports_s3::{OBJECT, serve_objects, source as object};
use super::imports_servers::{IMAGES, NGINX, OBJECTS, REGISTRY, USER, WEB, certificates, push, serve};
use super::uploads;
use anyhow::{Context, Result, ensure};
use barevirt_e2e::wait::{SHUTDOWN, SOON};
use barevirt_e2e::{Console, Namespace, image, in_namespace, local_volume};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Length in MiB of each disk that is imported, and the size of its claim, which has room for more.
const MIB: u64 = 4;
const SIZE: &str = "16Mi";
/// The most disks of one guest.
const DISKS: usize = 8;
/// Formats, and what makes the file `image` of the file `disk`.
const FORMATS: [(&str, &str); 8] = [
    ("raw", "cp disk image"),
    ("gz", "gzip -c disk >image"),
    ("xz", "xz -c disk >image"),
    ("zst", "zstd -q -c disk >image"),
    ("vdi", "qemu-img convert -f raw -O vdi disk image"),
    ("vmdk", "qemu-img convert -f raw -O vmdk disk image"),
    ("qcow2", "qemu-img convert -f raw -O qcow2 disk image"),
    ("qcow2-gz", "qemu-img convert -f raw -O qcow2 disk unpacked && gzip -c unpacked >image"),
];
/// The image that nodes pull, which they have already.
const PULLED: &str = "localhost/barevirt-e2e/contents:devel";

/// Checksums of the disks, by the DataVolume that gets them.
type Digests = BTreeMap<&'static str, String>;

/// Makes the file `disk` in a folder: random bytes around a part that images leave out. Returns its checksum.
fn disk(work: &Path) -> Result<String> {
    shell(
        work,
        "head -c 2097152 /dev/urandom >disk && truncate -s 3145728 disk && head -c 1048576 /dev/urandom >>disk",
    )?;
    sha256(&work.join("disk"))
}

/// One DataVolume for each format, from a web server.
fn from_web(namespace: &Namespace, digests: &mut Digests) -> Result<()> {
    serve(namespace, WEB, NGINX, &["-c", "/config/nginx.conf"], "/tmp/www")?;
    for (name, make) in FORMATS {
        let work = tempfile::tempdir()?;
        digests.insert(name, disk(work.path())?);
        shell(work.path(), make)?;
        publish(namespace, name, &work.path().join("image"))?;
        let url = format!("https://{}/{name}", host_of(namespace, WEB));
        let source = json!({ "http": { "url": url, "certConfigMap": "authority" } });
        namespace.apply(&data_volume(name, &source, SIZE))?;
    }
    Ok(())
}

/// A container disk in a folder, as an OCI archive of that name; returns the checksum of its disk.
fn container_disk(work: &Path, name: &str) -> Result<String> {
    let digest = disk(work)?;
    shell(
        work,
        "mkdir -p root/disk && qemu-img convert -f raw -O qcow2 disk root/disk/disk.qcow2 && chmod 644 root/disk/disk.qcow2",
    )?;
    image::pack(name, &work.join("root"), &work.join("archive"))?;
    Ok(digest)
}

/// One from a registry with a password, and one from the node's images.
fn from_images(namespace: &Namespace, digests: &mut Digests) -> Result<()> {
    serve(namespace, IMAGES, REGISTRY, &["serve", "/config/config.yml"], "/data")?;
    let work = tempfile::tempdir()?;
    digests.insert("registry", container_disk(work.path(), "localhost/barevirt-e2e/pushed:devel")?);
    push(namespace, &work.path().join("archive"), "data")?;
    namespace.apply(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "reader" },
        "stringData": { "accessKeyId": USER.0, "secretKey": USER.1 },
    }))?;
    let url = format!("docker://{}/images/data:1", host_of(namespace, IMAGES));
    let source = json!({ "registry": { "url": url, "certConfigMap": "authority", "secretRef": "reader" } });
    namespace.apply(&data_volume("registry", &source, SIZE))?;

    let work = tempfile::tempdir()?;
    digests.insert("node", container_disk(work.path(), PULLED)?);
    image::load_archive(&work.path().join("archive"))?;
    namespace.apply(&data_volume("node", &pulled(), SIZE))
}

fn pulled() -> Value {
    json!({ "registry": { "url": format!("docker://{PULLED}"), "pullMethod": "node" } })
}

fn from_objects(namespace: &Namespace, digests: &mut Digests) -> Result<()> {
    serve_objects(namespace, "0")?;
    let work = tempfile::tempdir()?;
    digests.insert("s3", disk(work.path())?);
    publish_on(namespace, OBJECTS, OBJECT, &work.path().join("disk"))?;
    namespace.apply(&data_volume("s3", &object(namespace, OBJECT, Some("keys")), SIZE))
}

/// One copy within the namespace, and one from another one. They wait until their sources are filled.
fn copies(namespace: &Namespace, golden: &Namespace, digests: &mut Digests) -> Result<()> {
    golden.apply(&data_volume("golden", &pulled(), SIZE))?;
    for (name, of, claim, from) in
        [("copy", "vdi", "vdi", namespace), ("copy-from-afar", "node", "golden", golden)]
    {
        let digest = digests.get(of).context("it is to be imported, too")?.clone();
        digests.insert(name, digest);
        let source = json!({ "pvc": { "name": claim, "namespace": from.name() } });
        namespace.apply(&data_volume(name, &source, SIZE))?;
    }
    Ok(())
}

fn upload(namespace: &Namespace, digests: &mut Digests) -> Result<()> {
    let work = tempfile::tempdir()?;
    digests.insert("upload", disk(work.path())?);
    let path = format!("--image-path={}", work.path().join("disk").display());
    let size = format!("--size={SIZE}");
    uploads::upload(namespace, &["dv", "upload", &size, "--force-bind", &path]).map(drop)
}

/// Boots a guest with these disks, and has it read them.
fn guest_reads(namespace: &Namespace, names: &[&str], digests: &Digests) -> Result<()> {
    let mut console = Console::boot(namespace, &with_disks(names.iter().copied()))?;
    for name in names {
        has(&mut console, name, MIB, digests.get(*name).context("a disk of no DataVolume")?)?;
    }
    console.leave()?;
    namespace.delete("vm", "vm")?;
    namespace.wait_gone("vmi", "vm", SHUTDOWN)
}

#[test]
fn every_source_and_format_has_its_contents_in_a_booted_guest() {
    in_namespace("contentsgolden", |golden| {
        let golden = golden.clone();
        uploads::without_cdi("contents", move |namespace| {
            certificates(namespace)?;
            let mut digests = Digests::new();
            from_web(namespace, &mut digests)?;
            from_images(namespace, &mut digests)?;
            from_objects(namespace, &mut digests)?;
            copies(namespace, &golden, &mut digests)?;
            upload(namespace, &mut digests)?;
            for name in digests.keys() {
                filled(namespace, name, FILLED * 2)?;
                namespace.wait_gone("pod", &format!("importer-{name}"), SOON)?;
            }
            namespace.wait_gone("pod", "cdi-upload-upload", SOON)?;

            // Each guest has those that are on its node.
            let volumes = volumes(namespace)?;
            let mut on_node = BTreeMap::<&str, Vec<&str>>::new();
            for volume in &volumes {
                let claim = volume["spec"]["claimRef"]["name"].as_str().context("a volume of no claim")?;
                on_node.entry(local_volume::node(volume)?).or_default().push(claim);
            }
            let placed: usize = on_node.values().map(Vec::len).sum();
            ensure!(placed == digests.len(), "{placed} volumes of {} DataVolumes", digests.len());
            for (node, claims) in &on_node {
                for claims in claims.chunks(DISKS) {
                    guest_reads(namespace, claims, &digests)
                        .with_context(|| format!("disks on {node}: {claims:?}"))?;
                }
            }
            Ok(())
        });
        Ok(())
    });
}
