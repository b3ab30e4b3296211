//! Probes of a guest by its agent: a command in it, or whether the agent answers.
//!
//! ```text
//!  kubelet ─ exec in the pod ─► virt-launcher probe ─ PRIVATE/probe.sock ─► serve ─► guest agent
//! ```
//!
//! One line of JSON each way: [`Question`] and [`Answer`]. The socket is in the container's private directory and for its
//! user only. What a probe may cost is bounded: [`MOST`] at a time, one command of the same words in the guest at a time,
//! [`LONGEST_OUTPUT`] of its output, and the time that the kubelet gives it.

pub mod client;
mod command;
pub mod serve;

use serde::{Deserialize, Serialize};

/// Name of the socket.
pub const SOCKET: &str = "probe.sock";
/// Probes that are served at a time; kubelet asks each of two one after the other.
pub const MOST: usize = 4;
/// Bytes of output that are passed on. The kubelet takes 10 KiB.
pub const LONGEST_OUTPUT: usize = 8 << 10;
/// Longest line, in bytes, in either direction.
pub const LONGEST_LINE: usize = 256 << 10;

/// What is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Question {
    /// A command and its arguments; without one, whether the agent answers.
    pub command: Vec<String>,
    /// Time for the answer.
    pub timeout_ms: u64,
    /// It is about being alive: a guest that somebody has paused is.
    pub alive: bool,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The command's exit code; 0 is success.
    pub code: i32,
    /// The beginning of what it wrote.
    #[serde(default)]
    pub output: String,
    /// Why it could not be asked, in words for people.
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
