//! Network cards of the node that a guest drives itself (SR-IOV). They cannot move: the guest gives them back before its memory is
//! sent, and gets those of the other pod once it runs there. A guest that stays gets its own again.
//!
//! QEMU only asks the guest to give a card back (`device_del`); the card is gone once QEMU does not list it any more.

use std::collections::BTreeSet;
use std::time::Duration;

use barevirt_machine::{Command, Step};
use barevirt_qmp::{Deadline, Error, Qmp};
use tokio::time::{Instant, sleep};

use super::disks::unless_refused;
use crate::peripherals::ids;

/// Time limit for one command of QEMU. It reaches all of the guest's memory for the first card.
const COMMAND: Duration = Duration::from_secs(60);
/// How long the guest may take to give its cards back.
const GIVES_BACK: Duration = Duration::from_secs(30);
/// How long a card that the guest gives back too late is awaited, to be plugged in again.
const LATE: Duration = Duration::from_secs(60);
/// Interval of looks at QEMU's devices.
const LOOK: Duration = Duration::from_millis(100);

/// Why cards do not go or come.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    /// QEMU refuses, or does not answer.
    #[error(transparent)]
    Monitor(#[from] Error),
    /// The guest did not give some back.
    #[error("the guest has not given back {0} within {seconds} s", seconds = GIVES_BACK.as_secs())]
    Kept(String),
}

async fn run(qmp: &Qmp, Command { execute, arguments }: &Command) -> Result<(), Error> {
    qmp.execute_raw(execute, arguments.clone(), Deadline::after(COMMAND)).await.map(drop)
}

fn id(card: &Step) -> &str {
    card.awaits_device.as_deref().unwrap_or_default()
}

/// Has the guest give its cards back, and waits until they are gone.
///
/// # Errors
/// If QEMU refuses, or the guest keeps one of them.
pub async fn take(qmp: &Qmp, cards: &[Step]) -> Result<(), Trouble> {
    let begun = Instant::now();
    let mut asked = BTreeSet::new();
    while !cards.is_empty() {
        let there = ids(qmp, Deadline::after(COMMAND)).await?;
        let left: Vec<&Step> = cards.iter().filter(|card| there.contains(id(card))).collect();
        if left.is_empty() {
            tracing::info!(cards = cards.len(), "the guest has given its cards back");
            break;
        }
        if begun.elapsed() >= GIVES_BACK {
            return Err(Trouble::Kept(left.into_iter().map(id).collect::<Vec<_>>().join(", ")));
        }
        for card in left {
            if asked.insert(id(card)) {
                // QEMU refuses while an earlier migration's request is with the guest.
                unless_refused(run(qmp, &card.inverse).await)?;
            }
        }
        sleep(LOOK).await;
    }
    Ok(())
}

/// Plugs in the cards that QEMU does not have. One that the guest has not given back yet may still go: it is plugged in again
/// then. Drop this before the guest is asked for its cards again.
///
/// # Errors
/// If QEMU refuses one.
pub async fn give(qmp: &Qmp, cards: &[Step]) -> Result<(), Trouble> {
    let begun = Instant::now();
    let mut given = BTreeSet::new();
    while given.len() < cards.len() && begun.elapsed() < LATE {
        let there = ids(qmp, Deadline::after(COMMAND)).await?;
        for card in cards.iter().filter(|card| !there.contains(id(card))) {
            if given.insert(id(card)) {
                run(qmp, &card.forward).await?;
                tracing::info!(card = id(card), "the guest gets a card");
            }
        }
        sleep(LOOK).await;
    }
    Ok(())
}
