//! Accepts a limited number of connections at the same time.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Pause before the next attempt, after the kernel failed to accept a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves each connection in its own task, until the future is dropped or `room` is closed. Connections wait for a permit of
/// `room`.
pub(crate) async fn connections<F>(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
    serve: impl Fn(TcpStream) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let served = serve(stream);
        tokio::spawn(async move {
            served.await;
            drop(permit);
        });
    }
}
