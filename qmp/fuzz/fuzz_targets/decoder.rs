//! Any bytes, split anywhere, in both dialects: no panic, the same lines as without splits, and every object
//! is classified. The first two bytes choose the dialect and the size of the pieces.
#![no_main]

use barevirt_qmp::codec::{Decoder, Line};
use barevirt_qmp::message::classify;
use libfuzzer_sys::fuzz_target;

const MAX_LINE: usize = 256;

fuzz_target!(|input: &[u8]| {
    let [agent, cut, bytes @ ..] = input else { return };
    let make = || if agent & 1 == 1 { Decoder::for_agent(MAX_LINE) } else { Decoder::new(MAX_LINE) };
    let mut whole = make();
    whole.push(bytes);
    let mut pieces = make();
    for piece in bytes.chunks(usize::from(*cut).max(1)) {
        pieces.push(piece);
    }
    loop {
        let line = whole.take();
        assert_eq!(line, pieces.take());
        match line {
            Some(Line::Object(object)) => drop(classify(object)),
            Some(Line::Garbage { .. } | Line::TooLong { .. }) => {}
            None => break,
        }
    }
    assert_eq!(whole.unfinished(), pieces.unfinished());
});
