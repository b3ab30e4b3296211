//! Parses the guest's requests on the port: a line, then an empty one. Pure. Bytes beyond a short line are
//! discarded.

/// The only path that can be requested.
const PATH: &str = "/metrics/XML";
/// Longest request.
const LIMIT: usize = 1024;

/// Unanswered bytes from the guest.
#[derive(Debug, Default)]
pub struct Requests {
    buffer: Vec<u8>,
}

/// Why a request is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The empty line is missing.
    #[error("no empty line follows the request")]
    Unfinished,
    /// Another method or path.
    #[error("the request is not GET {PATH}")]
    Other,
    /// It is too long.
    #[error("the request is longer than {LIMIT} bytes")]
    Long,
}

impl Requests {
    /// Adds bytes from the guest.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete request. An invalid request also discards the bytes sent with it.
    pub fn take(&mut self) -> Option<Result<(), Invalid>> {
        let request = self.parse()?;
        match request {
            Ok(used) => {
                self.buffer.drain(..used);
                Some(Ok(()))
            }
            Err(invalid) => {
                self.buffer.clear();
                Some(Err(invalid))
            }
        }
    }

    /// Length of the request.
    fn parse(&self) -> Option<Result<usize, Invalid>> {
        let lines: Vec<&[u8]> = self.buffer.splitn(3, |byte| *byte == b'\n').collect();
        let (first, second) = match lines.as_slice() {
            [first, second, _] => (*first, *second),
            _ if self.buffer.len() > LIMIT => return Some(Err(Invalid::Long)),
            _ => return None,
        };
        let used = first.len() + second.len() + 2;
        if !trimmed(second).is_empty() {
            return Some(Err(Invalid::Unfinished));
        }
        let line = str::from_utf8(trimmed(first)).unwrap_or_default();
        let path = line.strip_prefix("GET ").unwrap_or_default();
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        Some(if path == PATH { Ok(used) } else { Err(Invalid::Other) })
    }
}

fn trimmed(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_come_in_pieces_and_together() {
        let mut requests = Requests::default();
        for piece in ["GET /metr", "ics/XML\n", "\r\nGET /metrics/XML?a=b\r\n\n"] {
            assert_eq!(requests.take(), None);
            requests.push(piece.as_bytes());
        }
        assert_eq!(requests.take(), Some(Ok(())));
        assert_eq!(requests.take(), Some(Ok(())));
        assert_eq!(requests.take(), None);
    }

    #[test]
    fn all_else_is_invalid_and_forgotten() {
        let long = "x".repeat(LIMIT + 1);
        for (sent, expected) in [
            ("GET /metrics\n\n", Invalid::Other),
            ("PUT /metrics/XML\n\n", Invalid::Other),
            ("\n\n", Invalid::Other),
            ("GET /metrics/XML\nGET /metrics/XML\n\n", Invalid::Unfinished),
            (&long, Invalid::Long),
        ] {
            let mut requests = Requests::default();
            requests.push(sent.as_bytes());
            assert_eq!(requests.take(), Some(Err(expected)), "{sent}");
            assert_eq!(requests.take(), None, "{sent}");
        }
    }

    proptest! {
        #[test]
        fn nothing_that_a_guest_sends_is_kept_for_long(pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..40)) {
            let mut requests = Requests::default();
            for piece in pieces {
                requests.push(&piece);
                while requests.take().is_some() {}
                prop_assert!(requests.buffer.len() <= LIMIT);
            }
        }
    }
}
