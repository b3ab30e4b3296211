//! Tests of finding a launcher: another process in real control groups, on real sockets.

use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use barevirt_protocol::names::{GRPC_SOCKET, SOCKETS_VOLUME};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

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

    // The sockets are the same, but the pod's compute container is another one.
    let other = Container { id: fake.container.id.replace('0', "f"), ..fake.container.clone() };
    let error = find(&pods, &other).await.unwrap_err();
    assert!(matches!(error, LauncherError::Peer(PeerError::Stranger { .. })), "{error:?}");
}

#[tokio::test]
async fn devices_of_the_container_become_the_launchers_and_nothing_else_does() {
    let Some(fake) = FakeLauncher::start() else { return };
    let root = fake.pods.path().join(&fake.container.pod_uid).join("root");
    let (vfio, usb) = (root.join("dev/vfio"), root.join("dev/bus/usb/003"));
    std::fs::create_dir_all(&vfio).unwrap();
    std::fs::create_dir_all(usb.join("a/b")).unwrap();
    let [group, control, deep, too_deep] =
        [vfio.join("7"), vfio.join("vfio"), usb.join("007"), usb.join("a/b/008")];
    for device in [&group, &control, &deep, &too_deep] {
        // Device 1:3 is `/dev/null`. It is not opened.
        if let Err(error) = mknod(device, SFlag::S_IFCHR, Mode::S_IRUSR, makedev(1, 3)) {
            return eprintln!("skipped: cannot make a device: {error}");
        }
    }
    let (text, link) = (vfio.join("text"), vfio.join("link"));
    std::fs::write(&text, "").unwrap();
    std::os::unix::fs::symlink("../bus/usb/003/a/b/008", &link).unwrap();
    let pods = PodsDir::open(fake.pods.path()).unwrap();
    let launcher = find(&pods, &fake.container).await.unwrap();
    let owner = |path: &Path| std::fs::symlink_metadata(path).unwrap().uid();

    assert_eq!(launcher.peer().own_devices("dev/vfio", 107).unwrap(), 2);
    assert_eq!((owner(&group), owner(&control)), (107, 107));
    assert_eq!([&text, &link, &deep, &too_deep].map(|path| owner(path)), [0; 4]);
    assert_eq!(launcher.peer().own_devices("dev/vfio", 107).unwrap(), 0, "they are its own already");
    assert_eq!(launcher.peer().own_devices("dev/bus/usb", 107).unwrap(), 1);
    assert_eq!((owner(&deep), owner(&too_deep)), (107, 0));
    assert_eq!(launcher.peer().own_devices("dev/none", 107).unwrap(), 0);

    // Links that the container made are not followed.
    std::os::unix::fs::symlink("vfio", root.join("dev/elsewhere")).unwrap();
    let error = launcher.peer().own_devices("dev/elsewhere", 108).unwrap_err();
    assert!(matches!(&error, PeerError::Open { what, .. } if what == "dev/elsewhere"), "{error:?}");
    assert_eq!(owner(&group), 107);
}

#[tokio::test]
async fn a_process_outside_of_any_pod_is_not_talked_to() {
    let Some(fake) = FakeLauncher::start() else { return };
    // This test process listens where a launcher should.
    let socket = fake.pods.path().join(&fake.container.pod_uid).join(SOCKETS_VOLUME).join(GRPC_SOCKET);
    std::fs::remove_file(&socket).unwrap();
    let listener = UnixListener::bind(&socket).unwrap();
    let pods = PodsDir::open(fake.pods.path()).unwrap();
    let error = find(&pods, &fake.container).await.unwrap_err();
    assert!(matches!(error, LauncherError::Peer(PeerError::Container { .. })), "{error:?}");
    // The handler sent it no data.
    let (mut stream, _) = listener.accept().unwrap();
    assert_eq!(std::io::Read::read(&mut stream, &mut [0; 16]).unwrap(), 0);
}

#[tokio::test]
async fn a_launcher_that_has_ended_is_distinguished_from_one_that_never_existed() {
    let Some(mut fake) = FakeLauncher::start() else { return };
    let pods = PodsDir::open(fake.pods.path()).unwrap();
    let launcher = find(&pods, &fake.container).await.unwrap();
    fake.kill();
    let error = find(&pods, &fake.container).await.unwrap_err();
    assert!(matches!(error, LauncherError::Connect(ConnectError::NotListening { .. })), "{error:?}");
    // The verified process is gone, and no other process takes its place.
    assert!(launcher.peer().network_namespace().is_err());
    assert!(launcher.take("serial0").await.is_err());
    assert!(launcher.qmp(b"{}".to_vec(), Duration::from_secs(1)).await.is_err());
}

#[tokio::test]
async fn another_process_with_the_id_of_a_launcher_is_not_taken_for_it() {
    let Some(mut fake) = FakeLauncher::start() else { return };
    let pods = PodsDir::open(fake.pods.path()).unwrap();
    let launcher = find(&pods, &fake.container).await.unwrap();
    let stream = pods.sockets(&fake.container.pod_uid).unwrap().connect_grpc(CONNECT).await.unwrap();
    let id = fake.process_id();
    fake.kill();
    let Some(mut other) = process_with_id(id) else {
        return eprintln!("skipped: no process got that id");
    };
    fake.take_in(other.id());
    let found = Peer::verify(&stream, &fake.container);
    let acted = launcher.peer().act("look", |_| Ok(()));
    let opened = launcher.peer().network_namespace();
    // Only the process id leads to the other process.
    let by_number = Peer::verify_process(i32::try_from(id).unwrap(), &fake.container);
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(matches!(found, Err(PeerError::Gone { .. })), "{found:?}");
    assert!(matches!(acted, Err(PeerError::Gone { .. })), "{acted:?}");
    assert!(matches!(opened, Err(PeerError::Open { .. })), "{opened:?}");
    assert!(by_number.is_ok(), "{by_number:?}");
}

#[tokio::test]
async fn the_network_of_the_node_is_never_taken_for_that_of_a_pod() {
    let Some(fake) = FakeLauncher::start() else { return };
    // A process of the container, but in the network of these tests.
    let mut stranger = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    fake.take_in(stranger.id());
    let pid = i32::try_from(stranger.id()).unwrap();
    let opened = Peer::verify_process(pid, &fake.container).unwrap().network_namespace();
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    assert!(matches!(opened, Err(PeerError::NodeNetwork { .. })), "{opened:?}");
    // The launcher itself is in another one.
    let pid = i32::try_from(fake.process_id()).unwrap();
    Peer::verify_process(pid, &fake.container).unwrap().network_namespace().unwrap();
}

/// A process that gets an id that has just become free.
fn process_with_id(id: u32) -> Option<std::process::Child> {
    for _ in 0..50 {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (id - 1).to_string()).ok()?;
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        if child.id() == id {
            return Some(child);
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    None
}
