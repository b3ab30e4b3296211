//! A copy of a commit, in which tests are compiled and run with and without a protection.

use super::list::Protection;
use crate::command::{repository, run_within, succeed};
use crate::runner::programs::{self, Program};
use anyhow::{Context, Result, bail, ensure};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time of one test. Without its protection it may wait forever.
const TEST_WITHIN: Duration = Duration::from_secs(90);

/// The result of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TestOutcome {
    /// It passed.
    Passed,
    /// It failed, with this message.
    Failed(String),
    /// It did not end in time.
    Hung,
    /// The program does not compile.
    NotCompiled,
}

/// The folder of all files of `make weaken`.
pub(super) fn folder() -> PathBuf {
    repository().join("target/weaken")
}

/// The current commit of the repository.
///
/// # Errors
/// When git fails.
pub fn head() -> Result<String> {
    let said = succeed(Command::new("git").arg("-C").arg(repository()).args(["rev-parse", "HEAD"]), None)?;
    Ok(said.trim().to_owned())
}

/// The copy: `target/weaken/source`, compiled into `target/weaken/target`.
#[derive(Debug)]
pub struct Copy {
    source: PathBuf,
    target: PathBuf,
}

impl Copy {
    /// Checks a commit out. Artefacts of earlier runs are used again.
    ///
    /// # Errors
    /// When git fails.
    pub fn of(commit: &str) -> Result<Self> {
        let folder = folder();
        let copy = Self { source: folder.join("source"), target: folder.join("target") };
        std::fs::create_dir_all(&copy.source)?;
        copy.git(&["init", "-q"])?;
        // The commit of an earlier run may no longer be on a branch, but the copy still has it.
        if copy.git(&["cat-file", "-e", &format!("{commit}^{{commit}}")]).is_err() {
            copy.git(&["fetch", "-q", "--no-tags", &repository().to_string_lossy(), commit])?;
        }
        copy.git(&["checkout", "-q", "--force", "--detach", commit])?;
        copy.git(&["clean", "-qffdx"])?;
        Ok(copy)
    }

    fn git(&self, arguments: &[&str]) -> Result<()> {
        succeed(Command::new("git").arg("-C").arg(&self.source).args(arguments), None).map(drop)
    }

    /// The list of protections in the commit.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn list(&self) -> Result<Vec<Protection>> {
        let path = self.source.join("e2e/weaken.yaml");
        super::list::read(&std::fs::read_to_string(&path).with_context(|| path.display().to_string())?)
    }

    /// Runs the protection's test without an edit.
    ///
    /// # Errors
    /// When nothing can be run, or there is no such test.
    pub fn with(&self, protection: &Protection) -> Result<TestOutcome> {
        self.test(protection)
    }

    /// Runs the protection's test without the protection, and then restores it.
    ///
    /// # Errors
    /// When the protection is not in its file, nothing can be run, or there is no such test.
    pub fn without(&self, protection: &Protection) -> Result<TestOutcome> {
        let path = self.source.join(&protection.file);
        let text = std::fs::read_to_string(&path).with_context(|| protection.file.clone())?;
        std::fs::write(&path, protection.taken_out_of(&text)?)?;
        let seen = self.test(protection);
        // The file gets a new time, so that cargo compiles it again with the protection.
        std::fs::write(&path, text)?;
        seen
    }

    fn test(&self, protection: &Protection) -> Result<TestOutcome> {
        let (name, test) = protection.test()?;
        for targets in self.targets(name) {
            let Some(programs) = self.compile(name, &targets)? else { return Ok(TestOutcome::NotCompiled) };
            for program in programs {
                if let Some(seen) = run(&program, test)? {
                    return Ok(seen);
                }
            }
        }
        bail!("there is no such test")
    }

    /// Cargo's arguments for the targets that may contain the test, in order: a library and a binary of one
    /// package have the same name, and most tests are in the library. Linking the other programs of a package
    /// takes longer than the test.
    fn targets(&self, name: &str) -> Vec<Vec<String>> {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        match name.split_once('/') {
            Some((_, target)) => vec![words(&["--test", target])],
            None if self.has_library(name) => vec![words(&["--lib"]), words(&["--bins"])],
            None => vec![words(&["--bins"])],
        }
    }

    /// Whether a package has a library; true if that is unknown.
    fn has_library(&self, package: &str) -> bool {
        let mut ask = Command::new("cargo");
        ask.args(["metadata", "--locked", "--offline", "--no-deps", "--format-version=1"])
            .current_dir(&self.source);
        let metadata = succeed(&mut ask, None).ok();
        let metadata = metadata.and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok());
        let Some(metadata) = metadata else { return true };
        let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
        let of = packages.iter().find(|one| one["name"] == package);
        let targets = of.and_then(|one| one["targets"].as_array()).cloned().unwrap_or_default();
        targets
            .iter()
            .any(|target| target["kind"].as_array().is_some_and(|kinds| kinds.contains(&"lib".into())))
    }

    /// Compiles the programs of that name; none if it does not compile.
    ///
    /// They have the features of the whole workspace, so that dependencies are compiled once, and are
    /// compiled incrementally, so that an edit costs little. The first needs unstable options of cargo, which
    /// `make weaken` allows.
    fn compile(&self, name: &str, targets: &[String]) -> Result<Option<Vec<Program>>> {
        let package = name.split('/').next().unwrap_or(name);
        let output = Command::new("cargo")
            .args(["-Zfeature-unification", "test", "--locked", "--quiet", "--no-run"])
            .args(["--message-format=json", "-p", package])
            .args(targets)
            .current_dir(&self.source)
            .env("CARGO_RESOLVER_FEATURE_UNIFICATION", "workspace")
            .env("CARGO_TARGET_DIR", &self.target)
            // Dependencies that read this variable would be compiled again when it changes.
            .env_remove("CARGO_MANIFEST_DIR")
            .env_remove("RUSTC_WORKSPACE_WRAPPER")
            .env("CARGO_INCREMENTAL", "1")
            .env("CARGO_PROFILE_DEV_DEBUG", "false")
            .stdin(Stdio::null())
            .output()
            .context("start cargo")?;
        let messages = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let errors = programs::errors_of(&messages);
            // Without a compiler error cargo itself failed, which says nothing about the code.
            ensure!(!errors.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
            eprintln!("{errors}");
            return Ok(None);
        }
        let mut programs = programs::of_messages(&messages);
        programs.retain(|program| program.name == name);
        ensure!(!programs.is_empty(), "there is no test program {name}");
        Ok(Some(programs))
    }
}

/// The result of a program's test; `None` if the program has no such test.
fn run(program: &Program, test: &str) -> Result<Option<TestOutcome>> {
    let mut command = Command::new(&program.path);
    command.args(["--exact", test]).current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder);
    let begun = Instant::now();
    let output = match run_within(&mut command, None, TEST_WITHIN) {
        Ok(output) => output,
        Err(_) if begun.elapsed() >= TEST_WITHIN => return Ok(Some(TestOutcome::Hung)),
        Err(problem) => return Err(problem),
    };
    if output.stdout.contains("running 0 tests") {
        return Ok(None);
    }
    Ok(Some(if output.code == 0 { TestOutcome::Passed } else { TestOutcome::Failed(why(&output.text())) }))
}

/// The beginning of a panic's message, on one line.
fn why(said: &str) -> String {
    let mut lines = said.lines().skip_while(|line| !line.contains("panicked at")).skip(1);
    let words: Vec<&str> = lines.by_ref().take(4).take_while(|line| !line.starts_with("note:")).collect();
    let text: String = words.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
    text.chars().take(160).collect()
}

#[cfg(test)]
mod tests {
    use super::why;

    #[test]
    fn a_failures_reason_is_its_panic_on_one_line() {
        let said = "running 1 test\nthread 'a' panicked at a.rs:1:2:\nassertion `left == right` failed\n  left: 1\n right: 2\nnote: run with";
        assert_eq!(why(said), "assertion `left == right` failed left: 1 right: 2");
        assert_eq!(why("killed"), "");
    }
}
