//! Waiting: always for something that is named, never for ever.

use anyhow::{Result, bail};
use std::thread;
use std::time::{Duration, Instant};

/// Until a VMI runs: image import, scheduling, QEMU's start, on a busy machine.
pub const RUNNING: Duration = Duration::from_secs(90);
/// Until a guest shows its prompt, from its power-on, emulated on a busy machine.
pub const BOOT: Duration = Duration::from_secs(150);
/// Until the cluster has noticed and acted.
pub const SOON: Duration = Duration::from_secs(60);
/// Until a guest has moved: a pod starts, and its memory goes over, on a busy machine.
pub const MOVED: Duration = Duration::from_secs(240);
/// Until a guest has shut itself down.
pub const SHUTDOWN: Duration = Duration::from_secs(60);

/// Between two questions. Most are answered from within the tests, by the API server.
const PAUSE: Duration = Duration::from_millis(200);

/// Asks again and again until there is an answer. An error of the question ends the wait: a cluster that does not
/// answer is no reason to go on asking.
pub fn until<T>(what: &str, within: Duration, mut question: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + within;
    loop {
        if let Some(answer) = question()? {
            return Ok(answer);
        }
        if Instant::now() > deadline {
            bail!("waited {} s for {what}", within.as_secs());
        }
        thread::sleep(PAUSE);
    }
}

/// The same for a plain condition.
pub fn until_true(what: &str, within: Duration, mut question: impl FnMut() -> Result<bool>) -> Result<()> {
    until(what, within, || Ok(question()?.then_some(())))
}
