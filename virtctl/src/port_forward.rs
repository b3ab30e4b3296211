//! port-forward: ports of this machine that lead to ports of a guest.

mod udp;

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use futures::{SinkExt, StreamExt};
use hyper::body::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket, lookup_host};
use tokio_tungstenite::tungstenite::Message;

use crate::session::{self, Kind, Session};
use crate::stream::{self, Socket, StreamEnd};

/// Larger than any datagram.
const CHUNK: usize = 64 << 10;
/// Pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(200);

/// How long a guest may answer after the client has closed its side: a websocket cannot be half-closed.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Arguments of `virtctl port-forward`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # Port 8080 of this machine is port 8080 of the instance 'testvmi':\n  \
    virtctl port-forward vmi/testvmi 8080\n\n  \
    # It is port 9090 of the machine 'testvm' in the namespace 'mine':\n  \
    virtctl port-forward vm/testvm/mine 8080:9090\n\n  \
    # The same for UDP:\n  \
    virtctl port-forward vmi/testvmi udp/8080:9090\n\n  \
    # ssh through the cluster's API:\n  \
    ssh -o 'ProxyCommand=virtctl port-forward --stdio=true vmi/testvmi/mine 22' user@testvmi")]
pub(crate) struct PortForward {
    /// type/name[/namespace]; the type is vm or vmi, in any of their spellings.
    target: String,
    /// [protocol/]localPort[:targetPort]; the protocol is tcp, unless udp is given.
    #[arg(required = true)]
    ports: Vec<String>,
    /// Forward the one port to standard input and output.
    #[arg(long)]
    stdio: bool,
    /// The address the local ports are opened on.
    #[arg(long, default_value = "127.0.0.1")]
    address: String,
}

/// A guest as named on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    kind: Kind,
    pub(crate) name: String,
    /// If it is not the session's.
    pub(crate) namespace: Option<String>,
}

impl Target {
    /// The short name of its kind.
    pub(crate) fn kind(&self) -> &'static str {
        match self.kind {
            Kind::Machine => "vm",
            Kind::Instance => "vmi",
        }
    }

    /// Plural, as in paths.
    fn resource(&self) -> &'static str {
        match self.kind {
            Kind::Machine => "virtualmachines",
            Kind::Instance => "virtualmachineinstances",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Tcp,
    Udp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Port {
    protocol: Protocol,
    local: u16,
    remote: u16,
}

/// Opens streams to one port of the guest.
struct PortOpener {
    session: Session,
    path: String,
}

impl PortOpener {
    async fn open(&self) -> anyhow::Result<Socket> {
        match stream::open(&self.session, &self.path).await? {
            Ok(socket) => Ok(socket),
            Err(refusal) => bail!("{refusal}"),
        }
    }
}

impl PortForward {
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let target = target(&self.target)?;
        let ports: Vec<Port> = self.ports.iter().map(|text| port(text)).collect::<Result<_, _>>()?;
        let opener = |port: &Port| PortOpener {
            session: Session { client: session.client.clone(), namespace: session.namespace.clone() },
            path: path(&target, &session.namespace, port),
        };
        if self.stdio {
            let [port] = ports.as_slice() else { bail!("only one port supported when forwarding to stdout") };
            let socket = opener(port).open().await?;
            let stream_end = carry(socket, tokio::io::join(tokio::io::stdin(), tokio::io::stdout())).await?;
            if let Some(reason) = stream_end.reason()? {
                eprintln!("{reason}");
            }
            return Ok(());
        }
        let address = resolve(&self.address).await?;
        let mut served = tokio::task::JoinSet::new();
        for port in &ports {
            let (opener, local) = (Arc::new(opener(port)), SocketAddr::new(address, port.local));
            let opened = || format!("open {} {local}", port.protocol.word());
            match port.protocol {
                Protocol::Tcp => {
                    let listener = TcpListener::bind(local).await.with_context(opened)?;
                    announce(port, listener.local_addr()?);
                    served.spawn(async move { tcp(listener, opener).await });
                }
                Protocol::Udp => {
                    let socket = UdpSocket::bind(local).await.with_context(opened)?;
                    announce(port, socket.local_addr()?);
                    served.spawn(async move { udp::serve(Arc::new(socket), opener).await });
                }
            }
        }
        tokio::select! {
            ended = served.join_next() => match ended {
                Some(ended) => ended?,
                None => Ok(()),
            },
            interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
        }
    }
}

fn announce(port: &Port, local: SocketAddr) {
    println!("forwarding {} {local} to {}", port.protocol.word(), port.remote);
}

impl Protocol {
    fn word(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// Reads `type/name[/namespace]`.
pub(crate) fn target(text: &str) -> anyhow::Result<Target> {
    ensure!(!text.is_empty(), "target cannot be empty");
    let (kind, name, namespace) = match text.split('/').collect::<Vec<_>>().as_slice() {
        [_] => bail!("target must contain type and name separated by '/'"),
        [kind, name] => (*kind, *name, None),
        [kind, name, namespace] => (*kind, *name, Some(*namespace)),
        _ => bail!("target is not valid with more than two '/'"),
    };
    ensure!(namespace != Some(""), "namespace cannot be empty");
    ensure!(!name.is_empty(), "name cannot be empty");
    let kind = Kind::parse(kind).with_context(|| format!("unsupported resource type '{kind}'"))?;
    Ok(Target { kind, name: name.to_owned(), namespace: namespace.map(str::to_owned) })
}

fn port(text: &str) -> anyhow::Result<Port> {
    let (protocol, ports) = text.split_once('/').unwrap_or(("tcp", text));
    let protocol = match protocol {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        other => bail!("unknown protocol: {other}"),
    };
    let (local, remote) = ports.split_once(':').unwrap_or((ports, ports));
    let number = |text: &str| {
        text.parse().with_context(|| format!("invalid port \"{text}\": ports are numbers up to 65535"))
    };
    Ok(Port { protocol, local: number(local)?, remote: number(remote)? })
}

fn path(target: &Target, default_namespace: &str, port: &Port) -> String {
    let namespace = target.namespace.as_deref().unwrap_or(default_namespace);
    let subresource = format!("portforward/{}/{}", port.remote, port.protocol.word());
    session::path(namespace, target.resource(), &target.name, &subresource)
}

async fn resolve(address: &str) -> anyhow::Result<IpAddr> {
    if let Ok(address) = address.parse() {
        return Ok(address);
    }
    let mut found = lookup_host((address, 0)).await.with_context(|| format!("look up {address}"))?;
    Ok(found.next().with_context(|| format!("{address} has no address"))?.ip())
}

/// Each connection has its own stream; a failure does not affect other connections.
async fn tcp(listener: TcpListener, opener: Arc<PortOpener>) -> anyhow::Result<()> {
    loop {
        let (connection, client) = match listener.accept().await {
            Ok(accepted) => accepted,
            // The client may have gone, or no descriptor may be left for now: the other connections stay.
            Err(error) => {
                eprintln!("accept a connection: {error}");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let opener = Arc::clone(&opener);
        report(client, async move { carry(opener.open().await?, connection).await?.reason() });
    }
}

/// Runs the stream of one client, and prints why it ended, if there is a reason.
fn report(client: SocketAddr, work: impl Future<Output = anyhow::Result<Option<String>>> + Send + 'static) {
    tokio::spawn(async move {
        match work.await {
            Ok(None) => {}
            Ok(Some(reason)) => eprintln!("connection from {client}: {reason}"),
            Err(error) => eprintln!("connection from {client}: {error:#}"),
        }
    });
}

/// Carries bytes until one side ends. Fails if the local side does.
pub(crate) async fn carry(socket: Socket, local: impl AsyncRead + AsyncWrite) -> anyhow::Result<StreamEnd> {
    let (mut to_guest, mut from_guest) = socket.split();
    let (mut from_local, mut to_local) = tokio::io::split(local);
    // A guest's side that is closed after the local program has ended has no reason to tell: that was the end.
    let local_ended = AtomicBool::new(false);
    let outward = async {
        let mut buffer = vec![0; CHUNK];
        let mut ping = tokio::time::interval(stream::PING_EVERY);
        loop {
            let message = tokio::select! {
                read = from_local.read(&mut buffer) => match read? {
                    0 => break,
                    length => Message::Binary(Bytes::copy_from_slice(&buffer[..length])),
                },
                _ = ping.tick() => Message::Ping(Bytes::new()),
            };
            if let Err(error) = to_guest.send(message).await {
                return Ok(StreamEnd::Broken(error.into()));
            }
        }
        local_ended.store(true, Ordering::Relaxed);
        tokio::time::sleep(LAST_WORDS).await;
        to_guest.close().await?;
        anyhow::Ok(StreamEnd::Local)
    };
    let inward = async {
        loop {
            match from_guest.next().await {
                Some(Ok(Message::Binary(bytes))) => {
                    to_local.write_all(&bytes).await?;
                    to_local.flush().await?;
                }
                Some(Ok(Message::Close(frame))) => return anyhow::Ok(StreamEnd::Closed(frame)),
                None => return Ok(StreamEnd::Closed(None)),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Ok(StreamEnd::Broken(error.into())),
            }
        }
    };
    let stream_end = tokio::select! {
        ended = outward => ended?,
        ended = inward => ended?,
    };
    Ok(match stream_end {
        StreamEnd::Closed(_) if local_ended.load(Ordering::Relaxed) => StreamEnd::Local,
        StreamEnd::Local | StreamEnd::Closed(_) | StreamEnd::Broken(_) => stream_end,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_kinds_names_and_namespaces() {
        let of = |text: &str| target(text).map(|found| path(&found, "here", &port("80").unwrap()));
        let prefix = "/apis/subresources.kubevirt.io/v1/namespaces";
        let there = format!("{prefix}/there/virtualmachines/a/portforward/80/tcp");
        assert_eq!(of("VM/a/there").unwrap(), there);
        let here = format!("{prefix}/here/virtualmachineinstances/a/portforward/80/tcp");
        assert_eq!(of("virtualmachineinstances/a").unwrap(), here);
        for (text, message) in [
            ("", "target cannot be empty"),
            ("a", "target must contain type and name separated by '/'"),
            ("vm/a/b/c", "target is not valid with more than two '/'"),
            ("vm/a/", "namespace cannot be empty"),
            ("vm/", "name cannot be empty"),
            ("pod/a", "unsupported resource type 'pod'"),
        ] {
            assert_eq!(target(text).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn ports_are_local_and_remote_ones() {
        let of = |text: &str| port(text).map(|port| (port.protocol, port.local, port.remote));
        assert_eq!(of("8080").unwrap(), (Protocol::Tcp, 8080, 8080));
        assert_eq!(of("8080:80").unwrap(), (Protocol::Tcp, 8080, 80));
        assert_eq!(of("udp/53:5353").unwrap(), (Protocol::Udp, 53, 5353));
        for text in ["", ":", "80:", "sctp/80", "http", "65536", "1:2:3"] {
            assert!(of(text).is_err(), "{text}");
        }
    }
}
