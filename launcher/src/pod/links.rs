//! Sets links of cards up and down as the spec has them, and tells of the cards.
//!
//! At start the supervisor has set down those that are to be so, before the guest was let go.

use std::sync::Arc;
use std::time::Duration;

use barevirt_protocol::v1;
use barevirt_qmp::{Error, Qmp};
use tokio::sync::watch;

use super::report::Circumstances;
use super::rest::rest;
use super::wanted::Wanted;
use crate::cards::{Card, set_link, wants_down};

/// Before what QEMU refused is tried again.
const LATER: Duration = Duration::from_secs(10);

/// Serves the machine, which has these cards, to its end.
pub(super) async fn serve(
    mut cards: Vec<Card>,
    mut people: watch::Receiver<Option<Qmp>>,
    mut wanted: watch::Receiver<Option<Arc<Wanted>>>,
    circumstances: watch::Sender<Circumstances>,
) {
    loop {
        let monitor = people.borrow_and_update().clone();
        let latest = wanted.borrow_and_update().clone();
        let mut troubles = vec![String::new(); cards.len()];
        if let (Some(monitor), Some(latest)) = (monitor, latest) {
            for (card, trouble) in cards.iter_mut().zip(&mut troubles) {
                match turn(&monitor, &latest, card).await {
                    // The end of the stream is the end of QEMU.
                    Err(error) if !error.is_closed() => {
                        tracing::warn!(interface = card.name, %error, "the link could not be set");
                        *trouble = format!("QEMU refuses to set the link: {error}");
                    }
                    _ => {}
                }
            }
        }
        let is_quiet = troubles.iter().all(String::is_empty);
        tell(&cards, troubles, &circumstances);
        let on = tokio::select! {
            changed = people.changed() => changed.is_ok(),
            changed = wanted.changed() => changed.is_ok(),
            () = rest((!is_quiet).then_some(LATER)) => true,
        };
        if !on {
            return;
        }
    }
}

async fn turn(qmp: &Qmp, wanted: &Wanted, card: &mut Card) -> Result<(), Error> {
    let Some(down) = wants_down(&wanted.vmi, &card.name).filter(|down| *down != card.down) else {
        return Ok(());
    };
    set_link(qmp, &card.id, down).await?;
    tracing::info!(interface = card.name, down, "link set");
    card.down = down;
    Ok(())
}

fn tell(cards: &[Card], troubles: Vec<String>, circumstances: &watch::Sender<Circumstances>) {
    let card = |(card, trouble): (&Card, String)| v1::Card {
        name: card.name.clone(),
        plugged: true,
        down: card.down,
        trouble,
    };
    let cards: Vec<v1::Card> = cards.iter().zip(troubles).map(card).collect();
    circumstances.send_if_modified(|told| {
        let new = told.cards != cards;
        told.cards = cards;
        new
    });
}
