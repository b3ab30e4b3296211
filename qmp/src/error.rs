//! How a command can fail.

use std::io;

/// How a command, or the start of a session, can fail. Code decides by the variant, never by the text.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The other side answered with an error. Class and text are for the log and for users.
    #[error("{command} was refused: {desc}")]
    Refused {
        /// Name of the command.
        command: String,
        /// Error class as sent, e.g. `GenericError`. New classes may appear.
        class: String,
        /// Human readable text as sent.
        desc: String,
    },
    /// No answer came in time. It is unknown whether the command was, or will be, executed: query the state
    /// again.
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
        /// Where parsing failed.
        source: serde_json::Error,
    },
    /// The arguments cannot be expressed as JSON.
    #[error("the arguments of {command} cannot be serialised")]
    Arguments {
        /// Name of the command.
        command: String,
        /// The error of the serializer.
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
        /// The error of the system.
        source: io::Error,
    },
}

impl Error {
    /// Whether the stream is gone, so that nothing more can be asked on it.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self, Self::Closed { .. })
    }
}
