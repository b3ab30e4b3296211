//! Downloads the bytes of one file, in order, over as many connections as needed.
//!
//! ```text
//!   GET --> 200, bytes ... cut --> pause --> GET Range: bytes=N- --> 206 --> bytes ... end --> checksum --> End
//!                                                       \--> 200: the first N bytes are skipped
//! ```
//!
//! If a server reports another length or another ETag than at first, the file has changed and the download fails. Where nothing
//! would tell (no length, ETag, time or checksum), it is not resumed, and the import begins anew. A connection
//! on which too little arrives is given up; a transfer that goes on for too long fails, over however many connections.

use crate::checksum::{Checksum, Hasher};
use crate::failure::Failure;
use crate::feed::Piece;
use crate::progress::Progress;
use crate::registry::Registry;
use crate::web::{Answer, Ask, Web};
use http::header::{self, HeaderValue};
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tracing::{info, warn};

/// Progress after which the count of tries starts again, in bytes.
const WORTHWHILE: u64 = 1 << 20;

/// What is known of a file before its first byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Described {
    /// Its length in bytes, if the server reports it.
    pub length: Option<u64>,
    /// Its media type.
    pub media_type: Option<String>,
}

/// A file to download.
#[derive(Debug)]
pub struct Download {
    /// The request.
    pub ask: Ask,
    /// The registry that it comes from, if it is a layer: each connection has the credentials that it wants by then.
    pub registry: Option<Registry>,
    /// The expected checksum.
    pub checksum: Option<Checksum>,
    /// The expected length, in bytes.
    pub length: Option<u64>,
    /// When it has to be complete.
    pub deadline: Deadline,
}

/// The end of the time that a transfer may take.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    until: Instant,
    within: Duration,
}

impl Deadline {
    /// After this time from now.
    #[must_use]
    pub fn after(within: Duration) -> Self {
        Deadline { until: Instant::now() + within, within }
    }
}

/// The position of a download.
struct Position {
    offset: u64,
    length: Option<u64>,
    validator: Option<HeaderValue>,
    hasher: Option<Hasher>,
}

enum Ended {
    /// The file is complete.
    Whole,
    /// The receiver does not want the rest.
    Unwanted,
}

impl Download {
    /// Sends the file to `sink`, and first what is known of it to `described`. The last piece reports the result.
    pub async fn run(
        mut self,
        web: Web,
        described: oneshot::Sender<Described>,
        sink: Sender<Piece>,
        progress: Arc<Progress>,
    ) {
        let what = self.ask.url.shown();
        let mut position = Position {
            offset: 0,
            length: self.length,
            validator: None,
            hasher: self.checksum.as_ref().map(Checksum::hasher),
        };
        let last = match self.bytes(&web, &mut position, described, &sink, &progress).await {
            Ok(Ended::Unwanted) => return,
            Ok(Ended::Whole) => match (&self.checksum, position.hasher) {
                (Some(checksum), Some(hasher)) => match checksum.verify(hasher, &what) {
                    Ok(()) => Piece::End,
                    Err(failure) => Piece::Failed(failure),
                },
                _ => Piece::End,
            },
            Err(failure) => Piece::Failed(failure),
        };
        // If the receiver is gone, it has handled the end itself.
        let _ = sink.send(last).await;
    }

    async fn bytes(
        &mut self,
        web: &Web,
        position: &mut Position,
        described: oneshot::Sender<Described>,
        sink: &Sender<Piece>,
        progress: &Progress,
    ) -> Result<Ended, Failure> {
        let mut described = Some(described);
        let (mut tries, mut pause) = (0, web.policy.pause);
        loop {
            let before = position.offset;
            let failure = match self.part(web, position, &mut described, sink, progress).await {
                Ok(ended) => return Ok(ended),
                Err(failure) if failure.is_final() => return Err(failure),
                Err(failure) if !position.can_be_resumed() => {
                    return Err(Failure::Passing(format!(
                        "{failure}; it cannot be resumed: there is no checksum, and the server says neither length \
                         nor ETag nor time"
                    )));
                }
                Err(failure) => failure,
            };
            if position.offset - before >= WORTHWHILE {
                (tries, pause) = (0, web.policy.pause);
            }
            tries += 1;
            if tries >= web.policy.tries {
                return Err(failure);
            }
            warn!(why = %failure, offset = position.offset, ?pause, "the transfer broke off; it is resumed");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(web.policy.longest_pause);
            self.in_time()?;
        }
    }

    /// Fails once the transfer takes longer than it may.
    fn in_time(&self) -> Result<(), Failure> {
        let Deadline { until, within } = self.deadline;
        if Instant::now() < until {
            return Ok(());
        }
        let (what, seconds) = (self.ask.url.shown(), within.as_secs());
        let why = format!("{what} is not complete after {seconds} s, the longest time for its size");
        Err(Failure::Final(why))
    }

    /// Downloads over one connection.
    async fn part(
        &mut self,
        web: &Web,
        position: &mut Position,
        described: &mut Option<oneshot::Sender<Described>>,
        sink: &Sender<Piece>,
        progress: &Progress,
    ) -> Result<Ended, Failure> {
        let mut ask = self.ask.clone();
        if position.offset > 0 {
            range(&mut ask.headers, position);
        }
        let mut answer = match &mut self.registry {
            Some(registry) => registry.get(web, &ask).await?,
            None => web.get(&ask).await?,
        };
        let mut skip = position.begin(&answer)?;
        if let Some(described) = described.take() {
            info!(url = answer.url.shown(), length = position.length, "the transfer begins");
            let media_type = answer.header(header::CONTENT_TYPE).map(str::to_owned);
            // If the receiver is gone, `sink` reports that.
            let _ = described.send(Described { length: position.length, media_type });
        }
        let (mut deadline, mut since) = (Instant::now() + web.policy.stall, 0);
        loop {
            self.in_time()?;
            let frame = timeout_at(deadline.min(self.deadline.until), answer.body.frame()).await;
            let frame = match frame {
                Err(_) => {
                    self.in_time()?;
                    return Err(Failure::Passing(format!("{} has stalled", answer.url.shown())));
                }
                Ok(None) => break,
                Ok(Some(Err(error))) => {
                    let why =
                        std::error::Error::source(&error).map(|why| format!(": {why}")).unwrap_or_default();
                    return Err(Failure::Passing(format!("read {}: {error}{why}", answer.url.shown())));
                }
                Ok(Some(Ok(frame))) => frame,
            };
            let Ok(mut bytes) = frame.into_data() else { continue };
            since += bytes.len() as u64;
            if since >= web.policy.least {
                since = 0;
                deadline = Instant::now() + web.policy.stall;
            }
            let skipped = skip.min(bytes.len() as u64);
            skip -= skipped;
            let bytes = bytes.split_off(usize::try_from(skipped).unwrap_or(bytes.len()));
            let waited = Instant::now();
            if !position.take(bytes, sink, progress, &answer).await? {
                return Ok(Ended::Unwanted);
            }
            // Time in which the disk was slow does not count against the server.
            deadline += waited.elapsed();
        }
        match position.length {
            Some(length) if position.offset < length => Err(Failure::Passing(format!(
                "{} ended after {} of {length} bytes",
                answer.url.shown(),
                position.offset
            ))),
            _ => Ok(Ended::Whole),
        }
    }
}

fn range(headers: &mut HeaderMap, position: &Position) {
    if let Ok(value) = HeaderValue::from_str(&format!("bytes={}-", position.offset)) {
        headers.insert(header::RANGE, value);
    }
    if let Some(validator) = &position.validator {
        headers.insert(header::IF_RANGE, validator.clone());
    }
}

impl Position {
    /// Whether another connection can go on here: something has to tell whether it sends the same file.
    fn can_be_resumed(&self) -> bool {
        self.offset == 0 || self.length.is_some() || self.validator.is_some() || self.hasher.is_some()
    }

    /// Checks an answer against what is known of the file; returns how many of its bytes are known already.
    fn begin(&mut self, answer: &Answer) -> Result<u64, Failure> {
        let shown = answer.url.shown();
        let changed = |why: String| Failure::Final(format!("{shown} has changed while it was read: {why}"));
        let content_length = answer.header(header::CONTENT_LENGTH).and_then(|text| text.parse::<u64>().ok());
        let encoding = answer.header(header::CONTENT_ENCODING).unwrap_or("identity");
        if !encoding.eq_ignore_ascii_case("identity") {
            return Err(Failure::Final(format!("{shown} is sent with Content-Encoding {encoding}, unasked")));
        }
        let (length, skip) = match answer.status {
            StatusCode::OK => (content_length, self.offset),
            StatusCode::PARTIAL_CONTENT if self.offset > 0 => {
                let part = answer.header(header::CONTENT_RANGE).and_then(content_range);
                let Some((start, whole)) = part.filter(|(start, _)| *start == self.offset) else {
                    return Err(Failure::Final(format!("{shown} sends another part than it was asked for")));
                };
                (whole.or_else(|| content_length.map(|rest| start.saturating_add(rest))), 0)
            }
            StatusCode::RANGE_NOT_SATISFIABLE if self.offset > 0 => {
                return Err(changed("it has become shorter".to_owned()));
            }
            _ => return Err(answer.refusal()),
        };
        let validator = validator(&answer.headers);
        let is_compared = self.hasher.is_some()
            || self.length.is_some() && length.is_some()
            || self.validator.is_some() && validator.is_some()
            // It was asked for a part of the version that it had.
            || self.validator.is_some() && answer.status == StatusCode::PARTIAL_CONTENT;
        if self.offset > 0 && !is_compared {
            return Err(Failure::Passing(format!(
                "{shown} does not say any more which version of it is sent"
            )));
        }
        match (self.length, length) {
            (Some(known), Some(said)) if known != said => {
                return Err(changed(format!("its length was {known} bytes and is {said}")));
            }
            (None, said) => self.length = said,
            _ => {}
        }
        if self.offset == 0 {
            self.validator = validator;
        } else if let (Some(known), Some(said)) = (&self.validator, &validator)
            && known != said
        {
            return Err(changed("its ETag or time is another".to_owned()));
        }
        Ok(skip)
    }

    /// Passes bytes on; false if they are not wanted any more.
    async fn take(
        &mut self,
        bytes: Bytes,
        sink: &Sender<Piece>,
        progress: &Progress,
        answer: &Answer,
    ) -> Result<bool, Failure> {
        if bytes.is_empty() {
            return Ok(true);
        }
        self.offset += bytes.len() as u64;
        if let Some(length) = self.length
            && self.offset > length
        {
            let shown = answer.url.shown();
            return Err(Failure::Final(format!("{shown} sends more than the {length} bytes that it has")));
        }
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&bytes);
        }
        progress.transferred(self.offset, self.length.unwrap_or_default());
        Ok(sink.send(Piece::Data(bytes)).await.is_ok())
    }
}

/// The validator of a file's version: a strong ETag, otherwise its modification time.
fn validator(headers: &HeaderMap) -> Option<HeaderValue> {
    let tag = headers.get(header::ETAG).filter(|tag| !tag.as_bytes().starts_with(b"W/"));
    tag.or_else(|| headers.get(header::LAST_MODIFIED)).cloned()
}

/// Start and total length in `bytes 5-9/10`.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (part, whole) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = part.split_once('-')?;
    Some((start.parse().ok()?, whole.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_says_where_it_begins() {
        assert_eq!(content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(content_range("bytes 5-9/*"), Some((5, None)));
        for bad in ["5-9/10", "bytes */10", "bytes x-9/10", ""] {
            assert_eq!(content_range(bad), None, "{bad}");
        }
    }
}
