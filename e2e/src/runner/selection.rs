//! Which tests are run.
//!
//! `e2e/long.txt` lists the long tests, one per line with its reason: `make test-long` runs those,
//! `make test` the others. `e2e/areas.txt` says which packages an area of the end-to-end tests is about:
//! CHANGED=1 runs the areas whose packages have changed since BASE (the last commit).

use crate::command::{repository, succeed};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The requested part of all tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// The tests that decide whether a change is right.
    Short,
    /// The long tests.
    Long,
    /// Both.
    All,
}

/// A choice of end-to-end tests.
#[derive(Debug)]
pub struct Selection {
    tier: Tier,
    only: Vec<String>,
    areas: Option<BTreeSet<String>>,
    long: BTreeMap<String, String>,
}

impl Selection {
    /// Tests of a tier. With `only`: those of both tiers whose path contains one of these words. With
    /// `changed`: those of areas whose packages changed since that revision.
    ///
    /// # Errors
    /// When one of the lists cannot be read, or git or cargo does not answer.
    pub fn new(tier: Tier, only: &[String], changed: Option<&str>) -> Result<Self> {
        let long = table(&repository().join("e2e/long.txt"))?;
        let areas = match changed {
            Some(base) => {
                let packages = Packages::read()?;
                let changed = packages.changed(&changed_files(base)?);
                Some(affected(&table(&repository().join("e2e/areas.txt"))?, &changed, &packages.dependents))
            }
            None => None,
        };
        let tier = if only.is_empty() { tier } else { Tier::All };
        Ok(Self { tier, only: only.to_vec(), areas, long })
    }

    /// Whether a test is wanted, by `PROGRAM::PATH`.
    pub fn wants(&self, test: &str) -> bool {
        let is_long = self.long.contains_key(test);
        let tier = match self.tier {
            Tier::Short => !is_long,
            Tier::Long => is_long,
            Tier::All => true,
        };
        let only = self.only.is_empty() || self.only.iter().any(|word| test.contains(word.as_str()));
        let area =
            |area: &String| test.strip_prefix(area.as_str()).is_some_and(|rest| rest.starts_with("::"));
        tier && only && self.areas.as_ref().is_none_or(|areas| areas.iter().any(area))
    }

    /// Entries of the list of long tests that name none of these tests: in an outdated list, tests could drop
    /// out of both tiers.
    pub fn stale<'a>(&'a self, tests: &'a [String]) -> impl Iterator<Item = &'a str> {
        self.long.keys().filter(|name| !tests.contains(name)).map(String::as_str)
    }
}

/// Reads lines of a word and a rest; `#` begins a comment.
fn table(path: &Path) -> Result<BTreeMap<String, String>> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut rows = BTreeMap::new();
    for line in lines {
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        ensure!(!rest.trim().is_empty(), "{}: {name} has nothing behind it", path.display());
        ensure!(rows.insert(name.to_owned(), rest.trim().to_owned()).is_none(), "{name} is listed twice");
    }
    Ok(rows)
}

/// Files that differ from a revision, and untracked files.
fn changed_files(base: &str) -> Result<Vec<String>> {
    let git =
        |arguments: &[&str]| succeed(Command::new("git").args(arguments).current_dir(repository()), None);
    let text = git(&["diff", "--name-only", base])? + &git(&["ls-files", "--others", "--exclude-standard"])?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// The packages of the workspace: their folders, and the packages that depend on each.
#[derive(Debug, Default)]
struct Packages {
    folders: BTreeMap<String, String>,
    dependents: BTreeMap<String, BTreeSet<String>>,
}

impl Packages {
    fn read() -> Result<Self> {
        let mut cargo = Command::new("cargo");
        cargo.args(["metadata", "--locked", "--no-deps", "--format-version=1"]).current_dir(repository());
        let metadata: Value = serde_json::from_str(&succeed(&mut cargo, None)?)?;
        let root = metadata["workspace_root"].as_str().context("cargo names no workspace")?.to_owned();
        let mut packages = Self::default();
        for package in metadata["packages"].as_array().into_iter().flatten() {
            let name = package["name"].as_str().unwrap_or_default().to_owned();
            let manifest = package["manifest_path"].as_str().unwrap_or_default();
            let folder = manifest.trim_start_matches(&root).trim_start_matches('/');
            let folder = folder.trim_end_matches("Cargo.toml").to_owned();
            for dependency in package["dependencies"].as_array().into_iter().flatten() {
                let used = dependency["name"].as_str().unwrap_or_default().to_owned();
                packages.dependents.entry(used).or_default().insert(name.clone());
            }
            packages.folders.insert(name, folder);
        }
        Ok(packages)
    }

    /// The packages that these files belong to: that of the innermost folder.
    fn changed(&self, files: &[String]) -> BTreeSet<String> {
        let owner = |file: &String| {
            let holds = self.folders.iter().filter(|(_, folder)| file.starts_with(folder.as_str()));
            holds.max_by_key(|(_, folder)| folder.len()).map(|(name, _)| name.clone())
        };
        files.iter().filter_map(owner).collect()
    }
}

/// The areas of changed packages. A changed package without an area counts as a change of the packages that
/// depend on it.
fn affected(
    areas: &BTreeMap<String, String>,
    changed: &BTreeSet<String>,
    dependents: &BTreeMap<String, BTreeSet<String>>,
) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&String> = changed.iter().collect();
    let mut seen = BTreeSet::new();
    while let Some(package) = open.pop() {
        if !seen.insert(package) {
            continue;
        }
        let about = |packages: &String| packages.split_whitespace().any(|name| name == package);
        let listed: Vec<_> =
            areas.iter().filter(|(_, packages)| about(packages)).map(|(area, _)| area.clone()).collect();
        if listed.is_empty() {
            open.extend(dependents.get(package).into_iter().flatten());
        }
        found.extend(listed);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(words: &[&str]) -> BTreeSet<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn rows(rows: &[(&str, &str)]) -> BTreeMap<String, String> {
        rows.iter().map(|(one, other)| ((*one).to_owned(), (*other).to_owned())).collect()
    }

    #[test]
    fn a_tier_is_what_the_list_says() {
        let long = rows(&[("chaos::a", "random for minutes")]);
        let of = |tier, only: &[&str]| Selection {
            tier,
            only: only.iter().map(|word| (*word).to_owned()).collect(),
            areas: None,
            long: long.clone(),
        };
        assert!(!of(Tier::Short, &[]).wants("chaos::a") && of(Tier::Short, &[]).wants("together::guest::b"));
        assert!(of(Tier::Long, &[]).wants("chaos::a") && !of(Tier::Long, &[]).wants("together::guest::b"));
        assert!(of(Tier::All, &["haos"]).wants("chaos::a") && !of(Tier::All, &["haos"]).wants("fleet::c"));
        let all = ["fleet::c".to_owned()];
        assert_eq!(of(Tier::Short, &[]).stale(&all).collect::<Vec<_>>(), ["chaos::a"]);
    }

    /// Otherwise `make e2e CHANGED=1` never runs its tests.
    #[test]
    fn each_file_with_tests_is_an_area() {
        let tests = repository().join("e2e/tests");
        let areas = table(&repository().join("e2e/areas.txt")).unwrap();
        let files = |folder: &Path| -> Vec<_> {
            fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect()
        };
        // Each file of `together` is an area, and each other program as a whole.
        let is_program = |file: &Path| file.join("main.rs").exists() && !file.ends_with("together");
        let missing: Vec<_> = files(&tests)
            .into_iter()
            .chain(files(&tests.join("together")))
            .filter(|file| {
                is_program(file) || fs::read_to_string(file).is_ok_and(|text| text.contains("#[test]"))
            })
            .map(|file| {
                file.strip_prefix(&tests).unwrap().with_extension("").to_string_lossy().replace('/', "::")
            })
            .filter(|area| !areas.contains_key(area))
            .collect();
        assert!(missing.is_empty(), "not in e2e/areas.txt: {missing:?}");
    }

    #[test]
    fn areas_follow_the_packages_that_changed() {
        let areas =
            rows(&[("together::network", "virt-handler virt-launcher"), ("together::virtctl", "virtctl")]);
        let dependents = BTreeMap::from([
            ("barevirt-qmp".to_owned(), strings(&["virt-launcher"])),
            ("x".to_owned(), strings(&["x"])),
        ]);
        let found = |changed| affected(&areas, &strings(changed), &dependents);
        assert_eq!(found(&["virtctl"]), strings(&["together::virtctl"]));
        assert_eq!(found(&["barevirt-qmp"]), strings(&["together::network"]));
        assert_eq!(found(&["x"]), strings(&[]));
        let wanted =
            Selection { tier: Tier::Short, only: vec![], areas: Some(found(&["virtctl"])), long: rows(&[]) };
        assert!(wanted.wants("together::virtctl::a") && !wanted.wants("together::virtctl_other::a"));
    }

    #[test]
    fn a_file_belongs_to_the_innermost_package() {
        let packages = Packages {
            folders: rows(&[("virt-controller", "controller/"), ("barevirt-plan", "controller/plan/")]),
            ..Packages::default()
        };
        let files = ["controller/plan/src/lib.rs".to_owned(), "docs/api.md".to_owned()];
        assert_eq!(packages.changed(&files), strings(&["barevirt-plan"]));
    }
}
