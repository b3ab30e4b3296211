//! A key for one test, for virtctl's `ssh` and `scp`.

use crate::command::succeed;
use anyhow::{Context, Result};
use std::process::Command;
use tempfile::TempDir;

/// Its files are deleted when the value is dropped.
pub struct Key {
    _files: TempDir,
    path: String,
    /// The public key, for the guest.
    pub public: String,
}

impl Key {
    /// Makes a new key.
    pub fn make() -> Result<Self> {
        let files = tempfile::tempdir()?;
        let path = files.path().join("key").to_str().context("the path is text")?.to_owned();
        succeed(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &path]), None)?;
        let public = std::fs::read_to_string(format!("{path}.pub"))?;
        Ok(Self { _files: files, path, public: public.trim_end().to_owned() })
    }

    /// Options that make virtctl use the key, and accept an unknown host key.
    pub fn options(&self) -> [String; 6] {
        let hosts = format!("{}.hosts", self.path);
        ["-i", &self.path, "--known-hosts", &hosts, "-t", "-o StrictHostKeyChecking=accept-new"]
            .map(str::to_owned)
    }
}
