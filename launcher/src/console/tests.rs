use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::*;

struct Served {
    guest: UnixStream,
    seats: Seats,
    _directory: tempfile::TempDir,
    log: std::path::PathBuf,
}

fn served() -> Served {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("serial0.log");
    let (guest, ours) = UnixStream::pair().unwrap();
    let (seats, taken) = mpsc::channel(4);
    tokio::spawn(serve(ours, Some(SerialLog::create(&log, 4 << 20).unwrap()), taken));
    Served { guest, seats, _directory: directory, log }
}

impl Served {
    async fn sit(&self) -> UnixStream {
        let (person, theirs) = UnixStream::pair().unwrap();
        self.seats.send(theirs).await.unwrap();
        // The client is connected after one turn of the server's loop.
        tokio::time::sleep(Duration::from_millis(20)).await;
        person
    }
}

async fn expect(stream: &mut UnixStream, text: &str) {
    let mut got = vec![0; text.len()];
    timeout(Duration::from_secs(5), stream.read_exact(&mut got)).await.unwrap().unwrap();
    assert_eq!(String::from_utf8(got).unwrap(), text);
}

async fn expect_end(stream: &mut UnixStream) {
    let mut rest = Vec::new();
    timeout(Duration::from_secs(5), stream.read_to_end(&mut rest)).await.unwrap().unwrap();
}

#[tokio::test]
async fn both_ways_and_into_the_log() {
    let mut served = served();
    served.guest.write_all(b"before anyone came\n").await.unwrap();
    while std::fs::read(&served.log).unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut person = served.sit().await;
    served.guest.write_all(b"login: ").await.unwrap();
    expect(&mut person, "login: ").await;
    person.write_all(b"root\n").await.unwrap();
    expect(&mut served.guest, "root\n").await;
    assert_eq!(std::fs::read_to_string(&served.log).unwrap(), "before anyone came\nlogin: ");
}

#[tokio::test]
async fn a_new_client_takes_the_place_of_the_old_one() {
    let mut served = served();
    let mut first = served.sit().await;
    let mut second = served.sit().await;
    expect_end(&mut first).await;
    served.guest.write_all(b"hello").await.unwrap();
    expect(&mut second, "hello").await;
    drop(second);
    tokio::time::sleep(Duration::from_millis(20)).await;
    let mut third = served.sit().await;
    served.guest.write_all(b"again").await.unwrap();
    expect(&mut third, "again").await;
}

#[tokio::test]
async fn a_client_that_does_not_read_never_blocks_the_guest() {
    let mut served = served();
    let mut person = served.sit().await;
    let line = [b'x'; 4096];
    // Far more than fits into all buffers.
    for _ in 0..1000 {
        timeout(Duration::from_secs(5), served.guest.write_all(&line)).await.unwrap().unwrap();
    }
    expect_end(&mut person).await;
    let mut next = served.sit().await;
    served.guest.write_all(b"still here").await.unwrap();
    let mut all = Vec::new();
    while !all.ends_with(b"still here") {
        let count = timeout(Duration::from_secs(5), next.read_buf(&mut all)).await.unwrap().unwrap();
        assert!(count > 0);
    }
}

#[tokio::test]
async fn a_guest_that_does_not_read_costs_no_memory_and_still_writes() {
    let mut served = served();
    let mut person = served.sit().await;
    let typing = timeout(Duration::from_millis(300), async {
        loop {
            person.write_all(&[b'y'; 4096]).await.unwrap();
        }
    });
    assert!(typing.await.is_err(), "the hub took everything");
    served.guest.write_all(b"output").await.unwrap();
    expect(&mut person, "output").await;
}

#[tokio::test]
async fn the_guests_last_output_is_delivered() {
    let mut served = served();
    let mut person = served.sit().await;
    served.guest.write_all(&[b'z'; 100_000]).await.unwrap();
    drop(served.guest);
    let mut all = Vec::new();
    timeout(Duration::from_secs(5), person.read_to_end(&mut all)).await.unwrap().unwrap();
    assert_eq!(all.len(), 100_000);
}
