//! Copies of a claim of another namespace: a sender and an importer, over TLS, each with its own key.

use crate::world::{World, backed, contents};
use barevirt_import_job::copy::{CERTIFICATE, PEER, RECEIVER_FILE};
use barevirt_import_job::{Network, Source};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use virt_importer::failure::Failure;
use virt_importer::keys;
use virt_importer::proxy::Proxies;
use virt_importer::send::Sender;
use virt_importer::target::Places;

struct Copy {
    world: World,
    source: Places,
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.source.source);
        for places in [&self.source, &self.world.importer.places] {
            let _ = std::fs::remove_dir_all(&places.keys);
            let _ = std::fs::remove_dir_all(&places.receiver);
        }
    }
}

impl Copy {
    fn of(bytes: &[u8]) -> Self {
        let mut world = World::new();
        // Neither the proxy nor the addresses of the settings concern a copy.
        world.importer.web.addresses.public_only = true;
        let http_proxy = Some("http://127.0.0.1:1".to_owned());
        let proxies = Network { https_proxy: http_proxy.clone(), http_proxy, ..Network::default() };
        world.importer.web.proxies = Arc::new(Proxies::of(&proxies).unwrap());
        let directory = world.directory.path();
        let source = Places { keys: directory.with_extension("sender"), ..world.importer.places.clone() };
        std::fs::create_dir_all(&source.source).unwrap();
        std::fs::write(source.source.join("disk.img"), bytes).unwrap();
        for directory in [&source.keys, &source.receiver, &world.importer.places.keys] {
            std::fs::create_dir_all(directory).unwrap();
        }
        keys::make(&source.keys, PEER).unwrap();
        let copy = Copy { world, source };
        copy.introduce(&keys::make(&copy.world.importer.places.keys, PEER).unwrap());
        copy
    }

    /// Tells the sender which importer it serves.
    fn introduce(&self, certificate: &str) {
        std::fs::write(self.source.receiver.join(RECEIVER_FILE), certificate).unwrap();
    }

    async fn serve(&self, idle_timeout: Duration) -> (SocketAddr, JoinHandle<Result<(), Failure>>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        (address, tokio::spawn(Sender::open(&self.source).unwrap().serve(listener, idle_timeout)))
    }

    async fn run(&self, address: SocketAddr) -> Result<u64, Failure> {
        let certificate = std::fs::read_to_string(self.source.keys.join(CERTIFICATE)).unwrap();
        self.run_with(address, certificate).await
    }

    async fn run_with(&self, address: SocketAddr, certificate: String) -> Result<u64, Failure> {
        let (address, port) = (address.ip().to_string(), address.port());
        self.world.run(Source::Sender { address, port, certificate }).await
    }
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_sent_byte_for_byte() {
    for bytes in [contents(3 << 20), backed("/etc/passwd"), vec![]] {
        let copy = Copy::of(&bytes);
        let (address, sender) = copy.serve(LONG).await;
        copy.run(address).await.unwrap();
        copy.world.has(&bytes);
        sender.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_with_another_key_is_refused_on_both_sides() {
    let copy = Copy::of(&contents(1 << 20));
    let (address, sender) = copy.serve(LONG).await;
    // The importer is not known yet, then another one is: the sender can still get it.
    for other in [String::new(), certificate()] {
        copy.introduce(&other);
        let failure = copy.run(address).await.unwrap_err();
        assert!(!failure.is_final(), "{failure}");
    }
    let own = keys::make(&copy.world.importer.places.keys, PEER).unwrap();
    copy.introduce(&own);
    // A server with another certificate is not the sender.
    let failure = copy.run_with(address, certificate()).await.unwrap_err();
    assert!(failure.to_string().contains("with TLS"), "{failure}");
    copy.run(address).await.unwrap();
    sender.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_importer_waits_until_its_sender_knows_it() {
    let bytes = contents(1 << 20);
    let mut copy = Copy::of(&bytes);
    copy.world.importer.web.policy.tries = 50;
    let own = keys::make(&copy.world.importer.places.keys, PEER).unwrap();
    copy.introduce("");
    let (address, sender) = copy.serve(LONG).await;
    let later = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        copy.introduce(&own);
    };
    let (copied, ()) = tokio::join!(copy.run(address), later);
    copied.unwrap();
    copy.world.has(&bytes);
    sender.abort();
}

/// The certificate of neither.
fn certificate() -> String {
    let directory = tempfile::tempdir().unwrap();
    let made = keys::make(directory.path(), PEER).unwrap();
    assert_eq!(keys::make(directory.path(), PEER).unwrap(), made, "one that is there stays");
    made
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_breaks_off_is_taken_up_and_a_disk_that_is_too_large_refused() {
    let bytes = contents(6 << 20);
    let copy = Copy::of(&bytes);
    let (sender, ended) = copy.serve(LONG).await;
    // Between them, a connection that is cut twice.
    let proxy = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = proxy.local_addr().unwrap();
    let cutting = tokio::spawn(async move {
        for most in [3 << 20, 2 << 20, u64::MAX] {
            let (client, _) = proxy.accept().await.unwrap();
            let server = tokio::net::TcpStream::connect(sender).await.unwrap();
            let ((mut from_client, mut to_client), (from_server, mut to_server)) =
                (client.into_split(), server.into_split());
            let up = tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
            let _ =
                tokio::io::copy(&mut tokio::io::AsyncReadExt::take(from_server, most), &mut to_client).await;
            up.abort();
        }
    });
    copy.run(address).await.unwrap();
    copy.world.has(&bytes);
    cutting.abort();
    ended.abort();

    let copy = Copy::of(&vec![1; (16 << 20) + 512]);
    let (address, sender) = copy.serve(LONG).await;
    let failure = copy.run(address).await.unwrap_err();
    assert!(failure.is_final() && failure.to_string().contains("is a disk of 16777728 bytes"), "{failure}");
    sender.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_without_requests_ends() {
    let copy = Copy::of(b"x");
    let (address, sender) = copy.serve(Duration::from_millis(300)).await;
    assert!(tokio::time::timeout(LONG, sender).await.unwrap().unwrap().is_ok());
    let failure = copy.run(address).await.unwrap_err();
    assert!(!failure.is_final(), "{failure}");
}
