//! A pod's resolv.conf, which its author may have written: what a guest's DHCP answers are made of.
#![no_main]

use libfuzzer_sys::fuzz_target;
use virt_handler::network::resolv::Resolver;

fuzz_target!(|text: &str| {
    let Resolver { servers, search } = Resolver::parse(text);
    assert!(servers.len() <= 3 && search.len() <= 32);
    assert!(search.iter().all(|domain| !domain.is_empty() && !domain.contains(char::is_whitespace)));
});
