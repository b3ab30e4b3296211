//! Network cards of the node that a guest drives itself (SR-IOV). They cannot move: the guest gives them back before its memory is
//! sent, and gets those of the other pod once it runs there. A guest that stays gets its own again.
//!
//! QEMU only asks the guest to give a card back (`device_del`); the card is gone once QEMU does not list it any more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use barevirt_machine::{Command, HostCard};
use barevirt_qmp::{Deadline, Error, Qmp};
use tokio::sync::watch;
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

/// Why cards could not be removed or plugged in.
#[derive(Debug, thiserror::Error)]
pub enum HostCardError {
    /// QEMU refuses, or does not answer.
    #[error(transparent)]
    Monitor(#[from] Error),
    /// The guest did not give some back.
    #[error("the guest has not given back {0} within {seconds} s", seconds = GIVES_BACK.as_secs())]
    Kept(String),
}

/// Why a card does not stay with the guest, or come with it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CardState {
    /// The guest is to do without it.
    LeftOut,
    /// QEMU refused it, for this reason.
    Refused(String),
}

/// The cards of the node that a machine was assembled with. All clones are the same cards.
#[derive(Debug, Clone, Default)]
pub struct HostCards {
    cards: Arc<[HostCard]>,
    states: watch::Sender<BTreeMap<String, CardState>>,
}

impl HostCards {
    /// For these cards, which stay with the guest.
    #[must_use]
    pub fn new(cards: Vec<HostCard>) -> Self {
        Self { cards: cards.into(), states: watch::Sender::default() }
    }

    /// All cards, also those without which the guest is to do.
    #[must_use]
    pub fn all(&self) -> &[HostCard] {
        &self.cards
    }

    /// Has the guest do without a card from now on: it is not plugged in again.
    pub fn leave_out(&self, name: &str) {
        self.set(name, Some(CardState::LeftOut));
    }

    /// Why QEMU refused a card.
    #[must_use]
    pub fn refused(&self, name: &str) -> Option<String> {
        match self.states.borrow().get(name)? {
            CardState::Refused(why) => Some(why.clone()),
            CardState::LeftOut => None,
        }
    }

    /// Changes when the state of a card does.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<impl Sized + use<>> {
        self.states.subscribe()
    }

    fn stays(&self, card: &HostCard) -> bool {
        self.states.borrow().get(&card.name) != Some(&CardState::LeftOut)
    }

    fn set(&self, name: &str, state: Option<CardState>) {
        self.states.send_if_modified(|states| {
            // A card that was left out does not come back.
            if states.get(name) == state.as_ref() || states.get(name) == Some(&CardState::LeftOut) {
                return false;
            }
            match state {
                Some(state) => drop(states.insert(name.to_owned(), state)),
                None => drop(states.remove(name)),
            }
            true
        });
    }
}

async fn run(qmp: &Qmp, Command { execute, arguments }: &Command) -> Result<(), Error> {
    qmp.execute_raw(execute, arguments.clone(), Deadline::after(COMMAND)).await.map(drop)
}

/// Has the guest give its cards back, and waits until they are gone.
///
/// # Errors
/// If QEMU refuses, or the guest keeps one of them.
pub async fn take(qmp: &Qmp, cards: &HostCards) -> Result<(), HostCardError> {
    let begun = Instant::now();
    let mut asked = BTreeSet::new();
    while !cards.all().is_empty() {
        let there = ids(qmp, Deadline::after(COMMAND)).await?;
        let left: Vec<&HostCard> = cards.all().iter().filter(|card| there.contains(&card.id)).collect();
        if left.is_empty() {
            tracing::info!(cards = cards.all().len(), "the guest has given its cards back");
            break;
        }
        if begun.elapsed() >= GIVES_BACK {
            let left = left.into_iter().map(|card| card.id.as_str());
            return Err(HostCardError::Kept(left.collect::<Vec<_>>().join(", ")));
        }
        for card in left {
            if asked.insert(&card.id) {
                // QEMU refuses while an earlier migration's request is with the guest.
                unless_refused(run(qmp, &card.step.inverse).await)?;
            }
        }
        sleep(LOOK).await;
    }
    Ok(())
}

/// Plugs in the cards that QEMU does not have. One that the guest has not given back yet may still go: it is plugged in again
/// then. Drop this before the guest is asked for its cards again. A card that QEMU refuses does not keep the others away.
///
/// # Errors
/// If QEMU does not answer.
pub async fn give(qmp: &Qmp, cards: &HostCards) -> Result<(), HostCardError> {
    let begun = Instant::now();
    let mut given = BTreeSet::new();
    loop {
        let left = cards.all().iter().filter(|card| cards.stays(card) && !given.contains(&card.id));
        let left: Vec<&HostCard> = left.collect();
        if left.is_empty() || begun.elapsed() >= LATE {
            return Ok(());
        }
        let there = ids(qmp, Deadline::after(COMMAND)).await?;
        for card in left.into_iter().filter(|card| cards.stays(card) && !there.contains(&card.id)) {
            given.insert(card.id.clone());
            let answer = run(qmp, &card.step.forward).await;
            let why = match &answer {
                Err(error @ Error::Refused { .. }) => Some(error.to_string()),
                Ok(()) | Err(_) => None,
            };
            let id = &card.id;
            match &why {
                Some(why) => tracing::warn!(card = id, why, "the guest does not get a card: QEMU refuses it"),
                None => tracing::info!(card = id, "the guest gets a card"),
            }
            cards.set(
                &card.name,
                why.map(|why| CardState::Refused(format!("QEMU refuses device_add: {why}"))),
            );
            unless_refused(answer)?;
        }
        sleep(LOOK).await;
    }
}
