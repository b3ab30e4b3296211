mod made_up;

use std::fs::File;
use std::io::{Read, Write};

use super::*;

fn memory(text: &str) -> OwnedFd {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    file.into()
}

#[tokio::test]
async fn a_packet_keeps_its_bytes_and_descriptors() {
    let (one, other) = PacketSocket::pair().unwrap();
    let (a, b) = (memory("first"), memory("second"));
    one.send(b"hello", &[a.as_fd(), b.as_fd()]).await.unwrap();
    one.send(b"again", &[]).await.unwrap();
    let packet = other.receive().await.unwrap().unwrap();
    assert_eq!(packet.bytes, b"hello");
    let texts: Vec<_> = packet
        .descriptors
        .into_iter()
        .map(|descriptor| {
            let mut text = String::new();
            File::from(descriptor).read_to_string(&mut text).unwrap();
            text
        })
        .collect();
    assert_eq!(texts, ["first", "second"]);
    let next = other.receive().await.unwrap().unwrap();
    assert_eq!((next.bytes.as_slice(), next.descriptors.len()), (b"again".as_slice(), 0));
    drop(one);
    assert!(other.receive().await.unwrap().is_none());
}

#[tokio::test]
async fn received_descriptors_do_not_survive_exec() {
    let (one, other) = PacketSocket::pair().unwrap();
    one.send(b"x", &[memory("text").as_fd()]).await.unwrap();
    let packet = other.receive().await.unwrap().unwrap();
    let flags = nix::fcntl::fcntl(&packet.descriptors[0], nix::fcntl::FcntlArg::F_GETFD).unwrap();
    assert_ne!(flags & libc::FD_CLOEXEC, 0);
}

#[tokio::test]
async fn bounds_hold_at_both_ends() {
    let (one, other) = PacketSocket::pair().unwrap();
    let file = memory("text");
    assert!(matches!(one.send(&vec![0; LARGEST + 1], &[]).await, Err(SocketError::TooLarge)));
    let many = [file.as_fd(); MOST_DESCRIPTORS + 1];
    assert!(matches!(one.send(b"x", &many).await, Err(SocketError::TooManyDescriptors(9))));

    // A peer that ignores the limits.
    sendmsg::<()>(
        one.as_fd().as_raw_fd(),
        &[IoSlice::new(&vec![0; LARGEST + 1])],
        &[],
        MsgFlags::empty(),
        None,
    )
    .unwrap();
    assert!(matches!(other.receive().await, Err(SocketError::TooLarge)));
    send_now(one.as_fd(), b"x", &many).unwrap();
    assert!(matches!(other.receive().await, Err(SocketError::TooManyDescriptors(9))));

    // The connection still works.
    one.send(&vec![7; LARGEST], &[file.as_fd(); MOST_DESCRIPTORS]).await.unwrap();
    let packet = other.receive().await.unwrap().unwrap();
    assert_eq!((packet.bytes.len(), packet.descriptors.len()), (LARGEST, MOST_DESCRIPTORS));
}

#[tokio::test]
async fn descriptors_of_a_refused_packet_are_closed() {
    let (one, other) = PacketSocket::pair().unwrap();
    // The write end of a pipe: the reader sees the end of the stream when every copy is closed.
    let (reader, writer) = nix::unistd::pipe().unwrap();
    send_now(one.as_fd(), b"x", &[writer.as_fd(); MOST_DESCRIPTORS + 1]).unwrap();
    drop(writer);
    assert!(other.receive().await.is_err());
    let mut text = String::new();
    let read = tokio::task::spawn_blocking(move || File::from(reader).read_to_string(&mut text));
    let ended = tokio::time::timeout(std::time::Duration::from_secs(5), read).await;
    assert_eq!(ended.expect("a copy of the descriptor leaked").unwrap().unwrap(), 0);
}

#[tokio::test]
async fn listens_at_paths_longer_than_an_address_and_over_stale_sockets() {
    let base = tempfile::tempdir().unwrap();
    let long = base.path().join("a-rather-long-directory-name".repeat(5));
    std::fs::create_dir(&long).unwrap();
    let path = long.join("socket");
    drop(PacketListener::bind(&path).unwrap());
    let listener = PacketListener::bind(&path).unwrap();
    let node = File::from(
        nix::fcntl::open(&path, nix::fcntl::OFlag::O_PATH, nix::sys::stat::Mode::empty()).unwrap(),
    );
    let address = UnixAddr::new(format!("/proc/self/fd/{}", node.as_raw_fd()).as_str()).unwrap();
    let client = PacketSocket::new(connect_now(&address).unwrap()).unwrap();
    let server = listener.accept().await.unwrap();
    assert_eq!(server.peer().unwrap().pid, i32::try_from(std::process::id()).unwrap());
    client.send(b"hello", &[]).await.unwrap();
    assert_eq!(server.receive().await.unwrap().unwrap().bytes, b"hello");
}
