//! How a command can fail.

use std::io;

/// How a command, or the start of a session, can fail. Decisions hang on the variant, never on the text.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The other side answered that it will not or cannot. Class and text are for the log and for people.
    #[error("{command} was refused: {desc}")]
    Refused {
        /// Name of the command.
        command: String,
        /// Error class as sent, e.g. `GenericError`. Open set.
        class: String,
        /// Human readable text as sent.
        desc: String,
    },
    /// No answer came in time. Whether the command was, or will be, executed is not known: look again.
    #[error("no answer to {command} in time")]
    Deadline {
        /// Name of the command.
        command: String,
    },
    /// The stream has ended, so no answer will come.
    #[error("the stream ended before {command} was answered ({reason})")]
    Closed {
        /// Name of the command.
        command: String,
        /// What ended the stream.
        reason: String,
    },
    /// The answer does not have the expected shape.
    #[error("the answer to {command} does not parse")]
    Answer {
        /// Name of the command.
        command: String,
        /// Where it does not parse.
        source: serde_json::Error,
    },
    /// The arguments cannot be expressed as JSON.
    #[error("the arguments of {command} cannot be serialised")]
    Arguments {
        /// Name of the command.
        command: String,
        /// Why not.
        source: serde_json::Error,
    },
    /// Out-of-band execution was not offered by this monitor.
    #[error("{command} cannot be executed out of band: the monitor does not offer it")]
    NoOutOfBand {
        /// Name of the command.
        command: String,
    },
    /// A descriptor or the stream itself could not be prepared.
    #[error("cannot prepare the stream for {command}")]
    Stream {
        /// Name of the command.
        command: String,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    /// The stream is gone: nothing further can be asked on it.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Closed { .. })
    }
}
