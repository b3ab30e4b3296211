//! Images made by `qemu-img`.

use std::path::Path;
use std::process::Command;

use super::*;

#[test]
fn the_header_written_by_hand_is_qemu_imgs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sound");
    let made = Command::new("qemu-img").args(["create", "-q", "-f", "qcow2"]).arg(&path).arg("1G").status();
    assert!(made.expect("qemu-img is needed (Debian package qemu-utils)").success());
    // Extensions follow the header. Nothing is checked in them.
    assert_eq!(std::fs::read(path).unwrap()[..112], sound()[..112]);
}

/// The formats of images made by `qemu-img` are detected like `qemu-img` does.
#[test]
fn images_made_by_qemu_img() {
    let directory = tempfile::tempdir().unwrap();
    let make = |name: &str, arguments: &[&str]| {
        let path = directory.path().join(name);
        let made = Command::new("qemu-img")
            .args(["create", "-q"])
            .args(arguments)
            .arg(&path)
            .arg("20M")
            .current_dir(directory.path())
            .output()
            .expect("qemu-img is needed (Debian package qemu-utils)");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        look(&path)
    };
    let qcow2 = Ok(Image { format: Format::Qcow2, virtual_size: 20 << 20 });
    assert_eq!(make("v3", &["-f", "qcow2"]), qcow2);
    assert_eq!(make("v2", &["-f", "qcow2", "-o", "compat=0.10"]), qcow2);
    assert_eq!(make("zstd", &["-f", "qcow2", "-o", "compression_type=zstd"]), qcow2);
    assert_eq!(make("subclusters", &["-f", "qcow2", "-o", "extended_l2=on"]), qcow2);
    assert_eq!(make("small", &["-f", "qcow2", "-o", "cluster_size=512"]), qcow2);
    assert_eq!(make("large", &["-f", "qcow2", "-o", "cluster_size=2M,preallocation=metadata"]), qcow2);
    assert_eq!(make("raw", &["-f", "raw"]), Ok(Image { format: Format::Raw, virtual_size: 20 << 20 }));
    assert_eq!(
        make("backed", &["-f", "qcow2", "-b", "v3", "-F", "qcow2"]),
        Err(HeaderError::BackingFile("v3".into()))
    );
    assert_eq!(make("split", &["-f", "qcow2", "-o", "data_file=elsewhere"]), Err(HeaderError::DataFile));
    for format in ["vmdk", "vhdx", "vdi", "qed", "parallels"] {
        assert_eq!(make(format, &["-f", format]), Err(HeaderError::Format(format)));
    }
    assert_eq!(make("vpc", &["-f", "vpc"]), Err(HeaderError::Format("vhd")));
}

fn look(path: &Path) -> Result<Image, HeaderError> {
    use std::io::Read;
    let mut head = Vec::new();
    let file = std::fs::File::open(path).unwrap();
    let length = file.metadata().unwrap().len();
    file.take(INSPECTED as u64).read_to_end(&mut head).unwrap();
    inspect(&head, length)
}
