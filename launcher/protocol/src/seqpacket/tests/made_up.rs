//! Packets that a peer may forge.

use std::io::IoSlice;
use std::os::fd::{AsFd as _, AsRawFd as _};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::socket::{AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::system::receive;

/// Most descriptors that Linux sends at once.
const MOST: usize = 253;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// As many descriptors are owned as were sent, and after they are dropped, none is left open.
    #[test]
    fn every_descriptor_that_arrives_is_owned_once(
        counts in vec(0_usize..=MOST / 2, 0..=2),
        sent in 0_usize..3000,
        room in 1_usize..2000,
    ) {
        let (one, other) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap();
        let (end, written) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).unwrap();
        let numbers = [written.as_raw_fd(); MOST];
        let control: Vec<_> =
            counts.iter().map(|count| ControlMessage::ScmRights(&numbers[..*count])).collect();
        sendmsg::<()>(one.as_raw_fd(), &[IoSlice::new(&vec![7; sent])], &control, MsgFlags::empty(), None)
            .unwrap();
        drop(written);

        let mut buffer = vec![0; room];
        let packet = receive(other.as_fd(), &mut buffer).unwrap();
        prop_assert_eq!((packet.length, packet.truncated), (sent.min(room), sent > room));
        prop_assert!(buffer[..packet.length].iter().all(|byte| *byte == 7));
        prop_assert_eq!((packet.descriptors.len(), packet.descriptors_lost), (counts.iter().sum(), false));
        let read = || nix::unistd::read(&end, &mut [0]);
        prop_assert!(packet.descriptors.is_empty() || read() == Err(Errno::EAGAIN));
        drop(packet);
        prop_assert_eq!(read(), Ok(0), "one is left open");
    }
}
