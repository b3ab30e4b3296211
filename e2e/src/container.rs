//! The inside of a test's own container, entered from its node. `kubectl exec` leads through the API server, the kubelet and
//! containerd, and costs a third of a second of a processor; a file of some size costs seconds. Tests ask in such
//! containers all the time.
//!
//! ```text
//!   the pod's UID --> /proc/INIT/root/proc/PROCESS on this machine --> root/ for its files
//!                                                                  \-> ns/ for commands on its network
//! ```

use crate::command::{Output, run};
use crate::node::Node;
use crate::wait;
use anyhow::{Context, Result};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time until a created pod has started its program.
const STARTED: Duration = Duration::from_secs(10);

/// The first container of a running pod, with busybox.
pub struct Container {
    process: PathBuf,
}

impl Container {
    /// The container of that pod.
    ///
    /// # Errors
    /// When it does not run.
    pub fn of(pod: &Value) -> Result<Self> {
        let node = Node::of(pod)?;
        let process = wait::until("busybox to run in the pod", STARTED, || {
            Ok(node.processes(pod, "busybox")?.first().copied())
        })?;
        Ok(Self { process: node.root()?.join(format!("proc/{process}")) })
    }

    /// Runs a command line with its files and on its network, as root.
    ///
    /// # Errors
    /// When the container has ended, or the command does not end in time.
    pub fn sh(&self, script: &str) -> Result<Output> {
        let space = |option: &str, kind: &str| format!("--{option}={}/ns/{kind}", self.process.display());
        let mut command = Command::new("nsenter");
        command.args([space("mount", "mnt"), space("net", "net")]).args(["--", "/bin/sh", "-c", script]);
        run(&mut command, None)
    }

    /// Copies a file of this machine to that path in it, where each of its users can read it. Who reads there meanwhile finds
    /// all of it, or what was there before.
    ///
    /// # Errors
    /// When the container has ended, or the file cannot be copied.
    pub fn put(&self, file: &Path, path: &str) -> Result<()> {
        let target = self.process.join("root").join(path.trim_start_matches('/'));
        let folder = target.parent().context("a file is in a folder")?;
        fs::create_dir_all(folder).with_context(|| format!("make the folder of {path}"))?;
        let mut partial = target.clone().into_os_string();
        partial.push(".partial");
        fs::copy(file, &partial).with_context(|| format!("copy {} to {path}", file.display()))?;
        fs::set_permissions(&partial, Permissions::from_mode(0o644))?;
        fs::rename(&partial, &target).with_context(|| format!("put {path} in its place"))
    }
}
