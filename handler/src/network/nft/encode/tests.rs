//! Tests of batches, and of ranges of addresses.

use std::net::Ipv6Addr;

use super::super::rules::{Port, Ports, Protocol, masquerade};
use super::*;
use crate::network::datagram::messages;

#[test]
fn only_the_last_message_of_a_batch_asks_for_an_answer() {
    let ports: Vec<Ports> =
        (1..=2000).map(|number| Port { protocol: Protocol::Tcp, number }.into()).collect();
    let (gateway, guest) = ([10, 0, 2, 1].into(), [10, 0, 2, 2].into());
    let ruleset = masquerade("eth0", "k6t-eth0", gateway, guest, &ports, None);
    // The table and four chains, two rules for each port, and five others.
    for (batch, last) in [(create(&ruleset), 5 + 4005), (replace(&ruleset), 2 + 5 + 4005)] {
        let all = messages::<NetfilterMessage>(&batch.bytes).map(|message| message.unwrap().header);
        let asks = all.filter(|header| header.flags & NLM_F_ACK != 0);
        let asks: Vec<u32> = asks.map(|header| header.sequence_number).collect();
        assert_eq!((asks, batch.last), (vec![last], last));
    }
}

#[test]
fn a_table_that_remembers_addresses_has_its_set_before_the_rules_that_use_it() {
    let six = |last| IpAddr::V6(Ipv6Addr::new(0xfd10, 0, 2, 0, 0, 0, 0, last));
    let ruleset = masquerade("eth0", "k6t-eth0", six(1), six(2), &[], None);
    let kinds: Vec<u16> = messages::<NetfilterMessage>(&create(&ruleset).bytes)
        .map(|message| message.unwrap().header.message_type & 0xff)
        .collect();
    // The begin of the batch, the table, the set, four chains, the rules, the end (`enum nf_tables_msg_types`).
    let rules = vec![6_u16; ruleset.rules.len()];
    assert_eq!(kinds, [vec![16, 0, 9, 3, 3, 3, 3], rules, vec![17]].concat());
}

#[test]
fn a_range_begins_and_ends_where_its_prefix_says() {
    let four = |address: [u8; 4], prefix| ends(address.into(), prefix);
    assert_eq!(four([10, 0, 2, 1], 24), [vec![10, 0, 2, 0], vec![10, 0, 2, 255]]);
    assert_eq!(four([10, 9, 2, 1], 8), [vec![10, 0, 0, 0], vec![10, 255, 255, 255]]);
    assert_eq!(four([10, 0, 2, 1], 32), [vec![10, 0, 2, 1], vec![10, 0, 2, 1]]);
    let address = |text: &str| octets(text.parse().unwrap());
    let range = ends("fd10:0:2::1".parse().unwrap(), 120);
    assert_eq!(range, [address("fd10:0:2::"), address("fd10:0:2::ff")]);
}
