//! Malicious and broken images and servers: each ends with a failure that names the reason, and leaves nothing behind.

use crate::server::{Answer, Server, Then, file, head, said};
use crate::world::{
    SIZE, World, backed, contents, cut, endless, http, image, not_found, packed, redirect, server, sha256,
    slow,
};
use barevirt_import_job::Source;
use std::net::Ipv4Addr;
use std::time::Duration;
use virt_importer::failure::Failure;

/// The reason of a final failure.
#[track_caller]
fn last(result: Result<u64, Failure>) -> String {
    match result {
        Err(Failure::Final(reason)) => reason,
        other => panic!("must fail for good: {other:?}"),
    }
}

async fn refused(body: Vec<u8>) -> String {
    let world = World::new();
    let server = server(body);
    last(world.run(http(server.url("/disk"))).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_names_another_file_is_refused() {
    let reason = refused(backed("/etc/passwd")).await;
    assert!(reason.contains("names a backing file (\"/etc/passwd\")"), "{reason}");

    let directory = tempfile::tempdir().unwrap();
    let status = std::process::Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2", "-o", "data_file=data", "image", "1M"])
        .current_dir(directory.path())
        .status();
    assert!(status.unwrap().success());
    let reason = refused(std::fs::read(directory.path().join("image")).unwrap()).await;
    assert!(reason.contains("external data file"), "{reason}");
    // Compressed, too.
    let reason = refused(packed(&["gzip", "-c"], &backed("/etc/passwd"))).await;
    assert!(reason.contains("backing file"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_does_not_fit_is_refused() {
    for format in ["raw", "qcow2"] {
        let reason = refused(image(&vec![1; SIZE as usize + 512], format, &[])).await;
        assert!(reason.contains(&format!("is a disk of {} bytes", SIZE + 512)), "{reason}");
    }
    // Without a length it is noticed during the transfer.
    let world = World::new();
    let server = Server::start(|_| endless("200 OK", &[1; 512], vec![1; 1 << 16]));
    let reason = last(world.run(http(server.url("/"))).await);
    assert!(reason.contains("more than the 16777216 bytes"), "{reason}");
    // A bomb: 64 MiB of zeros in 64 KiB.
    for command in [&["gzip", "-c"][..], &["xz", "-c"], &["zstd", "-q", "-c"]] {
        let reason = refused(packed(command, &vec![0; 64 << 20])).await;
        assert!(reason.contains("more than the 16777216 bytes"), "{command:?}: {reason}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_with_giant_tables_or_without_an_end_is_refused() {
    let mut giant = image(&contents(1 << 20), "qcow2", &[]);
    giant[36..40].copy_from_slice(&u32::MAX.to_be_bytes());
    let reason = refused(giant).await;
    assert!(reason.contains("l1_size"), "{reason}");
    let mut far = image(&contents(1 << 20), "qcow2", &[]);
    far[40..48].copy_from_slice(&(1u64 << 40).to_be_bytes());
    let reason = refused(far).await;
    assert!(reason.contains("l1_table_offset"), "{reason}");

    let world = World::new();
    let image = image(&contents(1 << 20), "qcow2", &[]);
    let server = Server::start(move |_| endless("200 OK", &image, vec![1; 1 << 16]));
    let reason = last(world.run(http(server.url("/"))).await);
    assert!(reason.contains("and goes on"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_leads_astray_fails_in_qemu_img() {
    let mut broken = image(&contents(1 << 20), "qcow2", &[]);
    let l1 = usize::try_from(u64::from_be_bytes(broken[40..48].try_into().unwrap())).unwrap();
    broken[l1..l1 + 8].copy_from_slice(&0x8000_0000_0000_0200u64.to_be_bytes());
    let reason = refused(broken).await;
    assert!(reason.starts_with("convert http://"), "{reason}");
}

/// A shell with the limits of qemu-img.
fn limited(memory: &str, seconds: &str, script: &str) -> std::process::Output {
    std::process::Command::new(env!("CARGO_BIN_EXE_virt-importer"))
        .args(["limited", "--memory", memory, "--seconds", seconds, "--", "/bin/sh", "-c", script])
        .output()
        .unwrap()
}

#[test]
fn the_image_converter_has_limits_and_no_network() {
    use std::os::unix::process::ExitStatusExt;
    let output = limited("1000000000", "1", "while :; do :; done");
    assert_eq!(output.status.signal(), Some(24), "{output:?}");
    let output = limited(
        "1000000000",
        "9",
        "ulimit -v; ulimit -t; ulimit -c; cat /etc/passwd /dev/zero | head -c 3 | wc -c",
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout), "976562\n9\n0\n0\n", "{output:?}");
    let output = limited("20000", "9", "true");
    assert!(!output.status.success(), "{output:?}");
    let output = limited(
        "1000000000",
        "9",
        "exec perl -MSocket -e 'socket(S,PF_INET,SOCK_STREAM,0) and connect(S,pack_sockaddr_in(1,inet_aton(\"127.0.0.1\"))); print $!{EPERM} ? 1 : $!'",
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1", "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_no_images_are_refused_by_name() {
    for (body, word) in [
        (vec![], "empty"),
        (image(&contents(1 << 20), "vhdx", &[]), "vhdx format"),
        (image(&contents(1 << 20), "vpc", &[]), "vhd format"),
        (packed(&["gzip", "-c"], &packed(&["xz", "-c"], &contents(1 << 20))), "xz format"),
        (b"<!DOCTYPE html><title>Sign in</title>".to_vec(), "web page"),
        (b"\x1f\x8b\x08 and then nothing of the kind".to_vec(), "damaged"),
    ] {
        let reason = refused(body).await;
        assert!(reason.contains(word), "{word}: {reason}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_checksum_is_another_file() {
    let contents = contents(1 << 20);
    for body in [
        contents.clone(),
        image(&contents, "qcow2", &[]),
        image(&contents, "vdi", &[]),
        packed(&["gzip", "-c"], &contents),
        packed(&["xz", "-c"], &contents),
        packed(&["zstd", "-q", "-c"], &contents),
    ] {
        let (world, server) = (World::new(), server(body));
        let source = Source::Http { url: server.url("/"), headers: vec![], checksum: Some(sha256(b"other")) };
        let reason = last(world.run(source).await);
        assert!(reason.contains("has the checksum"), "{reason}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redirects_to_this_pod_or_to_metadata_or_in_circles_are_refused() {
    for to in [
        "http://169.254.169.254/latest/meta-data/",
        "http://127.0.0.2:1/",
        "http://[::1]:1/",
        "http://[::ffff:169.254.169.254]/",
        "http://0.0.0.0:1/",
    ] {
        let server = Server::start(move |_| redirect(to));
        let reason = last(World::new().run(http(server.url("/"))).await);
        assert!(reason.contains("may not be connected to: another server leads to it"), "{to}: {reason}");
    }
    let server = Server::start(|_| redirect("ftp://127.0.0.1/x"));
    let reason = last(World::new().run(http(server.url("/"))).await);
    assert!(reason.contains("neither http nor https"), "{reason}");
    let server = Server::start(|_| redirect("/again"));
    let reason = last(World::new().run(http(server.url("/"))).await);
    assert!(reason.contains("redirects more than 10 times"), "{reason}");
    let reason = last(World::new().run(http("http://169.254.169.254/".to_owned())).await);
    assert!(reason.contains("may not be connected to: it is asked for"), "{reason}");
    // The pod itself is like a server that is not there: it is tried again, and not connected to.
    let failure = World::new().run(http("http://127.0.0.3:1/".to_owned())).await.unwrap_err();
    assert!(!failure.is_final(), "{failure}");
    assert!(failure.to_string().contains("may not be connected to: it is asked for"), "{failure}");
    // The exception is for the server itself.
    let hidden = Server::start_at(Ipv4Addr::new(127, 0, 0, 5), |_| said("200 OK", &[], b"secret"));
    let to = hidden.url("/");
    let server = Server::start(move |_| redirect(&to));
    last(World::new().run(http(server.url("/"))).await);
    assert!(hidden.requests().is_empty(), "it was asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_lies_or_stalls_is_given_up() {
    let body = contents(1 << 20);
    // Fewer bytes than announced, each time.
    let short = body.clone();
    let server = Server::start(move |_| head("200 OK", &[("Content-Length", "2000000")], &short));
    let failure = World::new().run(http(server.url("/"))).await.unwrap_err();
    assert!(!failure.is_final(), "{failure}");
    assert!(server.requests().len() > 2);
    // Nothing more after a while.
    let stalled = body.clone();
    let server = Server::start(move |request| {
        let mut answer = cut(file(request, &stalled), 5000);
        answer.then = Then::Wait;
        answer
    });
    let failure = World::new().run(http(server.url("/"))).await.unwrap_err();
    assert!(!failure.is_final() && failure.to_string().contains("stalled"), "{failure}");
    // A byte now and then.
    let server = Server::start(|_| slow("200 OK", &[1; 512], vec![1], Duration::from_millis(50)));
    let failure = World::new().run(http(server.url("/"))).await.unwrap_err();
    assert!(!failure.is_final() && failure.to_string().contains("stalled"), "{failure}");
    // Another file the second time.
    let other = body.clone();
    let server = Server::start(move |request| match request.start() {
        None => cut(said("200 OK", &[("ETag", "\"1\"")], &other), 5000),
        Some(_) => said("200 OK", &[("ETag", "\"2\"")], &other),
    });
    let reason = last(World::new().run(http(server.url("/"))).await);
    assert!(reason.contains("has changed while it was read"), "{reason}");
    // Another part than requested.
    let server = Server::start(move |request| match request.start() {
        None => cut(said("200 OK", &[], &body), 5000),
        Some(_) => said("206 Partial Content", &[("Content-Range", "bytes 0-1048575/1048576")], &body),
    });
    let reason = last(World::new().run(http(server.url("/"))).await);
    assert!(reason.contains("another part"), "{reason}");
}

/// The first part of a body whose length is not known, and then the connection is closed.
fn chunk(headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut bytes = format!("{:x}\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    bytes.extend_from_slice(b"\r\n");
    head("200 OK", &[&[("Transfer-Encoding", "chunked")][..], headers].concat(), &bytes)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_may_be_another_one_by_now_is_not_taken_up_where_it_was() {
    let body = contents(1 << 20);
    // Without length, ETag, time and checksum nothing tells whether it is the same file.
    let part = body.clone();
    let server = Server::start(move |_| chunk(&[], &part));
    let failure = World::new().run(http(server.url("/"))).await.unwrap_err();
    assert!(!failure.is_final() && failure.to_string().contains("cannot be resumed"), "{failure}");
    assert_eq!(server.requests().len(), 1);
    // It has an ETag at first, and none later.
    let part = body.clone();
    let server = Server::start(move |request| match request.start() {
        None => chunk(&[("ETag", "\"1\"")], &part),
        Some(_) => chunk(&[], &part),
    });
    let failure = World::new().run(http(server.url("/"))).await.unwrap_err();
    assert!(!failure.is_final() && failure.to_string().contains("which version"), "{failure}");
    // A checksum tells in the end.
    let server = Server::start(move |request| match request.start() {
        None => chunk(&[], &body),
        Some(_) => said("200 OK", &[], &[&body[..], &[0; 512]].concat()),
    });
    let whole = sha256(&[&contents(1 << 20)[..], &[0; 512]].concat());
    let source = Source::Http { url: server.url("/"), headers: vec![], checksum: Some(whole) };
    World::new().run(source).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_has_the_time_for_its_size_however_steadily_it_goes_on() {
    let mut world = World::new();
    world.importer.web.policy.pace = u64::MAX;
    // Always more than a connection needs, and never all of it.
    world.importer.web.policy.whole = Duration::from_secs(1);
    let server = Server::start(|_| slow("200 OK", &[1; 512], vec![1; 2048], Duration::from_millis(50)));
    let reason = last(world.run(http(server.url("/"))).await);
    assert!(reason.contains("is not complete after 1 s"), "{reason}");
    assert_eq!(server.requests().len(), 1);
    // The same over many connections.
    world.importer.web.policy.whole = Duration::from_millis(30);
    let body = contents(8 << 20);
    let server = Server::start(move |request| cut(file(request, &body), 1 << 20));
    let reason = last(world.run(http(server.url("/"))).await);
    assert!(reason.contains("is not complete after"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_final_and_a_server_error_is_retried() {
    let reason = last(World::new().run(http(Server::start(not_found).url("/x"))).await);
    assert!(reason.contains("answers 404"), "{reason}");
    let server = Server::start(|_| said("503 Service Unavailable", &[], b""));
    let failure = World::new().run(http(server.url("/"))).await.unwrap_err();
    assert!(!failure.is_final(), "{failure}");
    assert_eq!(server.requests().len(), 3);
    // No server is there.
    let failure = World::new().run(http("http://127.0.0.1:1/".to_owned())).await.unwrap_err();
    assert!(!failure.is_final() && failure.to_string().contains("connect to"), "{failure}");
    let server = Server::start(|_| said("200 OK", &[("Content-Encoding", "gzip")], b"x"));
    let reason = last(World::new().run(http(server.url("/"))).await);
    assert!(reason.contains("Content-Encoding"), "{reason}");
}
