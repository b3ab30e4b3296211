//! Finding a launcher: another process in real control groups, on real sockets.

use std::os::unix::net::UnixListener;

use barevirt_protocol::names::{GRPC_SOCKET, SOCKETS_VOLUME};

use super::peer::PeerError;
use super::pods_dir::PodsDir;
use super::*;
use crate::fake_launcher::FakeLauncher;

#[tokio::test]
async fn a_launcher_is_found_in_its_container_and_nowhere_else() {
    let Some(fake) = FakeLauncher::start() else { return };
    let pods = PodsDir::open(fake.pods.path()).unwrap();
    let launcher = find(&pods, &fake.container).await.unwrap();
    assert_eq!(launcher.container(), &fake.container);
    assert_eq!(launcher.peer().resolv_conf().unwrap(), "nameserver 10.96.0.10\nsearch cluster.local\n");

    // The same sockets, but the pod's compute container is another one.
    let other = Container { id: fake.container.id.replace('0', "f"), ..fake.container.clone() };
    let error = find(&pods, &other).await.unwrap_err();
    assert!(matches!(error, LauncherError::Peer(PeerError::Stranger { .. })), "{error:?}");
}

#[tokio::test]
async fn a_process_outside_of_any_pod_is_not_talked_to() {
    let Some(fake) = FakeLauncher::start() else { return };
    // This very process listens where a launcher should.
    let socket = fake.pods.path().join(&fake.container.pod_uid).join(SOCKETS_VOLUME).join(GRPC_SOCKET);
    std::fs::remove_file(&socket).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    let pods = PodsDir::open(fake.pods.path()).unwrap();
    let error = find(&pods, &fake.container).await.unwrap_err();
    assert!(matches!(error, LauncherError::Peer(PeerError::Container { .. })), "{error:?}");
    // Not a byte was sent to it.
    let (mut stream, _) = listener.accept().unwrap();
    assert_eq!(std::io::Read::read(&mut stream, &mut [0; 16]).unwrap(), 0);
}

#[tokio::test]
async fn a_launcher_that_is_gone_is_told_from_one_that_never_was() {
    let Some(mut fake) = FakeLauncher::start() else { return };
    let pods = PodsDir::open(fake.pods.path()).unwrap();
    let launcher = find(&pods, &fake.container).await.unwrap();
    fake.kill();
    let error = find(&pods, &fake.container).await.unwrap_err();
    assert!(matches!(error, LauncherError::Connect(ConnectError::NotListening { .. })), "{error:?}");
    // What was verified is not somebody else now.
    assert!(launcher.peer().network_namespace().is_err());
    assert!(launcher.take("serial0").await.is_err());
    assert!(launcher.qmp(b"{}".to_vec(), Duration::from_secs(1)).await.is_err());
}
