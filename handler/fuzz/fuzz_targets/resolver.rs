//! A pod's resolv.conf, which the author of the pod may have written. The guest's DHCP answers are made from
//! it.
#![no_main]

use barevirt_api::resolver::Resolver;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Resolver { servers, search } = Resolver::parse(text);
    assert!(servers.len() <= 3 && search.len() <= 32);
    assert!(search.iter().all(|domain| !domain.is_empty() && !domain.contains(char::is_whitespace)));
});
