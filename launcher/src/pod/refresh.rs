//! Takes links down and up again after a guest has come from another node, so that it requests its address
//! again. Network binding plugins with the migration method `link-refresh` need this.

use std::sync::Arc;
use std::time::Duration;

use barevirt_protocol::v1::Interface;
use barevirt_qmp::qapi::qmp;
use barevirt_qmp::{Deadline, Qmp};
use tokio::sync::watch;
use tokio::time::sleep;

use super::monitored::COMMAND;
use super::wanted::Wanted;
use crate::cards::{Card, set_link, wants_down};

/// Interval of checks whether the guest runs here.
const LOOK: Duration = Duration::from_millis(200);
/// How long the links are down. A guest that has just come needs longer than usual to notice: in one second, emulated guests
/// on a busy node do; in 100 ms, KubeVirt's value, most did not.
const DOWN: Duration = Duration::from_secs(1);

/// The cards of an incoming guest whose links must go down and up.
#[must_use]
pub fn due(wanted: &Wanted, cards: &[Card]) -> Vec<Card> {
    let refreshes = |facts: &Interface| facts.refreshes_link && wanted.incoming.is_some();
    let named = |card: &&Card| {
        wanted.facts.interfaces.iter().any(|facts| facts.name == card.name && refreshes(facts))
    };
    cards.iter().filter(named).cloned().collect()
}

/// Waits for the guest, and refreshes the links once.
pub async fn serve(
    mut people: watch::Receiver<Option<Qmp>>,
    wanted: watch::Receiver<Option<Arc<Wanted>>>,
    cards: Vec<Card>,
) {
    if cards.is_empty() {
        return;
    }
    let Ok(monitor) = people.wait_for(Option::is_some).await.map(|monitor| monitor.clone()) else { return };
    let Some(monitor) = monitor else { return };
    loop {
        match monitor.execute(qmp::query_status {}, Deadline::after(COMMAND)).await {
            Ok(status) if status.running => break,
            // The end of the stream means the end of QEMU.
            Err(error) if error.is_closed() => return,
            Ok(_) | Err(_) => sleep(LOOK).await,
        }
    }
    // The latest specification may have changed whether a link is to be up.
    let is_down = |card: &Card| {
        let latest = wanted.borrow().clone();
        latest.and_then(|latest| wants_down(&latest.vmi, &card.name)).unwrap_or(card.down)
    };
    let cards: Vec<Card> = cards.into_iter().filter(|card| !is_down(card)).collect();
    for card in &cards {
        if let Err(error) = set_link(&monitor, &card.id, true).await {
            tracing::warn!(interface = card.name, %error, "link not taken down");
        }
    }
    sleep(DOWN).await;
    for card in &cards {
        match set_link(&monitor, &card.id, is_down(card)).await {
            Ok(()) => tracing::info!(interface = card.name, "link refreshed"),
            Err(error) => tracing::warn!(interface = card.name, %error, "link not taken up again"),
        }
    }
}
