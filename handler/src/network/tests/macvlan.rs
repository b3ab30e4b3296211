//! Guests that are hosts on a network to which a macvlan leads.
//!
//! ```text
//! node: red (192.168.7.1) ==veth== pod: lower -- b1f51a511f1-nic (macvlan, MAC a) -- k6t-b1f51a511f1 -- tapb1f51a511f1 == guest (192.168.7.2, MAC a)
//! ```

use rtnetlink::LinkMacVlan;
use rtnetlink::packet_route::link::MacVlanMode;

use super::bridge::{RED, RED_GUEST, attach_lower, links, on_red, speaks_on_red};
use super::*;

/// Gives the pod a macvlan on a link to the node. Returns false if the kernel does not support macvlans.
fn attach(node: &OwnedFd, pod: &OwnedFd) -> bool {
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
    let Some((node, pod)) = node_and_pod(false) else { return };
    if !attach(&node, &pod) {
        return;
    }
    let plan_for = |pod: &OwnedFd| {
        with_netlink(pod, |netlink| async move {
            let card = on_red();
            let seen = observe::observe(&netlink, None, std::slice::from_ref(&card), &BTreeSet::new()).await;
            plan::plan(&card, &seen.unwrap()).unwrap()
        })
    };
    for cut in 0..plan_for(&pod).len() {
        let (node, pod) = node_and_pod(false).unwrap();
        attach(&node, &pod);
        let before = links(&pod)[RED].clone();
        let part: Vec<_> = plan_for(&pod).into_iter().take(cut).collect();
        with_netlink(
            &pod,
            |netlink| async move { apply::apply(&netlink, None, part).await.map(drop).unwrap() },
        );
        let (_, prepared, mut opened) = prepare_blocking(&pod, &on_red(), &BTreeSet::new());
        let held: BTreeSet<String> = opened.iter().map(|(name, _)| name.clone()).collect();
        assert_eq!(prepared.mac.0.to_vec(), before.mac, "{cut}");
        assert_eq!(links(&pod)["b1f51a511f1-nic"].mac, before.mac, "{cut}");
        let tap = take(&mut opened, "net/red/tap");
        let guest = station(tap, prepared.mac, vec![(RED_GUEST.into(), 24)], Vec::new());
        speaks_on_red(&node, &guest);
        assert_eq!(prepare_blocking(&pod, &on_red(), &held).0, 0, "{cut}");
    }
}
