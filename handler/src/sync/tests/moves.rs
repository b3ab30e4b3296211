//! Tests of a guest that migrates between two handlers, each with a launcher that speaks the real protocol.
//! The handlers call each other over real TLS, with certificates as handlers have them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use barevirt_api::names::handler_host;
use barevirt_api::networks::MIGRATION_LINK;
use barevirt_component::certificates::{Authorities, Client, Clients, Pair, Server as TlsServer, TlsPolicy};
use barevirt_protocol::names::{MigrationChannel, MigrationStream};
use nix::sys::socket::{getsockopt, sockopt};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::*;
use crate::migration::PORT;
use crate::migration::address::Reached;
use crate::migration::arrivals::Arrivals;
use crate::migration::call::{CallError, Streams, Target};
use crate::migration::control::MAGIC;
use crate::migration::listen::{self, ListenState};
use crate::network::tests::{add_link, inside};

const TARGET: &str = "node02";

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "ours");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// The certificate of a node's handler, as virt-operator signs it.
fn pair(node: &str, by: &Authority) -> Arc<Pair> {
    let mut params = CertificateParams::new(vec![handler_host(node)]).unwrap();
    params.distinguished_name.push(DnType::CommonName, "virt-handler");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, by).unwrap();
    Arc::new(Pair::read(certificate.pem().as_bytes(), key.serialize_pem().as_bytes()).unwrap())
}

/// The certificate that a node's handler presents to others.
async fn own(node: &str, by: &Authority) -> Arc<Client> {
    barevirt_component::certificates::install_provider();
    let trusted = Arc::new(Authorities::read(by.pem().as_bytes()).unwrap());
    let policy = watch::channel(TlsPolicy::default()).1;
    let client =
        Client::follow(watch::channel(Some(pair(node, by))).1, watch::channel(Some(trusted)).1, policy);
    client.ready().await;
    client
}

/// State of a node's handler that others can call: it listens at `listens`, and its pod has the address `pod`.
async fn migration(node: &str, by: &Authority, pod: IpAddr, listens: IpAddr) -> Migration {
    let own = own(node, by).await;
    let trusted = watch::channel(Some(Arc::new(Authorities::read(by.pem().as_bytes()).unwrap()))).1;
    let policy = watch::channel(TlsPolicy::default()).1;
    let shown = watch::channel(Some(pair(node, by))).1;
    let certificates = TlsServer::follow(shown, Clients::Servers(trusted.clone()), policy, &[]);
    certificates.ready().await;
    let arrivals = Arrivals::default();
    let state = ListenState { certificates, trusted, arrivals: arrivals.clone() };
    let listener = TcpListener::bind((listens, PORT)).await.unwrap();
    tokio::spawn(listen::run(listener, state));
    Migration { arrivals, own, reached: Reached { pod: Some(pod) } }
}

/// Both nodes. The guest runs on the first one and migrates to the second.
struct Move {
    source: Node,
    target: Node,
    at_source: Vm,
    at_target: Vm,
    by: Authority,
    address: IpAddr,
}

impl Move {
    async fn start(address: [u8; 4]) -> Option<Self> {
        let address = IpAddr::V4(Ipv4Addr::from(address));
        Self::start_at(address, address).await
    }

    async fn start_at(address: IpAddr, listens: IpAddr) -> Option<Self> {
        let by = authority();
        let mut source = Node::new()?;
        source.context.migration.own = own(NODE, &by).await;
        let mut target = Node::new()?;
        target.server = Arc::clone(&source.server);
        target.context = Context {
            client: source.context.client.clone(),
            recorder: source.context.recorder.clone(),
            node: TARGET.to_owned(),
            migration: migration(TARGET, &by, address, listens).await,
            ..target.context.clone()
        };
        let at_source = source.start();
        source.reach(&at_source, "Running").await;
        {
            let mut vmi = source.server.vmi.lock().unwrap();
            vmi["status"]["activePods"][&target.fake.container.pod_uid] = json!(TARGET);
            vmi["status"]["migrationState"] =
                json!({"migrationUid": "m-1", "sourceNode": NODE, "targetNode": TARGET});
            bump(&mut vmi);
        }
        let at_target = target.start();
        Some(Self { source, target, at_source, at_target, by, address })
    }

    /// Passes the API server's state to both handlers until the condition holds.
    async fn until(&self, what: &str, is: impl Fn(&Value) -> bool) {
        let reached = async {
            loop {
                if is(&self.source.server.vmi.lock().unwrap()["status"]) {
                    return;
                }
                self.source.tell(&self.at_source);
                self.target.tell(&self.at_target);
                sleep(Duration::from_millis(20)).await;
            }
        };
        let reached = timeout(WAIT * 2, reached).await;
        assert!(reached.is_ok(), "never {what}: {}", self.source.server.vmi.lock().unwrap()["status"]);
    }
}

/// Waits until the target has an address for the guest. Only the target's handler sees changes.
async fn until_ready(source: &Node, target: &Node, at_target: &Vm) {
    let ready = async {
        while source.server.read().status.unwrap().migration_state.unwrap().target_node_address.is_none() {
            target.tell(at_target);
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(WAIT, ready).await.unwrap();
}

#[tokio::test]
async fn a_guest_changes_nodes_with_three_writes_of_both() {
    let Some(moves) = Move::start([127, 81, 0, 1]).await else { return };
    let before = moves.source.writes();
    moves.until("on the target", |status| status["nodeName"] == TARGET).await;
    let vmi = moves.source.server.vmi.lock().unwrap().clone();
    let state = &vmi["status"]["migrationState"];
    assert_eq!((&state["completed"], &state["mode"]), (&json!(true), &json!("PreCopy")));
    assert_eq!(state["targetNodeAddress"], json!(moves.address.to_string()));
    assert!(
        state["startTimestamp"].is_string()
            && state["endTimestamp"].is_string()
            && state.get("failed").is_none()
    );
    assert_eq!(vmi["metadata"]["labels"]["kubevirt.io/nodeName"], TARGET);
    // The source releases its launcher without a message.
    moves.until("let go", |_| moves.at_source.launcher.borrow().is_none()).await;
    sleep(Duration::from_millis(300)).await;
    let vmi = moves.source.server.read();
    assert_eq!(vmi.status.unwrap().phase.as_deref(), Some("Running"));
    let writes = moves.source.writes() - before;
    assert!(writes <= 3, "{writes}: {:?}", moves.source.server.patches);
    assert!(moves.at_target.launcher.borrow().is_some());
}

#[tokio::test]
async fn only_the_handler_of_the_source_is_answered_and_a_ticket_is_needed() {
    let Some(moves) = Move::start([127, 81, 0, 2]).await else { return };
    // The source's handler is away.
    let Move { source, target, at_source, at_target, by, address } = moves;
    drop(at_source);
    until_ready(&source, &target, &at_target).await;
    let called = Target { node: TARGET.to_owned(), address: address.to_string() };
    let other = authority();
    let disks = ["root".to_owned()];
    let streams = Streams { disks: &disks, ..Streams::default() };
    for (who, migration) in [(own("node03", &by).await, "m-1"), (own(NODE, &by).await, "m-2")] {
        let refused = called.begin(&who, migration, Streams::default()).await.unwrap_err();
        assert!(
            matches!(&refused, CallError::Refused { why, .. } if why.contains("no guest is expected")),
            "{refused}"
        );
    }
    // The certificates are from another authority, so neither side trusts the other.
    let refused = called.begin(own(NODE, &other).await.as_ref(), "m-1", streams).await.unwrap_err();
    assert!(matches!(refused, CallError::Io { .. }), "{refused}");
    // The target has to be the handler of that node.
    let elsewhere = Target { node: "node03".to_owned(), ..called.clone() };
    let refused = elsewhere.begin(own(NODE, &by).await.as_ref(), "m-1", streams).await.unwrap_err();
    assert!(matches!(refused, CallError::Io { .. }), "{refused}");
    let mut stranger = TcpStream::connect((address, PORT)).await.unwrap();
    stranger.write_all(&MAGIC).await.unwrap();
    stranger.write_all(&[7; 32]).await.unwrap();
    stranger.write_all(b"\x06memory").await.unwrap();
    assert!(stranger.read_u8().await.is_err());

    // The target's launcher takes no images, and is of a version without further connections for memory.
    let images = ["seed".to_owned()];
    let all = Streams { images: &images, channels: 4, compression: true, ..streams };
    let begun = called.begin(own(NODE, &by).await.as_ref(), "m-1", all).await.unwrap();
    let streams: Vec<String> = begun.connections.iter().map(|(stream, _)| stream.name()).collect();
    assert_eq!((streams, begun.key.is_some()), (vec!["disk/root".to_owned(), "memory".to_owned()], true));
    assert!(!begun.compression);

    // A connection that broke in post-copy is replaced for the same handler.
    let refused = called.rejoin(own("node03", &by).await.as_ref(), "m-1").await.unwrap_err();
    assert!(matches!(refused, CallError::Refused { .. }), "{refused}");
    let again = std::net::TcpStream::from(called.rejoin(own(NODE, &by).await.as_ref(), "m-1").await.unwrap());
    again.set_nonblocking(true).unwrap();
    let mut again = TcpStream::from_std(again).unwrap();
    // The handler would close a connection that the launcher does not take.
    assert!(timeout(Duration::from_millis(300), again.read_u8()).await.is_err());
}

/// The limits on silence of one end of a connection: unanswered milliseconds, whether the peer is asked for a sign of life, and
/// after how many seconds, how many seconds apart and how often.
fn silence(end: &std::net::TcpStream) -> (u32, bool, u32, u32, u32) {
    (
        getsockopt(end, sockopt::TcpUserTimeout).unwrap(),
        getsockopt(end, sockopt::KeepAlive).unwrap(),
        getsockopt(end, sockopt::TcpKeepIdle).unwrap(),
        getsockopt(end, sockopt::TcpKeepInterval).unwrap(),
        getsockopt(end, sockopt::TcpKeepCount).unwrap(),
    )
}

/// Both ends of the connection end by silence: ours, and the one that the target's launcher gets.
async fn ends_by_silence(target: &Node, stream: MigrationStream, ours: OwnedFd) {
    let ours = std::net::TcpStream::from(ours);
    let launcher = target.context.migration.arrivals.find("m-1").unwrap().launcher;
    let name = MigrationChannel { uid: "m-1".to_owned(), stream }.descriptor();
    let theirs = async {
        loop {
            // The launcher may still hold the connection that this one replaces.
            let taken = launcher.take(&name).await.map(std::net::TcpStream::from);
            let is_other_end = |end: &std::net::TcpStream| end.peer_addr().ok() == ours.local_addr().ok();
            if let Some(theirs) = taken.ok().filter(is_other_end) {
                return theirs;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    let theirs = timeout(WAIT, theirs).await.unwrap();
    for end in [&ours, &theirs] {
        assert_eq!(silence(end), (10_000, true, 5, 3, 2), "{name}");
    }
}

#[tokio::test]
async fn both_ends_of_each_connection_between_qemus_end_by_silence() {
    let Some(moves) = Move::start([127, 81, 0, 7]).await else { return };
    // The source's handler is away.
    let Move { source, target, at_source, at_target, by, address } = moves;
    drop(at_source);
    until_ready(&source, &target, &at_target).await;
    let called = Target { node: TARGET.to_owned(), address: address.to_string() };
    let own = own(NODE, &by).await;
    let disks = ["root".to_owned()];
    let begun =
        called.begin(own.as_ref(), "m-1", Streams { disks: &disks, ..Streams::default() }).await.unwrap();
    assert_eq!(begun.connections.len(), 2);
    for (stream, ours) in begun.connections {
        ends_by_silence(&target, stream, ours).await;
    }
    let again = called.rejoin(own.as_ref(), "m-1").await.unwrap();
    ends_by_silence(&target, MigrationStream::Memory, again).await;
}

/// Every pod can connect to the handlers' port for migrations.
#[tokio::test]
async fn silent_connections_keep_no_guest_from_coming() {
    let (by, address) = (authority(), IpAddr::from([127, 81, 0, 6]));
    let _target = migration(TARGET, &by, address, address).await;
    // More than the listener takes.
    let mut silent = Vec::new();
    for number in 0..300 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 81, 1, u8::try_from(number % 5).unwrap()], 0).into()).unwrap();
        silent.push(socket.connect((address, PORT).into()).await.unwrap());
    }
    let called = Target { node: TARGET.to_owned(), address: address.to_string() };
    let refused = called.begin(own(NODE, &by).await.as_ref(), "m-1", Streams::default()).await.unwrap_err();
    assert!(matches!(&refused, CallError::Refused { .. }), "{refused}");
}

#[tokio::test]
async fn a_migration_that_cannot_be_begun_fails_and_the_guest_stays() {
    let Some(moves) = Move::start([127, 81, 0, 4]).await else { return };
    let Move { source, target, at_source, at_target, .. } = moves;
    until_ready(&source, &target, &at_target).await;
    // The target's handler no longer expects a guest.
    drop(at_target);
    let failed = async {
        while source.server.read().status.unwrap().migration_state.unwrap().failed.is_none() {
            source.tell(&at_source);
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(WAIT * 3, failed).await.unwrap();
    let status = source.server.read().status.unwrap();
    assert_eq!((status.node_name.as_deref(), status.phase.as_deref()), (Some(NODE), Some("Running")));
    let state = status.migration_state.unwrap();
    let why = state.failure_reason.unwrap();
    assert!(state.completed == Some(true) && why.contains("virt-handler of node node02"), "{why}");
}

/// Runs a test of two handlers in a network namespace that has a link of the network for migrations, with this
/// address. They listen at all addresses, as handlers do.
fn on_a_network_for_migrations(address: Option<IpAddr>, test: impl AsyncFnOnce(Move) + Send + 'static) {
    let Some(netns) = namespace() else { return };
    let prefix = |address: IpAddr| (address, if address.is_ipv4() { 24 } else { 64 });
    add_link(&netns, MIGRATION_LINK, address.map(prefix).into_iter().collect());
    inside(&netns, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let pod = IpAddr::from([127, 81, 0, 5]);
            let Some(moves) = Move::start_at(pod, Ipv6Addr::UNSPECIFIED.into()).await else { return };
            test(moves).await;
        });
    });
}

#[test]
fn a_guest_comes_over_the_network_for_migrations_where_there_is_one() {
    for address in ["10.90.0.2", "fd00:90::2"] {
        on_a_network_for_migrations(address.parse().ok(), async move |moves| {
            moves.until("on the target", |status| status["nodeName"] == TARGET).await;
            let state = moves.source.server.vmi.lock().unwrap()["status"]["migrationState"].clone();
            assert_eq!(state["targetNodeAddress"], address, "{state}");
            assert_eq!(state["targetState"]["nodeAddress"], address, "{state}");
            assert!(state["completed"] == true && state.get("failed").is_none(), "{state}");
        });
    }
}

#[test]
fn a_network_for_migrations_that_gives_no_address_lets_no_guest_come_by_another() {
    on_a_network_for_migrations(None, async |moves| {
        let awaited = async {
            while moves.target.context.migration.arrivals.find("m-1").is_none() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(WAIT, awaited).await.unwrap();
        for _ in 0..10 {
            bump(&mut moves.source.server.vmi.lock().unwrap());
            moves.target.tell(&moves.at_target);
            sleep(Duration::from_millis(20)).await;
        }
        let status = moves.source.server.read().status.unwrap();
        assert_eq!(status.node_name.as_deref(), Some(NODE));
        assert_eq!(status.migration_state.unwrap().target_node_address, None);
    });
}
