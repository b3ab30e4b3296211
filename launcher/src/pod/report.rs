//! The launcher's status for the handler. Pure.

use std::collections::BTreeSet;
use std::time::UNIX_EPOCH;

use barevirt_api::v1::GuestOsInfo;
use barevirt_protocol::v1::{
    Card, ClaimDisk, Credentials, DiskTrouble, GuestFacts, GuestInterface, GuestOs, HotDisk, LauncherStatus,
    MachineSize, MadeDisk, MigrationBottleneck, MigrationRecovery, MigrationSlow, MigrationState,
    MigrationStatus, Pause, Phase,
};

use crate::credentials::serve::Outcome;
use crate::guest_agent::{Facts, answers};
use crate::migration::{Bottleneck, MigrationReport, Progress, Recovery, Slow, State};
use crate::status::{Paused, Stage, Status};

/// The parts of the status other than the VM's own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Circumstances {
    /// Revision of the accepted Sync.
    pub revision: i64,
    /// Names of the descriptors held.
    pub descriptors: BTreeSet<String>,
    /// `kvm` or `tcg`, as soon as it is decided.
    pub accelerator: String,
    /// What the start still waits for.
    pub waiting_for: String,
    /// PCI addresses, to be kept for the next start.
    pub pci_layout: String,
    /// The state of access credentials that the guest agent sets.
    pub credentials: Option<Outcome>,
    /// Processors and memory, after QEMU was queried.
    pub size: Option<MachineSize>,
    /// Disks that were plugged in, or should be.
    pub hot_disks: Vec<HotDisk>,
    /// Cards of the machine.
    pub cards: Vec<Card>,
    /// How often pings of the guest agent have started to fail.
    pub failed_pings: u64,
    /// Disks that a migration copies.
    pub local_disks: Vec<String>,
    /// Disks on claims, which a migration copies if they move to other claims.
    pub claim_disks: Vec<ClaimDisk>,
    /// Disks that could not grow with their claims.
    pub not_grown: Vec<DiskTrouble>,
    /// Disks that were made of the manifest and of objects.
    pub made_disks: Vec<MadeDisk>,
    /// New disks that are smaller than was asked for.
    pub smaller: Vec<DiskTrouble>,
}

/// The whole status.
#[must_use]
pub fn report(status: &Status, circumstances: &Circumstances, guest: Option<&Facts>) -> LauncherStatus {
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
        paused,
        resumes: _,
        awaits_real_time,
        migration,
        memory_channels,
    } = status.clone();
    let Circumstances {
        revision,
        descriptors,
        accelerator,
        waiting_for,
        pci_layout,
        credentials,
        size,
        hot_disks,
        cards,
        failed_pings,
        local_disks,
        claim_disks,
        not_grown,
        made_disks,
        smaller,
    } = circumstances.clone();
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
        pause: pause(paused).into(),
        guest: guest.map(facts),
        credentials: credentials
            .map(|Outcome { synchronized, message }| Credentials { synchronized, message }),
        size,
        failed_pings,
        awaits_real_time,
        hot_disks,
        migration: migration.map(moves),
        cards,
        local_disks,
        claim_disks,
        not_grown,
        made_disks,
        smaller,
        memory_channels: memory_channels.into(),
        compresses_memory: memory_channels > 0,
    }
}

fn pause(paused: Option<Paused>) -> Pause {
    match paused {
        None => Pause::Unspecified,
        Some(Paused::ByUser) => Pause::User,
        Some(Paused::ByIoError) => Pause::IoError,
    }
}

fn facts(facts: &Facts) -> GuestFacts {
    // Frequently changing values are only given on request: see `stats`.
    let Facts { os, interfaces, frozen, unsupported, file_systems: _, load: _ } = facts.clone();
    let GuestOsInfo { name, id, pretty_name, version, version_id, kernel_release, kernel_version, machine } =
        os;
    let interface = |interface: answers::Interface| {
        let answers::Interface { name, mac, addresses } = interface;
        GuestInterface { name, mac, addresses: addresses.iter().map(ToString::to_string).collect() }
    };
    GuestFacts {
        os: Some(GuestOs {
            name: name.unwrap_or_default(),
            id: id.unwrap_or_default(),
            pretty_name: pretty_name.unwrap_or_default(),
            version: version.unwrap_or_default(),
            version_id: version_id.unwrap_or_default(),
            kernel_release: kernel_release.unwrap_or_default(),
            kernel_version: kernel_version.unwrap_or_default(),
            machine: machine.unwrap_or_default(),
        }),
        interfaces: interfaces.into_iter().map(interface).collect(),
        frozen,
        unsupported: unsupported.unwrap_or_default().to_owned(),
    }
}

fn moves(report: MigrationReport) -> MigrationStatus {
    let MigrationReport {
        uid,
        state,
        progress,
        reason,
        // A part of the debug report, which is asked for: the status would change with each figure.
        bottleneck: _,
        slow,
        paused,
        aborted,
        hold,
        post_copy,
        offers_post_copy,
        recovery,
    } = report;
    let state = match state {
        State::Awaited => MigrationState::Awaited,
        State::Receiving => MigrationState::Receiving,
        State::Received => MigrationState::Received,
        State::Arrived => MigrationState::Arrived,
        State::Sending => MigrationState::Sending,
        State::Switching => MigrationState::Switching,
        State::Sent => MigrationState::Sent,
        State::Left => MigrationState::Left,
        State::Over => MigrationState::Over,
    };
    let Progress { transferred, remaining, total, downtime, .. } = progress;
    MigrationStatus {
        uid,
        state: state.into(),
        reason,
        paused,
        aborted,
        hold,
        transferred_bytes: transferred,
        remaining_bytes: remaining,
        total_bytes: total,
        downtime_ms: u64::try_from(downtime.as_millis()).unwrap_or(u64::MAX),
        post_copy,
        offers_post_copy,
        recovery: recovery
            .map(|Recovery { tries, awaits_connection }| MigrationRecovery { tries, awaits_connection }),
        slow: slow.map(slowness),
    }
}

fn slowness(slow: Slow) -> MigrationSlow {
    let Slow { bottleneck, text } = slow;
    let bottleneck = match bottleneck {
        Bottleneck::Bandwidth => MigrationBottleneck::Bandwidth,
        Bottleneck::DirtyRate => MigrationBottleneck::DirtyRate,
        Bottleneck::Downtime => MigrationBottleneck::Downtime,
    };
    MigrationSlow { bottleneck: bottleneck.into(), text }
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
        let status = report(&Status::default(), &circumstances, None);
        assert_eq!((status.phase(), status.message.as_str()), (Phase::Waiting, "virt-handler"));
        let failed = Status { stage: Stage::Failed, message: "why".into(), ..Status::default() };
        let status = report(&failed, &circumstances, None);
        assert_eq!((status.phase(), status.message.as_str()), (Phase::Failed, "why"));
    }

    #[test]
    fn what_limits_a_slow_migration_is_reported() {
        for (bottleneck, word) in [
            (Bottleneck::Bandwidth, MigrationBottleneck::Bandwidth),
            (Bottleneck::DirtyRate, MigrationBottleneck::DirtyRate),
            (Bottleneck::Downtime, MigrationBottleneck::Downtime),
        ] {
            let migration = MigrationReport {
                uid: "m".into(),
                state: State::Sending,
                progress: Progress::default(),
                reason: String::new(),
                bottleneck: Some("a figure".into()),
                slow: Some(Slow { bottleneck, text: "why".into() }),
                paused: false,
                aborted: false,
                hold: false,
                post_copy: false,
                offers_post_copy: false,
                recovery: None,
            };
            let status = Status { migration: Some(migration), ..Status::default() };
            let told = report(&status, &Circumstances::default(), None).migration.unwrap();
            assert_eq!(told.slow, Some(MigrationSlow { bottleneck: word.into(), text: "why".into() }));
        }
    }

    #[test]
    fn guest_facts_are_reported() {
        let interface = answers::Interface {
            name: "eth0".into(),
            mac: "02:00:00:00:00:01".into(),
            addresses: vec!["10.0.2.2".parse().unwrap()],
        };
        let os = GuestOsInfo { name: Some("Debian".into()), ..GuestOsInfo::default() };
        let guest = Facts { os, interfaces: vec![interface], frozen: true, ..Facts::default() };
        let paused = Status { stage: Stage::Paused, paused: Some(Paused::ByIoError), ..Status::default() };
        let status = report(&paused, &Circumstances::default(), Some(&guest));
        assert_eq!((status.phase(), status.pause()), (Phase::Paused, Pause::IoError));
        let told = status.guest.unwrap();
        assert_eq!((told.os.unwrap().name.as_str(), told.frozen), ("Debian", true));
        assert_eq!(told.interfaces[0].addresses, ["10.0.2.2"]);
    }
}
