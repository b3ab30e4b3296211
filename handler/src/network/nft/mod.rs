//! nftables over netlink: the rules ([`rules`], [`neighbours`], [`outside`]), their encoding ([`encode`]), and the socket for
//! them.
//! It needs neither an `nft` binary nor a library: it sends one batch of messages.

pub mod encode;
pub mod neighbours;
pub mod outside;
pub mod rules;

use std::io;

use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
use netlink_packet_netfilter::nftables::{NfTablesMessage, TableAttribute};
use netlink_packet_netfilter::{NetfilterMessage, NetfilterMessageInner};
use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeVal;
use thiserror::Error;

use self::encode::Batch;
use self::rules::{Family, Ruleset};
use super::datagram::messages;

/// Longest time that the kernel may take to answer, in seconds. It answers within the call that sends.
const ANSWER_DEADLINE_SECONDS: i64 = 5;

/// Bytes of a batch for which a socket has room by itself, with its answers: that of an interface with thirty ports or so.
const USUAL: usize = 32 << 10;

/// Why rules could not be read or written.
#[derive(Debug, Error)]
pub enum NftError {
    /// The socket failed.
    #[error("talk to nftables")]
    Socket(#[from] io::Error),
    /// The kernel refused a message; nothing of the batch was applied.
    #[error("nftables refused message {message} of the batch for {}{}", .family.name(), hint(.source))]
    Refused {
        /// The packets that its table would see.
        family: Family,
        /// Its sequence number in the batch, from 1; 0 stands for the batch itself.
        message: u32,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel's answer does not match the request.
    #[error("nftables answered with something else: {0}")]
    Answer(String),
}

/// What an error may mean: the kernel does not find a kind of chains or of rules that it was built without.
fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::EAFNOSUPPORT) => {
            " (does the kernel have nf_tables with nat and masq, and CONFIG_NF_TABLES_ARP?)"
        }
        _ => "",
    }
}

/// A connection to nftables in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Nftables {
    socket: Socket,
}

impl Nftables {
    /// Opens the connection.
    pub fn open() -> Result<Self, NftError> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        let deadline = TimeVal::new(ANSWER_DEADLINE_SECONDS, 0);
        setsockopt(&socket, sockopt::ReceiveTimeout, &deadline).map_err(io::Error::from)?;
        Ok(Self { socket })
    }

    /// The fingerprint in the handler's table of `family`, empty if the table has none; `None` if there is no such
    /// table.
    pub fn fingerprint(&self, family: Family) -> Result<Option<Vec<u8>>, NftError> {
        self.socket.send(&encode::get_table(family), 0)?;
        let mut found = None;
        let mut done = false;
        while !done {
            self.receive(|message| match message.payload {
                NetlinkPayload::InnerMessage(NetfilterMessage {
                    inner: NetfilterMessageInner::NfTables(NfTablesMessage::NewTable(table)),
                    ..
                }) => {
                    done = true;
                    let fingerprint = table.attributes.into_iter().find_map(|attribute| match attribute {
                        TableAttribute::UserData(bytes) => Some(bytes),
                        _ => None,
                    });
                    found = Some(fingerprint.unwrap_or_default());
                    Ok(())
                }
                NetlinkPayload::Error(error) => {
                    done = true;
                    let source = error.to_io();
                    match source.raw_os_error() {
                        Some(libc::ENOENT | 0) | None => Ok(()),
                        Some(_) => Err(NftError::Refused { family, message: 1, source }),
                    }
                }
                other => Err(NftError::Answer(format!("{other:?}"))),
            })?;
        }
        Ok(found)
    }

    /// Replaces the handler's table of that family with `ruleset`, in one step, whether there is one or not.
    pub fn replace(&self, ruleset: &Ruleset) -> Result<(), NftError> {
        self.carry_out(ruleset.family, &encode::replace(ruleset))
    }

    /// Creates the handler's table of that family. It is an error if there is one.
    pub fn create(&self, ruleset: &Ruleset) -> Result<(), NftError> {
        self.carry_out(ruleset.family, &encode::create(ruleset))
    }

    fn carry_out(&self, family: Family, batch: &Batch) -> Result<(), NftError> {
        self.make_room(batch)?;
        self.socket.send(&batch.bytes, 0)?;
        let mut done = false;
        let mut refused = None;
        // The kernel processes every message even after it has refused one. It answers those that it refuses, in order,
        // and the last one. All answers are read here, because they would otherwise be taken for answers to the
        // next request. If the whole batch fails in the end, there is an answer with number 0.
        while !done {
            self.receive(|message| match message.payload {
                NetlinkPayload::Error(error) => {
                    let number = message.header.sequence_number;
                    done |= number == 0 || number == batch.last;
                    if error.code.is_some() && refused.is_none() {
                        let source = error.to_io();
                        refused = Some(NftError::Refused { family, message: number, source });
                    }
                    Ok(())
                }
                other => Err(NftError::Answer(format!("{other:?}"))),
            })?;
        }
        refused.map_or(Ok(()), Err)
    }

    /// Makes room in the socket for a large batch, and for its answers if the kernel refuses all of it.
    fn make_room(&self, batch: &Batch) -> Result<(), NftError> {
        if batch.bytes.len() <= USUAL {
            return Ok(());
        }
        // The kernel makes twice as much room. The answer to a rule takes about three times as much as the rule.
        let room = batch.bytes.len().saturating_mul(2);
        let forced = setsockopt(&self.socket, sockopt::SndBufForce, &room)
            .and_then(|()| setsockopt(&self.socket, sockopt::RcvBufForce, &room));
        let made = match forced {
            // Root of a user namespace has the limits of everybody: what is still too large is refused when it is sent.
            Err(Errno::EPERM) => setsockopt(&self.socket, sockopt::SndBuf, &room)
                .and_then(|()| setsockopt(&self.socket, sockopt::RcvBuf, &room)),
            forced => forced,
        };
        made.map_err(|error| NftError::Socket(error.into()))
    }

    /// Reads one datagram and passes each message in it to `each`.
    fn receive(
        &self,
        mut each: impl FnMut(NetlinkMessage<NetfilterMessage>) -> Result<(), NftError>,
    ) -> Result<(), NftError> {
        let (bytes, _) = self.socket.recv_from_full()?;
        for message in messages(&bytes) {
            each(message.map_err(|error| NftError::Answer(error.to_string()))?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_lacks_a_part_of_nftables_is_named_as_the_reason() {
        let refused = |number| NftError::Refused {
            family: Family::Arp,
            message: 2,
            source: io::Error::from_raw_os_error(number),
        };
        let text = refused(libc::ENOENT).to_string();
        assert!(text.starts_with("nftables refused message 2 of the batch for ARP (does"), "{text}");
        assert!(text.contains("CONFIG_NF_TABLES_ARP"), "{text}");
        assert_eq!(refused(libc::EPERM).to_string(), "nftables refused message 2 of the batch for ARP");
    }
}
