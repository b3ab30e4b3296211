//! Frames as networks with VLANs and jumbo frames carry them: a bridge passes them on unchanged, and masquerade passes packets as
//! large as these on.
//!
//! ```text
//! node: network (tap) -- switch -- peer == pod: b1f51a511f1-nic -- k6t-b1f51a511f1 -- tapb1f51a511f1 (read and written as QEMU does)
//! ```

use std::fs::File;
use std::time::Instant;

use barevirt_api::resolver::Resolver;

use super::bridge::{RED, on_red};
use super::*;
use crate::kernel;

const MTU: usize = 9000;
/// Length of the header that QEMU and a tap write before each frame.
const HEADER: usize = 10;
/// A host of the network.
const HOST: MacAddress = MacAddress([0x02, 0, 0, 0, 0, 0x99]);
/// The number of a VLAN, and the same with a priority.
const TAGS: [u16; 2] = [5, 5 | 3 << 13];

/// A tap in the place of a program: what it receives, and where it sends.
pub(super) struct End {
    received: mpsc::Receiver<Vec<u8>>,
    tap: File,
}

impl End {
    pub(super) fn new(tap: OwnedFd) -> Self {
        let (sender, received) = mpsc::channel();
        let tap = File::from(tap);
        let mut reader = tap.try_clone().unwrap();
        thread::spawn(move || {
            let mut bytes = vec![0; 65600];
            while let Ok(length) = reader.read(&mut bytes) {
                if sender.send(bytes[HEADER..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        Self { received, tap }
    }

    pub(super) fn send(&mut self, frame: &[u8]) {
        self.tap.write_all(&[&[0; HEADER][..], frame].concat()).unwrap();
    }

    /// Whether this frame arrives. Hosts also send others.
    pub(super) fn receives(&self, frame: &[u8]) -> bool {
        self.receives_one(|found| found == frame)
    }

    /// Whether a frame arrives of which that is true.
    pub(super) fn receives_one(&self, is: impl Fn(&[u8]) -> bool) -> bool {
        let begun = Instant::now();
        while let Ok(found) = self.received.recv_timeout(WAIT.saturating_sub(begun.elapsed())) {
            if is(&found) {
                return true;
            }
        }
        false
    }
}

/// A frame with that much payload, of the kind that is left to experiments.
pub(super) fn frame(from: MacAddress, to: MacAddress, tag: Option<u16>, payload: usize) -> Vec<u8> {
    let mut frame = [to.0, from.0].concat();
    if let Some(tag) = tag {
        frame.extend([0x81, 0x00]);
        frame.extend(tag.to_be_bytes());
    }
    frame.extend([0x88, 0xb5]);
    frame.extend((0..=u8::MAX).cycle().take(payload));
    frame
}

/// A new tap in that namespace.
pub(super) fn new_tap(netns: &OwnedFd, name: &'static str) -> OwnedFd {
    inside(netns, move || {
        let tun = File::options().read(true).write(true).open("/dev/net/tun").unwrap();
        kernel::attach_tap(tun, name, 0, false).unwrap()
    })
}

/// A pod whose second link leads to a network with jumbo frames, and a tap on that network.
fn pod_and_network() -> Option<(OwnedFd, OwnedFd)> {
    let (node, pod) = (namespace()?, namespace()?);
    let network = new_tap(&node, "network");
    for line in [
        "link add switch mtu 9000 type bridge",
        "link add peer mtu 9000 type veth peer name podb1f51a511f1 mtu 9000",
        "link set network mtu 9000 master switch up",
        "link set peer master switch up",
        "link set switch up",
    ] {
        run_in(&node, "ip", line);
    }
    let there = pod.try_clone().unwrap();
    with_netlink(&node, |netlink| async move {
        let red = index(&netlink, RED).await;
        change(&netlink, LinkUnspec::new_with_index(red).setns_by_fd(there.as_raw_fd()).build()).await;
    });
    with_netlink(&pod, |netlink| async move { configure(&netlink, RED, &[], &[]).await });
    Some((pod, network))
}

#[test]
fn tagged_and_jumbo_frames_pass_a_bridge_unchanged_and_the_guest_gets_the_mtu() {
    let Some((pod, network)) = pod_and_network() else { return };
    let (_, prepared, mut opened) = prepare_blocking(&pod, &on_red(), &BTreeSet::new());
    assert_eq!(guest::facts(&on_red(), &prepared, &Resolver::default()).mtu, 9000);
    let mut guest = End::new(take(&mut opened, "net/red/tap"));
    let mut network = End::new(network);
    for tag in TAGS.map(Some).into_iter().chain([None]) {
        for payload in [46, 1500, MTU] {
            let comes = frame(HOST, prepared.mac, tag, payload);
            network.send(&comes);
            assert!(guest.receives(&comes), "to the guest: {tag:?}, {payload} bytes");
            let goes = frame(prepared.mac, HOST, tag, payload);
            guest.send(&goes);
            assert!(network.receives(&goes), "from the guest: {tag:?}, {payload} bytes");
        }
    }
}

#[test]
fn packets_as_large_as_jumbo_frames_pass_masquerade_in_both_families_and_the_guest_gets_the_mtu() {
    let Some((node, pod)) = node_and_pod(true) else { return };
    run_in(&node, "ip", "link set peer mtu 9000");
    run_in(&pod, "ip", "link set eth0 mtu 9000");
    let card = wanted(Vec::new());
    let (_, prepared, mut opened) = prepare_blocking(&pod, &card, &BTreeSet::new());
    assert_eq!(guest::facts(&card, &prepared, &Resolver::default()).mtu, 9000);
    let guest = super::guest(take(&mut opened, "net/default/tap"), MAC);
    run_in(&guest, "ip", "link set nic mtu 9000");
    let server = inside(&node, || UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 7000)).unwrap());
    thread::spawn(move || {
        let mut bytes = vec![0; MTU];
        while let Ok((length, from)) = server.recv_from(&mut bytes) {
            let _ = server.send_to(&bytes[..length], from);
        }
    });
    let any: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    // The headers of IP and UDP.
    for (any, address, headers) in [(any[0], IpAddr::from(NODE4), 28), (any[1], NODE6.into(), 48)] {
        let client = inside(&guest, move || {
            let client = UdpSocket::bind((any, 0)).unwrap();
            client.connect((address, 7000)).unwrap();
            client
        });
        client.set_read_timeout(Some(WAIT)).unwrap();
        // The kernel fragments no packet of up to the MTU of its link, and no router fragments it.
        let sent = vec![7; MTU - headers];
        client.send(&sent).unwrap();
        let mut answer = vec![0; MTU];
        let length = client.recv(&mut answer).unwrap_or_else(|error| panic!("{address}: {error}"));
        assert!(answer[..length] == sent, "{length} bytes come back from {address}");
    }
}
