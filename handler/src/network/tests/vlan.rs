//! Guests that are hosts in a VLAN: the pod's link adds the tag and removes it, and its parent stays on the node.
//!
//! ```text
//! node: red (192.168.7.1, VLAN 100) -- trunk ==tagged frames== uplink -- pod: b1f51a511f1-nic (VLAN 100) -- k6t-b1f51a511f1 -- tapb1f51a511f1 == guest (192.168.7.2)
//! ```
//!
//! The link is made by netlink. If `BAREVIRT_TEST_CNI` names a folder with the reference plugins `vlan` and `static`, they make it.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use rtnetlink::LinkVlan;
use serde_json::json;

use super::bridge::{RED, RED_GUEST, links, on_red, speaks_on_red};
use super::cuts::{Scene, next_handler_completes};
use super::frames::{End, frame, new_tap};
use super::*;

const VLAN: u16 = 100;
const MTU: u32 = 1300;
/// A host in the VLAN.
const HOST: MacAddress = MacAddress([0x02, 0, 0, 0, 0, 0x99]);
/// The folder of the plugins, if they are to make the links.
const PLUGINS: &str = "BAREVIRT_TEST_CNI";

/// Gives the pod a link in the VLAN that leads to an address of the node. Returns false if the kernel has no VLANs.
pub(super) fn attach(node: &OwnedFd, pod: &OwnedFd) -> bool {
    for line in [
        "link add trunk mtu 1300 type veth peer name uplink mtu 1300",
        "link set trunk up",
        "link set uplink up",
    ] {
        run_in(node, "ip", line);
    }
    if !make_link(node, pod) {
        return false;
    }
    for line in [
        "link add link trunk name red type vlan id 100",
        "address add 192.168.7.1/24 dev red",
        "link set red up",
    ] {
        run_in(node, "ip", line);
    }
    true
}

/// Gives the pod a link in the VLAN, with an address. Its parent is the node's `uplink`. Returns false if the kernel has no VLANs.
fn make_link(node: &OwnedFd, pod: &OwnedFd) -> bool {
    if let Some(folder) = std::env::var_os(PLUGINS) {
        make_with_plugin(node, pod, folder);
        return true;
    }
    let there = pod.try_clone().unwrap();
    let made = with_netlink(node, move |netlink| async move {
        let uplink = index(&netlink, "uplink").await;
        match netlink.link().add(LinkVlan::new(RED, uplink, VLAN).build()).execute().await {
            Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -libc::EOPNOTSUPP => {
                eprintln!("skipped: no VLANs: {error}");
                return false;
            }
            made => made.unwrap(),
        }
        let link = index(&netlink, RED).await;
        change(&netlink, LinkUnspec::new_with_index(link).setns_by_fd(there.as_raw_fd()).build()).await;
        true
    });
    if made {
        with_netlink(pod, |netlink| async move {
            configure(&netlink, RED, &[(RED_GUEST.into(), 24)], &[]).await;
        });
    }
    made
}

/// Has the reference plugins make the link, as Multus does for an annotation that names the interface.
fn make_with_plugin(node: &OwnedFd, pod: &OwnedFd, folder: OsString) {
    let netns = format!("/proc/{}/fd/{}", std::process::id(), pod.as_raw_fd());
    let address = json!({ "address": format!("{RED_GUEST}/24") });
    let network = json!({
        "cniVersion": "1.0.0", "name": "red", "type": "vlan", "master": "uplink", "vlanId": VLAN,
        "ipam": { "type": "static", "addresses": [address] },
    });
    inside(node, move || {
        let mut plugin = Command::new(Path::new(&folder).join("vlan"));
        plugin.env("CNI_COMMAND", "ADD").env("CNI_CONTAINERID", "pod").env("CNI_NETNS", netns);
        plugin.env("CNI_IFNAME", RED).env("CNI_PATH", folder);
        let mut plugin = plugin.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        plugin.stdin.take().unwrap().write_all(network.to_string().as_bytes()).unwrap();
        let said = plugin.wait_with_output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
    });
}

#[test]
fn a_card_on_a_vlan_is_completed_whichever_steps_a_former_handler_did() {
    let scene = || {
        let (node, pod) = node_and_pod(false)?;
        let noted = attach(&node, &pod).then(|| links(&pod)[RED].clone())?;
        Some(Scene { node, pod, noted })
    };
    next_handler_completes(&on_red(), scene, |Scene { node, pod, noted: before }, outcome| {
        let (prepared, mut opened) = only_card(outcome);
        assert_eq!(names(&opened), ["net/red/tap", "net/red/dhcp4"]);
        assert_eq!((prepared.mac.0.to_vec(), prepared.mtu), (before.mac.clone(), MTU));
        assert_eq!(prepared.ipv4.map(|ipv4| ipv4.address), Some(RED_GUEST));
        assert_ne!(links(&pod)["b1f51a511f1-nic"].mac, before.mac);
        let tap = take(&mut opened, "net/red/tap");
        let guest = station(tap, prepared.mac, vec![(RED_GUEST.into(), 24)], Vec::new());
        speaks_on_red(&node, &guest);
    });
}

#[test]
fn frames_of_a_card_on_a_vlan_have_its_tag_outside_and_none_in_the_guest() {
    // A guest that has moved keeps its address, which is not that of the link on the other node.
    for mac in [None, Some(MAC)] {
        let (Some(node), Some(pod)) = (namespace(), namespace()) else { return };
        let mut network = End::new(new_tap(&node, "uplink"));
        run_in(&node, "ip", "link set uplink mtu 9000 up");
        if !make_link(&node, &pod) {
            return;
        }
        let card = Wanted { mac, ..on_red() };
        let (_, prepared, mut opened) = prepare_blocking(&pod, &card, &BTreeSet::new());
        assert_eq!(prepared.mtu, 9000);
        let own = prepared.mac;
        let mut guest = End::new(take(&mut opened, "net/red/tap"));
        for payload in [46, 1500, 9000] {
            let untagged = frame(own, HOST, None, payload);
            let tagged = frame(own, HOST, Some(VLAN), payload);
            // The kernel lets the bridge forward to its new port in a moment only; until then, frames are lost.
            let mut arrives = || {
                guest.send(&untagged);
                network.receives(&tagged)
            };
            assert!((0..3).any(|_| arrives()), "from the guest with {mac:?}: {payload} bytes");
            // Frames of other VLANs and of none do not arrive. They come before one that does, with or without a priority.
            for tag in [VLAN, VLAN | 3 << 13] {
                for other in [None, Some(VLAN + 1)] {
                    network.send(&frame(HOST, own, other, 100));
                }
                network.send(&frame(HOST, own, Some(tag), payload));
                let untagged = frame(HOST, own, None, payload);
                let is_first = |found: &[u8]| {
                    let is_from_host = found[6..12] == HOST.0;
                    assert!(!is_from_host || found == untagged, "to the guest: {found:x?}");
                    is_from_host
                };
                assert!(
                    guest.receives_one(is_first),
                    "to the guest with {mac:?}: {payload} bytes, tag {tag:x}"
                );
            }
        }
    }
}
