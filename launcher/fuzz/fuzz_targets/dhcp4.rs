//! Messages from a guest to its DHCPv4 server.
#![no_main]

use libfuzzer_sys::fuzz_target;
use virt_launcher::dhcp::{Guest, v4};

mod guest;

thread_local!(static GUEST: Guest = guest::guest());

fuzz_target!(|bytes: &[u8]| {
    GUEST.with(|guest| {
        if let Some(reply) = v4::answer(bytes, guest) {
            assert!(reply.bytes.len() <= v4::LARGEST_REQUEST);
            assert_eq!(reply.bytes[4..8], bytes[4..8], "transaction");
            assert_eq!(reply.bytes[28..34], guest.mac.0, "hardware address");
        }
    });
});
