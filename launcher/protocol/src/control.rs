//! Reads the control data that recvmsg(2) has received: a list of messages. Pure.
//!
//! ```text
//!   size_t  length of the message: this header and its data
//!   int     level
//!   int     type
//!   data    of SCM_RIGHTS: descriptors, an int each
//!   ...     the next message begins at a multiple of the size of size_t
//! ```
//!
//! The C library's macros for this layout (cmsg(3)) compute with pointers. This module reads bytes instead, so that a
//! wrong length is no access beyond the data, and Miri can run its tests.

use std::os::fd::RawFd;

use libc::c_int;

/// Offset of the data.
const HEADER: usize = (size_of::<usize>() + 2 * size_of::<c_int>()).next_multiple_of(size_of::<usize>());

/// The descriptors in all messages.
pub(crate) fn descriptors(mut control: &[u8]) -> Vec<RawFd> {
    let mut found = Vec::new();
    while let Some((length, level, kind)) = header(control) {
        let message = control.get(..length).unwrap_or(control);
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            let (data, _rest) = message.get(HEADER..).unwrap_or_default().as_chunks();
            found.extend(data.iter().copied().map(RawFd::from_ne_bytes));
        }
        let next = length.checked_next_multiple_of(size_of::<usize>()).filter(|_| length >= HEADER);
        control = next.and_then(|next| control.get(next..)).unwrap_or_default();
    }
    found
}

/// Length, level and type of the first message; `None` at the end of the list.
fn header(control: &[u8]) -> Option<(usize, c_int, c_int)> {
    let (length, rest) = control.get(..HEADER)?.split_first_chunk()?;
    let (level, rest) = rest.split_first_chunk()?;
    let kind = rest.first_chunk()?;
    Some((usize::from_ne_bytes(*length), c_int::from_ne_bytes(*level), c_int::from_ne_bytes(*kind)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RIGHTS: (c_int, c_int) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);

    /// A message that says this about its length.
    fn message_of(length: usize, (level, kind): (c_int, c_int), data: &[u8]) -> Vec<u8> {
        let parts = [&length.to_ne_bytes()[..], &level.to_ne_bytes(), &kind.to_ne_bytes(), data];
        let mut bytes = parts.concat();
        bytes.resize(bytes.len().next_multiple_of(size_of::<usize>()), 0xff);
        bytes
    }

    fn message(what: (c_int, c_int), data: &[u8]) -> Vec<u8> {
        message_of(HEADER + data.len(), what, data)
    }

    fn numbers(all: &[RawFd]) -> Vec<u8> {
        all.iter().flat_map(|one| one.to_ne_bytes()).collect()
    }

    #[test]
    fn descriptors_of_all_messages_are_read() {
        assert!(descriptors(&[]).is_empty());
        assert_eq!(descriptors(&message(RIGHTS, &numbers(&[7, 300, 9]))), [7, 300, 9]);
        let all = [
            message((libc::SOL_SOCKET, libc::SCM_CREDENTIALS), &[1; 12]),
            message(RIGHTS, &numbers(&[3])),
            message((libc::SOL_IP, libc::SCM_RIGHTS), &numbers(&[4])),
            message(RIGHTS, &[]),
            message(RIGHTS, &numbers(&[5, 6])),
        ];
        assert_eq!(descriptors(&all.concat()), [3, 5, 6]);
    }

    #[test]
    fn lengths_that_are_wrong_lead_nowhere() {
        let data = numbers(&[3, 4]);
        // Bytes beyond the data do not count, and neither does a part of a descriptor.
        for length in [HEADER + 8, HEADER + 11, HEADER + 1000, usize::MAX] {
            assert_eq!(descriptors(&message_of(length, RIGHTS, &data)), [3, 4], "{length}");
        }
        assert_eq!(descriptors(&message_of(HEADER + 7, RIGHTS, &data)), [3]);
        // No message is shorter than its header: nothing after it is read.
        for length in [0, 1, HEADER - 1] {
            let all = [message_of(length, RIGHTS, &data), message(RIGHTS, &data)].concat();
            assert!(descriptors(&all).is_empty(), "{length}");
        }
        let whole = message(RIGHTS, &data);
        for length in 0..HEADER {
            assert!(descriptors(&whole[..length]).is_empty(), "{length}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_have_no_more_descriptors_than_fit(
            lengths in proptest::collection::vec(0_usize..64, 0..6),
            rest in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let messages = lengths.into_iter().map(|length| message_of(length, RIGHTS, &rest));
            let bytes = messages.chain([rest.clone()]).collect::<Vec<_>>().concat();
            prop_assert!(descriptors(&bytes).len() * size_of::<RawFd>() <= bytes.len());
        }
    }
}
