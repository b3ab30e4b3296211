//! How disturbing neighbours affect guests: start, console and status beside such neighbours, without any, and beside
//! calm ones.
//!
//! ```text
//!   guests under load ─┬─ a turn without ─── starts, keys, pauses ─┐
//!                      ├─ a turn beside calm ones ── the same ─────┤
//!                      └─ a turn with [`Noise`] ── the same ───────┴─► medians, and the ratios of the last to the others
//! ```

use super::noise::{Neighbours, Noise};
use super::pausing::{pause, unpause};
use super::start::{remove, until};
use super::streams::echo;
use super::{Figure, Figures, Rounds};
use crate::namespace::Namespace;
use crate::wait::BOOT;
use crate::{Console, guest};
use anyhow::Result;
use std::time::{Duration, Instant};

/// The budget: how much slower it may be.
const RATIO: f64 = 1.5;
/// Until all guests run, emulated, on few processors.
const ALL_RUNNING: Duration = Duration::from_secs(300);
const ECHO: Duration = Duration::from_secs(10);
/// The load of a guest: a burst each second.
const LOAD: &str = "#!/bin/sh
(while true; do dd if=/dev/zero of=/tmp/load bs=65536 count=64; sync; sleep 1; done) >/dev/null 2>&1 &
";

/// One side's measurements.
#[derive(Default)]
struct Felt {
    starts: Vec<f64>,
    keys: Vec<f64>,
    statuses: Vec<f64>,
}

/// Measures `noisy_neighbour_start`, `noisy_neighbour_console` and `noisy_neighbour_status`, and the same `_over_calm`.
pub fn measure(namespace: &Namespace, rounds: Rounds, figures: &mut Figures) -> Result<()> {
    let (calm, spammer) = (Neighbours::calm(namespace)?, Neighbours::spammer(namespace)?);
    let (calm, spammer) = (calm.paused_after("computes-now")?, spammer.paused_after("spam-spam-spam")?);
    let names: Vec<String> = (0..rounds.neighbours).map(|number| format!("guest-{number}")).collect();
    for name in &names {
        namespace.apply(&guest::with_user_data(guest::instance(name), LOAD))?;
    }
    for name in &names {
        namespace.wait_phase(name, "Running", ALL_RUNNING)?;
    }
    let mut console = Console::open(namespace, "guest-0")?;
    console.login(BOOT + ALL_RUNNING)?;
    // Only the terminal reads the keys, and echoes them.
    console.send("sleep 10000\n")?;
    console.expect("sleep 10000", ECHO)?;

    let (mut without, mut beside_calm, mut noisy) = (Felt::default(), Felt::default(), Felt::default());
    for _ in 0..rounds.turns {
        turn(namespace, rounds, &mut console, &mut without)?;
        calm.unpause()?;
        turn(namespace, rounds, &mut console, &mut beside_calm)?;
        calm.pause()?;
        let noise = Noise::start(&spammer)?;
        turn(namespace, rounds, &mut console, &mut noisy)?;
        noise.end()?;
    }
    for (suffix, other, beside) in
        [("", &without, "without"), ("_over_calm", &beside_calm, "beside calm ones")]
    {
        for (name, values, raws, unit) in [
            ("noisy_neighbour_start", &noisy.starts, &other.starts, "s"),
            ("noisy_neighbour_console", &noisy.keys, &other.keys, "ms"),
            ("noisy_neighbour_status", &noisy.statuses, &other.statuses, "s"),
        ] {
            let figure = Figure::compared(values, raws, unit);
            let wanted = format!("at most {RATIO} x {beside}, of {} guests", rounds.neighbours);
            let figure = figure.within(wanted, |figure| figure.ratio.is_some_and(|ratio| ratio <= RATIO));
            figures.insert(format!("{name}{suffix}"), figure);
        }
    }
    Ok(())
}

/// Several times each: starts another guest, types, and pauses a guest until its status says so.
fn turn(namespace: &Namespace, rounds: Rounds, console: &mut Console, felt: &mut Felt) -> Result<()> {
    for _ in 0..rounds.turn_starts {
        let manifest = guest::instance("new");
        felt.starts.push(until(namespace, &manifest, "vmi/new", "{.status.phase}=Running")?);
        remove(namespace, "vmi", "new")?;
    }
    for _ in 0..rounds.keys.div_ceil(rounds.turns) {
        felt.keys.push(echo(console)?);
    }
    for _ in 0..rounds.turn_statuses {
        // A guest whose console is not used.
        let name = format!("guest-{}", rounds.neighbours.saturating_sub(1));
        let begun = Instant::now();
        pause(namespace, &name)?;
        felt.statuses.push(begun.elapsed().as_secs_f64());
        unpause(namespace, &name)?;
    }
    Ok(())
}
