//! Objects of S3, from a server that verifies signatures as in the documentation of AWS.

use crate::server::{Answer, Request, Server, file, said};
use crate::world::{World, contents, cut, image, packed, redirect};
use barevirt_import_job::Source;
use ring::hmac::{HMAC_SHA256, Key, sign};
use sha2::{Digest, Sha256};

const ACCESS: &str = "AKIAEXAMPLE";
const SECRET: &str = "a/secret+key";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Why a request is not signed with the keys; `None` if it is.
fn problem(request: &Request) -> Option<String> {
    let header = |name: &str| request.headers.get(name).cloned();
    let Some(authorization) = header("authorization") else { return Some("AccessDenied".to_owned()) };
    let rest = authorization.strip_prefix("AWS4-HMAC-SHA256 ").unwrap();
    let part = |name: &str| {
        let found = rest.split(',').find_map(|part| part.trim().strip_prefix(&format!("{name}=")));
        found.unwrap().to_owned()
    };
    let credential = part("Credential");
    let (access, scope) = credential.split_once('/').unwrap();
    if access != ACCESS {
        return Some("InvalidAccessKeyId".to_owned());
    }
    let names = part("SignedHeaders");
    for needed in ["host", "x-amz-date", "x-amz-content-sha256"] {
        assert!(names.split(';').any(|name| name == needed), "{names}");
    }
    let lines: String =
        names.split(';').map(|name| format!("{name}:{}\n", header(name).unwrap().trim())).collect();
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    let body = header("x-amz-content-sha256").unwrap();
    assert_eq!(body, hex(&Sha256::digest(b"")));
    let canonical = ["GET", path, query, &lines, &names, &body].join("\n");
    let date = header("x-amz-date").unwrap();
    let text = ["AWS4-HMAC-SHA256", &date, scope, &hex(&Sha256::digest(canonical))].join("\n");
    assert!(date.starts_with(scope.split('/').next().unwrap()), "{date} {scope}");
    let mac = |key: &[u8], text: &str| sign(&Key::new(HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec();
    let start = format!("AWS4{SECRET}").into_bytes();
    let key = scope.split('/').fold(start, |key, part| mac(&key, part));
    (hex(&mac(&key, &text)) != part("Signature")).then(|| "SignatureDoesNotMatch".to_owned())
}

fn answer(request: &Request, body: &[u8]) -> Answer {
    match problem(request) {
        Some(code) => said("403 Forbidden", &[], format!("<Error><Code>{code}</Code></Error>").as_bytes()),
        None => file(request, body),
    }
}

fn world(access: &str, secret: &str) -> World {
    let mut world = World::new();
    world.importer.login = Some((access.to_owned(), secret.to_owned()));
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn an_s3_object_is_read_with_its_keys() {
    let contents = contents(3 << 20);
    for body in [
        contents.clone(),
        image(&contents, "qcow2", &[]),
        image(&contents, "vdi", &[]),
        packed(&["xz", "-c"], &contents),
        packed(&["zstd", "-q", "-c"], &contents),
    ] {
        let server = Server::start(move |request| answer(request, &body));
        let url = server.url("/bucket/golden images/a+b(1).img").replace(' ', "%20");
        // Keys often end with a newline.
        let right = world(ACCESS, &format!("{SECRET}\n"));
        right.run(Source::S3 { url: url.clone() }).await.unwrap();
        right.has(&contents);
        assert_eq!(server.requests()[0].path, "/bucket/golden%20images/a%2Bb%281%29.img");
        for (access, secret) in [(ACCESS, "another"), ("another", SECRET)] {
            let failure = world(access, secret).run(Source::S3 { url: url.clone() }).await.unwrap_err();
            assert!(failure.is_final() && failure.to_string().contains("answers 403"), "{failure}");
        }
        let failure = World::new().run(Source::S3 { url }).await.unwrap_err();
        assert!(failure.is_final(), "{failure}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_public_s3_object_needs_no_keys() {
    let contents = contents(1 << 20);
    let body = contents.clone();
    let server = Server::start(move |request| {
        assert!(!request.headers.contains_key("authorization"));
        file(request, &body)
    });
    let world = World::new();
    world.run(Source::S3 { url: server.url("/bucket/a.img") }).await.unwrap();
    world.has(&contents);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_part_of_a_transfer_has_its_own_signature() {
    let contents = contents(5 << 20);
    let body = contents.clone();
    let server = Server::start(move |request| cut(answer(request, &body), 2 << 20));
    let world = world(ACCESS, SECRET);
    world.run(Source::S3 { url: server.url("/bucket/a.img") }).await.unwrap();
    world.has(&contents);
    let starts: Vec<_> = server.requests().iter().map(|request| request.start().unwrap_or(0)).collect();
    assert_eq!(starts, [0, 2 << 20, 4 << 20]);
    let signatures: std::collections::BTreeSet<_> =
        server.requests().iter().map(|request| request.headers["authorization"].clone()).collect();
    assert_eq!(signatures.len(), 3, "the range is signed, too");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_signed_for_another_server() {
    let contents = contents(1 << 20);
    let body = contents.clone();
    let other = Server::start(move |request| file(request, &body));
    let to = other.url("/elsewhere");
    let server = Server::start(move |_| redirect(&to));
    let world = world(ACCESS, SECRET);
    world.run(Source::S3 { url: server.url("/bucket/a.img") }).await.unwrap();
    world.has(&contents);
    assert!(server.requests()[0].headers.contains_key("authorization"));
    let headers = &other.requests()[0].headers;
    assert!(!headers.keys().any(|name| name == "authorization" || name.starts_with("x-amz-")), "{headers:?}");
}
