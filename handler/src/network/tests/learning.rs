//! Guests that send from many MAC addresses. A bridge that learns keeps each of them for five minutes, in memory of the
//! kernel that counts for no pod.

use std::collections::BTreeMap;

use super::bridge::{links, on_pod_network};
use super::frames::{End, frame};
use super::neighbours::{ALL, TO_PORT, answers_arp};
use super::*;

/// How many addresses a guest sends from.
const MANY: u16 = 2000;
/// More addresses than the links of a pod have themselves, with those of multicast groups.
const FEW: usize = 60;

/// The number of MAC addresses that the bridges and the other links of a pod know.
fn known(pod: &OwnedFd) -> usize {
    run_in(pod, "bridge", "fdb show").lines().count()
}

/// Sends from many addresses, each time others, to everybody and to the port itself.
fn send_from_many(guest: &mut End, turn: u8) {
    for number in 0..MANY {
        let [high, low] = number.to_be_bytes();
        let from = MacAddress([0x02, 0x99, turn, 0, high, low]);
        for to in [ALL, TO_PORT] {
            guest.send(&frame(from, to, None, 46));
        }
    }
}

/// The ports of bridges in a pod, and whether the bridge learns behind them.
fn ports(pod: &OwnedFd) -> BTreeMap<String, bool> {
    let ports = links(pod).into_iter().filter(|(_, link)| link.controller.is_some());
    ports.map(|(name, link)| (name, link.learning)).collect()
}

#[test]
fn no_bridge_of_a_pod_learns_from_which_mac_addresses_a_guest_sends() {
    for (card, own, other, expected) in [
        (wanted(Vec::new()), IPV4.guest, IPV4.gateway, vec!["tap0"]),
        (on_pod_network(), POD4, NODE4, vec!["eth0-nic", "tap0"]),
    ] {
        let Some((_node, pod)) = node_and_pod(false) else { return };
        let (_, prepared, mut opened) = prepare_blocking(&pod, &card, &BTreeSet::new());
        let held: BTreeSet<String> = opened.iter().map(|(name, _)| name.clone()).collect();
        let mut guest = End::new(take(&mut opened, "net/default/tap"));
        assert!(answers_arp(&mut guest, prepared.mac, [own, other]));
        let silent: BTreeMap<String, bool> =
            expected.into_iter().map(|port| (port.to_owned(), false)).collect();
        assert_eq!(ports(&pod), silent);
        send_from_many(&mut guest, 1);
        // The answer comes after all of these frames were received.
        assert!(answers_arp(&mut guest, prepared.mac, [own, other]));
        let found = known(&pod);
        assert!(found < FEW, "{found} addresses, {:?}", card.binding);

        // A pod of an earlier version: its bridge has learned, and does no longer.
        run_in(&pod, "bridge", "link set dev tap0 learning on");
        send_from_many(&mut guest, 2);
        assert!(answers_arp(&mut guest, prepared.mac, [own, other]));
        let learned = known(&pod);
        assert!(learned > usize::from(MANY / 2), "{learned} addresses, {:?}", card.binding);
        let (steps, _, _) = prepare_blocking(&pod, &card, &held);
        assert_eq!((steps, ports(&pod)), (1, silent));
        send_from_many(&mut guest, 3);
        assert!(answers_arp(&mut guest, prepared.mac, [own, other]));
        let after = known(&pod);
        assert!(after <= learned, "{after} addresses instead of {learned}, {:?}", card.binding);
    }
}
