//! Encodes a set of rules as netlink messages for nftables: one batch, which the kernel applies as a whole or
//! not at all.
//!
//! A batch that replaces a table first makes sure that it exists, then deletes it, and creates it again. So packets
//! see either the old rules or the new ones. Existing translated connections are not affected. For a table that is
//! deleted, the kernel waits until no packet uses it any more, some milliseconds, and a process that closes a
//! socket of nftables waits with it. So a table that does not exist is only created.
//!
//! Only the last message asks for an answer. The kernel always answers those that it refuses. Each answer takes place in the
//! socket until it is read, and it is read after the whole batch was sent: about 270 answers fill a socket.

use std::net::IpAddr;

use netlink_packet_core::{
    DefaultNla, Emitable, NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage,
};
use netlink_packet_netfilter::nftables::{
    ChainAttribute, ChainMessage, Cmp, DataAttribute, ExpressionAttribute, Expressions, Hook, Immediate,
    InetHookNumber, ListAttribute, Meta, MetaKey, NfTablesMessage, Operator, Payload, Register,
    RuleAttribute, RuleMessage, SetAttribute, SetDescription, SetFlags, SetMessage, TableAttribute,
    TableMessage, Verdict, VerdictAttribute,
};
use netlink_packet_netfilter::none::ControlMessage;
use netlink_packet_netfilter::{NetfilterHeader, NetfilterMessage, NetfilterProtoFamily};

use super::rules::{Action, Chain, Family, Few, Match, Rule, Ruleset, TABLE};

/// `NFNL_SUBSYS_NFTABLES`, the subsystem that handles the batch.
const SUBSYSTEM_NFTABLES: u16 = 10;
/// `NF_DROP` and `NF_ACCEPT`.
const DROP: u32 = 0;
const ACCEPT: u32 = 1;
/// First two bytes of the lowest and of the highest address in `fe80::/10`.
const LINK_FIRST: [u8; 2] = [0xfe, 0x80];
const LINK_LAST: [u8; 2] = [0xfe, 0xbf];
/// IANA's number of ICMPv6.
const ICMP6: u8 = 58;
/// Attributes of the expression `nat` (`enum nft_nat_attributes`).
const NAT_TYPE: u16 = 1;
const NAT_FAMILY: u16 = 2;
const NAT_ADDRESS_REGISTER: u16 = 3;
/// Values of its type (`enum nft_nat_types`).
const NAT_SOURCE: u32 = 0;
const NAT_DESTINATION: u32 = 1;
/// Attributes of the expression `dynset` (`enum nft_dynset_attributes`).
const DYNSET_SET: u16 = 1;
const DYNSET_OPERATION: u16 = 3;
const DYNSET_KEY_REGISTER: u16 = 4;
/// Its operation that adds an element, or begins its time again (`enum nft_dynset_ops`).
const DYNSET_UPDATE: u32 = 1;
/// Name of the set of source addresses that are remembered.
const SOURCES: &str = "sources";
/// The type by which `nft` knows IPv6 addresses, and their length.
const IPV6_ADDRESS: (u32, u32) = (8, 16);
/// Headers that the offset of a payload expression refers to (`enum nft_payload_bases`).
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;

/// A batch for the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// All messages, one after the other.
    pub bytes: Vec<u8>,
    /// Sequence number of the last message, which the kernel answers in any case. The first one has the number 1.
    pub last: u32,
}

/// The batch that replaces the table of `ruleset`, whether there is one or not.
pub fn replace(ruleset: &Ruleset) -> Batch {
    let table = || TableMessage { attributes: vec![TableAttribute::Name(TABLE.to_owned())] };
    let former =
        [(NLM_F_CREATE, NfTablesMessage::NewTable(table())), (0, NfTablesMessage::DeleteTable(table()))];
    batch(ruleset, former)
}

/// The batch that creates the table of `ruleset`. The kernel refuses it if there is one.
pub fn create(ruleset: &Ruleset) -> Batch {
    batch(ruleset, [])
}

/// A batch that creates a table after these messages.
fn batch(ruleset: &Ruleset, before: impl IntoIterator<Item = (u16, NfTablesMessage)>) -> Batch {
    let family = protocol_family(ruleset.family);
    let fingerprint = ruleset.fingerprint().to_vec();
    let attributes = vec![TableAttribute::Name(TABLE.to_owned()), TableAttribute::UserData(fingerprint)];
    let table = NfTablesMessage::NewTable(TableMessage { attributes });
    let mut inner: Vec<_> = before.into_iter().collect();
    inner.push((NLM_F_CREATE | NLM_F_EXCL, table));
    inner.extend(ruleset.few().map(|few| (NLM_F_CREATE, new_set(few))));
    inner.extend(ruleset.chains().map(|chain| (NLM_F_CREATE, new_chain(chain))));
    inner.extend(
        ruleset.rules.iter().map(|rule| (NLM_F_CREATE | NLM_F_APPEND, new_rule(ruleset.family, rule))),
    );

    let mut batch = Batch { bytes: Vec::new(), last: 0 };
    push(&mut batch.bytes, 0, NLM_F_REQUEST, control(ControlMessage::BatchBegin));
    let mut inner = inner.into_iter().peekable();
    while let Some((flags, message)) = inner.next() {
        batch.last += 1;
        let answer = if inner.peek().is_none() { NLM_F_ACK } else { 0 };
        let message = NetfilterMessage::new(NetfilterHeader::new(family, 0, 0), message);
        push(&mut batch.bytes, batch.last, NLM_F_REQUEST | answer | flags, message);
    }
    push(&mut batch.bytes, batch.last + 1, NLM_F_REQUEST, control(ControlMessage::BatchEnd));
    batch
}

/// The request for the table of one family.
pub fn get_table(family: Family) -> Vec<u8> {
    let message =
        NfTablesMessage::GetTable(TableMessage { attributes: vec![TableAttribute::Name(TABLE.to_owned())] });
    let mut bytes = Vec::new();
    let header = NetfilterHeader::new(protocol_family(family), 0, 0);
    push(&mut bytes, 1, NLM_F_REQUEST, NetfilterMessage::new(header, message));
    bytes
}

fn protocol_family(family: Family) -> NetfilterProtoFamily {
    match family {
        Family::V4 => NetfilterProtoFamily::IPv4,
        Family::V6 => NetfilterProtoFamily::IPv6,
        Family::Arp => NetfilterProtoFamily::ARP,
    }
}

fn control(message: ControlMessage) -> NetfilterMessage {
    NetfilterMessage::new(NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, SUBSYSTEM_NFTABLES), message)
}

fn push(bytes: &mut Vec<u8>, sequence: u32, flags: u16, message: NetfilterMessage) {
    let mut message = NetlinkMessage::from(message);
    message.header.flags = flags;
    message.header.sequence_number = sequence;
    message.finalize();
    let start = bytes.len();
    bytes.resize(start + message.buffer_len().next_multiple_of(4), 0);
    message.emit(&mut bytes[start..]);
}

/// The set of the source addresses that are remembered. If it is full, a rule that would add one does not match.
fn new_set(few: Few) -> NfTablesMessage {
    let (kind, length) = IPV6_ADDRESS;
    NfTablesMessage::NewSet(SetMessage {
        attributes: vec![
            SetAttribute::Table(TABLE.to_owned()),
            SetAttribute::Name(SOURCES.to_owned()),
            SetAttribute::Flags(SetFlags::Timeout | SetFlags::Eval),
            SetAttribute::KeyType(kind),
            SetAttribute::KeyLen(length),
            SetAttribute::Description(vec![SetDescription::Size(few.most)]),
            SetAttribute::Id(1),
            // In milliseconds.
            SetAttribute::Timeout(few.forgotten_after.as_secs().saturating_mul(1000)),
        ],
    })
}

fn new_chain(chain: Chain) -> NfTablesMessage {
    // These are the priorities of nft's names dstnat (-100, also used for output), srcnat (100), filter (0) and raw (-300). The
    // last one comes before connection tracking. ARP has its first hook where the IP versions have prerouting. Meshes
    // use dstnat, too, so what comes after them has one more: at the same priority, chains that are made later come first.
    let (hook, priority, kind) = match chain {
        Chain::Prerouting => (InetHookNumber::PreRouting, -100_i32, "nat"),
        Chain::BehindMesh => (InetHookNumber::PreRouting, -99, "nat"),
        Chain::Output => (InetHookNumber::LocalOut, -100, "nat"),
        Chain::Postrouting => (InetHookNumber::PostRouting, 100, "nat"),
        Chain::Guest => (InetHookNumber::PreRouting, -300, "filter"),
        Chain::ToGuest => (InetHookNumber::PostRouting, 0, "filter"),
    };
    NfTablesMessage::NewChain(ChainMessage {
        attributes: vec![
            ChainAttribute::Table(TABLE.to_owned()),
            ChainAttribute::Name(chain.name().to_owned()),
            ChainAttribute::Hook(vec![Hook::Number(hook.into()), Hook::Priority(priority.cast_unsigned())]),
            ChainAttribute::Policy(ACCEPT),
            ChainAttribute::Type(kind.to_owned()),
        ],
    })
}

fn new_rule(family: Family, rule: &Rule) -> NfTablesMessage {
    let mut expressions: Vec<Expressions> = rule.matches.iter().flat_map(encode_match).collect();
    expressions.extend(encode_action(family, rule.action));
    let expressions: Vec<ListAttribute<ExpressionAttribute>> =
        expressions.into_iter().map(Into::into).collect();
    NfTablesMessage::NewRule(RuleMessage {
        attributes: vec![
            RuleAttribute::Table(TABLE.to_owned()),
            RuleAttribute::Chain(rule.chain.name().to_owned()),
            RuleAttribute::Expressions(expressions),
        ],
    })
}

fn encode_match(condition: &Match) -> Vec<Expressions> {
    match condition {
        Match::Input(name) => vec![load(MetaKey::Iifname), equal(interface_name(name))],
        Match::InputIsNot(name) => {
            vec![load(MetaKey::Iifname), compare(Operator::NotEqual, interface_name(name))]
        }
        Match::Output(name) => vec![load(MetaKey::Oifname), equal(interface_name(name))],
        Match::Source(address) => source(*address, Operator::Equal),
        Match::SourceIsNot(address) => source(*address, Operator::NotEqual),
        Match::SourceIsOfLink => vec![
            field(NETWORK_HEADER, 8, 2),
            // The library chose the names; the numbers are the kernel's.
            compare(Operator::GreatherThanEqual, LINK_FIRST.to_vec()),
            compare(Operator::LessThanEqual, LINK_LAST.to_vec()),
        ],
        Match::SourceIsOneOfFew(_) => vec![field(NETWORK_HEADER, 8, 16), remember()],
        Match::SenderIsNot(address) => {
            vec![field(NETWORK_HEADER, 14, 4), compare(Operator::NotEqual, address.octets().to_vec())]
        }
        Match::Icmp6 => vec![load(MetaKey::L4Proto), equal(vec![ICMP6])],
        Match::Destination(address) => vec![destination(*address), equal(octets(*address))],
        Match::DestinationIsNot(address) => {
            vec![destination(*address), compare(Operator::NotEqual, octets(*address))]
        }
        Match::DestinationIn(address, prefix) => {
            let [first, last] = ends(*address, *prefix);
            vec![
                destination(*address),
                compare(Operator::GreatherThanEqual, first),
                compare(Operator::LessThanEqual, last),
            ]
        }
        Match::Port(port) => vec![
            load(MetaKey::L4Proto),
            equal(vec![port.protocol.number()]),
            field(TRANSPORT_HEADER, 2, 2),
            equal(port.number.to_be_bytes().to_vec()),
        ],
        Match::Ports(ports) => vec![
            load(MetaKey::L4Proto),
            equal(vec![ports.protocol.number()]),
            field(TRANSPORT_HEADER, 2, 2),
            compare(Operator::GreatherThanEqual, ports.first.to_be_bytes().to_vec()),
            compare(Operator::LessThanEqual, ports.last.to_be_bytes().to_vec()),
        ],
    }
}

fn encode_action(family: Family, action: Action) -> Vec<Expressions> {
    match action {
        Action::Dnat(address) => nat(family, NAT_DESTINATION, address),
        Action::Snat(address) => nat(family, NAT_SOURCE, address),
        Action::Masquerade => {
            vec![Expressions::Other { expression_type: "masq".to_owned(), attributes: Vec::new() }]
        }
        Action::Accept => vec![verdict(ACCEPT)],
        Action::Drop => vec![verdict(DROP)],
    }
}

fn nat(family: Family, kind: u32, address: IpAddr) -> Vec<Expressions> {
    let family = u32::from(u8::from(protocol_family(family)));
    vec![
        Expressions::Immediate(vec![
            Immediate::DestinationRegister(Register::Reg1),
            Immediate::Data(DataAttribute::Value(octets(address))),
        ]),
        Expressions::Other {
            expression_type: "nat".to_owned(),
            attributes: vec![
                number(NAT_TYPE, kind),
                number(NAT_FAMILY, family),
                number(NAT_ADDRESS_REGISTER, Register::Reg1.into()),
            ],
        },
    ]
}

fn load(key: MetaKey) -> Expressions {
    Expressions::Meta(vec![Meta::DestinationRegister(Register::Reg1), Meta::Key(key)])
}

fn field(base: u32, offset: u32, length: u32) -> Expressions {
    Expressions::Payload(vec![
        Payload::DestinationRegister(Register::Reg1),
        Payload::Base(base),
        Payload::Offset(offset),
        Payload::Len(length),
    ])
}

fn verdict(code: u32) -> Expressions {
    Expressions::Immediate(vec![
        Immediate::DestinationRegister(Register::Verdict),
        Immediate::Data(DataAttribute::Verdict(vec![VerdictAttribute::Code(Verdict::Other(code))])),
    ])
}

fn source(address: IpAddr, operator: Operator) -> Vec<Expressions> {
    let place = match address {
        IpAddr::V4(_) => field(NETWORK_HEADER, 12, 4),
        IpAddr::V6(_) => field(NETWORK_HEADER, 8, 16),
    };
    vec![place, compare(operator, octets(address))]
}

/// Where a packet has its destination, of the same IP version as this address.
fn destination(address: IpAddr) -> Expressions {
    match address {
        IpAddr::V4(_) => field(NETWORK_HEADER, 16, 4),
        IpAddr::V6(_) => field(NETWORK_HEADER, 24, 16),
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The first and the last address of a range.
fn ends(address: IpAddr, prefix: u8) -> [Vec<u8>; 2] {
    match address {
        IpAddr::V4(address) => {
            let (bits, host) = (address.to_bits(), u32::MAX.checked_shr(prefix.into()).unwrap_or(0));
            [bits & !host, bits | host].map(|end| end.to_be_bytes().to_vec())
        }
        IpAddr::V6(address) => {
            let (bits, host) = (address.to_bits(), u128::MAX.checked_shr(prefix.into()).unwrap_or(0));
            [bits & !host, bits | host].map(|end| end.to_be_bytes().to_vec())
        }
    }
}

/// Adds what was loaded to the set of sources.
fn remember() -> Expressions {
    let name = [SOURCES.as_bytes(), &[0]].concat();
    Expressions::Other {
        expression_type: "dynset".to_owned(),
        attributes: vec![
            DefaultNla::new(DYNSET_SET, name),
            number(DYNSET_OPERATION, DYNSET_UPDATE),
            number(DYNSET_KEY_REGISTER, Register::Reg1.into()),
        ],
    }
}

fn number(kind: u16, value: u32) -> DefaultNla {
    DefaultNla::new(kind, value.to_be_bytes().to_vec())
}

fn equal(value: Vec<u8>) -> Expressions {
    compare(Operator::Equal, value)
}

fn compare(operator: Operator, value: Vec<u8>) -> Expressions {
    Expressions::Cmp(vec![
        Cmp::SourceRegister(Register::Reg1),
        Cmp::Op(operator),
        Cmp::Data(DataAttribute::Value(value)),
    ])
}

/// An interface's name as the kernel compares it: 16 bytes, padded with zeros.
fn interface_name(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(libc::IFNAMSIZ, 0);
    bytes
}

#[cfg(test)]
mod tests;
