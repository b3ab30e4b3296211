//! Waits, always with a description and a deadline.

use anyhow::{Result, bail};
use std::thread;
use std::time::{Duration, Instant};

/// Time until a VMI runs: image import, scheduling, QEMU's start, on a busy machine.
pub const RUNNING: Duration = Duration::from_secs(90);
/// Time from power-on until a guest shows its prompt, emulated on a busy machine.
pub const BOOT: Duration = Duration::from_secs(150);
/// Time until the cluster has noticed and acted.
pub const SOON: Duration = Duration::from_secs(60);
/// Time until a guest has moved: a pod starts, and memory is copied, on a busy machine.
pub const MOVED: Duration = Duration::from_secs(240);
/// Time until a guest has shut itself down.
pub const SHUTDOWN: Duration = Duration::from_secs(60);

/// Pause between two calls of the question. Most questions are requests to the API server.
const PAUSE: Duration = Duration::from_millis(200);

/// Calls the question again and again until it returns a value. An error of the question ends the wait.
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
