//! Requests of a guest on the port of downward metrics, split anywhere: each request needs two line ends.
//! The first byte is the size of the pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;
use virt_launcher::downward_metrics::request::Requests;

fuzz_target!(|input: &[u8]| {
    let [cut, bytes @ ..] = input else { return };
    let mut requests = Requests::default();
    let mut answered = 0;
    for piece in bytes.chunks(usize::from(*cut).max(1)) {
        requests.push(piece);
        while let Some(request) = requests.take() {
            answered += usize::from(request.is_ok());
        }
    }
    assert!(answered * 2 <= bytes.iter().filter(|byte| **byte == b'\n').count());
});
