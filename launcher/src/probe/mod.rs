//! Probes of a guest through its agent: a command in the guest, or whether the agent answers.
//!
//! ```text
//!  kubelet ─ exec in the pod ─► virt-launcher probe ─ PRIVATE/probe.sock ─► serve ─► guest agent
//! ```
//!
//! One line of JSON each way: [`Question`] and [`Answer`]. The socket is in the container's private directory
//! and for its user only. The cost of probes is limited: [`MOST`] at a time, the same command only once in
//! the guest at a time, [`LONGEST_OUTPUT`] of its output, and the time that the kubelet gives.

pub mod client;
mod command;
pub mod serve;

use serde::{Deserialize, Serialize};

/// Name of the socket.
pub const SOCKET: &str = "probe.sock";
/// Probes that are served at a time; the kubelet runs each of two probes one after the other.
pub const MOST: usize = 4;
/// Bytes of output that are passed on. The kubelet accepts 10 KiB.
pub const LONGEST_OUTPUT: usize = 8 << 10;
/// Longest line, in bytes, in either direction.
pub const LONGEST_LINE: usize = 256 << 10;

/// The request of a probe.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Question {
    /// A command and its arguments; without one, the probe checks whether the agent answers.
    pub command: Vec<String>,
    /// Time for the answer.
    pub timeout_ms: u64,
    /// Whether it is a liveness probe, which succeeds for a guest that a user has paused, that does not run yet, or that moves.
    pub alive: bool,
}

/// The result.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The command's exit code; 0 is success.
    pub code: i32,
    /// The beginning of its output.
    #[serde(default)]
    pub output: String,
    /// Why the agent could not be asked, as a message for users.
    #[serde(default)]
    pub error: String,
}

impl Answer {
    fn success() -> Self {
        Self::default()
    }

    fn failure(error: impl Into<String>) -> Self {
        Self { code: 1, output: String::new(), error: error.into() }
    }
}
