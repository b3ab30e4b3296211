//! What follows an error of a socket.

use std::io;
use std::time::Duration;

/// Delay after an error of a socket: the bridge may come back.
pub(super) const ERROR_PAUSE: Duration = Duration::from_millis(500);

/// Logged at a low level, because the guest can cause errors at will (with an address that it does not answer
/// for).
pub(super) fn note(socket: &'static str, error: &io::Error) {
    tracing::debug!(socket, %error, "could not serve the guest");
}
