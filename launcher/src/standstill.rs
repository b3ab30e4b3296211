//! Observations about a QEMU that does not answer.
//!
//! Its main loop answers commands; if that is stuck, only out-of-band commands are answered, and if the whole
//! process hangs, none. The kernel always reports what its threads wait for, and whether the pod's cgroup
//! lacks resources.

pub mod pressure;
pub mod threads;

use std::fmt::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use barevirt_qmp::qapi::qmp;
use barevirt_qmp::{Deadline, Error, Qmp};
use serde_json::{Value, json};

use self::pressure::Pressure;
use self::threads::Thread;

/// Time limit for an out-of-band answer, which takes no time unless QEMU hangs.
const OUT_OF_BAND: Duration = Duration::from_millis(700);
/// Most lines about threads in a message; the text is part of a refusal.
const LINES: usize = 20;
/// Directory of the cgroups in a container.
const CGROUPS: &str = "/sys/fs/cgroup";

/// The observations.
#[derive(Debug, Clone, PartialEq)]
pub struct Standstill {
    /// QEMU's process; 0 if unknown.
    pub pid: u32,
    /// Whether it answers out of band.
    pub out_of_band: bool,
    /// Its threads, the main one first.
    pub threads: Vec<Thread>,
    /// Resources that its cgroup lacks.
    pub pressure: Pressure,
}

/// Current threads and pressure, without asking QEMU.
#[must_use]
pub fn outside(pid: u32) -> (Vec<Thread>, Pressure) {
    (threads::of(Path::new("/proc"), pid), pressure::read(Path::new(CGROUPS), Path::new("/proc/pressure")))
}

/// Observes a QEMU that has not answered.
pub async fn look(qmp: &Qmp, pid: u32) -> Standstill {
    let asked = qmp.execute_oob(qmp::query_yank {}, Deadline::after(OUT_OF_BAND)).await;
    let (threads, pressure) = outside(pid);
    // The content of the answer does not matter.
    let out_of_band = matches!(asked, Ok(_) | Err(Error::Answer { .. }));
    Standstill { pid, out_of_band, threads, pressure }
}

impl Standstill {
    /// A text with the unanswered command, the time, and possible reasons.
    #[must_use]
    pub fn explain(&self, command: &str, waited: Duration) -> String {
        let seconds = waited.as_secs_f64();
        format!("QEMU has not answered {command} within {seconds} s. It may still be carried out.\n{self}")
    }
}

impl fmt::Display for Standstill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stopped = !self.threads.is_empty() && self.threads.iter().all(|thread| thread.state == 'T');
        match (self.out_of_band, stopped) {
            (true, _) => f.write_str(
                "Its main loop is stuck. It answers out of band: query-yank, yank, migrate-pause work now, nothing else does.\n",
            )?,
            (false, true) => {
                f.write_str("Its process is stopped (state T), so it does not answer out of band either.\n")?;
            }
            (false, false) => f.write_str("It does not answer out of band either.\n")?,
        }
        if self.threads.is_empty() {
            f.write_str("Its threads cannot be seen.\n")?;
        } else {
            writeln!(f, "Threads of its process {}:", self.pid)?;
        }
        let lines = lines(&self.threads);
        for line in lines.iter().take(LINES) {
            writeln!(f, "  {line}")?;
        }
        let more = lines.len().saturating_sub(LINES);
        if more > 0 {
            writeln!(f, "  and {more} more")?;
        }
        write!(f, "{}", self.pressure)
    }
}

/// One line for each thread; threads in the same situation share a line.
fn lines(threads: &[Thread]) -> Vec<String> {
    let mut seen: Vec<(&Thread, usize)> = Vec::new();
    for thread in threads {
        match seen.iter_mut().find(|(first, _)| first.does_as(thread)) {
            Some((_, count)) => *count += 1,
            None => seen.push((thread, 1)),
        }
    }
    let line = |(thread, count): &(&Thread, usize)| {
        let mut line = thread.to_string();
        if *count > 1 {
            // Writing to a String cannot fail.
            let _ = write!(line, ", and {} like it", count - 1);
        }
        line
    };
    seen.iter().map(line).collect()
}

/// The observations as JSON.
#[must_use]
pub fn as_json(threads: &[Thread], pressure: &Pressure) -> Value {
    let threads: Vec<Value> = threads.iter().map(Thread::as_json).collect();
    json!({"threads": threads, "pressure": pressure.as_json()})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(id: u32, name: &str, state: char, waits_in: Option<&str>) -> Thread {
        let waits_in = waits_in.map(str::to_owned);
        Thread { id, name: name.to_owned(), state, waits_in, user_ticks: 1, system_ticks: 2 }
    }

    #[test]
    fn a_standstill_is_described_as_far_as_it_is_known() {
        let mut seen = Standstill {
            pid: 7,
            out_of_band: true,
            threads: vec![
                thread(7, "qemu-system-x86", 'D', Some("nfs_wait")),
                thread(8, "CPU 0/KVM", 'S', Some("futex_wait")),
                thread(9, "CPU 1/KVM", 'S', Some("futex_wait")),
                thread(10, "IO io0", 'R', None),
            ],
            pressure: Pressure::default(),
        };
        let text = seen.explain("query-status", Duration::from_millis(2500));
        for wanted in [
            "QEMU has not answered query-status within 2.5 s.",
            "main loop is stuck",
            "qemu-system-x86 (7): D, disk sleep, in nfs_wait",
            "CPU 0/KVM (8): S, sleeping, in futex_wait, and 1 like it",
            "IO io0 (10): R, running\n",
        ] {
            assert!(text.contains(wanted), "{wanted} is not in\n{text}");
        }
        seen.out_of_band = false;
        assert!(seen.to_string().starts_with("It does not answer out of band either"));
        for thread in &mut seen.threads {
            thread.state = 'T';
        }
        assert!(seen.to_string().starts_with("Its process is stopped"));
        seen.threads.clear();
        assert!(seen.to_string().contains("cannot be seen"));
    }

    #[test]
    fn the_text_is_bounded_whatever_the_threads_are_called() {
        let threads = (0..5000).map(|id| thread(id, &format!("t{id}"), 'S', Some(&id.to_string()))).collect();
        let seen = Standstill { pid: 1, out_of_band: false, threads, pressure: Pressure::default() };
        let text = seen.to_string();
        assert!(text.contains("and 4980 more") && text.len() < 3000, "{}", text.len());
    }
}
