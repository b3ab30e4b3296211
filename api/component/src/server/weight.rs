//! Memory that a JSON document takes after parsing, estimated without parsing it. Pure.
//!
//! A map of one member has only a few bytes as text but takes a whole tree node in memory: eight megabytes of
//! `{"a":0}` become six hundred. So a document is weighed before it is parsed.

/// A tree node of a map: eleven keys and values.
const NODE: usize = 720;
/// A member of a map whose nodes are half full, or an item of a list that has just grown.
const ITEM: usize = 128;
/// The header of a text and the allocator's overhead.
const TEXT: usize = 48;

/// Bytes that the document takes in memory as one value, never less than it really takes. For invalid JSON,
/// only the part before the fault counts.
pub(super) fn weight(json: &[u8]) -> usize {
    let mut weight = json.len();
    let (mut in_text, mut escaped) = (false, false);
    for byte in json {
        if in_text {
            in_text = *byte != b'"' || escaped;
            escaped = *byte == b'\\' && !escaped;
            continue;
        }
        weight = weight.saturating_add(match byte {
            b'"' => {
                in_text = true;
                TEXT
            }
            b'{' => NODE,
            b'[' | b',' => ITEM,
            _ => 0,
        });
    }
    weight
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_that_grows_when_parsed_weighs_more() {
        let many = |item: &str| format!("[{}0]", format!("{item},").repeat(10_000)).len();
        let weighs = |item: &str| weight(format!("[{}0]", format!("{item},").repeat(10_000)).as_bytes());
        assert!(weighs("{\"a\":0}") > 80 * many("{\"a\":0}"));
        assert!(weighs("0") > 60 * many("0"));
        // The weight of a long text is its length, whatever it contains.
        let text = format!("\"{}\"", "{,[\\\",".repeat(10_000));
        assert!(weight(text.as_bytes()) < text.len() + 1000);
        assert_eq!(weight(b""), 0);
    }

    #[test]
    fn no_value_takes_more_than_its_weight() {
        // The sizes of the parts of a value, according to the compiler.
        assert!(11 * (size_of::<serde_json::Value>() + size_of::<String>()) + 32 <= NODE);
        // A list grows to twice its content, and the smallest has four elements.
        assert!(4 * size_of::<serde_json::Value>() <= ITEM);
        assert!(size_of::<String>() + 16 <= TEXT);
    }
}
