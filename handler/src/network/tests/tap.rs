//! Guests on taps and macvtaps in their pods, as plugins of the attachment type `tap` create them.
//!
//! ```text
//! node: red (192.168.7.1) ==veth== pod: lower -- podb1f51a511f1 (macvtap) == guest (192.168.7.2)
//! ```

use rtnetlink::LinkMacVtap;
use rtnetlink::packet_route::link::MacVtapMode;

use super::bridge::{RED, RED_GUEST, attach_lower, link_names, on_red, speaks_on_red};
use super::*;

/// Addresses of the node and of a guest on the second network.
const RED_NODE6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x192, 0x168, 7, 0, 0, 0, 1);
const RED_GUEST6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x192, 0x168, 7, 0, 0, 0, 0x77);

pub(super) fn on_tap() -> Wanted {
    Wanted { binding: Binding::Tap, ..on_red() }
}

/// Gives the pod a macvtap on a link to the node. Returns false if the kernel does not support macvtaps.
pub(super) fn attach_macvtap(node: &OwnedFd, pod: &OwnedFd) -> bool {
    attach_lower(node, pod);
    with_netlink(pod, |netlink| async move {
        let lower = index(&netlink, "lower").await;
        let macvtap = LinkMacVtap::new(RED, lower, MacVtapMode::Bridge).build();
        let made = netlink.link().add(macvtap).execute().await;
        made.inspect_err(|error| eprintln!("skipped: no macvtap: {error}")).is_ok()
    })
}

/// Gives the pod a tap that needs no process to stay, on a bridge with a link to the node.
pub(super) fn attach_tap(node: &OwnedFd, pod: &OwnedFd) {
    attach_lower(node, pod);
    for line in [
        "tuntap add dev tapb1f51a511f1 mode tap user 107",
        "link add plugin type bridge",
        "link set lower master plugin",
        "link set tapb1f51a511f1 master plugin",
        "link set plugin up",
    ] {
        run_in(pod, "ip", line);
    }
}

#[test]
fn a_guest_is_on_the_macvtap_of_its_pod_with_the_address_that_it_is_given() {
    let Some((node, pod)) = node_and_pod(false) else { return };
    if !attach_macvtap(&node, &pod) {
        return;
    }
    let card = Wanted { mac: Some(MAC), ..on_tap() };
    let before = link_names(&pod);
    let (steps, prepared, mut opened) = prepare_blocking(&pod, &card, &BTreeSet::new());
    assert_eq!((steps, names(&opened)), (4, vec!["net/red/tap"]));
    assert_eq!((prepared.mac, prepared.mtu, prepared.ipv4.as_ref()), (MAC, 1500, None));
    assert_eq!(link_names(&pod), before, "nothing is made");
    let held: BTreeSet<String> = opened.iter().map(|(name, _)| name.clone()).collect();
    let addresses = vec![(RED_GUEST.into(), 24), (RED_GUEST6.into(), 64)];
    let guest = station(take(&mut opened, "net/red/tap"), MAC, addresses, Vec::new());
    // The node looks for the guest by multicast to a group that the pod is not in, before the guest has said anything.
    with_netlink(&node, |netlink| async move {
        configure(&netlink, "red", &[(RED_NODE6.into(), 64)], &[]).await;
    });
    serve(&guest, (Ipv6Addr::UNSPECIFIED, 8082).into());
    assert_eq!(ask(&node, (RED_GUEST6, 8082)), Some(RED_NODE6.to_string()));
    speaks_on_red(&node, &guest);
    assert_eq!(prepare_blocking(&pod, &card, &held).0, 0);
}

#[test]
fn a_macvtap_has_as_many_queues_as_are_wanted() {
    let Some((node, pod)) = node_and_pod(false) else { return };
    if !attach_macvtap(&node, &pod) {
        return;
    }
    let (_, prepared, opened) = prepare_blocking(&pod, &Wanted { queues: 2, ..on_tap() }, &BTreeSet::new());
    assert_eq!(names(&opened), ["net/red/tap.1", "net/red/tap"]);
    // The guest has the link's own MAC address.
    let own = with_netlink(&pod, |netlink| async move {
        let cards = [on_tap()];
        observe::observe(&netlink, None, &cards, &BTreeSet::new()).await.unwrap().links[RED].mac.clone()
    });
    assert_eq!(prepared.mac.0.to_vec(), own);
}

#[test]
fn a_tap_is_taken_as_it_was_made() {
    let Some((_node, pod)) = node_and_pod(false) else { return };
    inside(&pod, || std::fs::write("/proc/sys/net/ipv6/conf/default/accept_ra", "1").unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let without = runtime.block_on(prepare(pod.try_clone().unwrap(), vec![on_tap()], BTreeSet::new()));
    assert!(matches!(without, Err(NetworkError::Plan(PlanError::NoTap(..)))), "{without:?}");
    let make = |multi_queue| {
        inside(&pod, move || {
            let tun = std::fs::File::options().read(true).write(true).open("/dev/net/tun").unwrap();
            crate::kernel::attach_tap(tun, "tapb1f51a511f1", 0, multi_queue).unwrap()
        })
    };
    let one = make(false);
    let two = Wanted { queues: 2, ..on_tap() };
    let refused = runtime.block_on(prepare(pod.try_clone().unwrap(), vec![two.clone()], BTreeSet::new()));
    assert!(matches!(refused, Err(NetworkError::Plan(PlanError::OneQueue { .. }))), "{refused:?}");
    drop(one);
    // The process that created the tap also holds a queue.
    let _many = make(true);
    let (steps, prepared, opened) = prepare_blocking(&pod, &two, &BTreeSet::new());
    assert_eq!(names(&opened), ["net/red/tap.1", "net/red/tap"]);
    // It is set up, believes no router, and has two queues.
    assert_eq!((steps, prepared.pod_interface.as_str(), prepared.mtu), (4, RED, 1500));
}

/// Checks that a card stays as it is, and is found as it was, when it is not known any more how it was made.
fn is_kept(pod: &OwnedFd, card: &Wanted) {
    let (_, before, opened) = prepare_blocking(pod, card, &BTreeSet::new());
    let held = opened.iter().map(|(name, _)| name.clone()).collect();
    let kept = Wanted { binding: Binding::Kept, ..card.clone() };
    let (steps, after, more) = prepare_blocking(pod, &kept, &held);
    assert_eq!((steps, names(&more), after), (0, vec![], before));
}

#[test]
fn a_card_is_kept_whose_plugin_was_removed() {
    let Some((_node, pod)) = node_and_pod(true) else { return };
    is_kept(&pod, &Wanted { mac: None, binding: Binding::ManagedTap, ..wanted(Vec::new()) });
    let (node, pod) = node_and_pod(false).unwrap();
    attach_tap(&node, &pod);
    is_kept(&pod, &on_tap());
    let (node, pod) = node_and_pod(false).unwrap();
    if attach_macvtap(&node, &pod) {
        is_kept(&pod, &Wanted { mac: Some(MAC), ..on_tap() });
    }
}

#[test]
fn a_managed_tap_has_no_dhcp_server() {
    let Some((node, pod)) = node_and_pod(false) else { return };
    let card = Wanted { mac: None, binding: Binding::ManagedTap, ..wanted(Vec::new()) };
    let (_, prepared, mut opened) = prepare_blocking(&pod, &card, &BTreeSet::new());
    assert_eq!((names(&opened), prepared.ipv4.as_ref()), (vec!["net/default/tap"], None));
    let held: BTreeSet<String> = opened.iter().map(|(name, _)| name.clone()).collect();
    let tap = take(&mut opened, "net/default/tap");
    // A guest that has got the pod's address by other means is a host on the network.
    let guest = station(tap, prepared.mac, vec![(POD4.into(), 24)], vec![NODE4.into()]);
    serve(&guest, (Ipv4Addr::UNSPECIFIED, 8080).into());
    assert_eq!(ask(&node, (POD4, 8080)), Some(NODE4.to_string()));
    assert_eq!(prepare_blocking(&pod, &card, &held).0, 0);
}
