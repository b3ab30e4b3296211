//! The launcher's status as the handler is told it. Pure.

use std::collections::BTreeSet;
use std::time::UNIX_EPOCH;

use barevirt_protocol::v1::{LauncherStatus, Phase};

use crate::status::{Stage, Status};

/// What the status is made of, beside the VM's own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Circumstances {
    /// Revision of the accepted Sync.
    pub revision: i64,
    /// Names of the descriptors held.
    pub descriptors: BTreeSet<String>,
    /// `kvm` or `tcg`, once it is decided.
    pub accelerator: String,
    /// What is still waited for, while it is.
    pub waiting_for: String,
    /// PCI addresses, to be kept for the next start.
    pub pci_layout: String,
}

/// The whole status.
#[must_use]
pub fn report(status: &Status, circumstances: &Circumstances) -> LauncherStatus {
    let Status {
        stage,
        reason,
        message,
        ready,
        qemu_pid,
        qemu_version,
        machine_type,
        agent_connected,
        running_since,
    } = status.clone();
    let Circumstances { revision, descriptors, accelerator, waiting_for, pci_layout } = circumstances.clone();
    let since = running_since.and_then(|since| since.duration_since(UNIX_EPOCH).ok());
    let message = if stage == Stage::Waiting { waiting_for } else { message };
    LauncherStatus {
        observed_revision: revision,
        phase: phase(stage).into(),
        reason,
        message,
        ready,
        descriptors: descriptors.into_iter().collect(),
        qemu_pid,
        qemu_version,
        machine_type,
        accelerator,
        agent_connected,
        running_since_unix_ms: since
            .and_then(|since| i64::try_from(since.as_millis()).ok())
            .unwrap_or_default(),
        pci_layout,
    }
}

fn phase(stage: Stage) -> Phase {
    match stage {
        Stage::Waiting => Phase::Waiting,
        Stage::Starting => Phase::Starting,
        Stage::Running => Phase::Running,
        Stage::Paused => Phase::Paused,
        Stage::Stopping => Phase::Stopping,
        Stage::Succeeded => Phase::Succeeded,
        Stage::Failed => Phase::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_it_waits_it_says_for_what() {
        let circumstances = Circumstances { waiting_for: "virt-handler".into(), ..Circumstances::default() };
        let status = report(&Status::default(), &circumstances);
        assert_eq!((status.phase(), status.message.as_str()), (Phase::Waiting, "virt-handler"));
        let failed = Status { stage: Stage::Failed, message: "why".into(), ..Status::default() };
        let status = report(&failed, &circumstances);
        assert_eq!((status.phase(), status.message.as_str()), (Phase::Failed, "why"));
    }
}
