//! The gRPC socket: a client on a verified connection, and a server that refuses other users.

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

use crate::bind::bind_in_parent;
use crate::v1::launcher_client::LauncherClient;
use crate::v1::launcher_server::{Launcher, LauncherServer};

/// Time limit for the HTTP/2 handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// A launcher that is silent for this long gets a ping, even if only a watch is open.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Time limit for the answer to the ping.
const KEEP_ALIVE_ANSWER: Duration = Duration::from_secs(10);

/// Largest answer, in bytes. Small messages can decode to many times their size, and the guest may control
/// the launcher.
pub const LARGEST_MESSAGE: usize = 256 << 10;

/// Largest answer to a QMP command, which is one byte string: the launcher's own limit. QEMU's schema alone
/// has nearly 256 KiB.
pub const LARGEST_QMP_ANSWER: usize = 1 << 20;

/// Largest picture of a screen.
pub const LARGEST_PICTURE: usize = 16 << 20;

/// Largest set of headers of an answer, including the message of a refusal.
const LARGEST_HEADERS: u32 = 16 << 10;

/// Most unread bytes to the client, for each call and in total. The library's defaults are megabytes.
const WINDOW: u32 = 256 << 10;

/// Why the gRPC socket cannot be used.
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
        /// Its path.
        path: String,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

/// A client on this connection, for answers of up to [`LARGEST_MESSAGE`]. When the connection breaks, calls
/// fail with `Unavailable`. The caller must connect again and verify the new peer, so this client never
/// reconnects itself.
///
/// # Errors
/// If the peer does not complete the handshake in time.
pub async fn client(stream: UnixStream) -> Result<LauncherClient<Channel>, GrpcError> {
    let stream = Mutex::new(Some(stream));
    let connector = service_fn(move |_: Uri| {
        let stream = stream.lock().map(|mut stream| stream.take()).ok().flatten();
        async move { stream.map(TokioIo::new).ok_or(io::Error::from(io::ErrorKind::NotConnected)) }
    });
    // HTTP/2 requires an authority, which has no meaning here.
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

/// A request with a time limit that both sides observe.
pub fn request<T>(message: T, within: Duration) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(within);
    request
}

/// Listens at `path`, and replaces a socket left there. The path may have any length.
///
/// # Errors
/// If the directory does not exist or is not writable.
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
/// If the server fails.
pub async fn serve<L: Launcher>(
    listener: UnixListener,
    allowed_uids: Vec<u32>,
    launcher: L,
    shutdown: impl Future<Output = ()>,
) -> Result<(), GrpcError> {
    let incoming = UnixListenerStream::new(listener).filter(move |stream| match stream {
        Ok(stream) => stream.peer_cred().is_ok_and(|peer| allowed_uids.contains(&peer.uid())),
        // No descriptors are left, or the peer closed during the accept: the next accept may succeed.
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
