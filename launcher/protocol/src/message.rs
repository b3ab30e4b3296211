//! The JSON messages of the descriptor socket. Pure.
//!
//! One packet is one message of at most [`LARGEST`] bytes. The kind is the only key of a request, so that a
//! peer of another version can distinguish an unknown request from a broken one.

use serde::{Deserialize, Serialize};

use crate::names::LONGEST_NAME;

/// Largest message, in bytes.
pub const LARGEST: usize = 64 * 1024;

/// Most descriptors in one message.
pub const MOST_DESCRIPTORS: usize = 8;

/// A request from a client of the descriptor socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// Passes the descriptors of this message to the launcher.
    Give(Give),
    /// Requests a new connection to one of the guest's streams.
    Take(Take),
}

/// Descriptors under one name, for instance all queues of a tap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Give {
    /// Revision of the Sync that they belong to.
    pub revision: i64,
    /// Their name, see [`crate::names`]. A name that is given again replaces descriptors that are not in use
    /// yet.
    pub name: String,
}

/// A stream, to which the descriptor in the answer will be connected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Take {
    /// Name of the stream, see [`crate::names`].
    pub stream: String,
}

/// The launcher's answer, one per request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Whether the request was carried out; requested descriptors come with this message.
    #[serde(default)]
    pub ok: bool,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Answer {
    /// The request was carried out.
    pub const fn done() -> Self {
        Self { ok: true, error: None }
    }

    /// The request was refused, and why.
    pub fn refused(error: impl Into<String>) -> Self {
        Self { ok: false, error: Some(error.into()) }
    }
}

/// Why bytes are not a valid message.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// The message is too large.
    #[error("message of {0} bytes, more than {LARGEST}")]
    TooLarge(usize),
    /// The bytes are not the JSON of a message that this version knows.
    #[error("decode message")]
    Decode(#[source] serde_json::Error),
    /// The message cannot be encoded as JSON.
    #[error("encode message")]
    Encode(#[source] serde_json::Error),
    /// A name is empty, too long, or contains control characters.
    #[error("bad name {0:?}")]
    BadName(String),
}

/// Parses a request and checks its names.
///
/// # Errors
/// If there are too many bytes, the request is unknown, or a name is invalid.
pub fn decode_request(bytes: &[u8]) -> Result<Request, MessageError> {
    let request: Request = decode(bytes)?;
    let name = match &request {
        Request::Give(give) => &give.name,
        Request::Take(take) => &take.stream,
    };
    if name.is_empty() || name.len() > LONGEST_NAME || name.chars().any(char::is_control) {
        return Err(MessageError::BadName(name.chars().take(LONGEST_NAME).collect()));
    }
    Ok(request)
}

/// Parses an answer.
///
/// # Errors
/// If there are too many bytes, or they are not an answer.
pub fn decode_answer(bytes: &[u8]) -> Result<Answer, MessageError> {
    decode(bytes)
}

/// Encodes a message.
///
/// # Errors
/// If it is larger than [`LARGEST`].
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, MessageError> {
    let bytes = serde_json::to_vec(message).map_err(MessageError::Encode)?;
    if bytes.len() > LARGEST {
        return Err(MessageError::TooLarge(bytes.len()));
    }
    Ok(bytes)
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, MessageError> {
    if bytes.len() > LARGEST {
        return Err(MessageError::TooLarge(bytes.len()));
    }
    serde_json::from_slice(bytes).map_err(MessageError::Decode)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The bytes of version 1. They must never change, because peers of that version still run.
    const GIVE_V1: &str = r#"{"give":{"revision":7,"name":"net/default/tap"}}"#;
    const TAKE_V1: &str = r#"{"take":{"stream":"serial0"}}"#;
    const DONE_V1: &str = r#"{"ok":true}"#;
    const REFUSED_V1: &str = r#"{"ok":false,"error":"no such stream"}"#;

    #[test]
    fn version_1_requests_are_read_and_written_byte_for_byte() {
        let give = Request::Give(Give { revision: 7, name: "net/default/tap".into() });
        let take = Request::Take(Take { stream: "serial0".into() });
        for (request, bytes) in [(give, GIVE_V1), (take, TAKE_V1)] {
            assert_eq!(decode_request(bytes.as_bytes()).unwrap(), request);
            assert_eq!(encode(&request).unwrap(), bytes.as_bytes());
        }
    }

    #[test]
    fn version_1_answers_are_read_and_written_byte_for_byte() {
        for (answer, bytes) in [(Answer::done(), DONE_V1), (Answer::refused("no such stream"), REFUSED_V1)] {
            assert_eq!(decode_answer(bytes.as_bytes()).unwrap(), answer);
            assert_eq!(encode(&answer).unwrap(), bytes.as_bytes());
        }
    }

    #[test]
    fn fields_of_a_later_version_are_ignored() {
        let later = br#"{"give":{"revision":1,"name":"kvm","access":"rw","more":[1,2]}}"#;
        let expected = Request::Give(Give { revision: 1, name: "kvm".into() });
        assert_eq!(decode_request(later).unwrap(), expected);
        assert_eq!(decode_answer(br#"{"ok":true,"generation":3}"#).unwrap(), Answer::done());
    }

    #[test]
    fn broken_unknown_and_oversized_requests_are_refused() {
        let long = format!(r#"{{"take":{{"stream":"{}"}}}}"#, "s".repeat(LONGEST_NAME + 1));
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"steal":{}}"#,
            r#"{"take":{"stream":""}}"#,
            r#"{"take":{"stream":"a\nb"}}"#,
            &long,
        ] {
            assert!(decode_request(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(matches!(decode_request(&vec![b' '; LARGEST + 1]), Err(MessageError::TooLarge(_))));
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = decode_request(&bytes);
            let _ = decode_answer(&bytes);
        }
    }
}
