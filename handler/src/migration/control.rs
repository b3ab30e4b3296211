//! What handlers say to each other about a migration: one line of JSON, and one in answer. Pure.

use serde::{Deserialize, Serialize};

/// Longest line, bytes.
pub const LONGEST: usize = 4096;
/// How a connection begins that is one between QEMUs; then its ticket follows, and what it carries: the length of the name in a
/// byte, and the name. What begins a TLS session is not this.
pub const MAGIC: [u8; 4] = *b"BVM1";
/// What it is answered with when the ticket is good.
pub const WELCOME: u8 = 0x06;

/// A number that nobody guesses.
pub type Secret = [u8; 32];

/// What the source's handler asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    /// For a key and a ticket.
    #[serde(rename_all = "camelCase")]
    Begin {
        /// UID of the migration.
        migration: String,
    },
    /// To let the guest run: everything was sent.
    #[serde(rename_all = "camelCase")]
    Go {
        /// UID of the migration.
        migration: String,
        /// It was paused by somebody.
        hold: bool,
    },
}

/// What the target's handler answers.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// Take these.
    #[serde(rename_all = "camelCase")]
    Begun {
        /// Key of both QEMUs; none: nothing is encrypted.
        key: Option<Secret>,
        /// Ticket for the connections between them, good once for each and not for long.
        ticket: Secret,
        /// The guest could run here before all of its memory is here.
        #[serde(default)]
        post_copy: bool,
    },
    /// It is done.
    Done,
    /// It is not, with the reason.
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
    /// UID of the migration that it is about.
    #[must_use]
    pub fn migration(&self) -> &str {
        match self {
            Self::Begin { migration } | Self::Go { migration, .. } => migration,
        }
    }
}

/// A line, with its end.
///
/// # Errors
/// When it would be too long.
pub fn line<T: Serialize>(message: &T) -> Result<Vec<u8>, serde_json::Error> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

/// Whether two secrets are the same, in the same time whether they are or not.
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
        assert_eq!(begin, Request::Begin { migration: "m".to_owned() });
        let begun = Answer::Begun { key: Some([255; 32]), ticket: [254; 32], post_copy: true };
        let text = line(&begun).unwrap();
        assert!(text.len() < LONGEST);
        assert_eq!(serde_json::from_slice::<Answer>(&text).unwrap(), begun);
        assert_eq!(format!("{begun:?}"), "Begun");
    }

    #[test]
    fn secrets_are_compared_whole() {
        let mut other = [7; 32];
        assert!(is_same(&[7; 32], &other));
        other[31] = 8;
        assert!(!is_same(&[7; 32], &other));
    }
}
