//! Booleans as KubeVirt reads them from annotations and queries.

/// Whether Go's `strconv.ParseBool` reads the word as true. Any other word is false, as in KubeVirt.
pub fn is_true(word: &str) -> bool {
    matches!(word, "1" | "t" | "T" | "true" | "TRUE" | "True")
}
