//! The messages between two handlers about a migration: one line of JSON, and one line as the answer. Pure.

use serde::{Deserialize, Serialize};

/// Longest line, bytes.
pub const LONGEST: usize = 4096;
/// First bytes of a connection between two QEMUs. The ticket follows, and then the stream: the length of its
/// name in one byte, and its name. A TLS session never begins with these bytes.
pub const MAGIC: [u8; 4] = *b"BVM1";
/// The answer to a valid ticket.
pub const WELCOME: u8 = 0x06;

/// A random number that cannot be guessed.
pub type Secret = [u8; 32];

/// A request of the source's handler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    /// Requests a key and a ticket.
    #[serde(rename_all = "camelCase")]
    Begin {
        /// UID of the migration.
        migration: String,
        /// Whether memory is to be compressed if the target can.
        #[serde(default)]
        compression: bool,
    },
    /// Requests a ticket for a connection that replaces one that broke in post-copy. The key stays the same.
    #[serde(rename_all = "camelCase")]
    Rejoin {
        /// UID of the migration.
        migration: String,
    },
    /// Lets the guest run: everything was sent.
    #[serde(rename_all = "camelCase")]
    Go {
        /// UID of the migration.
        migration: String,
        /// Whether a user has paused the guest.
        hold: bool,
    },
}

/// An answer of the target's handler.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// The migration may begin, or go on.
    #[serde(rename_all = "camelCase")]
    Begun {
        /// Key for both QEMUs; `None` if nothing is encrypted, or if both have it.
        key: Option<Secret>,
        /// Ticket for the connections between them. It is valid once for each stream, and for a short time.
        ticket: Secret,
        /// Whether the target can run the guest before all of its memory has arrived.
        #[serde(default)]
        post_copy: bool,
        /// Whether the target takes disks that the guest only reads.
        #[serde(default)]
        images: bool,
        /// How many connections for memory the target takes, in addition to the first one.
        #[serde(default)]
        channels: u8,
        /// Whether the target takes compressed memory over the further connections; only if the source asked for it.
        #[serde(default)]
        compression: bool,
    },
    /// The request was carried out.
    Done,
    /// The request was refused, for this reason.
    Refused(String),
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Begun { .. } => formatter.write_str("Begun"),
            Self::Done => formatter.write_str("Done"),
            Self::Refused(why) => formatter.debug_tuple("Refused").field(why).finish(),
        }
    }
}

impl Request {
    /// UID of the migration of this request.
    #[must_use]
    pub fn migration(&self) -> &str {
        match self {
            Self::Begin { migration, .. } | Self::Rejoin { migration } | Self::Go { migration, .. } => {
                migration
            }
        }
    }
}

/// The message as a line, with its line end.
///
/// # Errors
/// When the line would be too long.
pub fn line<T: Serialize>(message: &T) -> Result<Vec<u8>, serde_json::Error> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

/// Compares two secrets in constant time.
#[must_use]
pub fn is_same(one: &Secret, other: &Secret) -> bool {
    one.iter().zip(other).fold(0, |seen, (one, other)| seen | (one ^ other)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_the_agreed_ones() {
        let go = Request::Go { migration: "m".to_owned(), hold: true };
        assert_eq!(line(&go).unwrap(), b"{\"go\":{\"migration\":\"m\",\"hold\":true}}\n");
        let begin: Request = serde_json::from_str(r#"{"begin":{"migration":"m","later":1}}"#).unwrap();
        assert_eq!(begin, Request::Begin { migration: "m".to_owned(), compression: false });
        let begin = Request::Begin { migration: "m".to_owned(), compression: true };
        assert_eq!(line(&begin).unwrap(), b"{\"begin\":{\"migration\":\"m\",\"compression\":true}}\n");
        let begun = |images, channels, compression| {
            let (key, ticket) = (Some([255; 32]), [254; 32]);
            Answer::Begun { key, ticket, post_copy: true, images, channels, compression }
        };
        let all = begun(true, 16, true);
        let text = line(&all).unwrap();
        assert!(text.len() < LONGEST);
        assert_eq!(serde_json::from_slice::<Answer>(&text).unwrap(), all);
        assert_eq!(format!("{all:?}"), "Begun");
        // A handler of an older version does not mention them.
        let new = ",\"images\":true,\"channels\":16,\"compression\":true";
        let text = String::from_utf8(text).unwrap().replace(new, "");
        assert_eq!(serde_json::from_str::<Answer>(&text).unwrap(), begun(false, 0, false));
    }

    #[test]
    fn secrets_are_compared_whole() {
        let mut other = [7; 32];
        assert!(is_same(&[7; 32], &other));
        other[31] = 8;
        assert!(!is_same(&[7; 32], &other));
    }
}
