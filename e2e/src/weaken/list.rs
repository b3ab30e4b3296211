//! The list of protections, and the edit that takes one out. Pure.

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::BTreeSet;

/// One protection, how it is taken out, and the test that fails without it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Protection {
    /// What an attacker or a mistake could do without it.
    pub without_it: String,
    /// The file that has it, from the repository's root.
    pub file: String,
    /// The text that is the protection. It is in the file exactly once.
    pub find: String,
    /// The text that replaces it.
    #[serde(default)]
    pub replace: String,
    /// The test: a program as `make test` prints it, and the test's path, as in `virt-launcher/pod::tests::name`.
    pub test: String,
}

impl Protection {
    /// The program and the path of the test in it.
    ///
    /// # Errors
    /// When the test is not written as `PROGRAM::PATH`.
    pub fn test(&self) -> Result<(&str, &str)> {
        self.test.split_once("::").with_context(|| format!("{}: no PROGRAM::TEST", self.test))
    }

    /// The text of the file without the protection.
    ///
    /// # Errors
    /// When the protection is not in the text exactly once: then the list is older than the file.
    pub fn taken_out_of(&self, text: &str) -> Result<String> {
        let found = text.matches(&self.find).count();
        ensure!(found == 1, "{}: the text to replace is there {found} times:\n{}", self.file, self.find);
        Ok(text.replacen(&self.find, &self.replace, 1))
    }
}

/// Reads the list.
///
/// # Errors
/// When it is not a list of protections, is empty, names one twice, or one of them changes nothing.
pub fn read(yaml: &str) -> Result<Vec<Protection>> {
    let list: Vec<Protection> = serde_saphyr::from_str(yaml).context("the list of protections")?;
    ensure!(!list.is_empty(), "the list of protections is empty");
    let mut known = BTreeSet::new();
    for each in &list {
        each.test()?;
        ensure!(known.insert(&each.without_it), "two protections are named {:?}", each.without_it);
        if each.find.trim().is_empty() || each.find == each.replace {
            bail!("{}: nothing is taken out for {}", each.file, each.test);
        }
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::repository;

    const ONE: &str =
        "- {without_it: w, file: f, find: 'if bad { refuse }', replace: '', test: 'crate-a/x::tests::t'}\n";

    #[test]
    fn a_protection_is_taken_out_where_it_is_there_once() {
        let one = read(ONE).unwrap().remove(0);
        assert_eq!(one.test().unwrap(), ("crate-a/x", "tests::t"));
        assert_eq!(one.taken_out_of("a; if bad { refuse } b").unwrap(), "a;  b");
        assert!(one.taken_out_of("a; b").is_err());
        assert!(one.taken_out_of("if bad { refuse } if bad { refuse }").is_err());
    }

    #[test]
    fn a_list_that_takes_nothing_out_is_refused() {
        assert!(read("[]").is_err());
        assert!(read(&ONE.replace("if bad { refuse }", " ")).is_err());
        assert!(read(&ONE.replace("crate-a/x::tests::t", "t")).is_err());
        assert!(read(&ONE.replace("find:", "fnid:")).is_err());
        assert!(read(&ONE.repeat(2)).is_err());
    }

    /// Without this test, only the next `make weaken` would find a stale entry.
    #[test]
    fn each_entry_of_the_list_fits_its_file() {
        for each in read(include_str!("../../weaken.yaml")).unwrap() {
            let text = std::fs::read_to_string(repository().join(&each.file)).unwrap();
            each.taken_out_of(&text).unwrap();
        }
    }
}
