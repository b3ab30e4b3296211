//! Images of VMware and VirtualBox, as qemu-img writes them: one file becomes the disk, and one that refers to another file is
//! refused.

use crate::world::{SIZE, World, contents, http, image, packed, qemu_img, server};

const STREAM: &[&str] = &["-o", "subformat=streamOptimized"];

/// A stream whose grain directory only its footer knows, as VMware writes it: qemu-img writes none.
fn with_footer(mut stream: Vec<u8>) -> Vec<u8> {
    let header = stream[..512].to_vec();
    stream[56..64].fill(0xff);
    stream.resize(stream.len().next_multiple_of(512), 0);
    // The marker of a footer, the footer, and the marker of the end.
    let mut marker = vec![0; 512];
    marker[12] = 3;
    stream.extend(marker);
    stream.extend(header);
    stream.extend([0; 512]);
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn images_of_vmware_and_virtualbox_become_the_same_disk() {
    let contents = contents(3 << 20);
    let vmdk = image(&contents, "vmdk", &[]);
    for (name, body) in [
        ("vmdk", vmdk.clone()),
        ("vmdk.xz", packed(&["xz", "-c"], &vmdk)),
        ("vmdk, stream", image(&contents, "vmdk", STREAM)),
        ("vmdk, stream with a footer", with_footer(image(&contents, "vmdk", STREAM))),
        ("vdi", image(&contents, "vdi", &[])),
        ("vdi, fixed", image(&contents, "vdi", &["-o", "static=on"])),
        ("vdi.gz", packed(&["gzip", "-c"], &image(&contents, "vdi", &[]))),
    ] {
        let world = World::new();
        let size = world.run(http(server(body).url("/disk"))).await;
        assert_eq!(size, Ok(SIZE), "{name}");
        world.has(&contents);
        assert_eq!(world.importer.progress.done(), 10_000, "{name}");
    }
}

async fn refused(body: Vec<u8>) -> String {
    let failure = World::new().run(http(server(body).url("/disk"))).await.unwrap_err();
    assert!(failure.is_final(), "{failure}");
    failure.to_string()
}

/// The files that qemu-img makes, by name.
fn made(arguments: &[&[&str]]) -> impl Fn(&str) -> Vec<u8> + use<> {
    let directory = tempfile::tempdir().unwrap();
    for arguments in arguments {
        qemu_img(arguments, directory.path());
    }
    move |name| std::fs::read(directory.path().join(name)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_with_a_parent_or_in_several_files_is_refused() {
    let child = made(&[
        &["create", "-q", "-f", "vmdk", "base.vmdk", "1M"],
        &["create", "-q", "-f", "vmdk", "-b", "base.vmdk", "-F", "vmdk", "child.vmdk"],
    ])("child.vmdk");
    let reason = refused(child.clone()).await;
    assert!(reason.contains("vmdk image names a parent"), "{reason}");
    let reason = refused(packed(&["gzip", "-c"], &child)).await;
    assert!(reason.contains("vmdk image names a parent"), "{reason}");

    for (subformat, part) in [("twoGbMaxExtentSparse", Some("disk-s001.vmdk")), ("monolithicFlat", None)] {
        let subformat = format!("subformat={subformat}");
        let files = made(&[&["create", "-q", "-f", "vmdk", "-o", &subformat, "disk.vmdk", "1M"]]);
        let reason = refused(files("disk.vmdk")).await;
        assert!(reason.contains("is not one file: it is a descriptor"), "{reason}");
        if let Some(part) = part {
            let reason = refused(files(part)).await;
            assert!(reason.contains("is not one file: it has no descriptor"), "{reason}");
        }
    }

    let mut vdi = image(&contents(1 << 20), "vdi", &[]);
    vdi[0x1b8] = 1;
    let reason = refused(vdi).await;
    assert!(reason.contains("vdi image names a parent"), "{reason}");
}

/// Without a capacity in the header, qemu-img reads the files that the descriptor names.
#[tokio::test(flavor = "multi_thread")]
async fn a_vmdk_whose_descriptor_has_the_contents_elsewhere_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (secret, read) = (directory.path().join("secret"), directory.path().join("read"));
    std::fs::write(&secret, contents(1 << 20)).unwrap();
    let mut body = image(&contents(1 << 20), "vmdk", &[]);
    body[12..20].fill(0);
    let mut put = |after: &str, text: &str| {
        let at = body.windows(after.len()).position(|word| word == after.as_bytes()).unwrap();
        body[at..at + text.len()].copy_from_slice(text.as_bytes());
    };
    put("\"monolithicSparse\"", "\"monolithicFlat\"  ");
    put("RW ", &format!("RW 2048 FLAT \"{}\" 0\n", secret.display()));
    std::fs::write(directory.path().join("image"), &body).unwrap();
    qemu_img(&["convert", "-f", "vmdk", "-O", "raw", "image", "read"], directory.path());
    assert_eq!(std::fs::read(&read).unwrap(), contents(1 << 20), "qemu-img reads the other file");
    let reason = refused(body).await;
    assert!(reason.contains("is of kind \"monolithicFlat\""), "{reason}");
}

/// A footer with another size would leave the rest of a device as it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_with_another_size_at_its_end_is_refused() {
    let mut stream = with_footer(image(&contents(1 << 20), "vmdk", STREAM));
    let footer = stream.len() - 1024;
    stream[footer + 12] ^= 0x80;
    let reason = refused(stream).await;
    assert!(reason.contains("a footer that is not that of its header"), "{reason}");
    let mut cut = with_footer(image(&contents(1 << 20), "vmdk", STREAM));
    cut.truncate(cut.len() - 512);
    let reason = refused(cut).await;
    assert!(reason.contains("footer"), "{reason}");
}
