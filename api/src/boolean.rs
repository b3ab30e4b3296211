//! Truth as a word, the way KubeVirt reads it from annotations and queries.

/// Whether Go's `strconv.ParseBool` reads the word as true. What it does not read is false here, as in KubeVirt.
pub fn is_true(word: &str) -> bool {
    matches!(word, "1" | "t" | "T" | "true" | "TRUE" | "True")
}
