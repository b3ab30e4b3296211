//! Frames that the small guest sends as it is told (`images/guest-tiny/frames.c`), once or as a flood.

use crate::console::Console;
use crate::wait::SOON;
use anyhow::{Context, Result, ensure};

/// The MAC address of no card.
pub const FORGED: &str = "02:00:00:82:00:66";
/// The MAC address of all hosts.
pub const ALL: &str = "ff:ff:ff:ff:ff:ff";
/// That of all hosts with IPv6.
pub const ALL6: &str = "33:33:00:00:00:01";
/// That of all routers with IPv6.
pub const ROUTERS6: &str = "33:33:00:00:00:02";
/// That of all servers of DHCPv6.
pub const SERVERS6: &str = "33:33:00:01:00:02";
/// How the small guest asks for an address on a card, and then uses it.
const ASK: &str = "-q -n -t 10 -T 1 -s /etc/udhcpc.script";
/// How it asks by DHCPv6. It leaves the answer.
const ASK6: &str = "-q -n -t 10 -T 1 -s /bin/true";
/// How long a flood lasts, in seconds, and as many frames as are none.
const LASTS: u64 = 3;
const FLOOD: u64 = 300;
/// More answers than a launcher gives during a flood, with what else comes to the card.
const ANSWERS: u64 = 20 + 10 * LASTS + 50;

/// Sends frames from the guest at that console by a card, as `images/guest-tiny/frames.c` reads these words; returns their number.
///
/// # Errors
/// When none can be sent.
pub fn send(console: &mut Console, card: &str, frames: &str) -> Result<u64> {
    let said = console.ok(&format!("frames {card} {frames}"), SOON)?;
    said.parse().with_context(|| format!("frames {card} {frames} says {said}"))
}

/// Sends such frames as often as possible for some seconds; returns how many the card has received meanwhile.
///
/// # Errors
/// When they are too few for a flood.
pub fn flood(console: &mut Console, card: &str, frames: &str) -> Result<u64> {
    let before = received(console, card)?;
    let sent = send(console, card, &format!("{frames} {LASTS}"))?;
    ensure!(sent > FLOOD, "{frames}: {sent} frames are no flood");
    Ok(received(console, card)?.saturating_sub(before))
}

/// How many frames a card has received.
fn received(console: &mut Console, card: &str) -> Result<u64> {
    let said = console.ok(&format!("cat /sys/class/net/{card}/statistics/rx_packets"), SOON)?;
    said.parse().with_context(|| format!("{card} has received {said}"))
}

/// The link-local address of a card of the guest at that console.
///
/// # Errors
/// When it has none.
pub fn link_local(console: &mut Console, card: &str) -> Result<String> {
    let shown = console.ok(&format!("ip -6 addr show dev {card} scope link"), SOON)?;
    let address = shown.lines().find_map(|line| line.trim().strip_prefix("inet6 ")?.split('/').next());
    Ok(address.with_context(|| format!("{card} has no link-local address: {shown}"))?.to_owned())
}

/// Checks that the guest at that console is given its addresses on a card, by DHCP and by DHCPv6.
///
/// # Errors
/// When it is not.
pub fn is_given_addresses(console: &mut Console, card: &str) -> Result<()> {
    console.ok(&format!("udhcpc -i {card} {ASK}"), SOON)?;
    console.ok(&format!("udhcpc6 -i {card} {ASK6}"), SOON).map(drop)
}

/// Asks by a card, which has that MAC address, for addresses by DHCPv6, and for routers: as often as possible, by frames to these MAC
/// addresses. Returns how many frames the card has received during the flood of which there were more.
///
/// # Errors
/// When these are too few for a flood.
pub fn flood_ipv6(
    console: &mut Console,
    card: &str,
    own: &str,
    [servers, routers]: [&str; 2],
) -> Result<u64> {
    let from = link_local(console, card)?;
    let by_dhcp = flood(console, card, &format!("{own} {servers} options {from} ff02::1:2"))?;
    let by_router = flood(console, card, &format!("{own} {routers} routers {from} ff02::2"))?;
    Ok(by_dhcp.max(by_router))
}

/// Checks that a launcher has given few answers during a flood.
///
/// # Errors
/// When there were more.
pub fn ensure_few(answers: u64) -> Result<()> {
    ensure!(answers < ANSWERS, "{answers} frames came back in {LASTS} seconds");
    Ok(())
}
