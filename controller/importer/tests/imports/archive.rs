//! Archives from web servers.

use crate::server::{Server, file};
use crate::world::{SIZE, World, contents, cut, http, server, sha256};
use barevirt_import_job::{Content, DISK, Job, Source};
use std::path::Path;
use std::process::Command;

/// The files of a directory, packed by tar with that option.
fn packed(option: &str, long: usize) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("d")).unwrap();
    std::fs::write(directory.path().join("d/a"), contents(long)).unwrap();
    std::os::unix::fs::symlink("d/a", directory.path().join("link")).unwrap();
    let output =
        Command::new("tar").arg("-C").arg(directory.path()).args([option, "-c", "."]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

fn job(source: Source) -> Job {
    Job {
        source,
        content: Content::Archive,
        size: SIZE,
        overhead: 60,
        preallocation: false,
        owner: "u".to_owned(),
    }
}

fn count(directory: &Path) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_is_unpacked_whatever_compression_it_has() {
    for option in ["--no-auto-compress", "-z", "-J", "--zstd"] {
        let world = World::new();
        let server = server(packed(option, 2 << 20));
        world.importer.run(&job(http(server.url("/files")))).await.unwrap();
        for name in ["d/a", "link"] {
            let found = std::fs::read(world.directory.path().join(name)).unwrap();
            assert!(found == contents(2 << 20), "{option}: {name}");
        }
        assert_eq!(count(world.directory.path()), 2, "{option}");
        assert!(!world.directory.path().join(DISK).exists());
        assert_eq!(world.importer.progress.done(), 10_000, "{option}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_whose_transfer_breaks_off_is_resumed_and_its_checksum_holds() {
    let body = packed("-z", 5 << 20);
    let digest = sha256(&body);
    let interrupted = body.clone();
    let server = Server::start(move |request| cut(file(request, &interrupted), 2 << 20));
    let world = World::new();
    let source = |digest: &str| Source::Http {
        url: server.url("/"),
        headers: vec![],
        checksum: Some(digest.to_owned()),
    };
    world.importer.run(&job(source(&digest))).await.unwrap();
    assert!(std::fs::read(world.directory.path().join("d/a")).unwrap() == contents(5 << 20));

    let world = World::new();
    let failure = world.importer.run(&job(source(&sha256(b"another")))).await.unwrap_err();
    assert!(failure.is_final() && failure.to_string().contains("has the checksum"), "{failure}");
    assert_eq!(count(world.directory.path()), 0, "nothing of it stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_that_does_not_fit_or_has_another_source_is_refused() {
    let world = World::new();
    let server = server(packed("-z", 20 << 20));
    let failure = world.importer.run(&job(http(server.url("/files")))).await.unwrap_err();
    assert!(
        failure.is_final() && failure.to_string().contains("unpacks to more than the 16777216"),
        "{failure}"
    );
    assert_eq!(count(world.directory.path()), 0);
    let failure = world.importer.run(&job(Source::Blank {})).await.unwrap_err();
    assert!(failure.is_final() && failure.to_string().contains("not a file of a server"), "{failure}");
    assert_eq!(count(world.directory.path()), 0);
}
