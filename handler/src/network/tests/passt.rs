//! Pods of guests with passt: the launcher's user gets the rights that passt needs, and nothing is created.

use super::bridge::link_names;
use super::*;

#[test]
fn the_user_of_passt_may_listen_at_any_port_and_send_pings() {
    let Some((_node, pod)) = node_and_pod(true) else { return };
    let card = Wanted { binding: Binding::Passt, ..wanted(Vec::new()) };
    let before = link_names(&pod);
    let (steps, prepared, opened) = prepare_blocking(&pod, &card, &BTreeSet::new());
    assert_eq!((steps, names(&opened)), (2, vec![]));
    assert_eq!((prepared.mac, prepared.mtu, prepared.pod_interface.as_str()), (MAC, 1400, "eth0"));
    assert_eq!(prepared.pod_addresses, [IpAddr::from(POD4), IpAddr::from(POD6)]);
    assert_eq!(link_names(&pod), before, "nothing is made");
    assert_eq!(prepare_blocking(&pod, &card, &BTreeSet::new()).0, 0);
    has_its_settings(&pod);
}

/// Checks the settings that passt needs.
pub(super) fn has_its_settings(pod: &OwnedFd) {
    let setting = |path: &'static str| inside(pod, move || observe::sysctl(path).unwrap());
    assert_eq!(setting("net/ipv4/ip_unprivileged_port_start"), "0");
    assert_eq!(setting("net/ipv4/ping_group_range"), "107\t107");
}
