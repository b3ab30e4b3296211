//! Lines of JSON, without any I/O: bytes in, [`Line`]s out.
//!
//! The decoder holds at most one line of at most the configured length. A longer line is skipped up to its
//! end and reported as [`Line::TooLong`]; a line that is not a JSON object is reported as [`Line::Garbage`].
//! Neither ends the stream: the next line is decoded normally.

use std::collections::VecDeque;

use serde_json::{Map, Value};

/// Longest line accepted unless told otherwise, in bytes. `query-qmp-schema` answers with about 0.2 MB; the
/// largest answers known (block graphs of big guests) stay far below this.
pub const DEFAULT_MAX_LINE: usize = 64 << 20;

/// Capacity that the decoder's buffer may keep after a line has been taken out of it, in bytes.
const KEPT_CAPACITY: usize = 64 << 10;

/// How much of a line of garbage is kept for the log, in bytes.
const GARBAGE_KEPT: usize = 120;

/// A byte that occurs in no UTF-8 text. It tells the guest agent to discard what came before.
pub const FLUSH: u8 = 0xff;

/// One line of input, decoded.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    /// A JSON object.
    Object(Map<String, Value>),
    /// Any other line: its length in bytes and its beginning, for the log.
    Garbage {
        /// Length of the whole line in bytes.
        length: usize,
        /// Its first bytes, made printable.
        start: String,
    },
    /// A line over the limit; none of it was kept.
    TooLong {
        /// Length of the whole line in bytes.
        length: usize,
    },
}

/// Splits a byte stream into [`Line`]s.
#[derive(Debug)]
pub struct Decoder {
    max_line: usize,
    flush: bool,
    /// Set if the end of an object also ends a line.
    brackets: Option<Brackets>,
    partial: Vec<u8>,
    /// Number of discarded bytes of the current line, if it exceeds the limit.
    skipped: Option<usize>,
    ready: VecDeque<Line>,
}

impl Decoder {
    /// A decoder for QMP that accepts lines of at most `max_line` bytes.
    #[must_use]
    pub fn new(max_line: usize) -> Self {
        let (partial, ready) = (Vec::new(), VecDeque::new());
        Self { max_line, flush: false, brackets: None, partial, skipped: None, ready }
    }

    /// A decoder for the commands of QMP clients. QEMU needs no newline after a command, and its own
    /// `qmp-shell` sends none, so a line also ends with its outermost bracket.
    #[must_use]
    pub fn for_commands(max_line: usize) -> Self {
        Self { brackets: Some(Brackets::default()), ..Self::new(max_line) }
    }

    /// A decoder for the guest agent: [`FLUSH`] discards the bytes before it in the current line.
    #[must_use]
    pub fn for_agent(max_line: usize) -> Self {
        Self { flush: true, ..Self::new(max_line) }
    }

    /// Adds the next bytes of the stream. [`Decoder::take`] then returns complete lines.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while let Some(end) = self.end(bytes) {
            let (line, rest) = bytes.split_at(end + 1);
            self.extend(line.strip_suffix(b"\n").unwrap_or(line));
            self.end_line();
            bytes = rest;
        }
        self.extend(bytes);
    }

    /// Where the current line ends.
    fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        match &mut self.brackets {
            Some(brackets) => bytes.iter().position(|byte| brackets.end_with(*byte)),
            None => bytes.iter().position(|byte| *byte == b'\n'),
        }
    }

    /// The next complete line, in the order of the stream.
    pub fn take(&mut self) -> Option<Line> {
        self.ready.pop_front()
    }

    /// Number of bytes of an unfinished line. If it is not 0 at the end of a stream, the line was cut off.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.skipped.unwrap_or(0) + self.partial.len()
    }

    fn extend(&mut self, bytes: &[u8]) {
        let bytes = match bytes.iter().rposition(|byte| self.flush && *byte == FLUSH) {
            Some(at) => {
                self.partial.clear();
                self.skipped = None;
                &bytes[at + 1..]
            }
            None => bytes,
        };
        if let Some(skipped) = &mut self.skipped {
            *skipped += bytes.len();
        } else if self.partial.len() + bytes.len() > self.max_line {
            self.skipped = Some(self.partial.len() + bytes.len());
            self.partial = Vec::new();
        } else {
            self.partial.extend_from_slice(bytes);
        }
    }

    fn end_line(&mut self) {
        if let Some(length) = self.skipped.take() {
            self.ready.push_back(Line::TooLong { length });
            return;
        }
        let text = self.partial.trim_ascii();
        if !text.is_empty() {
            self.ready.push_back(decode(text));
        }
        self.partial.clear();
        self.partial.shrink_to(KEPT_CAPACITY);
    }
}

/// Bracket depth of the current line. A newline resets it, so that a broken line spoils only itself.
#[derive(Debug, Default)]
struct Brackets {
    depth: usize,
    quoted: bool,
    escaped: bool,
}

impl Brackets {
    /// Whether the line ends with this byte.
    fn end_with(&mut self, byte: u8) -> bool {
        match byte {
            b'\n' => *self = Self::default(),
            _ if self.escaped => self.escaped = false,
            b'\\' if self.quoted => self.escaped = true,
            b'"' => self.quoted = !self.quoted,
            _ if self.quoted => {}
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' if self.depth > 0 => {
                self.depth -= 1;
                return self.depth == 0;
            }
            _ => {}
        }
        byte == b'\n'
    }
}

fn decode(text: &[u8]) -> Line {
    serde_json::from_slice(text).map_or_else(
        |_| {
            let start = &text[..text.len().min(GARBAGE_KEPT)];
            Line::Garbage { length: text.len(), start: start.escape_ascii().to_string() }
        },
        Line::Object,
    )
}

/// One message as a line, with its newline.
#[must_use]
pub fn encode(message: &Map<String, Value>) -> Vec<u8> {
    // A map of JSON values always serialises.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(decoder: &mut Decoder) -> Vec<Line> {
        std::iter::from_fn(|| decoder.take()).collect()
    }

    fn object(value: &Value) -> Line {
        Line::Object(value.as_object().unwrap().clone())
    }

    #[test]
    fn lines_are_found_in_any_cut() {
        let mut decoder = Decoder::new(1000);
        for byte in b"{\"a\":1}\r\n\r\n  {\"b\":2}\n{\"c\"" {
            decoder.push(&[*byte]);
        }
        let seen = all(&mut decoder);
        assert_eq!(seen, [object(&serde_json::json!({"a": 1})), object(&serde_json::json!({"b": 2}))]);
        assert_eq!(decoder.unfinished(), 4);
    }

    #[test]
    fn garbage_is_a_value_and_the_next_line_is_read() {
        let mut decoder = Decoder::new(1000);
        decoder.push(b"\x01\x02nonsense\n[1]\n3\n{\"a\":1}\n");
        let seen = all(&mut decoder);
        assert_eq!(seen.len(), 4);
        assert_eq!(seen[0], Line::Garbage { length: 10, start: "\\x01\\x02nonsense".into() });
        assert!(matches!(seen[1], Line::Garbage { length: 3, .. }));
        assert_eq!(seen[3], object(&serde_json::json!({"a": 1})));
    }

    #[test]
    fn a_line_over_the_limit_costs_no_memory_and_only_itself() {
        let mut decoder = Decoder::new(1000);
        for _ in 0..10_000 {
            decoder.push(&[b'x'; 1000]);
            assert!(decoder.partial.capacity() <= 2000);
        }
        decoder.push(b"\n{}\n");
        assert_eq!(all(&mut decoder), [Line::TooLong { length: 10_000_000 }, Line::Object(Map::new())]);
    }

    #[test]
    fn the_buffer_of_a_big_line_is_given_back() {
        let mut decoder = Decoder::new(DEFAULT_MAX_LINE);
        let line = format!("{{\"a\":\"{}\"}}\n", "x".repeat(10 << 20));
        decoder.push(line.as_bytes());
        assert_eq!(all(&mut decoder).len(), 1);
        assert!(decoder.partial.capacity() <= KEPT_CAPACITY);
    }

    #[test]
    fn nesting_without_end_is_garbage() {
        let mut decoder = Decoder::new(DEFAULT_MAX_LINE);
        let mut line = vec![b'['; 100_000];
        line.push(b'\n');
        decoder.push(&line);
        assert!(matches!(decoder.take(), Some(Line::Garbage { length: 100_000, .. })));
    }

    #[test]
    fn the_agent_flush_discards_what_came_before_it() {
        let mut decoder = Decoder::for_agent(1000);
        decoder.push(b"{\"half\": \xff{\"a\":1}\n");
        assert_eq!(all(&mut decoder), [object(&serde_json::json!({"a": 1}))]);
        decoder.push(&[b'x'; 2000]);
        decoder.push(b"\xff{\"a\":1}\n");
        assert_eq!(all(&mut decoder), [object(&serde_json::json!({"a": 1}))]);
    }

    #[test]
    fn a_command_ends_with_its_bracket_or_its_line() {
        let mut decoder = Decoder::for_commands(1000);
        decoder.push(br#"{"a":"}\"]","b":[{}]}{"c":1} "#);
        let first = serde_json::json!({"a": "}\"]", "b": [{}]});
        assert_eq!(all(&mut decoder), [object(&first), object(&serde_json::json!({"c": 1}))]);
        decoder.push(b"\n}\n{\"half\n{\"d\":1}\r\n");
        let seen = all(&mut decoder);
        assert!(
            matches!(seen[..2], [Line::Garbage { length: 1, .. }, Line::Garbage { length: 6, .. }]),
            "{seen:?}"
        );
        assert_eq!(seen[2..], [object(&serde_json::json!({"d": 1}))]);
    }

    proptest! {
        /// However a stream is split, the same lines come out, and never more than one line is held.
        #[test]
        fn cuts_do_not_matter(
            bytes in proptest::collection::vec(
                prop_oneof![Just(b'\n'), Just(b'{'), Just(b'}'), Just(FLUSH), any::<u8>()], 0..400),
            cuts in proptest::collection::vec(0usize..40, 0..40),
            make in prop_oneof![Just(Decoder::new as fn(usize) -> Decoder),
                Just(Decoder::for_agent as _), Just(Decoder::for_commands as _)],
        ) {
            let make = || make(64);
            let mut whole = make();
            whole.push(&bytes);
            let mut pieces = make();
            let mut rest = bytes.as_slice();
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece);
                prop_assert!(pieces.partial.len() <= 64);
                rest = after;
            }
            pieces.push(rest);
            prop_assert_eq!(all(&mut whole), all(&mut pieces));
            prop_assert_eq!(whole.unfinished(), pieces.unfinished());
        }

        /// An encoded message is decoded to the same message.
        #[test]
        fn encoded_is_decoded(key in ".*", text in ".*", number in any::<i64>()) {
            let message: Map<String, Value> =
                [(key, Value::from(text)), ("n".to_owned(), Value::from(number))].into_iter().collect();
            for make in [Decoder::new, Decoder::for_commands] {
                let mut decoder = make(DEFAULT_MAX_LINE);
                decoder.push(&encode(&message));
                prop_assert_eq!(all(&mut decoder), [Line::Object(message.clone())]);
            }
        }
    }
}
