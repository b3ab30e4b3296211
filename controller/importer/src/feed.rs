//! Passes a transfer, which waits for the network, to the thread that writes to the claim and may block.

use crate::failure::Failure;
use hyper::body::Bytes;
use std::io::{self, Read};
use std::sync::{Arc, OnceLock};
use tokio::sync::mpsc::Receiver;

/// Buffered pieces. Each is at most one read of the network.
pub const PIECES: usize = 16;

/// A piece of a transfer.
#[derive(Debug)]
pub enum Piece {
    /// Bytes.
    Data(Bytes),
    /// The transfer is complete and correct.
    End,
    /// The transfer failed.
    Failed(Failure),
}

/// The bytes as a reader, for a thread that may block.
#[derive(Debug)]
pub struct Feed {
    pieces: Receiver<Piece>,
    current: Bytes,
    ended: bool,
    trouble: FeedFailure,
}

/// The failure of a [`Feed`]; readers around the feed may lose the error.
#[derive(Clone, Debug, Default)]
pub struct FeedFailure(Arc<OnceLock<Failure>>);

impl FeedFailure {
    /// The cause of a read error: the transfer's failure, or else damaged contents.
    #[must_use]
    pub fn of(&self, what: &str, error: &io::Error) -> Failure {
        let failure = self.0.get().cloned();
        failure.unwrap_or_else(|| Failure::Final(format!("{what} is damaged: {error}")))
    }
}

impl FeedFailure {
    /// Reads once and returns the failure, if there is one.
    pub(crate) fn seen(&self, mut stream: impl Read) -> Option<Failure> {
        // The failure is stored here.
        let _ = stream.read(&mut [0]);
        self.0.get().cloned()
    }

    /// The transfer's failure, if there is one.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.0.get().cloned()
    }

    /// Records a failure of reading.
    pub(crate) fn note(&self, failure: Failure) {
        // The first one counts.
        let _ = self.0.set(failure);
    }
}

impl Feed {
    /// Reads the pieces that arrive.
    #[must_use]
    pub fn new(pieces: Receiver<Piece>) -> (Self, FeedFailure) {
        let trouble = FeedFailure::default();
        (Feed { pieces, current: Bytes::new(), ended: false, trouble: trouble.clone() }, trouble)
    }
}

impl Read for Feed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            if self.ended || buffer.is_empty() {
                return Ok(0);
            }
            let failure = match self.pieces.blocking_recv() {
                Some(Piece::Data(bytes)) => {
                    self.current = bytes;
                    continue;
                }
                Some(Piece::End) => {
                    self.ended = true;
                    continue;
                }
                Some(Piece::Failed(failure)) => failure,
                // Without a final piece the contents may be incomplete.
                None => Failure::Passing("the transfer ended without a result".to_owned()),
            };
            let failure = self.trouble.0.get_or_init(|| failure).clone();
            return Err(io::Error::other(failure));
        }
        let count = buffer.len().min(self.current.len());
        buffer[..count].copy_from_slice(&self.current.split_to(count));
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc::channel;

    #[test]
    fn only_what_is_said_to_be_whole_ends_well() {
        let (sender, receiver) = channel(PIECES);
        let (mut feed, trouble) = Feed::new(receiver);
        sender.try_send(Piece::Data(Bytes::from_static(b"abc"))).unwrap();
        sender.try_send(Piece::End).unwrap();
        let mut all = vec![];
        feed.read_to_end(&mut all).unwrap();
        assert_eq!(all, b"abc");
        let damaged = trouble.of("image", &io::Error::other("x"));
        assert_eq!(damaged, Failure::Final("image is damaged: x".to_owned()));

        let (sender, receiver) = channel(PIECES);
        let (mut feed, trouble) = Feed::new(receiver);
        sender.try_send(Piece::Data(Bytes::from_static(b"abc"))).unwrap();
        drop(sender);
        let error = feed.read_to_end(&mut vec![]).unwrap_err();
        assert!(!trouble.of("image", &error).is_final());
        assert!(feed.read(&mut [0]).is_err(), "it stays broken");
    }
}
