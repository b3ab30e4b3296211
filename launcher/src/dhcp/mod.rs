//! Gives the guest its addresses: DHCPv4, DHCPv6 and router advertisements.
//!
//! The handler prepares the bridge and the addresses of a binding, and opens three sockets bound to the
//! bridge. The launcher gets them as descriptors, so it needs no privilege and listens on no address of the
//! pod.
//!
//! ```text
//!  guest ── tap ── bridge ─┬─ UDP :67       ─► v4::answer             ┐
//!                          ├─ UDP6 :547     ─► v6::answer             ├─ Guest: its MAC, addresses, resolver
//!                          └─ raw ICMPv6    ─► router::advertisements ┘
//! ```
//!
//! Where the bridge leads to a network with other hosts, DHCPv6 and router advertisements go through one packet
//! socket on the tap instead, so that no other host sees them, and the pod has no IPv6 there. The socket for DHCPv4
//! stays on the bridge, and receives only what is sent from the guest's MAC address:
//!
//! ```text
//!  guest ── tap ─┬─ packet socket ─► frame::read ─► v6::answer, router::advertisements ─► frame
//!                └─ bridge ══ network, whose routers the advertisements name
//! ```
//!
//! Where the guest gets no address from here, the packet socket is used to hear which ones it has ([`heard`]).
//!
//! There is one guest on the bridge and one address of each family, so there is no pool and no state: every
//! answer is a pure function of the request and the [`Guest`]. Bounded parsers read the guest's messages and
//! ignore what they do not understand. `answers` limits how often the guest gets an answer.

mod answers;
pub mod domain;
mod errors;
pub mod frame;
pub mod guest;
pub mod heard;
pub mod ipv6;
mod pace;
pub mod router;
pub mod server;
mod tap;
pub mod v4;
pub mod v6;

pub use guest::{Guest, GuestError, Ipv4, Mac};
pub use ipv6::{Ipv6, SERVER_LINK_LOCAL, SERVER_MAC};
pub use server::{ServeError, Sockets, serve};

/// Lease time of an address, in seconds: 999 days, which is longer than a pod lives, and avoids the special
/// value for infinity that some clients handle incorrectly.
pub const LEASE: u32 = 999 * 24 * 60 * 60;

#[cfg(test)]
mod netns_flood_tests;
#[cfg(test)]
mod netns_network_tests;
#[cfg(test)]
mod netns_tests;
