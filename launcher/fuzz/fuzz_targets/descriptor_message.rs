//! Messages from a peer on the descriptor socket.
#![no_main]

use barevirt_protocol::message::{decode_answer, decode_request, encode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = decode_answer(bytes);
    if let Ok(request) = decode_request(bytes) {
        let again = encode(&request).expect("what was decoded can be encoded");
        assert_eq!(decode_request(&again).expect("and decoded again"), request);
    }
});
