//! Images from web servers.

use crate::server::{Server, file, said};
use crate::world::{SIZE, World, contents, cut, http, image, packed, redirect, server, sha256};
use barevirt_import_job::{Content, DISK, Job, Source};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicUsize, Ordering};

#[tokio::test(flavor = "multi_thread")]
async fn images_of_each_format_become_the_same_disk() {
    let contents = contents(3 << 20);
    for (name, body) in [
        ("raw", contents.clone()),
        ("qcow2", image(&contents, "qcow2", &[])),
        ("qcow2, compressed", image(&contents, "qcow2", &["-c"])),
        ("qcow2, zstd", image(&contents, "qcow2", &["-c", "-o", "compression_type=zstd"])),
        ("raw.gz", packed(&["gzip", "-c"], &contents)),
        ("raw.xz", packed(&["xz", "-c"], &contents)),
        ("raw.zst", packed(&["zstd", "-q", "-c"], &contents)),
        ("qcow2.gz", packed(&["gzip", "-c"], &image(&contents, "qcow2", &[]))),
    ] {
        let world = World::new();
        let server = server(body);
        let size = world.run(http(server.url("/disk"))).await;
        assert_eq!(size, Ok(SIZE), "{name}");
        world.has(&contents);
        assert_eq!(world.importer.progress.done(), 10_000, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checksum_is_that_of_the_file_on_the_server() {
    let contents = contents(1 << 20);
    for (name, body) in [
        ("raw.xz", packed(&["xz", "-c"], &contents)),
        ("raw.zst", packed(&["zstd", "-q", "-c"], &contents)),
        ("vdi", image(&contents, "vdi", &[])),
        ("vdi.xz", packed(&["xz", "-c"], &image(&contents, "vdi", &[]))),
        ("vdi.zst", packed(&["zstd", "-q", "-c"], &image(&contents, "vdi", &[]))),
    ] {
        let (world, checksum) = (World::new(), Some(sha256(&body)));
        let url = server(body).url("/disk");
        let size = world.run(Source::Http { url, headers: vec![], checksum }).await;
        assert_eq!(size, Ok(SIZE), "{name}");
        world.has(&contents);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn holes_of_an_image_stay_holes() {
    let world = World::new();
    let mut contents = vec![0; 12 << 20];
    contents[..4].copy_from_slice(b"boot");
    world.run(http(server(contents.clone()).url("/"))).await.unwrap();
    world.has(&contents);
    let found = std::fs::metadata(world.directory.path().join(DISK)).unwrap();
    assert!(found.blocks() * 512 < 1 << 20, "{} bytes are allocated", found.blocks() * 512);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_that_breaks_off_is_taken_up_where_it_was() {
    let contents = contents(5 << 20);
    for ranges in [true, false] {
        let (world, body) = (World::new(), contents.clone());
        let server = Server::start(move |request| {
            let answer = if ranges { file(request, &body) } else { said("200 OK", &[], &body) };
            // A server without ranges sends more each time, and finally everything.
            let most = request.start().unwrap_or(0) + (3 << 20);
            cut(answer, if ranges { 2 << 20 } else { most })
        });
        let source =
            Source::Http { url: server.url("/disk"), headers: vec![], checksum: Some(sha256(&contents)) };
        world.run(source).await.unwrap();
        world.has(&contents);
        let starts: Vec<_> = server.requests().iter().map(|request| request.start().unwrap_or(0)).collect();
        let expected: &[usize] = if ranges { &[0, 2 << 20, 4 << 20] } else { &[0, 3 << 20] };
        assert_eq!(starts, expected);
        assert_eq!(
            server.requests()[1].headers.get("if-range").map(String::as_str),
            ranges.then_some("\"1\"")
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_go_to_the_server_they_are_for_and_to_no_other() {
    let contents = contents(1 << 20);
    let body = contents.clone();
    let other = Server::start(move |request| file(request, &body));
    let (to, first) = (other.url("/real"), AtomicUsize::new(0));
    let server = Server::start(move |request| match request.path.as_str() {
        "/here" => redirect("there"),
        "/there" if first.fetch_add(1, Ordering::Relaxed) == 0 => redirect(&to),
        path => panic!("{path}"),
    });
    let mut world = World::new();
    world.importer.login = Some(("me".to_owned(), "pass".to_owned()));
    world.importer.headers = vec!["X-Token: secret".to_owned()];
    let source = Source::Http {
        url: server.url("/here"),
        headers: vec!["X-Plain: 1".to_owned()],
        checksum: Some(sha256(&contents)),
    };
    world.run(source).await.unwrap();
    world.has(&contents);
    for request in server.requests() {
        assert_eq!(request.headers["authorization"], "Basic bWU6cGFzcw==");
        assert_eq!(request.headers["x-token"], "secret");
        assert_eq!(request.headers["x-plain"], "1");
        assert_eq!(request.headers["accept-encoding"], "identity");
    }
    let [request] = other.requests().try_into().unwrap();
    for name in ["authorization", "x-token", "x-plain"] {
        assert!(!request.headers.contains_key(name), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_disk_has_its_size_and_nothing_in_it() {
    let world = World::new();
    assert_eq!(world.run(Source::Blank {}).await, Ok(SIZE));
    world.has(&[]);
    let world = World::new();
    let job = Job {
        source: Source::Blank {},
        content: Content::Disk,
        size: SIZE,
        overhead: 60,
        preallocation: true,
        owner: String::new(),
    };
    world.run_job(&job).await.unwrap();
    let found = std::fs::metadata(world.directory.path().join(DISK)).unwrap();
    assert!(found.blocks() * 512 >= SIZE);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_was_filled_before_is_filled_again_as_a_whole() {
    let world = World::new();
    std::fs::write(world.directory.path().join(DISK), vec![7; 1 << 20]).unwrap();
    std::fs::write(world.directory.path().join(".disk.img.import"), vec![7; 1 << 20]).unwrap();
    let contents = contents(1 << 20);
    world.run(http(server(contents.clone()).url("/"))).await.unwrap();
    world.has(&contents);
}
