//! Network cards of the node (SR-IOV) while the machine runs. A pod gets no further device of its node, so none is plugged in
//! here, except by a migration ([`crate::migration::host_cards`]). One that is no longer wanted is taken out.
//!
//! ```text
//!  not wanted ──> device_del ─ guest releases it ─> gone for good
//! ```

use std::collections::BTreeMap;

use barevirt_protocol::v1;
use barevirt_qmp::{Error, Qmp};

use super::monitored::{Leaving, ask_for, has_device};
use super::wanted::Wanted;
use crate::cards::wanted_card;
use crate::migration::host_cards::HostCards;

/// A card without which the guest is to do.
#[derive(Debug)]
struct Gone {
    leaving: Leaving,
    /// The guest has not released it yet.
    there: bool,
}

/// The cards, and those that the guest is asked for.
#[derive(Debug, Default)]
pub struct Functions {
    cards: HostCards,
    /// By interface.
    gone: BTreeMap<String, Gone>,
}

impl Functions {
    /// For the cards of a machine.
    #[must_use]
    pub fn of(cards: HostCards) -> Self {
        Self { cards, gone: BTreeMap::new() }
    }

    /// The cards.
    #[must_use]
    pub const fn cards(&self) -> &HostCards {
        &self.cards
    }

    /// Whether a card is awaited from the guest.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.gone.values().any(|gone| gone.there)
    }

    /// Takes out cards that are not wanted. They do not come back: the pod loses its devices for them.
    ///
    /// # Errors
    /// If QEMU does not answer.
    pub async fn turn(&mut self, qmp: &Qmp, wanted: &Wanted) -> Result<(), Error> {
        for card in self.cards.all() {
            if !wanted_card(&wanted.vmi, &card.name) && !self.gone.contains_key(&card.name) {
                self.cards.leave_out(&card.name);
                self.gone.insert(card.name.clone(), Gone { leaving: Leaving::now(None), there: true });
            }
            let Some(gone) = self.gone.get_mut(&card.name) else { continue };
            let there = has_device(qmp, &card.id).await?;
            if gone.there && !there {
                tracing::info!(interface = card.name, "card of the node taken out");
            }
            gone.there = there;
            if there && gone.leaving.asks() {
                tracing::info!(interface = card.name, "the guest is asked to release a card of the node");
                ask_for(qmp, &card.id).await?;
            }
        }
        Ok(())
    }

    /// The state that the handler uses.
    pub fn status(&self) -> impl Iterator<Item = v1::Card> {
        self.cards.all().iter().map(|card| {
            let refused = self.cards.refused(&card.name);
            let gone = self.gone.get(&card.name);
            let plugged = gone.is_none_or(|gone| gone.there) && refused.is_none();
            let leaving = gone.filter(|gone| gone.there);
            let trouble = leaving.and_then(|gone| gone.leaving.trouble("card")).or(refused);
            let (name, trouble) = (card.name.clone(), trouble.unwrap_or_default());
            v1::Card { name, plugged, trouble, ..v1::Card::default() }
        })
    }
}
