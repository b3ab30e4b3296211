//! Has the guest agent asked when a network card has come or gone: only the agent knows the name and the addresses that the
//! card has in the guest. Its next regular turn could be two minutes away.

use tokio::sync::{mpsc, watch};

use super::report::Circumstances;
use crate::guest_agent::Ask;

/// Names of the cards that the guest has.
fn plugged(circumstances: &Circumstances) -> Vec<String> {
    let cards = circumstances.cards.iter().filter(|card| card.plugged);
    cards.map(|card| card.name.clone()).collect()
}

/// Follows the cards until the launcher or the agent's task ends.
pub(super) async fn tell(mut circumstances: watch::Receiver<Circumstances>, asks: mpsc::Sender<Ask>) {
    let mut known = plugged(&circumstances.borrow_and_update());
    while circumstances.changed().await.is_ok() {
        let now = plugged(&circumstances.borrow_and_update());
        if now != known && asks.send(Ask::Cards).await.is_err() {
            return;
        }
        known = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use barevirt_protocol::v1::Card;
    use std::time::Duration;
    use tokio::time::timeout;

    #[tokio::test]
    async fn the_agent_is_asked_when_a_card_has_come_or_gone_and_not_otherwise() {
        let circumstances = watch::Sender::new(Circumstances::default());
        let (asks, mut asked) = mpsc::channel(8);
        let following = tell(circumstances.subscribe(), asks);
        let card =
            |name: &str, plugged, down| Card { name: name.to_owned(), plugged, down, ..Card::default() };
        let acting = async move {
            for (cards, is_asked) in [
                (vec![card("red", true, false)], true),
                (vec![card("red", true, true)], false),
                (vec![card("red", true, true), card("blue", false, false)], false),
                (vec![card("red", true, true), card("blue", true, false)], true),
                (vec![card("blue", true, false)], true),
            ] {
                let names = format!("{cards:?}");
                circumstances.send_modify(|circumstances| circumstances.cards = cards);
                let ask = timeout(Duration::from_millis(300), asked.recv()).await;
                assert_eq!(matches!(ask, Ok(Some(Ask::Cards))), is_asked, "{names}");
            }
        };
        tokio::join!(following, acting);
    }
}
