//! Finds out whether the kernel killed QEMU for lack of memory. The launcher only sees a signal; the kernel
//! counts such kills in the control group of the container, which the handler reads. Pure.

use barevirt_protocol::v1::{LauncherStatus, Phase};

use crate::launchers::counters::Memory;

/// The launcher's reason for an end by a signal that QEMU did not cause.
const QEMU_KILLED: &str = "QemuKilled";
/// The reason that Kubernetes uses for such a container, and the controller for a launcher that was killed
/// itself.
const REASON: &str = "OOMKilled";

/// Whether the launcher reports that QEMU was killed by a signal.
pub fn is_killed(status: &LauncherStatus) -> bool {
    status.phase() == Phase::Failed && status.reason == QEMU_KILLED
}

/// Adds the reason to the launcher's report about a killed QEMU if the kernel killed it for lack of memory:
/// the count of such kills in the container is higher than `kills_before`.
pub fn explain(mut status: LauncherStatus, kills_before: u64, memory: &Memory) -> LauncherStatus {
    if !is_killed(&status) || memory.oom_kills.is_none_or(|kills| kills <= kills_before) {
        return status;
    }
    let used = memory.peak.or(memory.usage).map_or_else(
        || "how much its container used is not known".to_owned(),
        |used| format!("its container used up to {}", mebibytes(used)),
    );
    let limit = memory
        .limit
        .map_or_else(|| "no limit".to_owned(), |limit| format!("a limit of {}", mebibytes(limit)));
    status.message = format!(
        "{REASON}: the kernel killed QEMU for lack of memory: {used} and has {limit} ({})",
        status.message
    );
    status.reason = REASON.to_owned();
    status
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn killed(reason: &str) -> LauncherStatus {
        LauncherStatus {
            phase: Phase::Failed.into(),
            reason: reason.to_owned(),
            message: "QEMU was killed by signal 9 (SIGKILL)".to_owned(),
            ..LauncherStatus::default()
        }
    }

    fn memory(oom_kills: Option<u64>) -> Memory {
        Memory { oom_kills, limit: Some(512 << 20), peak: Some((512 << 20) - 1), ..Memory::default() }
    }

    #[test]
    fn a_kill_for_lack_of_memory_names_limit_and_usage() {
        let told = explain(killed("QemuKilled"), 0, &memory(Some(1)));
        assert_eq!((told.phase(), told.reason.as_str()), (Phase::Failed, "OOMKilled"));
        assert_eq!(
            told.message,
            "OOMKilled: the kernel killed QEMU for lack of memory: its container used up to 511 MiB and has a limit of \
             512 MiB (QEMU was killed by signal 9 (SIGKILL))"
        );
        let unlimited = Memory { limit: None, peak: None, usage: Some(3 << 20), ..memory(Some(1)) };
        let told = explain(killed("QemuKilled"), 0, &unlimited);
        assert!(told.message.contains("used up to 3 MiB and has no limit"), "{}", told.message);
    }

    #[test]
    fn other_ends_stay_as_the_launcher_reports_them() {
        let mut running = killed("QemuKilled");
        running.set_phase(Phase::Running);
        for (status, before, memory) in [
            (killed("QemuKilled"), 1, memory(Some(1))),
            (killed("QemuKilled"), 0, memory(None)),
            (killed("QemuCrashed"), 0, memory(Some(1))),
            (running, 0, memory(Some(1))),
        ] {
            assert_eq!(explain(status.clone(), before, &memory), status);
        }
    }
}
