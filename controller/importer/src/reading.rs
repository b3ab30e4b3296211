//! A transfer that is read as it arrives.

use crate::download::Described;
use crate::failure::Failure;
use crate::feed::{Feed, FeedFailure};
use crate::image::drain;
use crate::progress::Progress;
use crate::target::Target;
use std::io::Read;
use std::sync::Arc;

/// A transfer that is read on a thread that may block, into a disk or into files.
pub(crate) struct Reading<C = Target> {
    /// Its bytes.
    pub(crate) feed: Option<Feed>,
    /// Why it failed.
    pub(crate) trouble: FeedFailure,
    /// Its name in messages.
    pub(crate) what: String,
    /// What is known of it in advance.
    pub(crate) described: Described,
    /// The claim that it is written to.
    pub(crate) target: Arc<C>,
    /// Its progress.
    pub(crate) progress: Arc<Progress>,
}

/// A feed that is returned when its last reader is dropped.
struct ReturningReader {
    feed: Option<Feed>,
    back: std::sync::mpsc::Sender<Feed>,
}

impl Read for ReturningReader {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.feed.as_mut().map_or(Ok(0), |feed| feed.read(buffer))
    }
}

impl Drop for ReturningReader {
    fn drop(&mut self) {
        if let Some(feed) = self.feed.take() {
            // After a failure it is not wanted back.
            let _ = self.back.send(feed);
        }
    }
}

impl<C> Reading<C> {
    /// Its bytes, which are returned when they are dropped.
    pub(crate) fn take_reader(&mut self) -> (Box<dyn Read + Send>, std::sync::mpsc::Receiver<Feed>) {
        let (back, returned) = std::sync::mpsc::channel();
        (Box::new(ReturningReader { feed: self.feed.take(), back }), returned)
    }
}

/// Reads the rest of a transfer whose reader was returned.
pub(crate) fn rest(
    returned: &std::sync::mpsc::Receiver<Feed>,
    most: u64,
    what: &str,
    trouble: &FeedFailure,
) -> Result<(), Failure> {
    let lost = |_| Failure::Passing(format!("{what}: its transfer was lost"));
    drain(&mut returned.try_recv().map_err(lost)?, most, what, trouble)
}
