//! The state of each thread of a process, as far as a process may read it for its own child.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// Most threads that are read.
const MOST: usize = 1024;

/// A thread, as the kernel reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// Its id; the id of the main thread is the process id.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// State letter of `/proc/PID/stat`.
    pub state: char,
    /// Kernel function in which it sleeps, if the kernel reports it.
    pub waits_in: Option<String>,
    /// Hundredths of a second in user mode.
    pub user_ticks: u64,
    /// Hundredths of a second in the kernel.
    pub system_ticks: u64,
}

impl Thread {
    /// Whether both threads are in the same situation, for a reader.
    pub(super) fn does_as(&self, other: &Self) -> bool {
        let kind = |name: &str| name.replace(|letter: char| letter.is_ascii_digit(), "");
        (self.state, &self.waits_in) == (other.state, &other.waits_in)
            && kind(&self.name) == kind(&other.name)
    }

    pub(super) fn as_json(&self) -> Value {
        json!({
            "id": self.id,
            "name": self.name,
            "state": self.state.to_string(),
            "waitsIn": self.waits_in,
            "userTicks": self.user_ticks,
            "systemTicks": self.system_ticks,
        })
    }
}

impl fmt::Display for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let does = match self.state {
            'R' => "running",
            'S' => "sleeping",
            'D' => "disk sleep",
            'T' => "stopped",
            't' => "traced",
            'Z' | 'X' => "dead",
            _ => "idle",
        };
        write!(f, "{} ({}): {}, {does}", self.name, self.id, self.state)?;
        match &self.waits_in {
            Some(function) => write!(f, ", in {function}"),
            None => Ok(()),
        }
    }
}

/// The threads of a process, the main one first. Empty if the process does not exist.
#[must_use]
pub fn of(proc: &Path, pid: u32) -> Vec<Thread> {
    let tasks = tasks(proc, pid);
    let mut threads: Vec<Thread> = ids(proc, pid).take(MOST).filter_map(|id| one(&tasks, id)).collect();
    threads.sort_by_key(|thread| (thread.id != pid, thread.id));
    threads
}

/// Ids of all threads of the process that this thread belongs to.
pub fn ids(proc: &Path, thread: u32) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(tasks(proc, thread)).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

fn tasks(proc: &Path, thread: u32) -> PathBuf {
    proc.join(thread.to_string()).join("task")
}

/// One thread; `None` if it is gone.
fn one(tasks: &Path, id: u32) -> Option<Thread> {
    let text = |file: &str| fs::read_to_string(tasks.join(id.to_string()).join(file)).ok();
    let stat = text("stat")?;
    let (start, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse().ok()).unwrap_or_default();
    // A running thread waits nowhere, and a kernel that does not report this writes 0.
    let waits_in = text("wchan").filter(|function| !function.is_empty() && function != "0");
    Some(Thread {
        id,
        name: start.split_once('(')?.1.to_owned(),
        state: fields.first()?.chars().next()?,
        waits_in,
        user_ticks: ticks(11),
        system_ticks: ticks(12),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_linux_writes() {
        let proc = tempfile::tempdir().unwrap();
        let write = |id: u32, stat: &str, wchan: &str| {
            let task = proc.path().join(format!("42/task/{id}"));
            fs::create_dir_all(&task).unwrap();
            fs::write(task.join("stat"), stat).unwrap();
            fs::write(task.join("wchan"), wchan).unwrap();
        };
        write(41, "41 (CPU 0) odd) R 1 42 42 0 -1 4194560 1 2 3 4 150 50 0 0 20", "0");
        write(42, "42 (qemu) D 1 42 42 0 -1 4194560 1 2 3 4 7 8 0 0 20", "nfs_wait");
        write(43, "nonsense", "x");
        let seen = of(proc.path(), 42);
        let wanted = |id, name: &str, state, waits_in: Option<&str>, user_ticks, system_ticks| Thread {
            id,
            name: name.to_owned(),
            state,
            waits_in: waits_in.map(str::to_owned),
            user_ticks,
            system_ticks,
        };
        let main = wanted(42, "qemu", 'D', Some("nfs_wait"), 7, 8);
        assert_eq!(seen, [main, wanted(41, "CPU 0) odd", 'R', None, 150, 50)]);
        assert!(of(proc.path(), 7).is_empty());
    }

    #[test]
    fn this_process_can_be_read() {
        let pid = std::process::id();
        assert_eq!(of(Path::new("/proc"), pid)[0].id, pid);
    }
}
