//! A copy of the commit, in which tests are compiled and run with and without a protection.

use super::list::Protection;
use crate::command::{repository, run_within};
use crate::runner::programs::{self, Program};
use anyhow::{Context, Result, bail, ensure};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Longest that one test may run. Without its protection it may wait for ever.
const TEST_WITHIN: Duration = Duration::from_secs(60);

/// What became of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It passed.
    Passed,
    /// It failed, or did not end in time.
    Failed,
    /// The program does not compile.
    NotCompiled,
}

/// The copy: `target/weaken/source`, compiled into `target/weaken/target`.
#[derive(Debug)]
pub struct Copy {
    source: PathBuf,
    target: PathBuf,
}

impl Copy {
    /// Checks the commit out. What an earlier run compiled stays good.
    ///
    /// # Errors
    /// When git fails.
    pub fn of_head() -> Result<Self> {
        let folder = repository().join("target/weaken");
        let copy = Self { source: folder.join("source"), target: folder.join("target") };
        std::fs::create_dir_all(&copy.source)?;
        copy.git(&["init", "-q"])?;
        let repository = repository();
        copy.git(&["fetch", "-q", "--no-tags", &repository.to_string_lossy(), "HEAD"])?;
        copy.git(&["checkout", "-q", "--force", "--detach", "FETCH_HEAD"])?;
        copy.git(&["clean", "-qffdx"])?;
        Ok(copy)
    }

    fn git(&self, arguments: &[&str]) -> Result<()> {
        let status = Command::new("git").arg("-C").arg(&self.source).args(arguments).status()?;
        ensure!(status.success(), "git {arguments:?} failed");
        Ok(())
    }

    /// Runs the protection's test as the commit has it.
    ///
    /// # Errors
    /// When nothing can be run, or there is no such test.
    pub fn with(&self, protection: &Protection) -> Result<Seen> {
        self.test(protection)
    }

    /// Runs the protection's test without the protection, which is put back.
    ///
    /// # Errors
    /// When the protection is not in its file, nothing can be run, or there is no such test.
    pub fn without(&self, protection: &Protection) -> Result<Seen> {
        let path = self.source.join(&protection.file);
        let text = std::fs::read_to_string(&path).with_context(|| protection.file.clone())?;
        std::fs::write(&path, protection.taken_out_of(&text)?)?;
        let seen = self.test(protection);
        // A new time on the file: cargo must not take what was compiled without the protection for good.
        std::fs::write(&path, text)?;
        seen
    }

    fn test(&self, protection: &Protection) -> Result<Seen> {
        let (name, test) = protection.test()?;
        let Some(programs) = self.compile(name)? else { return Ok(Seen::NotCompiled) };
        // A library and a binary of one package have the same name; the test is in one of them.
        for program in programs {
            let mut command = Command::new(&program.path);
            command
                .args(["--exact", test])
                .current_dir(&program.folder)
                .env("CARGO_MANIFEST_DIR", &program.folder);
            // Without an answer in time the test has not passed.
            let Ok(output) = run_within(&mut command, None, TEST_WITHIN) else { return Ok(Seen::Failed) };
            if !output.stdout.contains("running 0 tests") {
                return Ok(if output.code == 0 { Seen::Passed } else { Seen::Failed });
            }
        }
        bail!("there is no such test")
    }

    /// The programs of that name; none where it does not compile.
    fn compile(&self, name: &str) -> Result<Option<Vec<Program>>> {
        // This one program alone: linking the others of its package takes longer than the test.
        let (package, targets) = match name.split_once('/') {
            Some((package, target)) => (package, vec!["--test", target]),
            None => (name, vec!["--lib", "--bins"]),
        };
        let output = Command::new("cargo")
            .args(["test", "--locked", "--quiet", "--no-run", "--message-format=json", "-p", package])
            .args(targets)
            .current_dir(&self.source)
            .env("CARGO_TARGET_DIR", &self.target)
            // Dependencies that ask for it are compiled anew wherever it has changed.
            .env_remove("CARGO_MANIFEST_DIR")
            .env("CARGO_INCREMENTAL", "0")
            .env("CARGO_PROFILE_DEV_DEBUG", "false")
            .stdin(Stdio::null())
            .output()
            .context("start cargo")?;
        if !output.status.success() {
            let messages = String::from_utf8_lossy(&output.stdout);
            eprintln!("{}", programs::errors_of(&messages));
            return Ok(None);
        }
        let mut programs = programs::of_messages(&String::from_utf8(output.stdout)?);
        programs.retain(|program| program.name == name);
        ensure!(!programs.is_empty(), "there is no test program {name}");
        Ok(Some(programs))
    }
}
