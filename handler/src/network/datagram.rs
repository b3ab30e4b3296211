//! Splits the kernel's netlink datagrams into messages. Pure.
//!
//! Each message has its length in its header, and is followed by padding up to a multiple of four bytes.

use netlink_packet_core::{DecodeError, NetlinkDeserializable, NetlinkMessage};

/// Length of a message's header, the shortest message.
const HEADER: usize = 16;
/// Messages begin at multiples of this number of bytes.
const ALIGNMENT: usize = 4;

/// The messages of a datagram, in order. A message that cannot be read is the last one, because nothing says where
/// the next one begins. Bytes at the end that are too few for a header are ignored.
pub fn messages<T: NetlinkDeserializable>(
    datagram: &[u8],
) -> impl Iterator<Item = Result<NetlinkMessage<T>, DecodeError>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.len() < HEADER {
            return None;
        }
        let message = NetlinkMessage::deserialize(rest);
        let length = message.as_ref().map_or(rest.len(), |message| end_of(message.header.length));
        rest = rest.get(length..).unwrap_or_default();
        Some(message)
    })
}

/// Where the next message begins, beyond a message with this length in its header.
fn end_of(length: u32) -> usize {
    let length = usize::try_from(length).unwrap_or(usize::MAX).max(HEADER);
    length.checked_next_multiple_of(ALIGNMENT).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::fs::{read, read_dir};

    use netlink_packet_core::NetlinkPayload;
    use netlink_packet_netfilter::NetfilterMessage;
    use netlink_packet_route::RouteNetlinkMessage;
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::super::nft::{encode, rules};
    use super::*;

    /// Number of a message without meaning (`NLMSG_NOOP`).
    const NOTHING: u16 = 1;

    /// A message without meaning, with a sequence number and a payload of that many bytes.
    fn message(number: u32, payload: usize) -> Vec<u8> {
        let length = HEADER + payload;
        let mut bytes = u32::try_from(length).unwrap().to_ne_bytes().to_vec();
        bytes.extend(NOTHING.to_ne_bytes());
        bytes.extend([0; 2]);
        bytes.extend(number.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.resize(length.next_multiple_of(ALIGNMENT), 0xff);
        bytes
    }

    /// The sequence numbers of the messages that can be read, and whether all can.
    fn numbers(datagram: &[u8]) -> (Vec<u32>, bool) {
        let all: Vec<_> = messages::<NetfilterMessage>(datagram).collect();
        let is_whole = all.iter().all(Result::is_ok);
        (all.into_iter().flatten().map(|message| message.header.sequence_number).collect(), is_whole)
    }

    #[test]
    fn a_batch_has_the_messages_that_were_put_into_it() {
        let (gateway, guest) = ([10, 0, 2, 1].into(), [10, 0, 2, 2].into());
        let request = encode::get_table(rules::Family::V4);
        let whole = [request.clone(), request.clone(), message(7, 3), request].concat();
        assert_eq!(numbers(&whole), (vec![1, 1, 7, 1], true));
        let batch = encode::replace(&rules::masquerade("eth0", "k6t-eth0", gateway, guest, &[], None));
        let (read, is_whole) = numbers(&batch.bytes);
        assert_eq!((read, is_whole), ((0..=batch.last + 1).collect(), true));
    }

    #[test]
    fn lengths_that_lie_end_the_datagram() {
        for length in [0, 1, 15, 21, u32::MAX - 2, u32::MAX] {
            let mut wrong = message(2, 4);
            wrong[..4].copy_from_slice(&length.to_ne_bytes());
            let datagram = [message(1, 1), wrong, message(3, 0)].concat();
            // The second one would reach beyond its own end, into the third.
            let read = if length == 21 { vec![1, 2] } else { vec![1] };
            assert_eq!(numbers(&datagram), (read, length == 21), "{length}");
        }
        assert_eq!(numbers(&message(1, 0)[..15]), (vec![], true));
    }

    /// The examples of the fuzz target.
    fn examples() -> Vec<Vec<u8>> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/netlink");
        read_dir(folder).unwrap().map(|entry| read(entry.unwrap().path()).unwrap()).collect()
    }

    /// Checks what holds for all bytes.
    fn is_bounded<T: NetlinkDeserializable>(datagram: &[u8]) {
        let all: Vec<_> = messages::<T>(datagram).collect();
        let wrong = all.iter().position(Result::is_err);
        assert!(wrong.is_none_or(|place| place + 1 == all.len()), "nothing follows what cannot be read");
        let lengths = all.iter().flatten().map(|message| message.header.length);
        assert!(usize::try_from(lengths.map(u64::from).sum::<u64>()).unwrap() <= datagram.len());
        assert!(all.len() * HEADER <= datagram.len());
    }

    proptest! {
        #[test]
        fn all_messages_come_out_in_order(payloads in proptest::collection::vec(0_usize..40, 0..20)) {
            let numbered = || (1..).zip(payloads.iter().copied());
            let datagram: Vec<u8> = numbered().flat_map(|(number, payload)| message(number, payload)).collect();
            let all: Vec<_> = messages::<NetfilterMessage>(&datagram).collect::<Result<_, _>>().unwrap();
            let length = |payload: usize| u32::try_from(HEADER + payload).unwrap();
            let written: Vec<_> = numbered().map(|(number, payload)| (number, length(payload))).collect();
            let read = |one: &NetlinkMessage<_>| (one.header.sequence_number, one.header.length);
            let read: Vec<_> = all.iter().map(read).collect();
            prop_assert_eq!(read, written);
            prop_assert!(all.iter().all(|one| matches!(one.payload, NetlinkPayload::Noop)));
        }

        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            is_bounded::<NetfilterMessage>(&bytes);
            is_bounded::<RouteNetlinkMessage>(&bytes);
        }

        #[test]
        fn damaged_answers_of_the_kernel_end(
            example in any::<Index>(),
            changes in proptest::collection::vec((any::<Index>(), any::<u8>()), 1..8),
            end in any::<Index>(),
        ) {
            let examples = examples();
            let mut bytes = example.get(&examples).clone();
            for (place, byte) in changes {
                *place.get_mut(&mut bytes) = byte;
            }
            bytes.truncate(end.index(bytes.len()) + 1);
            is_bounded::<NetfilterMessage>(&bytes);
            is_bounded::<RouteNetlinkMessage>(&bytes);
        }
    }
}
