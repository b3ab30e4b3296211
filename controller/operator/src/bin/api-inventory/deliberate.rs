//! Intended differences, each with its reason: `deliberate.txt`.

use crate::compare::Difference;

/// An intended difference.
#[derive(Debug)]
pub(crate) struct Deliberate {
    /// Type and field, joined by a dot.
    pub(crate) place: &'static str,
}

impl Deliberate {
    /// Whether it is this difference.
    pub(crate) fn is(&self, difference: &Difference) -> bool {
        difference.place == self.place
    }
}

/// All intended differences.
pub(crate) fn all() -> Vec<Deliberate> {
    let lines = include_str!("deliberate.txt").lines();
    lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .filter_map(|line| line.split_once(": "))
        .map(|(place, _reason)| Deliberate { place })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_a_reason() {
        for line in include_str!("deliberate.txt").lines() {
            assert!(line.is_empty() || line.starts_with('#') || line.contains(": "), "{line}");
        }
        let places: std::collections::BTreeSet<&str> = all().iter().map(|one| one.place).collect();
        assert_eq!(places.len(), all().len());
    }
}
