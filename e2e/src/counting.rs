//! A guest that counts on its console: the output shows whether it was ever paused or booted again.

use crate::namespace::Namespace;
use crate::node::Node;
use crate::wait::{self, BOOT, SOON};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::thread;
use std::time::Duration;

/// The numbers and boot ids in what [`crate::guest::COUNTING`] wrote.
pub fn ticks(log: &str) -> Vec<(u64, String)> {
    let whole = log.rfind('\n').map_or("", |end| &log[..end]);
    // The login prompt has no newline, so a tick may follow it on the same line.
    let tick = |line: &str| {
        let (_, rest) = line.trim().rsplit_once("tick ")?;
        let (number, boot) = rest.split_once(' ')?;
        Some((number.parse().ok()?, boot.to_owned()))
    };
    whole.lines().filter_map(tick).collect()
}

/// A guest that counts.
pub struct Counting {
    launcher: Value,
    node: Node,
}

impl Counting {
    /// Finds the launcher of a running VMI, and waits until its guest counts.
    pub fn of(namespace: &Namespace, vmi: &str) -> Result<Self> {
        let launcher = namespace.launcher(vmi)?;
        let node = Node::of(&launcher)?;
        let counting = Counting { launcher, node };
        wait::until_true("the guest to count", BOOT, || Ok(counting.count()?.len() > 3))?;
        Ok(counting)
    }

    fn count(&self) -> Result<Vec<(u64, String)>> {
        Ok(ticks(&self.node.serial_log(&self.launcher)?))
    }

    /// The id of the boot in which it counts.
    pub fn boot(&self) -> Result<String> {
        let (_, boot) = self.count()?.pop().context("no tick")?;
        Ok(boot)
    }

    /// Checks that it does not count, for the time of several numbers.
    pub fn stands_still(&self) -> Result<()> {
        // Earlier output reaches the log within that time.
        thread::sleep(Duration::from_secs(1));
        let then = self.count()?.len();
        thread::sleep(Duration::from_secs(5));
        let now = self.count()?.len();
        ensure!(now == then, "the guest counted on by {}", now - then);
        Ok(())
    }

    /// Checks that it counts on, and has counted without a gap in the same boot.
    pub fn goes_on(&self) -> Result<()> {
        let then = self.count()?.len();
        wait::until_true("the guest to count on", SOON, || Ok(self.count()?.len() > then + 5))?;
        let ticks = self.count()?;
        let first = ticks.first().cloned().context("no tick")?;
        for ((number, boot), expected) in ticks.iter().zip(first.0..) {
            ensure!(*number == expected, "after tick {} came {number}", expected - 1);
            ensure!(*boot == first.1, "the guest has booted again");
        }
        Ok(())
    }
}
