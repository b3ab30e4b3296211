//! A shell on a node, for what users cannot do: kill processes, check for leftovers. And `kubectl drain`.

use crate::command::{cluster_script, kubectl, run_within, succeed};
use crate::wait;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long kubectl may take to end once its own time has passed.
const END: Duration = Duration::from_secs(30);

/// A node of the cluster.
#[derive(Clone, Debug)]
pub struct Node {
    name: String,
}

impl Node {
    /// The node of that name.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned() }
    }

    /// The node that a pod is on.
    pub fn of(pod: &Value) -> Result<Self> {
        let name = pod["spec"]["nodeName"].as_str().context("the pod is on no node")?;
        Ok(Self::named(name))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs a command line on it.
    pub fn sh(&self, script: &str) -> Result<String> {
        let mut command = cluster_script("cli.sh");
        succeed(command.args(["ssh", &self.name, "sh", "-c", script]), None)
    }

    /// Process ids of a program, in whatever pod or in none.
    pub fn programs(&self, program: &str) -> Result<Vec<u32>> {
        self.running(program, |_| true)
    }

    /// Process ids of a program in a pod, found by the pod's control group.
    pub fn processes(&self, pod: &Value, program: &str) -> Result<Vec<u32>> {
        let uid = pod["metadata"]["uid"].as_str().context("the pod has no uid")?;
        // systemd's layout has underscores in place of dashes.
        let marks = [uid.to_owned(), uid.replace('-', "_")];
        self.running(program, |process| {
            let groups = fs::read_to_string(process.join("cgroup"));
            groups.is_ok_and(|groups| marks.iter().any(|mark| groups.contains(mark)))
        })
    }

    /// Process ids of a program, of those processes only.
    fn running(&self, program: &str, is_one: impl Fn(&Path) -> bool) -> Result<Vec<u32>> {
        let runs_it = |process: &Path| {
            fs::read_link(process.join("exe"))
                .is_ok_and(|file| file.file_name().is_some_and(|name| name == program))
        };
        // The node's own list, which has its numbers of processes. One that ends meanwhile is passed over.
        let mut found = Vec::new();
        for entry in self.files("/proc")? {
            let number: Option<u32> = entry.file_name().and_then(|name| name.to_str()?.parse().ok());
            found.extend(number.filter(|_| is_one(&entry) && runs_it(&entry)));
        }
        Ok(found)
    }

    /// Sends a signal to that program in a pod, which has to run there.
    pub fn kill(&self, pod: &Value, program: &str, signal: &str) -> Result<()> {
        let processes = self.processes(pod, program)?;
        ensure!(!processes.is_empty(), "no {program} runs in that pod on {}", self.name);
        for process in processes {
            self.sh(&format!("kill -{signal} {process}"))?;
        }
        Ok(())
    }

    /// The whole serial log of a launcher pod, from the node's side.
    pub fn serial_log(&self, pod: &Value) -> Result<String> {
        let uid = pod["metadata"]["uid"].as_str().context("the pod has no uid")?;
        let mut folders =
            self.files(&format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/private"))?;
        let mut logs = Vec::new();
        while let Some(path) = folders.pop() {
            if path.is_dir() && !path.is_symlink() {
                folders.extend(listed(&path)?);
            } else if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("serial0.log")) {
                logs.push(path);
            }
        }
        // Older parts have a number behind the name.
        logs.sort_by(|one, other| other.cmp(one));
        let mut content = Vec::new();
        for log in logs {
            content.extend(fs::read(&log).with_context(|| format!("read {}", log.display()))?);
        }
        Ok(String::from_utf8_lossy(&content).into_owned())
    }

    /// Waits until the guest of a launcher pod has printed that on its serial port since its power-on. A console that is opened
    /// while the guest boots may be too late for it.
    pub fn wait_printed(&self, pod: &Value, text: &str, within: Duration) -> Result<()> {
        wait::until_true(&format!("the guest to print {text:?}"), within, || {
            Ok(self.serial_log(pod)?.contains(text))
        })
    }

    /// What is in a folder of the node. Tests that wait look every 200 ms, so they look for themselves, without the processes
    /// of a shell on the node.
    fn files(&self, folder: &str) -> Result<Vec<PathBuf>> {
        listed(&self.root()?.join(folder.trim_start_matches('/')))
    }

    /// Its root directory, as a path of this machine.
    pub(crate) fn root(&self) -> Result<PathBuf> {
        let run = std::env::var_os("BAREVIRT_RUN").unwrap_or_else(|| "/var/lib/barevirt".into());
        let record = Path::new(&run).join("cluster/pids").join(format!("{}.init", self.name));
        let init = fs::read_to_string(&record).with_context(|| format!("{} is not running", self.name))?;
        Ok(PathBuf::from(format!("/proc/{}/root", init.trim())))
    }

    /// Ends the node like a power failure.
    pub fn cut_power(&self) -> Result<()> {
        succeed(cluster_script("node-kill.sh").arg(&self.name), None).map(drop)
    }

    /// Starts it again.
    pub fn start(&self) -> Result<()> {
        succeed(cluster_script("node-start.sh").arg(&self.name), None).map(drop)
    }
}

/// The paths of what is in a folder; nothing if there is no such folder.
fn listed(folder: &Path) -> Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Ok(entries) => Ok(entries.flatten().map(|entry| entry.path()).collect()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("list {}", folder.display())),
    }
}

/// `kubectl drain`, limited to the pods of a selector; afterwards pods are placed on the node again, also if it fails.
///
/// # Errors
/// When pods are still there after that time.
pub fn drain(node: &str, selector: &str, within: Duration) -> Result<()> {
    let (selector, timeout) =
        (format!("--pod-selector={selector}"), format!("--timeout={}s", within.as_secs()));
    let mut command = cluster_script("kubectl.sh");
    command.args(["drain", node, "--ignore-daemonsets", "--delete-emptydir-data", &selector, &timeout]);
    // kubectl ends by itself when the time has passed.
    let drained = run_within(&mut command, None, within + END);
    kubectl(&["uncordon", node])?;
    let drained = drained?;
    ensure!(drained.code == 0, "{node} is not drained: {}", drained.text().trim());
    Ok(())
}
