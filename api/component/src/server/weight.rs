//! What a JSON document takes once it is read, estimated without reading it. Pure.
//!
//! A map of one member is written in a few bytes and takes a whole node of a tree: eight megabytes of `{"a":0}` become six
//! hundred. A document is weighed before anything is made of it.

/// A node of the tree that a map is made of: eleven keys and values.
const NODE: usize = 720;
/// A member of a map whose nodes are half full, or an item of a list that has just grown.
const ITEM: usize = 128;
/// A text's header and what the allocator adds.
const TEXT: usize = 48;

/// Bytes that the document takes in memory, as one value: no less than it does, and what is no JSON no more than what comes
/// before the fault.
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
    fn what_grows_when_it_is_read_weighs_more() {
        let many = |item: &str| format!("[{}0]", format!("{item},").repeat(10_000)).len();
        let weighs = |item: &str| weight(format!("[{}0]", format!("{item},").repeat(10_000)).as_bytes());
        assert!(weighs("{\"a\":0}") > 80 * many("{\"a\":0}"));
        assert!(weighs("0") > 60 * many("0"));
        // A long text is what it is, whatever is in it.
        let text = format!("\"{}\"", "{,[\\\",".repeat(10_000));
        assert!(weight(text.as_bytes()) < text.len() + 1000);
        assert_eq!(weight(b""), 0);
    }

    #[test]
    fn no_value_takes_more_than_its_weight() {
        // The sizes of what a value is made of, as the compiler has them.
        assert!(11 * (size_of::<serde_json::Value>() + size_of::<String>()) + 32 <= NODE);
        // A list has grown to twice what is in it, and the smallest has four places.
        assert!(4 * size_of::<serde_json::Value>() <= ITEM);
        assert!(size_of::<String>() + 16 <= TEXT);
    }
}
