//! The gRPC socket: a client over a connection that was verified, and a server that turns strangers away.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, listen, socket};
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::UdsConnectInfo;
use tonic::transport::{Channel, Endpoint, Server, Uri};
use tower::service_fn;

use crate::directory::bind_in_parent;
use crate::v1::launcher_client::LauncherClient;
use crate::v1::launcher_server::{Launcher, LauncherServer};

/// How long the HTTP/2 handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// A launcher that is silent for this long is asked whether it is still there, also while only a watch is open.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// How long it may take to answer that.
const KEEP_ALIVE_ANSWER: Duration = Duration::from_secs(10);

/// Largest answer, bytes. Small messages decode to many times their size, and a launcher may be in the hands of its guest.
pub const LARGEST_MESSAGE: usize = 256 << 10;

/// Largest answer to a QMP command: one string of bytes, as large as the launcher's own limit. QEMU's own description of its
/// monitor alone has nearly 256 KiB.
pub const LARGEST_QMP_ANSWER: usize = 1 << 20;

/// Largest picture of a screen.
pub const LARGEST_PICTURE: usize = 16 << 20;

/// Largest set of headers of an answer, among them the words of a refusal.
const LARGEST_HEADERS: u32 = 16 << 10;

/// What may be under way to the client and not read yet, in one call and in all. The library's defaults are megabytes.
const WINDOW: u32 = 256 << 10;

/// Why the gRPC socket does not work.
#[derive(Debug, thiserror::Error)]
pub enum GrpcError {
    /// The connection does not speak HTTP/2.
    #[error("open grpc channel to launcher")]
    Channel(#[source] tonic::transport::Error),
    /// The server ended.
    #[error("serve grpc on unix socket")]
    Serve(#[source] tonic::transport::Error),
    /// The socket cannot be made.
    #[error("listen on grpc socket {path}")]
    Listen {
        /// Where.
        path: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// A client over this one connection, for answers of [`LARGEST_MESSAGE`]. When it breaks, calls fail with `Unavailable`: the caller connects anew and
/// verifies the new peer, which is why nothing here reconnects.
///
/// # Errors
/// When the peer does not complete the handshake in time.
pub async fn client(stream: UnixStream) -> Result<LauncherClient<Channel>, GrpcError> {
    let stream = Mutex::new(Some(stream));
    let connector = service_fn(move |_: Uri| {
        let stream = stream.lock().map(|mut stream| stream.take()).ok().flatten();
        async move { stream.map(TokioIo::new).ok_or(io::Error::from(io::ErrorKind::NotConnected)) }
    });
    // The authority is required by HTTP/2 and means nothing here.
    let channel = Endpoint::from_static("http://launcher.invalid")
        .connect_timeout(HANDSHAKE)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_ANSWER)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(2 * WINDOW)
        .http2_max_header_list_size(LARGEST_HEADERS)
        .connect_with_connector(connector)
        .await
        .map_err(GrpcError::Channel)?;
    Ok(LauncherClient::new(channel).max_decoding_message_size(LARGEST_MESSAGE))
}

/// A request that the launcher is to answer within the time given; both sides give up then.
pub fn request<T>(message: T, within: Duration) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(within);
    request
}

/// Listens at `path`, in place of a socket left there. The path may be of any length.
///
/// # Errors
/// When the directory is not there or not writable.
pub fn listen_at(path: &Path) -> Result<UnixListener, GrpcError> {
    let make = || -> io::Result<UnixListener> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
        bind_in_parent(socket.as_fd(), path)?;
        listen(&socket, Backlog::new(64)?)?;
        UnixListener::from_std(socket.into())
    };
    make().map_err(|source| GrpcError::Listen { path: path.display().to_string(), source })
}

/// Serves the launcher's side until `shutdown` completes. Connections of users other than `allowed_uids` are closed
/// unread.
///
/// # Errors
/// When the server cannot go on.
pub async fn serve<L: Launcher>(
    listener: UnixListener,
    allowed_uids: Vec<u32>,
    launcher: L,
    shutdown: impl Future<Output = ()>,
) -> Result<(), GrpcError> {
    let incoming = UnixListenerStream::new(listener).filter(move |stream| match stream {
        Ok(stream) => stream.peer_cred().is_ok_and(|peer| allowed_uids.contains(&peer.uid())),
        // Out of descriptors, or a peer that went away while it was accepted: the next one may fare better.
        Err(_) => false,
    });
    Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE_ANSWER))
        .max_concurrent_streams(64)
        .add_service(LauncherServer::new(launcher))
        .serve_with_incoming_shutdown(incoming, shutdown)
        .await
        .map_err(GrpcError::Serve)
}

/// The credentials of the process that made a request, for the log.
pub fn peer<T>(request: &tonic::Request<T>) -> Option<tokio::net::unix::UCred> {
    request.extensions().get::<UdsConnectInfo>()?.peer_cred
}
