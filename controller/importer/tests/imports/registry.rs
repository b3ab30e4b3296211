//! Images from registries.

use crate::server::{Answer, Request, Server, file, said};
use crate::world::{World, contents, cut, image, packed, redirect, sha256};
use barevirt_import_job::Source;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

fn source(server: &Server, architecture: Option<&str>) -> Source {
    Source::Registry {
        url: format!("docker://{}/images/disk:1", server.address),
        architecture: architecture.map(str::to_owned),
        insecure: true,
    }
}

/// An archive with these files.
fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(vec![]);
    for (path, contents) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(contents.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, path, *contents).unwrap();
    }
    builder.into_inner().unwrap()
}

/// The contents of a registry: manifests by tag or digest, and blobs by digest.
#[derive(Clone, Default)]
struct Store(BTreeMap<String, Vec<u8>>);

impl Store {
    fn blob(&mut self, bytes: Vec<u8>) -> Value {
        let digest = sha256(&bytes);
        let size = bytes.len();
        self.0.insert(format!("/v2/images/disk/blobs/{digest}"), bytes);
        json!({ "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest, "size": size })
    }

    fn manifest(&mut self, name: Option<&str>, manifest: &Value) -> String {
        let bytes = manifest.to_string().into_bytes();
        let digest = sha256(&bytes);
        self.0.insert(format!("/v2/images/disk/manifests/{}", name.unwrap_or(&digest)), bytes);
        digest
    }

    fn answer(&self, request: &Request) -> Answer {
        match self.0.get(&request.path) {
            Some(bytes) => file(request, bytes),
            None => said("404 Not Found", &[], b"{}"),
        }
    }
}

/// A registry with one image of these layers, the lowest first.
fn image_of(layers: Vec<Vec<u8>>) -> Store {
    let mut store = Store::default();
    let layers: Vec<Value> = layers.into_iter().map(|layer| store.blob(layer)).collect();
    store.manifest(Some("1"), &json!({ "schemaVersion": 2, "layers": layers }));
    store
}

/// The answer of a registry that wants a token.
fn unauthorized() -> Answer {
    let challenge = r#"Bearer realm="/token",service="tests",scope="repository:x:pull""#;
    said("401 Unauthorized", &[("WWW-Authenticate", challenge)], b"{}")
}

fn serve(store: Store) -> Server {
    Server::start(move |request| store.answer(request))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_disk_of_a_container_image_becomes_the_disk() {
    let contents = contents(2 << 20);
    let qcow2 = image(&contents, "qcow2", &[]);
    for (name, disk, pack) in [
        ("raw in gzip", contents.clone(), Some(&["gzip", "-c"][..])),
        ("qcow2 in zstd", qcow2.clone(), Some(&["zstd", "-q", "-c"])),
        ("qcow2 as it is", qcow2.clone(), None),
        ("packed in packed", packed(&["xz", "-c"], &qcow2), Some(&["gzip", "-c"])),
    ] {
        let layer = archive(&[("etc/x", b"x"), ("disk/guest.img", &disk), ("usr/y", &[1; 3000])]);
        let layer = pack.map_or(layer.clone(), |pack| packed(pack, &layer));
        // The lowest layer is not even requested.
        let server = serve(image_of(vec![b"never read".to_vec(), layer, archive(&[("run/z", b"z")])]));
        let world = World::new();
        world.run(source(&server, None)).await.unwrap_or_else(|failure| panic!("{name}: {failure}"));
        world.has(&contents);
        assert_eq!(server.requests().len(), 3, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_an_upper_layer_deletes_is_not_imported() {
    let (old, new) = ([1; 4096], [2; 4096]);
    let lower = archive(&[("disk/old.img", &old)]);
    for marker in ["disk/.wh.old.img", "disk/.wh..wh..opq", ".wh.disk"] {
        let server = serve(image_of(vec![lower.clone(), archive(&[(marker, b"")])]));
        let failure = World::new().run(source(&server, None)).await.unwrap_err();
        let is_told = failure.to_string().contains("no layer has a file in /disk");
        assert!(failure.is_final() && is_told, "{marker}: {failure}");
    }
    // Another one counts, in a layer between.
    let middle = archive(&[("disk/new.img", &new), ("disk/old.img", &old)]);
    let server = serve(image_of(vec![lower, middle, archive(&[("disk/.wh.old.img", b"")])]));
    let world = World::new();
    world.run(source(&server, None)).await.unwrap();
    world.has(&new);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_asked_for_and_an_architecture_chosen() {
    let contents = contents(1 << 20);
    let mut store = Store::default();
    let layer = store.blob(archive(&[("./disk/guest.img", &contents)]));
    let arm = store.manifest(None, &json!({ "layers": [layer] }));
    let other = store.manifest(None, &json!({ "layers": [] }));
    let entry = |digest: &str, architecture: &str| json!({ "digest": digest, "size": 1, "platform": { "os": "linux", "architecture": architecture } });
    store.manifest(Some("1"), &json!({ "manifests": [entry(&other, "s390x"), entry(&arm, "arm64")] }));
    let server = Server::start(move |request| {
        let authorization = request.headers.get("authorization").map(String::as_str);
        if request.path.starts_with("/token?") {
            assert_eq!(request.path, "/token?service=tests&scope=repository:images/disk:pull");
            assert_eq!(authorization, Some("Basic bWU6cGFzcw=="));
            return said("200 OK", &[], br#"{"token":"t0ken"}"#);
        }
        if authorization != Some("Bearer t0ken") {
            return unauthorized();
        }
        store.answer(request)
    });
    let mut world = World::new();
    world.importer.login = Some(("me".to_owned(), "pass".to_owned()));
    world.run(source(&server, Some("arm64"))).await.unwrap();
    world.has(&contents);
    let reason = world.importer.run(&job(source(&server, Some("riscv64")))).await.unwrap_err().to_string();
    assert!(reason.contains("only for linux/s390x, linux/arm64"), "{reason}");
    world.importer.login = None;
    let server = Server::start(|_| {
        said("401 Unauthorized", &[("WWW-Authenticate", "Bearer realm=\"http://169.254.169.254/\"")], b"")
    });
    let reason = world.importer.run(&job(source(&server, None))).await.unwrap_err().to_string();
    assert!(reason.contains("may not be connected to"), "{reason}");
}

fn job(source: Source) -> barevirt_import_job::Job {
    barevirt_import_job::Job {
        source,
        content: barevirt_import_job::Content::Disk,
        size: 1 << 20,
        overhead: 60,
        preallocation: false,
        owner: String::new(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_that_breaks_off_is_taken_up_and_one_that_was_exchanged_is_refused() {
    let contents = contents(3 << 20);
    let store = image_of(vec![archive(&[("disk/guest.img", &contents)])]);
    let (broken, exchanged) = (AtomicBool::new(false), Arc::new(AtomicBool::new(false)));
    let exchange = exchanged.clone();
    let server = Server::start(move |request| {
        let mut answer = store.answer(request);
        if request.path.contains("/blobs/") {
            if exchange.load(Ordering::Relaxed) {
                let middle = answer.bytes.len() / 2;
                answer.bytes[middle] ^= 1;
            } else if !broken.swap(true, Ordering::Relaxed) {
                return cut(answer, 1 << 20);
            }
        }
        answer
    });
    let world = World::new();
    world.run(source(&server, None)).await.unwrap();
    world.has(&contents);
    assert!(server.requests().iter().any(|request| request.start() == Some(1 << 20)));
    exchanged.store(true, Ordering::Relaxed);
    let failure = World::new().run(source(&server, None)).await.unwrap_err();
    assert!(failure.is_final() && failure.to_string().contains("has the checksum"), "{failure}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_expires_during_the_import_is_replaced() {
    let contents = contents(3 << 20);
    let store = image_of(vec![archive(&[("disk/guest.img", &contents)]), archive(&[("run/z", b"z")])]);
    let (given, expired) = (AtomicUsize::new(0), Mutex::new(BTreeSet::<String>::new()));
    let server = Server::start(move |request| {
        if request.path.starts_with("/token?") {
            let token = json!({ "token": given.fetch_add(1, Ordering::Relaxed).to_string() });
            return said("200 OK", &[], token.to_string().as_bytes());
        }
        let mut expired = expired.lock().unwrap();
        let token = request.headers.get("authorization").filter(|token| !expired.contains(*token));
        let Some(token) = token else { return unauthorized() };
        if !request.path.contains("/blobs/") {
            return store.answer(request);
        }
        // It is good for one request of a layer, and each of them breaks off.
        expired.insert(token.clone());
        cut(store.answer(request), 1 << 20)
    });
    let world = World::new();
    world.run(source(&server, None)).await.unwrap();
    world.has(&contents);
    let requests = server.requests();
    let tokens = requests.iter().filter(|request| request.path.starts_with("/token?")).count();
    assert_eq!(tokens, 5, "one for the upper layer, four for the parts of the lower one");
    assert!(requests.iter().any(|request| request.start() == Some(3 << 20)), "{requests:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_that_no_token_opens_is_refused_after_one_token() {
    let store = image_of(vec![archive(&[("disk/guest.img", &[1; 512])])]);
    let server = Server::start(move |request| match request.path.as_str() {
        path if path.starts_with("/token?") => said("200 OK", &[], br#"{"token":"t0ken"}"#),
        path if path.contains("/blobs/") => unauthorized(),
        _ => store.answer(request),
    });
    let failure = World::new().run(source(&server, None)).await.unwrap_err();
    assert!(failure.is_final() && failure.to_string().contains("answers 401"), "{failure}");
    assert_eq!(server.requests().len(), 4, "the manifest, the layer, a token, the layer again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_a_registry_redirects_to_gets_no_credentials() {
    let other = Server::start(|_| unauthorized());
    let to = other.url("/elsewhere");
    let server = Server::start(move |_| redirect(&to));
    let mut world = World::new();
    world.importer.login = Some(("me".to_owned(), "pass".to_owned()));
    let failure = world.run(source(&server, None)).await.unwrap_err();
    assert!(failure.is_final() && failure.to_string().contains("answers 401"), "{failure}");
    let [request] = other.requests().try_into().unwrap();
    assert!(!request.headers.contains_key("authorization"), "{request:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_without_one_plain_disk_is_refused() {
    let mut link = tar::Builder::new(vec![]);
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    link.append_link(&mut header, "disk/guest.img", "/etc/passwd").unwrap();
    for (layer, word) in [
        (archive(&[("etc/x", b"x")]), "no layer has a file in /disk"),
        (archive(&[("disk/a", &[1; 512]), ("disk/b", &[1; 512])]), "several files in /disk (a, b)"),
        (link.into_inner().unwrap(), "/disk/guest.img is not a regular file"),
        (packed(&["gzip", "-c"], &[7; 5000]), "not an archive"),
        (archive(&[("disk/a", &crate::world::backed("/etc/passwd"))]), "backing file"),
        (archive(&[("disk/a", &vec![1; (16 << 20) + 1])]), "is a disk of 16777217 bytes"),
    ] {
        let server = serve(image_of(vec![layer]));
        let failure = World::new().run(source(&server, None)).await.unwrap_err();
        assert!(failure.is_final() && failure.to_string().contains(word), "{word}: {failure}");
    }
    let server = serve(Store::default());
    let failure = World::new().run(source(&server, None)).await.unwrap_err();
    assert!(failure.is_final() && failure.to_string().contains("answers 404"), "{failure}");
    // Without TLS only where that was allowed.
    let server = serve(Store::default());
    let secure = Source::Registry {
        url: format!("docker://{}/images/disk:1", server.address),
        architecture: None,
        insecure: false,
    };
    let failure = World::new().run(secure).await.unwrap_err();
    assert!(failure.to_string().contains("TLS"), "{failure}");
}
