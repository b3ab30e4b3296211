//! Uploads that break off and go on, and uploads with a checksum.

use crate::upload::{Uploads, answer};
use crate::world::{SIZE, contents, image, packed, sha256};
use barevirt_import_job::{Content, UPLOAD, UPLOAD_ASYNC, UPLOAD_CHECKSUM, UPLOAD_ID, UPLOAD_REST};
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

const ID: (&str, &str) = (UPLOAD_ID, "abc123");
/// How long an upload waits for its rest: longer than a busy machine pauses.
const WAIT: Duration = Duration::from_secs(20);

async fn patient() -> Uploads {
    Uploads::within(Content::Disk, WAIT).await
}

/// Sends the head of a request and the first bytes of its body; then the connection is cut.
async fn cut(uploads: &Uploads, path: &str, headers: &[(&str, &str)], length: usize, bytes: &[u8]) {
    let mut stream = uploads.proxy().await;
    let mut request = format!("POST {path} HTTP/1.1\r\nHost: pod\r\nContent-Length: {length}\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{request}\r\n").as_bytes()).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream.flush().await.unwrap();
}

/// Asks where the upload goes on, once the server knows of it.
async fn arrived(uploads: &Uploads, length: usize) -> usize {
    let range = format!("bytes */{length}");
    let asked = [ID, ("Content-Range", &*range)];
    let answered = async {
        loop {
            match uploads.ask_with("POST", UPLOAD_REST, &asked, b"").await {
                (202, text) => break text.parse().unwrap(),
                (503, text) if text.contains("no such upload") => {}
                other => panic!("{other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(WAIT, answered).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_breaks_off_goes_on_where_it_was() {
    let disk = contents(3 << 20);
    for (path, body) in [
        (UPLOAD, disk.clone()),
        (UPLOAD_ASYNC, disk.clone()),
        (UPLOAD, packed(&["gzip", "-c"], &disk)),
        (UPLOAD, packed(&["xz", "-c"], &image(&disk, "qcow2", &[]))),
        (UPLOAD_ASYNC, image(&disk, "vdi", &[])),
    ] {
        let uploads = patient().await;
        let length = body.len();
        let checksum = sha256(&body);
        cut(&uploads, path, &[ID, (UPLOAD_CHECKSUM, &checksum)], length, &body[..length / 3]).await;
        let mut from = arrived(&uploads, length).await;
        assert!(from <= length / 3, "{from}");
        // The rest breaks off as well.
        let range = format!("bytes {from}-{}/{length}", length - 1);
        let part = &body[from..length * 2 / 3];
        cut(&uploads, UPLOAD_REST, &[ID, ("Content-Range", &range)], length - from, part).await;
        // What was sent arrives, unless the question is faster.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let former = std::mem::replace(&mut from, arrived(&uploads, length).await);
        assert!(from > former && from <= length * 2 / 3, "{former} {from}");
        let range = format!("bytes {from}-{}/{length}", length - 1);
        let rest = [ID, ("Content-Range", &*range)];
        let done = uploads.ask_with("POST", UPLOAD_REST, &rest, &body[from..]).await;
        assert_eq!(done, (200, String::new()));
        let (world, ended) = uploads.ends().await;
        assert_eq!(ended.unwrap(), SIZE);
        world.has(&disk);
        assert_eq!(std::fs::read_dir(world.directory.path()).unwrap().count(), 1, "only the disk stays");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_another_upload_or_offset_is_refused() {
    let disk = contents(3 << 20);
    let length = disk.len();
    let uploads = patient().await;
    let (last, other) = (format!("bytes 1048576-{}/{length}", length - 1), (UPLOAD_ID, "other"));
    let part = &disk[1 << 20..];
    let ask =
        async |path: &str, headers: &[(&str, &str)]| uploads.ask_with("POST", path, headers, part).await;
    // A part is no image, whatever the path.
    for (path, headers, status, why) in [
        (UPLOAD, &[ID, ("Content-Range", &*last)][..], 400, "a part of an image is not an image"),
        (UPLOAD_REST, &[("Content-Range", &*last)], 400, "the upload has no name"),
        (UPLOAD_REST, &[ID], 400, "does not say which part"),
        (UPLOAD_REST, &[ID, ("Content-Range", &*last)], 503, "no such upload has begun"),
    ] {
        let (found, text) = ask(path, headers).await;
        assert_eq!((found, text.contains(why)), (status, true), "{why}: {found} {text}");
        uploads.has_nothing();
    }
    cut(&uploads, UPLOAD, &[ID], length, &disk[..1 << 19]).await;
    let from = arrived(&uploads, length).await;
    let wrong_length = format!("bytes {from}-{length}/{}", length + 1);
    let start = format!("bytes {from}-{}/{length}", length - 1);
    for (headers, why) in [
        ([ID, ("Content-Range", &*last)], format!("the upload goes on at byte {from}")),
        ([other, ("Content-Range", &*start)], "no such upload has begun".to_owned()),
        ([ID, ("Content-Range", &*wrong_length)], "no such upload has begun".to_owned()),
    ] {
        let (status, text) = ask(UPLOAD_REST, &headers).await;
        // The answer is lost if the connection ends while the part is still sent.
        assert!(status == 503 && text.contains(&why) || status == 0, "{why}: {status} {text}");
    }
    let rest = [ID, ("Content-Range", &*start)];
    let done = uploads.ask_with("POST", UPLOAD_REST, &rest, &disk[from..]).await;
    assert_eq!(done, (200, String::new()));
    let (world, ended) = uploads.ends().await;
    ended.unwrap();
    world.has(&disk);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_waits_gives_its_place_to_another_one() {
    let (disk, other) = (contents(2 << 20), contents(1 << 20));
    let uploads = patient().await;
    cut(&uploads, UPLOAD, &[ID], disk.len(), &disk[..1 << 20]).await;
    arrived(&uploads, disk.len()).await;
    assert_eq!(uploads.ask("POST", UPLOAD, &other).await, (200, String::new()));
    let (world, ended) = uploads.ends().await;
    ended.unwrap();
    world.has(&other);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_whose_rest_never_comes_leaves_nothing() {
    let disk = contents(2 << 20);
    let uploads = Uploads::start().await;
    cut(&uploads, UPLOAD, &[ID], disk.len(), &disk[..1 << 20]).await;
    // Each question would make it wait for longer.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let gone = async {
        while std::fs::read_dir(uploads.directory()).unwrap().count() > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_secs(10), gone).await.unwrap();
    let range = format!("bytes */{}", disk.len());
    let asked = [ID, ("Content-Range", &*range)];
    let (status, text) = uploads.ask_with("POST", UPLOAD_REST, &asked, b"").await;
    assert!(status == 503 && text.contains("broke off"), "{status} {text}");
    // A client that gave no name starts again, and one whose connection is silent gets an answer that says so.
    let mut stream = uploads.proxy().await;
    let head = format!("POST {UPLOAD} HTTP/1.1\r\nHost: pod\r\nContent-Length: 4096\r\n{}: b\r\n\r\n", ID.0);
    stream.write_all(head.as_bytes()).await.unwrap();
    let (status, text) = answer(&mut stream).await;
    assert!(status == 503 && text.contains("broke off"), "{status} {text}");
    assert_eq!(uploads.ask("POST", UPLOAD, &disk).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_with_another_checksum_is_refused() {
    let disk = contents(2 << 20);
    let uploads = Uploads::start().await;
    for body in [disk.clone(), image(&disk, "qcow2", &[]), packed(&["gzip", "-c"], &disk)] {
        let other = sha256(b"other");
        let (status, text) = uploads.ask_with("POST", UPLOAD, &[(UPLOAD_CHECKSUM, &other)], &body).await;
        assert!(status == 400 && text.contains("the upload has the checksum"), "{status} {text}");
        uploads.has_nothing();
    }
    let (status, text) = uploads.ask_with("POST", UPLOAD, &[(UPLOAD_CHECKSUM, "crc:0")], &disk).await;
    assert!(status == 400 && text.contains("cannot be used"), "{status} {text}");
    let body = image(&disk, "qcow2", &[]);
    let own = sha256(&body);
    assert_eq!(uploads.ask_with("PUT", UPLOAD_ASYNC, &[(UPLOAD_CHECKSUM, &own)], &body).await.0, 200);
    let (world, ended) = uploads.ends().await;
    ended.unwrap();
    world.has(&disk);
}
