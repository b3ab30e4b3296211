//! Guests that are hosts on a network to which a macvlan leads.
//!
//! ```text
//! node: red (192.168.7.1) ==veth== pod: lower -- b1f51a511f1-nic (macvlan, MAC a) -- k6t-b1f51a511f1 -- tapb1f51a511f1 == guest (192.168.7.2, MAC a)
//! ```

use rtnetlink::LinkMacVlan;
use rtnetlink::packet_route::link::MacVlanMode;

use super::bridge::{RED, RED_GUEST, attach_lower, links, on_red, speaks_on_red};
use super::cuts::{Scene, next_handler_completes};
use super::*;

/// Gives the pod a macvlan on a link to the node. Returns false if the kernel does not support macvlans.
pub(super) fn attach(node: &OwnedFd, pod: &OwnedFd) -> bool {
    attach_lower(node, pod);
    with_netlink(pod, |netlink| async move {
        let lower = index(&netlink, "lower").await;
        let macvlan = LinkMacVlan::new(RED, lower, MacVlanMode::Bridge).build();
        let made = netlink.link().add(macvlan).execute().await;
        if made.is_ok() {
            configure(&netlink, RED, &[], &[]).await;
        }
        made.inspect_err(|error| eprintln!("skipped: no macvlan: {error}")).is_ok()
    })
}

#[test]
fn a_guest_is_a_host_on_the_network_of_a_macvlan_whichever_steps_a_former_handler_did() {
    let scene = || {
        let (node, pod) = node_and_pod(false)?;
        let noted = attach(&node, &pod).then(|| links(&pod)[RED].clone())?;
        Some(Scene { node, pod, noted })
    };
    next_handler_completes(&on_red(), scene, |Scene { node, pod, noted: before }, outcome| {
        let (prepared, mut opened) = only_card(outcome);
        assert_eq!(prepared.mac.0.to_vec(), before.mac);
        assert_eq!(links(&pod)["b1f51a511f1-nic"].mac, before.mac);
        let tap = take(&mut opened, "net/red/tap");
        let guest = station(tap, prepared.mac, vec![(RED_GUEST.into(), 24)], Vec::new());
        speaks_on_red(&node, &guest);
    });
}
