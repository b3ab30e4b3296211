use std::fs::OpenOptions;
use std::os::fd::AsFd;

use barevirt_protocol::directory::SocketsDirectory;
use nix::fcntl;
use nix::sys::stat::Mode;

use super::super::header::Format;
use super::super::qcow2;
use super::*;

/// The bytes that `container-disk` sends; its own tests have the same bytes.
const DISK: &[u8] = br#"{"volume":"root","path":"/disk/guest.qcow2","size":10485760}"#;
const ERROR: &[u8] = br#"{"volume":"data","error":"image has no disk: directory /disk is empty"}"#;

struct Launcher {
    directory: tempfile::TempDir,
    disks: ContainerDisks,
}

impl Launcher {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        // The name that SocketsDirectory connects to; a launcher uses SOCKET.
        let disks = ContainerDisks::listen(&directory.path().join("launcher-fds")).unwrap();
        Self { directory, disks }
    }

    async fn connect(&self) -> PacketSocket {
        let sockets = SocketsDirectory::open(self.directory.path()).unwrap();
        sockets.connect_descriptors(Duration::from_secs(5)).await.unwrap()
    }

    async fn collect(&self, volumes: &[&str], within: Duration) -> Collected {
        let volumes = volumes.iter().map(|volume| (*volume).to_owned()).collect();
        self.disks.collect(&volumes, nix::unistd::geteuid().as_raw(), within).await
    }

    fn image(&self, name: &str) -> File {
        let path = self.directory.path().join(name);
        drop(qcow2::create(&path, 10 << 20).unwrap());
        File::open(path).unwrap()
    }
}

const LONG: Duration = Duration::from_secs(20);

#[tokio::test]
async fn disks_and_errors_are_collected_by_volume() {
    let launcher = Launcher::new();
    let image = launcher.image("image");
    let (one, other) = (launcher.connect().await, launcher.connect().await);
    one.send(DISK, &[image.as_fd()]).await.unwrap();
    other.send(ERROR, &[]).await.unwrap();
    let mut collected = launcher.collect(&["root", "data"], LONG).await;
    let disk = collected.remove("root").unwrap().unwrap();
    assert_eq!((disk.volume.as_str(), disk.path.as_str()), ("root", "/disk/guest.qcow2"));
    assert_eq!(disk.image, Image { format: Format::Qcow2, virtual_size: 10 << 20 });
    let error = collected.remove("data").unwrap().unwrap_err();
    assert_eq!(error.to_string(), "volume data: image has no disk: directory /disk is empty");

    // The container with an error may end at once, the other one after the disk is dropped.
    assert!(other.receive().await.unwrap().is_none());
    assert!(timeout(Duration::from_millis(50), one.receive()).await.is_err());
    drop(disk);
    assert!(timeout(LONG, one.receive()).await.unwrap().unwrap().is_none());
}

#[tokio::test]
async fn a_container_that_does_not_come_is_named() {
    let launcher = Launcher::new();
    let started = Instant::now();
    let collected = launcher.collect(&["root"], Duration::from_millis(200)).await;
    assert!(started.elapsed() < Duration::from_secs(5));
    let text = collected["root"].as_ref().unwrap_err().to_string();
    assert!(text.starts_with("volume root: its container did not hand over a disk"), "{text}");
    assert!(launcher.collect(&[], LONG).await.is_empty());
}

#[tokio::test]
async fn invalid_unexpected_and_duplicate_messages_do_not_stop_the_disk() {
    let launcher = Launcher::new();
    let image = launcher.image("image");
    let silent = launcher.connect().await;
    let garbage = launcher.connect().await;
    garbage.send(b"garbage", &[image.as_fd()]).await.unwrap();
    let unexpected = launcher.connect().await;
    unexpected.send(br#"{"volume":"other","path":"/x","size":1}"#, &[image.as_fd()]).await.unwrap();
    let good = launcher.connect().await;
    good.send(DISK, &[image.as_fd()]).await.unwrap();
    let double = launcher.connect().await;
    double.send(br#"{"volume":"root","error":"an impostor"}"#, &[]).await.unwrap();
    let collected = launcher.collect(&["root"], LONG).await;
    assert!(collected["root"].is_ok(), "{collected:?}");
    drop(silent);
}

#[tokio::test]
async fn other_users_are_turned_away() {
    let launcher = Launcher::new();
    let image = launcher.image("image");
    launcher.connect().await.send(DISK, &[image.as_fd()]).await.unwrap();
    let stranger = nix::unistd::geteuid().as_raw() + 1;
    let collected = launcher
        .disks
        .collect(&BTreeSet::from(["root".to_owned()]), stranger, Duration::from_millis(300))
        .await;
    assert!(matches!(collected["root"], Err(ContainerDiskError::Deadline { .. })));
}

#[tokio::test]
async fn only_a_regular_file_open_for_reading_is_a_disk() {
    let launcher = Launcher::new();
    let image = launcher.image("image");
    let path = launcher.directory.path().join("image");
    let writable = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    // With musl, std's OpenOptions drop O_PATH.
    let opaque = File::from(fcntl::open(&path, OFlag::O_PATH, Mode::empty()).unwrap());
    let directory = File::open(launcher.directory.path()).unwrap();
    let device = File::open("/dev/zero").unwrap();
    for bad in [vec![], vec![&image, &image], vec![&writable], vec![&opaque], vec![&directory], vec![&device]]
    {
        let connection = launcher.connect().await;
        let descriptors: Vec<_> = bad.iter().map(|file| file.as_fd()).collect();
        connection.send(DISK, &descriptors).await.unwrap();
        let collected = launcher.collect(&["root"], LONG).await;
        let text = collected["root"].as_ref().unwrap_err().to_string();
        assert_eq!(text, "volume root: disk /disk/guest.qcow2 is not a regular file open for reading only");
    }
}

#[tokio::test]
async fn a_bad_image_is_refused_by_volume_and_path() {
    let launcher = Launcher::new();
    let path = launcher.directory.path().join("bad");
    std::fs::write(&path, b"KDMV and more").unwrap();
    let connection = launcher.connect().await;
    connection.send(DISK, &[File::open(&path).unwrap().as_fd()]).await.unwrap();
    let collected = launcher.collect(&["root"], LONG).await;
    assert_eq!(
        collected["root"].as_ref().unwrap_err().to_string(),
        "volume root: disk /disk/guest.qcow2: image is in vmdk format: only qcow2 and raw are supported"
    );
}

#[test]
fn a_mounted_image_is_opened_as_its_container_would() {
    let root = tempfile::tempdir().unwrap();
    let error = open("root", root.path(), None).unwrap_err().to_string();
    assert_eq!(error, "volume root: image has no disk: directory /disk does not exist");
    std::fs::create_dir(root.path().join("disk")).unwrap();
    drop(qcow2::create(&root.path().join("disk/guest.qcow2"), 10 << 20).unwrap());
    for path in [None, Some(Path::new("/disk/guest.qcow2"))] {
        let disk = open("root", root.path(), path).unwrap();
        assert_eq!(disk.image, Image { format: Format::Qcow2, virtual_size: 10 << 20 });
        assert!(disk.connection.is_none());
    }
    // A path never leads outside of the image.
    std::os::unix::fs::symlink("/etc/passwd", root.path().join("disk/link")).unwrap();
    for path in ["/disk/link", "../etc/passwd", "/etc/passwd"] {
        open("root", root.path(), Some(Path::new(path))).unwrap_err();
    }
}
