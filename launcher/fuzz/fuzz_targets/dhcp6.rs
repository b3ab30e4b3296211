//! Messages from a guest to its DHCPv6 server and its router, and those to its neighbours that say which address it has.
#![no_main]

use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;
use virt_launcher::dhcp::{Guest, frame, heard, router, v6};

mod guest;

thread_local!(static GUEST: Guest = guest::guest());

fuzz_target!(|bytes: &[u8]| {
    let _ = router::is_solicitation(bytes);
    GUEST.with(|guest| {
        let address = heard::address(bytes, guest.mac);
        let is_a_hosts =
            |address: IpAddr| !address.is_unspecified() && !address.is_multicast() && !address.is_loopback();
        assert!(address.is_none_or(is_a_hosts), "{address:?}");
        if let Some(frame::Message::Dhcp { from, bytes }) = frame::read(bytes, guest.mac) {
            let frame = v6::answer(bytes, guest).map(|reply| frame::dhcp(guest.mac, from, &reply));
            assert!(frame.is_none_or(|frame| frame.len() < 8192));
        }
        let bytes = &bytes[..bytes.len().min(v6::LARGEST_REQUEST)];
        if let Some(reply) = v6::answer(bytes, guest) {
            assert!(reply.len() < 8192);
            assert_eq!(reply[1..4], bytes[1..4], "transaction");
        }
    });
});
