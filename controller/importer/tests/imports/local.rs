//! Copies of claims, and disks of images that the node has pulled.

use crate::world::{World, backed, contents, image, packed};
use barevirt_import_job::Source;
use std::path::PathBuf;

/// The source's directory, with a file in it.
fn source(world: &World, path: &str, bytes: &[u8]) -> PathBuf {
    let file = world.importer.places.source.join(path);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, bytes).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_copied_byte_for_byte_whatever_a_guest_has_written_to_it() {
    // A guest that writes an image's header to its disk cannot choose what the copy reads.
    for bytes in
        [contents(2 << 20), backed("/etc/passwd"), packed(&["gzip", "-c"], &contents(1 << 20)), vec![]]
    {
        let world = World::new();
        source(&world, "disk.img", &bytes);
        world.run(Source::Claim {}).await.unwrap();
        world.has(&bytes);
        assert_eq!(world.importer.progress.done(), 10_000);
        std::fs::remove_dir_all(&world.importer.places.source).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_without_a_disk_or_with_a_larger_one_is_not_copied() {
    let world = World::new();
    std::fs::create_dir_all(&world.importer.places.source).unwrap();
    let failure = world.run(Source::Claim {}).await.unwrap_err();
    assert!(failure.is_final() && failure.to_string().contains("has no disk.img"), "{failure}");
    let link = world.importer.places.source.join("disk.img");
    std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
    assert!(world.run(Source::Claim {}).await.is_err());
    std::fs::remove_file(link).unwrap();
    source(&world, "disk.img", &vec![1; (16 << 20) + 512]);
    let failure = world.run(Source::Claim {}).await.unwrap_err();
    assert!(failure.is_final() && failure.to_string().contains("is a disk of 16777728 bytes"), "{failure}");
    std::fs::remove_dir_all(&world.importer.places.source).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_disk_of_an_image_of_the_node_becomes_the_disk() {
    let contents = contents(2 << 20);
    for bytes in [contents.clone(), image(&contents, "qcow2", &["-c"])] {
        let world = World::new();
        source(&world, "disk/guest.img", &bytes);
        world.run(Source::Image {}).await.unwrap();
        world.has(&contents);
        std::fs::remove_dir_all(&world.importer.places.source).unwrap();
    }
    let world = World::new();
    source(&world, "disk/guest.img", &backed("/etc/passwd"));
    let failure = world.run(Source::Image {}).await.unwrap_err();
    assert!(failure.is_final() && failure.to_string().contains("backing file"), "{failure}");
    source(&world, "disk/other.img", b"x");
    let failure = world.run(Source::Image {}).await.unwrap_err();
    assert!(failure.is_final() && failure.to_string().contains("several files"), "{failure}");
    std::fs::remove_dir_all(&world.importer.places.source).unwrap();
}
