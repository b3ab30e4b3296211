//! Connections that are taken, so many at the same time.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Until one is tried to be taken again, where the kernel has refused.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves each connection in a task of its own, until the future is dropped or `room` is closed. Whoever has no place in `room`
/// waits.
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
