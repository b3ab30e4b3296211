//! The results of a run so far, so that it can be run in parts. Reading and writing them as text is pure.
//!
//! The first line is the commit that the run began with; each other line is a protection, the result, and the
//! message of its test: `without_it TAB assessment TAB message`.

use super::copy::{TestOutcome, folder};
use super::list::Protection;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fmt;

/// The result for one protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assessment {
    /// Its test fails without it.
    Protected,
    /// Its test does not end without it.
    Hangs,
    /// Its test passes without it.
    Unprotected,
    /// The program does not compile without it.
    NotCompiled,
    /// Its test fails with it.
    FailsAsItIs,
    /// The test could not be run.
    NotRun,
}

const WORDS: [(Assessment, &str); 6] = [
    (Assessment::Protected, "protected"),
    (Assessment::Hangs, "protected (its test hangs)"),
    (Assessment::Unprotected, "NOT PROTECTED"),
    (Assessment::NotCompiled, "DOES NOT COMPILE WITHOUT IT"),
    (Assessment::FailsAsItIs, "FAILS AS IT IS"),
    (Assessment::NotRun, "CANNOT BE RUN"),
];

impl fmt::Display for Assessment {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = WORDS.iter().find(|(assessment, _)| assessment == self).map_or("", |(_, word)| word);
        out.write_str(word)
    }
}

impl Assessment {
    /// The assessment from the results of the test with and without the protection; `None` is a test that could
    /// not be run.
    pub fn of(with: Option<&TestOutcome>, without: Option<&TestOutcome>) -> Self {
        match (with, without) {
            (None, _) => Self::NotRun,
            (Some(TestOutcome::Passed), None) => Self::NotRun,
            (Some(TestOutcome::Passed), Some(TestOutcome::Passed)) => Self::Unprotected,
            (Some(TestOutcome::Passed), Some(TestOutcome::Failed(_))) => Self::Protected,
            (Some(TestOutcome::Passed), Some(TestOutcome::Hung)) => Self::Hangs,
            (Some(TestOutcome::Passed), Some(TestOutcome::NotCompiled)) => Self::NotCompiled,
            (Some(TestOutcome::Failed(_) | TestOutcome::Hung | TestOutcome::NotCompiled), _) => {
                Self::FailsAsItIs
            }
        }
    }

    /// Whether the test fails without the protection.
    pub fn is_good(self) -> bool {
        matches!(self, Self::Protected | Self::Hangs)
    }

    fn read(word: &str) -> Option<Self> {
        WORDS.iter().find(|(_, one)| *one == word).map(|(assessment, _)| *assessment)
    }
}

/// The results of a run so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The commit that it began with.
    pub commit: String,
    /// The result of each protection, by its `without_it`.
    pub found: BTreeMap<String, (Assessment, String)>,
}

impl Record {
    /// A record without results.
    pub fn new(commit: String) -> Self {
        Self { commit, found: BTreeMap::new() }
    }

    /// The record of an earlier run, if there is one.
    pub fn load() -> Option<Self> {
        Self::parse(&std::fs::read_to_string(folder().join("found.tsv")).ok()?)
    }

    /// Saves it.
    ///
    /// # Errors
    /// When that fails.
    pub fn save(&self) -> Result<()> {
        let path = folder().join("found.tsv");
        std::fs::create_dir_all(folder())?;
        std::fs::write(&path, self.text()).with_context(|| format!("write {}", path.display()))
    }

    /// Whether there is a result for this protection, so that it need not be tried again.
    pub fn has(&self, protection: &Protection) -> bool {
        self.found
            .get(&protection.without_it)
            .is_some_and(|(assessment, _)| *assessment != Assessment::NotRun)
    }

    /// Whether all protections of a list have been tried.
    pub fn is_whole(&self, list: &[Protection]) -> bool {
        list.iter().all(|each| self.has(each))
    }

    fn text(&self) -> String {
        let rows =
            self.found.iter().map(|(key, (assessment, said))| format!("{key}\t{assessment}\t{said}\n"));
        format!("{}\n{}", self.commit, rows.collect::<String>())
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let mut record = Self::new(lines.next()?.to_owned());
        for line in lines {
            let mut fields = line.splitn(3, '\t');
            let (key, assessment) = (fields.next()?, Assessment::read(fields.next()?)?);
            record.found.insert(key.to_owned(), (assessment, fields.next().unwrap_or_default().to_owned()));
        }
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let mut record = Record::new("c0ffee".to_owned());
        for (assessment, word) in WORDS {
            record.found.insert(format!("without {word}"), (assessment, "it said so".to_owned()));
        }
        assert_eq!(Record::parse(&record.text()), Some(record));
        assert_eq!(Record::parse(""), None);
        assert_eq!(Record::parse("c0ffee\nx\tanother word\t"), None);
    }

    #[test]
    fn only_a_test_that_passes_and_then_fails_protects() {
        let failed = TestOutcome::Failed(String::new());
        let good = |with: Option<&TestOutcome>, without: Option<&TestOutcome>| {
            Assessment::of(with, without).is_good()
        };
        assert!(good(Some(&TestOutcome::Passed), Some(&failed)));
        assert!(good(Some(&TestOutcome::Passed), Some(&TestOutcome::Hung)));
        assert!(!good(Some(&TestOutcome::Passed), Some(&TestOutcome::Passed)));
        assert!(!good(Some(&TestOutcome::Passed), Some(&TestOutcome::NotCompiled)));
        assert!(!good(Some(&TestOutcome::Passed), None));
        assert!(!good(Some(&failed), Some(&failed)));
        assert!(!good(None, None));
    }

    #[test]
    fn a_protection_that_was_not_run_is_run_again() {
        let yaml = "- {without_it: w, file: f, find: a, replace: b, test: 'c::t'}\n";
        let list = super::super::list::read(yaml).unwrap();
        let mut record = Record::new(String::new());
        assert!(!record.is_whole(&list));
        record.found.insert("w".to_owned(), (Assessment::NotRun, String::new()));
        assert!(!record.is_whole(&list));
        record.found.insert("w".to_owned(), (Assessment::Unprotected, String::new()));
        assert!(record.is_whole(&list));
    }
}
