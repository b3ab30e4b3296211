//! How many lines of its log a guest can cause.

use barevirt_qmp::quiet::Quiet;

/// Limits on log lines that the guest can cause at any rate.
pub(super) struct Lines {
    pub(super) phases: Quiet,
    /// It was reset, its watchdog fired, its agent connected or disconnected.
    pub(super) habits: Quiet,
    /// It panicked, its storage failed, or a command of ours failed.
    pub(super) troubles: Quiet,
}

impl Default for Lines {
    fn default() -> Self {
        // A normal start and end need all of these lines.
        Self { phases: Quiet::new(16), habits: Quiet::new(4), troubles: Quiet::new(4) }
    }
}
