//! The source's side of a migration: calls the handler of the target's node.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use barevirt_api::names::handler_host;
use barevirt_component::certificates::Client;
use barevirt_protocol::names::MigrationStream;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::PORT;
use super::control::{Answer, LONGEST, MAGIC, Request, Secret, WELCOME, line};
use super::silence::end_by_silence;

/// Longest time for one complete call.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why a call to the other handler failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// This handler has no certificate yet.
    #[error("call virt-handler of node {node}: this node's handler has no certificate yet")]
    NotReady {
        /// The node.
        node: String,
    },
    /// The target's address is invalid.
    #[error("call virt-handler of node {node}: {address} is not an address")]
    Address {
        /// The node.
        node: String,
        /// The address in the status.
        address: String,
    },
    /// The node's name is not a valid DNS name.
    #[error("call virt-handler of node {node}")]
    Name {
        /// The node.
        node: String,
        /// Why.
        source: InvalidDnsNameError,
    },
    /// The connection failed, or the peer is not the handler of that node.
    #[error("call virt-handler of node {node}")]
    Io {
        /// The node.
        node: String,
        /// What happened.
        source: io::Error,
    },
    /// The answer cannot be decoded.
    #[error("read the answer of virt-handler of node {node}")]
    Answer {
        /// The node.
        node: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// The handler does not answer in time.
    #[error("virt-handler of node {node} does not answer in time")]
    Deadline {
        /// The node.
        node: String,
    },
    /// The handler refuses.
    #[error("virt-handler of node {node} refuses: {why}")]
    Refused {
        /// The node.
        node: String,
        /// Its reason.
        why: String,
    },
}

/// The handler of a node.
#[derive(Debug, Clone)]
pub struct Target {
    /// The node.
    pub node: String,
    /// Its address, from the status.
    pub address: String,
}

/// Connections between the two QEMUs, and the key.
#[derive(Debug)]
pub struct Begun {
    /// The connections for QEMU, by stream.
    pub connections: Vec<(MigrationStream, OwnedFd)>,
    /// The key; `None` if nothing is encrypted.
    pub key: Option<Secret>,
    /// Whether the target can run the guest before all of its memory has arrived.
    pub post_copy: bool,
    /// Whether memory is compressed: there are further connections for it, and the target knows.
    pub compression: bool,
}

/// What is sent over connections of its own, in addition to the memory's first one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Streams<'a> {
    /// Disks.
    pub disks: &'a [String],
    /// Disks that the guest only reads. They are left out if the target does not take them.
    pub images: &'a [String],
    /// Most further connections for memory. There are as many as the target takes, and none if post-copy is possible: QEMU has either.
    pub channels: u8,
    /// Whether post-copy is used if the target can do it.
    pub post_copy: bool,
    /// Whether memory on the further connections is compressed if the target can do it.
    pub compression: bool,
}

impl Streams<'_> {
    /// The streams for which there are connections, in their order. The connection for the memory starts the migration at the target,
    /// so it comes last.
    fn opened(&self, target: &Takes) -> Vec<MigrationStream> {
        let images: &[String] = if target.images { self.images } else { &[] };
        let disks = self.disks.iter().chain(images).map(|disk| MigrationStream::Disk(disk.clone()));
        let channels = (1..=self.channels_to(target)).map(MigrationStream::Channel);
        disks.chain(channels).chain([MigrationStream::Memory]).collect()
    }

    /// How many further connections there are for memory.
    fn channels_to(&self, target: &Takes) -> u8 {
        if self.post_copy && target.post_copy { 0 } else { self.channels.min(target.channels) }
    }

    /// Whether memory is compressed: a target that has not said that it does the same would not understand it.
    fn is_compressed(&self, target: &Takes) -> bool {
        self.compression && target.compression && self.channels_to(target) > 0
    }
}

/// What a target can do.
struct Takes {
    images: bool,
    post_copy: bool,
    channels: u8,
    compression: bool,
}

impl Target {
    /// Requests a key, and opens a connection for each of these streams and one for the memory.
    ///
    /// # Errors
    /// When the handler cannot be reached, is not the node's, or refuses.
    pub async fn begin(
        &self,
        own: &Client,
        migration: &str,
        streams: Streams<'_>,
    ) -> Result<Begun, CallError> {
        let compression = streams.compression;
        let request = Request::Begin { migration: migration.to_owned(), compression };
        match self.ask(own, &request).await? {
            Answer::Begun { key, ticket, post_copy, images, channels, compression } => {
                let takes = Takes { images, post_copy, channels, compression };
                let compression = streams.is_compressed(&takes);
                let mut connections = Vec::new();
                for stream in streams.opened(&takes) {
                    let connection = self.in_time(self.connect(&ticket, &stream)).await?;
                    connections.push((stream, connection));
                }
                Ok(Begun { connections, key, post_copy, compression })
            }
            Answer::Done => Err(self.refused("it gives no key".to_owned())),
            Answer::Refused(why) => Err(self.refused(why)),
        }
    }

    /// Makes a connection that replaces one that broke in post-copy.
    ///
    /// # Errors
    /// As [`Target::begin`].
    pub async fn rejoin(&self, own: &Client, migration: &str) -> Result<OwnedFd, CallError> {
        match self.ask(own, &Request::Rejoin { migration: migration.to_owned() }).await? {
            Answer::Begun { ticket, .. } => {
                self.in_time(self.connect(&ticket, &MigrationStream::Memory)).await
            }
            Answer::Done => Err(self.refused("it gives no ticket".to_owned())),
            Answer::Refused(why) => Err(self.refused(why)),
        }
    }

    /// Tells the target's handler that the guest now belongs to it.
    ///
    /// # Errors
    /// As [`Target::begin`].
    pub async fn go(&self, own: &Client, migration: &str, hold: bool) -> Result<(), CallError> {
        match self.ask(own, &Request::Go { migration: migration.to_owned(), hold }).await? {
            Answer::Done => Ok(()),
            Answer::Begun { .. } => Err(self.refused("it answers something else".to_owned())),
            Answer::Refused(why) => Err(self.refused(why)),
        }
    }

    async fn ask(&self, own: &Client, request: &Request) -> Result<Answer, CallError> {
        self.in_time(self.converse(own, request)).await
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, CallError>>) -> Result<T, CallError> {
        timeout(TIMEOUT, work).await.unwrap_or_else(|_| Err(CallError::Deadline { node: self.node.clone() }))
    }

    async fn converse(&self, own: &Client, request: &Request) -> Result<Answer, CallError> {
        let node = || self.node.clone();
        let config = own.current().ok_or_else(|| CallError::NotReady { node: node() })?;
        let name = ServerName::try_from(handler_host(&self.node))
            .map_err(|source| CallError::Name { node: node(), source })?;
        let tcp = self.dial().await?;
        let io = |source| CallError::Io { node: node(), source };
        let read = |source| CallError::Answer { node: node(), source };
        let connector = TlsConnector::from(Arc::clone(&config));
        let mut tls = BufReader::new(connector.connect(name, tcp).await.map_err(io)?);
        tls.write_all(&line(request).map_err(read)?).await.map_err(io)?;
        let mut text = Vec::new();
        (&mut tls).take(LONGEST as u64).read_until(b'\n', &mut text).await.map_err(io)?;
        serde_json::from_slice(&text).map_err(read)
    }

    async fn connect(&self, ticket: &Secret, carries: &MigrationStream) -> Result<OwnedFd, CallError> {
        let mut stream = self.dial().await?;
        let made = async {
            end_by_silence(&stream)?;
            let name = carries.name();
            let length = u8::try_from(name.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
            stream.write_all(&MAGIC).await?;
            stream.write_all(ticket).await?;
            stream.write_all(&[length]).await?;
            stream.write_all(name.as_bytes()).await?;
            let mut welcome = [0; 1];
            stream.read_exact(&mut welcome).await?;
            if welcome[0] != WELCOME {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let stream = stream.into_std()?;
            stream.set_nonblocking(false)?;
            Ok(OwnedFd::from(stream))
        };
        made.await.map_err(|source| CallError::Io { node: self.node.clone(), source })
    }

    async fn dial(&self) -> Result<TcpStream, CallError> {
        let (node, address) = (self.node.clone(), self.address.clone());
        let ip: IpAddr = match self.address.parse() {
            Ok(ip) => ip,
            Err(_) => return Err(CallError::Address { node, address }),
        };
        let dialled = async {
            let stream = TcpStream::connect((ip, PORT)).await?;
            stream.set_nodelay(true)?;
            Ok(stream)
        };
        dialled.await.map_err(|source| CallError::Io { node, source })
    }

    fn refused(&self, why: String) -> CallError {
        CallError::Refused { node: self.node.clone(), why: why.chars().take(500).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_more_connections_where_both_ends_take_them_and_post_copy_is_not_possible() {
        let (disks, images) = (["root".to_owned()], ["seed".to_owned()]);
        let opened = |channels, post_copy, takes| {
            let streams =
                Streams { disks: &disks, images: &images, channels, post_copy, ..Streams::default() };
            streams.opened(&takes).iter().map(MigrationStream::name).collect::<Vec<_>>().join(" ")
        };
        let takes = |channels, post_copy| Takes { images: true, post_copy, channels, compression: true };
        let one = "disk/root disk/seed memory";
        let two = "disk/root disk/seed channel/1 channel/2 memory";
        assert_eq!([opened(2, false, takes(4, true)), opened(4, false, takes(2, false))], [two, two]);
        // Post-copy is allowed, but the target cannot do it.
        assert_eq!([opened(2, true, takes(2, false)), opened(2, true, takes(2, true))], [two, one]);
        // A source's launcher, or a target's handler or launcher, of an older version.
        assert_eq!([opened(0, false, takes(4, false)), opened(4, false, takes(0, false))], [one, one]);
        let old = Takes { images: false, post_copy: false, channels: 0, compression: false };
        assert_eq!(opened(4, false, old), "disk/root memory");
    }

    #[test]
    fn memory_is_compressed_where_it_has_more_connections_and_the_target_knows() {
        let compressed = |compression, post_copy, takes| {
            Streams { channels: 4, post_copy, compression, ..Streams::default() }.is_compressed(&takes)
        };
        let takes = |channels, compression| Takes { images: true, post_copy: true, channels, compression };
        assert!(compressed(true, false, takes(2, true)));
        // Post-copy is possible, so there is one connection.
        assert!(!compressed(true, true, takes(2, true)));
        // The settings do not ask for it, or the source's launcher is of an older version.
        assert!(!compressed(false, false, takes(2, true)));
        // The target's handler or launcher is of an older version.
        assert!(!compressed(true, false, takes(2, false)) && !compressed(true, false, takes(0, true)));
        // There is one connection at the source.
        let one = Streams { compression: true, ..Streams::default() };
        assert!(!one.is_compressed(&takes(4, true)));
    }
}
