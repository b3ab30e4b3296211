//! Frames of a link, counted by the kernel's packet filter where they enter a bridge: in a pod those of its guest, and on a node
//! those that come out of a pod. Frames that name other addresses than the link's own are told apart.

use crate::Node;
use crate::networks::Left;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;

/// The addresses of a link.
#[derive(Debug)]
pub struct Own<'a> {
    /// MAC address.
    pub mac: &'a str,
    /// IPv4 address.
    pub ipv4: &'a str,
    /// IPv6 address, beside a link-local one.
    pub ipv6: Option<&'a str>,
}

/// A counter of each kind of frames, until it is dropped:
///
/// ```text
/// all         every frame
/// mac         from another MAC address
/// ipv4, ipv6  from another IP address
/// arp         another IPv4 address is said to be here
/// neighbour   another IPv6 address is said to be here
/// router      a router is said to be here
/// offer       from a server of DHCP
/// broadcast   to all hosts by IPv4
/// ```
pub struct Watch {
    node: Node,
    /// What comes before a command, in whose network the link is.
    enter: String,
    table: String,
}

impl Watch {
    /// Counts what the guest sends by that tap of its pod.
    ///
    /// # Errors
    /// When the pod's network takes no rules.
    pub fn guest(pod: &Left, tap: &str, own: &Own<'_>) -> Result<Self> {
        Self::begin(pod, format!("{} ", pod.enter()), tap, own)
    }

    /// Counts what comes to the node by that link of the pod. What the network's plugin drops first is not counted.
    ///
    /// # Errors
    /// When there is no such link, or the node takes no rules.
    pub fn pod(pod: &Left, link: &str, own: &Own<'_>) -> Result<Self> {
        Self::begin(pod, String::new(), &pod.other_end(link)?, own)
    }

    fn begin(pod: &Left, enter: String, link: &str, own: &Own<'_>) -> Result<Self> {
        let watch = Self { node: pod.node.clone(), enter, table: format!("watch_{link}") };
        watch.nft(&rules(&watch.table, link, own))?;
        Ok(watch)
    }

    fn nft(&self, commands: &str) -> Result<String> {
        self.node.sh(&format!("{}nft '{commands}'", self.enter))
    }

    /// How many frames of each kind there were.
    ///
    /// # Errors
    /// When the node does not answer.
    pub fn counted(&self) -> Result<Counted> {
        Ok(read(&self.nft(&format!("list table bridge {}", self.table))?))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The pod may be gone, and the rules with it.
        let _ = self.nft(&format!("delete table bridge {}", self.table));
    }
}

/// Numbers of frames, by their kind.
#[derive(Debug, PartialEq, Eq)]
pub struct Counted(BTreeMap<String, u64>);

impl Counted {
    /// Of that kind.
    ///
    /// # Errors
    /// When no such kind is counted.
    pub fn of(&self, kind: &str) -> Result<u64> {
        self.0.get(kind).copied().with_context(|| format!("{kind} is not among {self:?}"))
    }
}

/// Checks that frames of each of these kinds were sent and none came out, though others did.
///
/// # Errors
/// When that is not so.
pub fn ensure_kept_in(kinds: &[&str], sent: &Counted, came_out: &Counted) -> Result<()> {
    for kind in kinds {
        ensure!(sent.of(kind)? > 0, "no frame of the kind {kind} was sent: {sent:?}");
    }
    ensure_none_of(kinds, came_out)
}

/// Checks that no frames of these kinds came out, though others did.
///
/// # Errors
/// When that is not so.
pub fn ensure_none_of(kinds: &[&str], came_out: &Counted) -> Result<()> {
    for kind in kinds {
        ensure!(came_out.of(kind)? == 0, "frames of the kind {kind} came out: {came_out:?}");
    }
    ensure!(came_out.of("all")? > 0, "no frame came out at all");
    Ok(())
}

/// The commands of nftables that count. They come after the rules of the plugin `bridge` against other MAC addresses.
fn rules(table: &str, link: &str, own: &Own<'_>) -> String {
    let Own { mac, ipv4, ipv6 } = own;
    let own_ipv6 = ipv6.map(|address| format!("ip6 saddr != {address} ")).unwrap_or_default();
    let other_ipv6 = format!("{own_ipv6}ip6 saddr != fe80::/10 ip6 saddr != ::");
    let kinds = [
        ("all", String::new()),
        ("mac", format!("ether saddr != {mac}")),
        // Without an address, hosts ask for one and probe it.
        ("ipv4", format!("ip saddr != {ipv4} ip saddr != 0.0.0.0")),
        ("ipv6", other_ipv6.clone()),
        ("arp", format!("arp saddr ip != {ipv4} arp saddr ip != 0.0.0.0")),
        ("neighbour", format!("icmpv6 type nd-neighbor-advert {other_ipv6}")),
        ("router", "icmpv6 type nd-router-advert".to_owned()),
        ("offer", "udp sport 67".to_owned()),
        ("broadcast", "ip daddr 255.255.255.255".to_owned()),
    ];
    let chain = "{ type filter hook prerouting priority 0; }";
    let mut commands = format!("add table bridge {table}; add chain bridge {table} frames {chain};");
    for (kind, condition) in kinds {
        commands.push_str(&format!(
            " add rule bridge {table} frames iifname \"{link}\" {condition} counter comment \"{kind}\";"
        ));
    }
    commands
}

/// Reads the rules of a table, with their counters.
fn read(table: &str) -> Counted {
    let rule = |line: &str| {
        let (_, counter) = line.split_once("counter packets ")?;
        let (packets, rest) = counter.split_once(' ')?;
        Some((rest.split('"').nth(1)?.to_owned(), packets.parse().ok()?))
    };
    Counted(table.lines().filter_map(rule).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "table bridge watch_tap0 {
\tchain frames {
\t\ttype filter hook prerouting priority filter; policy accept;
\t\tiifname \"tap0\" counter packets 12 bytes 700 comment \"all\"
\t\tiifname \"tap0\" ether saddr != 02:00:00:00:00:01 counter packets 0 bytes 0 comment \"mac\"
\t}
}
";

    #[test]
    fn counters_are_read_and_frames_that_came_out_or_were_never_sent_are_found() {
        let counted = |all: u64, mac: u64| Counted([("all".to_owned(), all), ("mac".to_owned(), mac)].into());
        assert_eq!(read(TABLE), counted(12, 0));
        let kept_in = |sent: Counted, came_out: Counted| ensure_kept_in(&["mac"], &sent, &came_out).is_ok();
        assert!(kept_in(counted(9, 3), counted(12, 0)));
        assert!(!kept_in(counted(9, 3), counted(12, 1)), "it came out");
        assert!(!kept_in(counted(9, 0), counted(12, 0)), "nothing was sent");
        assert!(!kept_in(counted(9, 3), counted(0, 0)), "nothing is seen");
        assert!(ensure_kept_in(&["arp"], &counted(9, 3), &counted(12, 0)).is_err(), "not counted");
    }

    #[test]
    fn a_link_without_an_ipv6_address_has_link_local_ones_only() {
        let rules = |ipv6| rules("t", "tap0", &Own { mac: "02:00:00:00:00:01", ipv4: "10.0.2.2", ipv6 });
        assert!(
            rules(None).contains("\"tap0\" ip6 saddr != fe80::/10 ip6 saddr != :: counter comment \"ipv6\"")
        );
        assert!(rules(Some("fd00::2")).contains("\"tap0\" ip6 saddr != fd00::2 ip6 saddr != fe80::/10"));
    }
}
