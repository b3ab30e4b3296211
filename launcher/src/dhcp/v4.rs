//! DHCPv4 (RFC 2131, options RFC 2132, 3397, 3442, 6842): one request in, at most one reply out. Pure.

use std::net::Ipv4Addr;

use super::domain;
use super::guest::{Guest, Ipv4, Route};
use super::{LEASE, Mac};

/// Port clients listen on.
pub const CLIENT_PORT: u16 = 68;

/// Largest request that is read, in bytes.
pub const LARGEST_REQUEST: usize = 1500;

/// Fixed part of a message, before the magic cookie.
const FIXED: usize = 236;
const COOKIE: [u8; 4] = [0x63, 0x82, 0x53, 0x63];

/// Shortest reply: every BOOTP client accepts this length, and old ones require it.
const SHORTEST_REPLY: usize = 300;

/// IP and UDP headers, which the client's maximum message size counts.
const IP_AND_UDP: usize = 28;

/// Largest message for a client that gives no limit.
const USUAL_MESSAGE: usize = 576;

/// Option codes.
mod code {
    pub(super) const PAD: u8 = 0;
    pub(super) const MASK: u8 = 1;
    pub(super) const ROUTER: u8 = 3;
    pub(super) const DNS: u8 = 6;
    pub(super) const HOSTNAME: u8 = 12;
    pub(super) const DOMAIN: u8 = 15;
    pub(super) const MTU: u8 = 26;
    pub(super) const BROADCAST: u8 = 28;
    pub(super) const REQUESTED_ADDRESS: u8 = 50;
    pub(super) const LEASE: u8 = 51;
    pub(super) const MESSAGE_TYPE: u8 = 53;
    pub(super) const SERVER: u8 = 54;
    pub(super) const WANTED: u8 = 55;
    pub(super) const MESSAGE_SIZE: u8 = 57;
    pub(super) const CLIENT: u8 = 61;
    pub(super) const SEARCH: u8 = 119;
    pub(super) const ROUTES: u8 = 121;
    pub(super) const END: u8 = 255;
}

/// Message types that clients send and that are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Discover,
    Request,
    Inform,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Offer = 2,
    Ack = 5,
    Nak = 6,
}

/// The fields of a request that are used.
struct Request<'a> {
    kind: Kind,
    transaction: [u8; 4],
    flags: [u8; 2],
    client_address: Ipv4Addr,
    relay: Ipv4Addr,
    mac: Mac,
    requested: Option<Ipv4Addr>,
    server: Option<Ipv4Addr>,
    wanted: &'a [u8],
    room: usize,
    client: Option<&'a [u8]>,
}

/// A reply and where it goes.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    /// The message.
    pub bytes: Vec<u8>,
    /// Address of the client; broadcast if it has none yet.
    pub to: Ipv4Addr,
}

/// The reply to the guest's request; `None` for other clients, other messages, or requests without a reply.
pub fn answer(bytes: &[u8], guest: &Guest) -> Option<Reply> {
    let ipv4 = guest.ipv4.as_ref()?;
    let request = parse(bytes)?;
    // There is no relay on the bridge, and a reply to a relay would leave the bridge.
    if request.mac != guest.mac || !request.relay.is_unspecified() {
        return None;
    }
    let answer = match request.kind {
        Kind::Discover => Answer::Offer,
        Kind::Inform => Answer::Ack,
        // The client chose another server's offer.
        Kind::Request if request.server.is_some_and(|server| server != ipv4.server) => return None,
        Kind::Request => {
            let asked = request.requested.unwrap_or(request.client_address);
            if asked == ipv4.address { Answer::Ack } else { Answer::Nak }
        }
    };
    // A client with an address gets the reply there. A refusal is broadcast.
    let to = match answer {
        Answer::Ack if request.client_address == ipv4.address => request.client_address,
        Answer::Offer | Answer::Ack | Answer::Nak => Ipv4Addr::BROADCAST,
    };
    Some(Reply { bytes: reply(&request, answer, guest, ipv4), to })
}

fn parse(bytes: &[u8]) -> Option<Request<'_>> {
    let fixed = bytes.get(..FIXED)?;
    let options = bytes.get(FIXED..)?.strip_prefix(&COOKIE)?;
    // A request, over Ethernet, with a hardware address of six bytes.
    if fixed[..3] != [1, 1, 6] {
        return None;
    }
    let address = |at: usize| Some(Ipv4Addr::from(array(fixed.get(at..at + 4)?)?));
    let mut kind = None;
    let mut request = Request {
        kind: Kind::Discover,
        transaction: array(&fixed[4..8])?,
        flags: array(&fixed[10..12])?,
        client_address: address(12)?,
        relay: address(24)?,
        mac: Mac(array(&fixed[28..34])?),
        requested: None,
        server: None,
        wanted: &[],
        room: USUAL_MESSAGE,
        client: None,
    };
    for (option, value) in Options(options) {
        match option {
            code::MESSAGE_TYPE => kind = value.first().copied(),
            code::REQUESTED_ADDRESS => request.requested = array(value).map(Ipv4Addr::from),
            code::SERVER => request.server = array(value).map(Ipv4Addr::from),
            code::WANTED => request.wanted = value,
            code::CLIENT if (2..=64).contains(&value.len()) => request.client = Some(value),
            code::MESSAGE_SIZE => {
                let size = array(value).map_or(0, u16::from_be_bytes);
                request.room = usize::from(size).clamp(USUAL_MESSAGE, LARGEST_REQUEST);
            }
            _ => {}
        }
    }
    request.kind = match kind? {
        1 => Kind::Discover,
        3 => Kind::Request,
        8 => Kind::Inform,
        // Decline and release need no answer; the other types are sent by servers.
        _ => return None,
    };
    Some(request)
}

/// The options of a message, up to the end or the first truncated one.
struct Options<'a>(&'a [u8]);

impl<'a> Iterator for Options<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match *self.0 {
                [code::PAD, ref rest @ ..] => self.0 = rest,
                [code::END, ..] | [] | [_] => return None,
                [option, length, ref rest @ ..] => {
                    let (value, rest) = rest.split_at_checked(usize::from(length))?;
                    self.0 = rest;
                    return Some((option, value));
                }
            }
        }
    }
}

fn array<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    bytes.try_into().ok()
}

fn reply(request: &Request<'_>, answer: Answer, guest: &Guest, ipv4: &Ipv4) -> Vec<u8> {
    let yours = match (answer, request.kind) {
        (Answer::Nak, _) | (_, Kind::Inform) => Ipv4Addr::UNSPECIFIED,
        (Answer::Offer | Answer::Ack, Kind::Discover | Kind::Request) => ipv4.address,
    };
    let client_address = if answer == Answer::Ack { request.client_address } else { Ipv4Addr::UNSPECIFIED };
    let mut bytes = vec![2, 1, 6, 0];
    bytes.extend(request.transaction);
    bytes.extend([0, 0]);
    bytes.extend(request.flags);
    bytes.extend(client_address.octets());
    bytes.extend(yours.octets());
    bytes.extend([0; 8]); // no next server, no relay
    bytes.extend(guest_hardware(request.mac));
    bytes.resize(FIXED, 0); // no server name, no boot file
    bytes.extend(COOKIE);

    push(&mut bytes, code::MESSAGE_TYPE, &[answer as u8]);
    push(&mut bytes, code::SERVER, &ipv4.server.octets());
    if let Some(client) = request.client {
        push(&mut bytes, code::CLIENT, client);
    }
    if answer != Answer::Nak {
        if request.kind != Kind::Inform {
            push(&mut bytes, code::LEASE, &LEASE.to_be_bytes());
        }
        let room = (request.room - IP_AND_UDP).saturating_sub(1);
        let (first, later): (Vec<_>, Vec<_>) =
            settings(guest, ipv4).into_iter().partition(|(option, _)| request.wanted.contains(option));
        for (option, value) in first.into_iter().chain(later) {
            // An option that does not fit is left out; options that the client requested come first.
            let parts = value.len().div_ceil(255);
            if !value.is_empty() && bytes.len() + value.len() + 2 * parts <= room {
                push(&mut bytes, option, &value);
            }
        }
    }
    bytes.push(code::END);
    bytes.resize(bytes.len().max(SHORTEST_REPLY), code::PAD);
    bytes
}

fn guest_hardware(mac: Mac) -> [u8; 16] {
    let mut hardware = [0; 16];
    hardware[..6].copy_from_slice(&mac.0);
    hardware
}

/// All options for the guest, the most important first.
fn settings(guest: &Guest, ipv4: &Ipv4) -> Vec<(u8, Vec<u8>)> {
    let mut settings = vec![
        (code::MASK, ipv4.mask().octets().to_vec()),
        (code::ROUTER, ipv4.gateway.map(|gateway| gateway.octets().to_vec()).unwrap_or_default()),
        (code::DNS, guest.dns4().take(8).flat_map(|server| server.octets()).collect()),
        (code::MTU, guest.mtu.to_be_bytes().to_vec()),
        (code::BROADCAST, ipv4.broadcast().octets().to_vec()),
    ];
    settings.push((code::ROUTES, ipv4.all_routes().iter().flat_map(classless).collect()));
    if let Some(hostname) = &guest.hostname {
        settings.push((code::HOSTNAME, hostname.as_bytes().to_vec()));
    }
    if let Some(domain) = guest.search.first() {
        settings.push((code::DOMAIN, domain.text().as_bytes().to_vec()));
    }
    settings.extend(guest.extra.iter().cloned());
    settings.push((code::SEARCH, domain::list(&guest.search, 1024)));
    settings
}

/// A route as in RFC 3442: only the bytes of the destination that its prefix covers.
fn classless(route: &Route) -> Vec<u8> {
    let reached = usize::from(route.prefix).div_ceil(8);
    let mut bytes = vec![route.prefix];
    bytes.extend(route.destination.octets().iter().take(reached));
    bytes.extend(route.gateway.unwrap_or(Ipv4Addr::UNSPECIFIED).octets());
    bytes
}

/// Writes an option, in several parts if its value is longer than one part can hold (RFC 3396).
fn push(bytes: &mut Vec<u8>, option: u8, value: &[u8]) {
    for part in value.chunks(255) {
        let length = u8::try_from(part.len()).unwrap_or(u8::MAX);
        bytes.extend([option, length]);
        bytes.extend(part);
    }
}

#[cfg(test)]
pub(super) mod tests;
