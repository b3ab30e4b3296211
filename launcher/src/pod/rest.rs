//! The pause between two looks at the guest.

use std::time::Duration;

/// Waits so long; for good where nothing moves by itself.
pub async fn rest(pause: Option<Duration>) {
    match pause {
        Some(pause) => tokio::time::sleep(pause).await,
        None => std::future::pending().await,
    }
}
