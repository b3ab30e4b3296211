//! Answers of the kernel about a pod's network, which the pod's network plugins have set up: datagrams of messages about
//! rules of the packet filter, links, addresses, routes and neighbours.
#![no_main]

use libfuzzer_sys::fuzz_target;
use netlink_packet_core::{NetlinkDeserializable, NetlinkMessage, NetlinkPayload};
use netlink_packet_netfilter::NetfilterMessage;
use netlink_packet_route::RouteNetlinkMessage;
use virt_handler::network::datagram::messages;
use virt_handler::network::observe::{link, own_address, route};
use virt_handler::network::routers::neighbour;

/// Reads a datagram, and checks that its messages are within it and that nothing follows one that cannot be read.
fn read<T: NetlinkDeserializable>(bytes: &[u8]) -> Vec<NetlinkMessage<T>> {
    let mut all = messages(bytes);
    let read: Vec<_> = all.by_ref().map_while(Result::ok).collect();
    assert!(all.next().is_none());
    let length: u64 = read.iter().map(|message| u64::from(message.header.length)).sum();
    assert!(length <= bytes.len() as u64 && read.iter().all(|message| message.header.length >= 16));
    read
}

fuzz_target!(|bytes: &[u8]| {
    read::<NetfilterMessage>(bytes);
    for message in read::<RouteNetlinkMessage>(bytes) {
        if let NetlinkPayload::InnerMessage(message) = message.payload {
            match message {
                RouteNetlinkMessage::NewLink(message) => _ = link(message),
                RouteNetlinkMessage::NewAddress(message) => _ = own_address(&message),
                RouteNetlinkMessage::NewNeighbour(message) => _ = neighbour(&message),
                RouteNetlinkMessage::NewRoute(message) => _ = route(message),
                _ => {}
            }
        }
    }
});
