//! Digests of sources, without downloading them.

use crate::server::{Server, head, said};
use crate::world::{World, http, redirect, sha256};
use barevirt_import_job::{Source, is_digest};

fn registry(server: &Server, reference: &str) -> Source {
    let url = format!("docker://{}/images/disk{reference}", server.address);
    Source::Registry { url, architecture: Some("arm64".to_owned()), insecure: true }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_of_a_registry_is_identified_by_its_manifest() {
    let image = br#"{"schemaVersion":2,"layers":[]}"#;
    let index = format!(
        r#"{{"schemaVersion":2,"manifests":[{{"digest":"{}","size":31,"platform":{{"architecture":"arm64","os":"linux"}}}}]}}"#,
        sha256(image)
    );
    let (first, by_digest) = (index.clone(), format!("/v2/images/disk/manifests/{}", sha256(image)));
    let server = Server::start(move |request| match request.path.as_str() {
        "/v2/images/disk/manifests/1" => said("200 OK", &[], first.as_bytes()),
        path if path == by_digest => said("200 OK", &[], image),
        _ => said("404 Not Found", &[], b"{}"),
    });
    let world = World::new();
    let digest = world.importer.look(&registry(&server, ":1")).await.unwrap();
    assert_eq!(digest, sha256(index.as_bytes()), "of the index");
    let pinned = format!("@{}", sha256(image));
    assert_eq!(world.importer.look(&registry(&server, &pinned)).await.unwrap(), sha256(image));
    assert_eq!(server.requests().len(), 2, "no layer, and no other manifest");
    let failure = world.importer.look(&registry(&server, ":2")).await.unwrap_err();
    assert!(failure.is_final() && failure.to_string().contains("answers 404"), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_no_image_has_no_digest() {
    let server = Server::start(|_| said("200 OK", &[], b"<html>welcome</html>"));
    assert!(World::new().importer.look(&registry(&server, ":1")).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_a_web_server_is_identified_by_etag_or_last_modified() {
    let answers = [
        ("ETag", "\"1\"", "5"),
        ("ETag", "\"2\"", "5"),
        ("Last-Modified", "Wed, 25 Nov 2026 14:13:39 GMT", "5"),
        ("Last-Modified", "Wed, 25 Nov 2026 14:13:39 GMT", "6"),
    ];
    let server = Server::start(move |request| {
        let (name, value, length) = answers[request.path[1..].parse::<usize>().unwrap()];
        // Without a body: it is not waited for.
        head("200 OK", &[(name, value), ("Content-Length", length)], b"")
    });
    let world = World::new();
    let mut seen = vec![];
    for at in 0..answers.len() {
        let digest = world.importer.look(&http(server.url(&format!("/{at}")))).await.unwrap();
        assert!(is_digest(&digest) && !seen.contains(&digest), "{at}: {digest}");
        assert_eq!(world.importer.look(&http(server.url(&format!("/{at}")))).await.unwrap(), digest);
        seen.push(digest);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_without_etag_or_last_modified_is_identified_by_its_checksum() {
    let server = Server::start(|_| said("200 OK", &[], b"image"));
    let world = World::new();
    let failure = world.importer.look(&http(server.url("/"))).await.unwrap_err();
    assert!(
        failure.is_final() && failure.to_string().contains("neither ETag nor Last-Modified"),
        "{failure}"
    );
    let with = |checksum: &str| Source::Http {
        url: server.url("/"),
        headers: vec![],
        checksum: Some(checksum.to_owned()),
    };
    let one = world.importer.look(&with("md5:1")).await.unwrap();
    assert_ne!(world.importer.look(&with("md5:2")).await.unwrap(), one);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_of_a_source_connects_only_where_an_import_may() {
    let mut world = World::new();
    // As in a cluster: not even this machine is excepted.
    world.importer.web.addresses.excepted.clear();
    let other = Server::start(|_| said("200 OK", &[("ETag", "\"1\"")], b""));
    let failure = world.importer.look(&http(other.url("/"))).await.unwrap_err();
    assert!(failure.to_string().contains("may not be connected to"), "{failure}");
    assert!(other.requests().is_empty());
    let world = World::new();
    let server = Server::start(|_| redirect("http://169.254.169.254/latest/meta-data"));
    let failure = world.importer.look(&http(server.url("/"))).await.unwrap_err();
    assert!(failure.to_string().contains("may not be connected to"), "{failure}");
}
