//! DHCPv6 (RFC 8415, options RFC 3646): one message in, at most one reply out. Pure.

use std::net::Ipv6Addr;

use super::guest::Guest;
use super::ipv6::Ipv6;
use super::{LEASE, SERVER_MAC, domain};

/// Port clients listen on.
pub const CLIENT_PORT: u16 = 546;

/// Largest message that is read, in bytes.
pub const LARGEST_REQUEST: usize = 1500;

/// Most identity associations of a message that are answered; a guest has one.
const MOST_ASSOCIATIONS: usize = 8;

/// Most addresses of an association that are answered.
const MOST_ADDRESSES: usize = 8;

/// Longest identity of a client: a type and 128 bytes.
const LONGEST_IDENTITY: usize = 130;

/// Option codes.
mod code {
    pub(super) const CLIENT: u16 = 1;
    pub(super) const SERVER: u16 = 2;
    pub(super) const ADDRESSES: u16 = 3; // IA_NA
    pub(super) const ADDRESS: u16 = 5;
    pub(super) const PREFERENCE: u16 = 7;
    pub(super) const STATUS: u16 = 13;
    pub(super) const RAPID_COMMIT: u16 = 14;
    pub(super) const DNS: u16 = 23;
    pub(super) const SEARCH: u16 = 24;
    pub(super) const PREFIXES: u16 = 25; // IA_PD
}

/// Status codes.
mod status {
    pub(super) const SUCCESS: u16 = 0;
    pub(super) const NO_ADDRESSES: u16 = 2;
    pub(super) const NOT_ON_LINK: u16 = 4;
    pub(super) const NO_PREFIXES: u16 = 6;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Solicit,
    Request,
    Confirm,
    Renew,
    Rebind,
    /// Release or decline: acknowledged, without further effect.
    GiveUp,
    InformationRequest,
}

const ADVERTISE: u8 = 2;
const REPLY: u8 = 7;

/// An identity association for addresses, as the client sent it.
struct Association {
    id: [u8; 4],
    addresses: Vec<Ipv6Addr>,
}

struct Request<'a> {
    kind: Kind,
    transaction: [u8; 3],
    client: Option<&'a [u8]>,
    server: Option<&'a [u8]>,
    rapid_commit: bool,
    associations: Vec<Association>,
    prefixes: Vec<[u8; 4]>,
}

/// The server's identity: a DUID with its link-layer address (type 3), Ethernet. It is the same in every pod,
/// so that a guest that moves stays with the same server.
fn identity() -> [u8; 10] {
    let mut identity = [0, 3, 0, 1, 0, 0, 0, 0, 0, 0];
    identity[4..].copy_from_slice(&SERVER_MAC.0);
    identity
}

/// The reply to a message; `None` for other messages and requests without a reply.
pub fn answer(bytes: &[u8], guest: &Guest) -> Option<Vec<u8>> {
    let ipv6 = guest.ipv6.as_ref()?;
    let request = parse(bytes)?;
    let ours = request.server.map(|server| server == identity());
    // Identities that a message must contain, according to RFC 8415 section 16.
    let sound = match request.kind {
        Kind::Solicit | Kind::Confirm | Kind::Rebind => request.client.is_some() && ours.is_none(),
        Kind::Request | Kind::Renew | Kind::GiveUp => request.client.is_some() && ours == Some(true),
        Kind::InformationRequest => ours != Some(false) && request.associations.is_empty(),
    };
    if !sound {
        return None;
    }
    let commit = request.kind == Kind::Solicit && request.rapid_commit;
    let kind = if request.kind == Kind::Solicit && !commit { ADVERTISE } else { REPLY };
    let mut reply = vec![kind];
    reply.extend(request.transaction);
    if let Some(client) = request.client {
        push(&mut reply, code::CLIENT, client);
    }
    push(&mut reply, code::SERVER, &identity());
    match request.kind {
        Kind::Solicit | Kind::Request | Kind::Renew | Kind::Rebind => {
            if request.kind == Kind::Solicit {
                // The client need not wait for other servers.
                push(&mut reply, code::PREFERENCE, &[255]);
            }
            if commit {
                push(&mut reply, code::RAPID_COMMIT, &[]);
            }
            assign(&mut reply, &request, ipv6);
            settings(&mut reply, guest);
        }
        Kind::Confirm => {
            let mut addresses =
                request.associations.iter().flat_map(|association| &association.addresses).peekable();
            addresses.peek()?;
            let here = addresses.all(|address| *address == ipv6.address);
            push_status(&mut reply, if here { status::SUCCESS } else { status::NOT_ON_LINK });
        }
        Kind::GiveUp => push_status(&mut reply, status::SUCCESS),
        Kind::InformationRequest => settings(&mut reply, guest),
    }
    Some(reply)
}

fn parse(bytes: &[u8]) -> Option<Request<'_>> {
    let (&[kind, a, b, c], options) = bytes.split_first_chunk::<4>()?;
    let kind = match kind {
        1 => Kind::Solicit,
        3 => Kind::Request,
        4 => Kind::Confirm,
        5 => Kind::Renew,
        6 => Kind::Rebind,
        8 | 9 => Kind::GiveUp,
        11 => Kind::InformationRequest,
        // Relayed messages and messages of servers.
        _ => return None,
    };
    let mut request = Request {
        kind,
        transaction: [a, b, c],
        client: None,
        server: None,
        rapid_commit: false,
        associations: Vec::new(),
        prefixes: Vec::new(),
    };
    for (option, value) in Options(options) {
        match option {
            code::CLIENT if (1..=LONGEST_IDENTITY).contains(&value.len()) => request.client = Some(value),
            code::SERVER => request.server = Some(value),
            code::RAPID_COMMIT => request.rapid_commit = true,
            code::ADDRESSES if request.associations.len() < MOST_ASSOCIATIONS => {
                request.associations.extend(association(value));
            }
            code::PREFIXES if request.prefixes.len() < MOST_ASSOCIATIONS => {
                request.prefixes.extend(value.first_chunk::<4>());
            }
            _ => {}
        }
    }
    Some(request)
}

fn association(value: &[u8]) -> Option<Association> {
    // Identity, two preferred times of the client, options.
    let (id, rest) = value.split_first_chunk::<4>()?;
    let addresses = Options(rest.get(8..)?)
        .filter(|(option, _)| *option == code::ADDRESS)
        .filter_map(|(_, value)| value.first_chunk::<16>())
        .take(MOST_ADDRESSES)
        .map(|octets| Ipv6Addr::from(*octets))
        .collect();
    Some(Association { id: *id, addresses })
}

/// The options of a message, up to the first truncated one.
struct Options<'a>(&'a [u8]);

impl<'a> Iterator for Options<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (&[code_high, code_low, length_high, length_low], rest) = self.0.split_first_chunk::<4>()?;
        let length = u16::from_be_bytes([length_high, length_low]);
        let (value, rest) = rest.split_at_checked(usize::from(length))?;
        self.0 = rest;
        Some((u16::from_be_bytes([code_high, code_low]), value))
    }
}

/// The first association gets the one address; further associations get none, and there are no prefixes.
fn assign(reply: &mut Vec<u8>, request: &Request<'_>, ipv6: &Ipv6) {
    for (index, association) in request.associations.iter().enumerate() {
        let mut value = association.id.to_vec();
        if index == 0 {
            value.extend((LEASE / 2).to_be_bytes()); // T1
            value.extend((LEASE / 5 * 4).to_be_bytes()); // T2
            push_address(&mut value, ipv6.address, LEASE);
            if matches!(request.kind, Kind::Renew | Kind::Rebind) {
                // An address that the client held and no longer has ends now.
                for other in association.addresses.iter().filter(|other| **other != ipv6.address) {
                    push_address(&mut value, *other, 0);
                }
            }
        } else {
            value.extend([0; 8]);
            push_status(&mut value, status::NO_ADDRESSES);
        }
        push(reply, code::ADDRESSES, &value);
    }
    for id in &request.prefixes {
        let mut value = id.to_vec();
        value.extend([0; 8]);
        push_status(&mut value, status::NO_PREFIXES);
        push(reply, code::PREFIXES, &value);
    }
}

fn settings(reply: &mut Vec<u8>, guest: &Guest) {
    let servers: Vec<u8> = guest.dns6().take(8).flat_map(|server| server.octets()).collect();
    if !servers.is_empty() {
        push(reply, code::DNS, &servers);
    }
    let search = domain::list(&guest.search, 512);
    if !search.is_empty() {
        push(reply, code::SEARCH, &search);
    }
}

fn push_address(bytes: &mut Vec<u8>, address: Ipv6Addr, lifetime: u32) {
    let mut value = address.octets().to_vec();
    value.extend(lifetime.to_be_bytes()); // preferred
    value.extend(lifetime.to_be_bytes()); // valid
    push(bytes, code::ADDRESS, &value);
}

fn push_status(bytes: &mut Vec<u8>, status: u16) {
    push(bytes, code::STATUS, &status.to_be_bytes());
}

fn push(bytes: &mut Vec<u8>, option: u16, value: &[u8]) {
    // Every value above is bounded far below 64 KiB.
    let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
    bytes.extend(option.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes.extend(&value[..usize::from(length)]);
}

#[cfg(test)]
pub(super) mod tests;
