//! The pause between two checks of the guest.

use std::time::Duration;

/// Waits this long; forever if nothing changes by itself.
pub async fn rest(pause: Option<Duration>) {
    match pause {
        Some(pause) => tokio::time::sleep(pause).await,
        None => std::future::pending().await,
    }
}
