//! Processor time of other processes and of their threads.

use anyhow::{Context, Result};
use std::fs;
use std::time::Duration;

/// The unit in which the kernel tells it, on all machines.
pub(super) const TICK: Duration = Duration::from_millis(10);

/// What a process has used so far, with its threads that have ended. `task` is its number, or `number/task/thread` for one thread.
pub(super) fn used(task: &str) -> Result<Duration> {
    let stat =
        fs::read_to_string(format!("/proc/{task}/stat")).with_context(|| format!("process {task} ended"))?;
    ticks(&stat).map(|ticks| TICK * ticks).with_context(|| format!("no processor time of process {task}"))
}

fn ticks(stat: &str) -> Option<u32> {
    // A name may have spaces and brackets.
    let (_, fields) = stat.rsplit_once(") ")?;
    // utime and stime are the 14th and 15th of all, the 12th and 13th after the name.
    let mut times = fields.split(' ').skip(11).map(str::parse::<u32>);
    Some(times.next()?.ok()? + times.next()?.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_times_are_added() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194560 1 2 3 4 50 6 70 80 20 0 1 0 99 0 0";
        assert_eq!(ticks(stat), Some(56));
        assert_eq!(ticks("7 (short) S 1"), None);
    }
}
