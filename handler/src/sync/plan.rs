//! Plans the next step for one VMI. Pure.
//!
//! ```text
//! VMI Scheduled here, its launcher pod runs
//!   no connection                        -> Connect        find the launcher and verify it
//!   connected, network not prepared      -> Prepare        add what is missing, hand over descriptors
//!   prepared, spec not known to launcher -> Sync           what should run
//!   QEMU runs, realtime is requested     -> RealTime       the launcher starts the guest after it
//!   VMI is being deleted                 -> Shutdown       once, and again with less time if the grace period shrinks
//!   pings of the agent began to fail     -> ReportFailedPings  an event only: the kubelet decides what follows
//!   it is to migrate, or migrates        -> Move           see crate::migration::plan; nothing is prepared, synced or plugged meanwhile
//!   a disk is offered, but not held      -> Plug           take it from its pod and hand it to the launcher
//!   status differs from observation      -> Report         one patch
//!   else                                 -> Wait           for the API server, the launcher, or a retry
//!
//! VMI migrates to this node: Connect, Prepare, Plug, Await, Report; Claim if the source falls silent at the end, and Abandon
//! if it does so before
//! ```
//!
//! A handler that restarts goes through the same steps; each finds that its work is done.

use barevirt_api::names::{PHASE_RUNNING, PHASE_SCHEDULED, is_final_phase};
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_protocol::names::HotDisk;
use barevirt_protocol::v1::{LauncherStatus, MigrationState, Phase};

use crate::launchers::cgroup::Container;
use crate::migration;
use crate::migration::plan::Move;
use crate::pods::LauncherPod;
use crate::status::volumes;

/// Grace period where the spec has none: KubeVirt's default.
pub const DEFAULT_GRACE_PERIOD: u32 = 30;

/// The launcher's reasons for an end that was requested.
const STOPPED: [&str; 2] = ["Stopped", "StoppedBeforeStart"];

/// What the handler knows about the launcher since it connected.
#[derive(Debug, Clone, Copy)]
pub struct Session<'a> {
    /// Its last status; nothing before the first.
    pub status: Option<&'a LauncherStatus>,
    /// The connection is broken.
    pub lost: bool,
    /// Whether the network was observed and completed.
    pub prepared: bool,
    /// Hash of the spec that the launcher has.
    pub synced: Option<&'a str>,
    /// Grace period of the last request to shut down.
    pub shutdown: Option<u32>,
    /// Process id of the QEMU whose virtual CPUs were made realtime.
    pub real_time: Option<u32>,
    /// How often pings had begun to fail when the last event reported it, or when the handler connected.
    pub failed_pings: u64,
    /// UID of the migration whose guest is expected.
    pub awaits: Option<&'a str>,
    /// UID of the migration whose target got the message that it has the guest.
    pub gone: Option<&'a str>,
}

/// Everything on which the next step depends.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    /// The VMI.
    pub vmi: &'a VirtualMachineInstance,
    /// Hash of its spec.
    pub spec_hash: &'a str,
    /// The pod that `status.activePods` names for this node.
    pub pod: Option<&'a LauncherPod>,
    /// This node.
    pub node: &'a str,
    /// The launcher, if the handler is connected to it.
    pub session: Option<Session<'a>>,
    /// Whether the computed status differs from the VMI's status.
    pub report: bool,
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Close the connection to the launcher: it is no longer needed.
    Disconnect,
    /// Find the launcher in this container and connect to it.
    Connect(Container),
    /// Set up the guest's network and hand over descriptors.
    Prepare,
    /// Tell the launcher what to run.
    Sync,
    /// Give virtual CPUs realtime scheduling.
    RealTime {
        /// QEMU's process id as the launcher knows it.
        qemu: u32,
    },
    /// Hand over disks to be plugged in, each with the UID of the pod that offers it.
    Plug(Vec<(HotDisk, String)>),
    /// Tell the launcher to shut the guest down.
    Shutdown {
        /// Seconds until the launcher ends it by force.
        grace: u32,
    },
    /// Tell the launcher that a guest arrives by this migration, and admit it.
    Await {
        /// UID of the migration.
        uid: String,
    },
    /// Let a guest run that is completely here, if its source has ended without letting it run.
    Claim {
        /// UID of the migration.
        uid: String,
        /// The node from which it comes.
        source: String,
    },
    /// End a guest whose connection broke in post-copy, if its source has ended.
    Orphan {
        /// UID of the migration.
        uid: String,
        /// The node from which it comes.
        source: String,
    },
    /// Give up a guest of which not everything has arrived, if the migration is cancelled and its source does not
    /// end it.
    Abandon {
        /// UID of the migration.
        uid: String,
        /// The node from which it comes.
        source: String,
    },
    /// A step of a guest that leaves.
    Move(Move),
    /// Report failed pings of the guest agent by an event.
    ReportFailedPings(u64),
    /// Patch the VMI's status.
    Report,
    /// Nothing to do.
    Wait,
}

/// The next step for the VMI.
pub fn plan(observed: Observed<'_>) -> Step {
    let Observed { vmi, session, .. } = observed;
    let status = vmi.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
    let ours = status.and_then(|status| status.node_name.as_deref()) == Some(observed.node);
    if !ours
        && !is_final_phase(phase)
        && let Some((uid, source)) = migration::plan::incoming(vmi, observed.node)
    {
        return incoming(&observed, uid, source);
    }
    if !ours
        && let Some(session) = session.filter(|session| !session.lost)
        && let Some(step @ Move::Result { .. }) = session
            .status
            .and_then(|status| migration::plan::source(vmi, observed.node, status, session.gone))
    {
        return Step::Move(step);
    }
    if is_final_phase(phase) || !ours {
        return if session.is_some() { Step::Disconnect } else { Step::Wait };
    }
    if phase != PHASE_SCHEDULED && phase != PHASE_RUNNING {
        return Step::Wait;
    }
    let Some(session) = session else { return connect(observed.pod) };
    let launcher = session.status.map(LauncherStatus::phase);
    if let Some(step) = session.status.and_then(|status| {
        let alive = !session.lost && !matches!(status.phase(), Phase::Succeeded | Phase::Failed);
        migration::plan::source(vmi, observed.node, status, session.gone).filter(|step| {
            // The target gets the message even if nothing here can go on.
            alive || matches!(step, Move::Go { .. })
        })
    }) {
        return Step::Move(step);
    }
    if matches!(launcher, Some(Phase::Succeeded | Phase::Failed)) {
        // This holds even if the connection has ended meanwhile: the result was received.
        let reports = observed.report && !stopped_by_kubelet(&observed, session.status);
        return if reports { Step::Report } else { Step::Wait };
    }
    if session.lost {
        return Step::Disconnect;
    }
    if launcher.is_none() {
        return Step::Wait;
    }
    if vmi.metadata.deletion_timestamp.is_some() {
        let grace = grace_period(vmi);
        if session.shutdown.is_none_or(|told| grace < told) {
            return Step::Shutdown { grace };
        }
    } else if launcher != Some(Phase::Stopping) && !session.status.is_some_and(migration::plan::is_leaving) {
        // Disks and network cards wait until the guest has arrived, or until it is certain that it stays.
        let moves = migration::plan::is_handed_over(vmi, observed.node);
        if !session.prepared && !moves {
            return Step::Prepare;
        }
        if session.synced != Some(observed.spec_hash) && !moves {
            return Step::Sync;
        }
        let realtime = vmi.spec.domain.cpu.as_ref().is_some_and(|cpu| cpu.realtime.is_some());
        let answers = |status: &&LauncherStatus| status.ready || status.awaits_real_time;
        let qemu = session.status.filter(answers).filter(|_| realtime).map(|status| status.qemu_pid);
        if let Some(qemu @ 1..) = qemu
            && session.real_time != Some(qemu)
        {
            return Step::RealTime { qemu };
        }
        let failed = session.status.map_or(0, |status| status.failed_pings);
        if failed > session.failed_pings {
            return Step::ReportFailedPings(failed);
        }
        let disks = session
            .status
            .filter(|status| status.ready && !moves)
            .map(|status| volumes::missing(vmi, status));
        if let Some(disks) = disks.filter(|disks| !disks.is_empty()) {
            return Step::Plug(disks);
        }
    }
    if observed.report { Step::Report } else { Step::Wait }
}

/// The next step for a guest that is to arrive here.
fn incoming(observed: &Observed<'_>, uid: &str, source: &str) -> Step {
    let vmi = observed.vmi;
    let Some(session) = observed.session else { return connect(observed.pod) };
    let ended = matches!(session.status.map(LauncherStatus::phase), Some(Phase::Succeeded | Phase::Failed));
    if session.lost && !ended {
        return Step::Disconnect;
    }
    if session.status.is_none() {
        return Step::Wait;
    }
    if !ended && !session.prepared {
        return Step::Prepare;
    }
    if !ended && session.awaits != Some(uid) {
        let disks = session.status.map(|status| volumes::arriving(vmi, status)).unwrap_or_default();
        if !disks.is_empty() {
            return Step::Plug(disks);
        }
        return Step::Await { uid: uid.to_owned() };
    }
    let told = session.status.and_then(|status| migration::plan::reported(status, uid));
    if !ended && told.is_some_and(|told| told.recovery.is_some()) {
        return Step::Orphan { uid: uid.to_owned(), source: source.to_owned() };
    }
    // In post-copy the guest may already run without all of its memory. It needs no further order then.
    let is_cancelled = migration::plan::is_cancelled(vmi);
    if !ended
        && is_cancelled
        && told.is_some_and(|told| told.state() == MigrationState::Receiving && !told.aborted)
    {
        return Step::Abandon { uid: uid.to_owned(), source: source.to_owned() };
    }
    let runs = session.status.is_some_and(|status| status.phase() == Phase::Running);
    if !ended && !runs && told.is_some_and(|told| told.state() == MigrationState::Received) {
        return Step::Claim { uid: uid.to_owned(), source: source.to_owned() };
    }
    if observed.report { Step::Report } else { Step::Wait }
}

/// The launcher was asked to stop, but neither the VMI nor its pod is being deleted: the kubelet ends the pod
/// for another reason, such as an eviction or the shutdown of the node. It writes the reason into the pod's
/// status, from which the controller takes the result. The launcher does not know it.
fn stopped_by_kubelet(observed: &Observed<'_>, launcher: Option<&LauncherStatus>) -> bool {
    let stopped = launcher.is_some_and(|status| STOPPED.contains(&status.reason.as_str()));
    let deleted =
        observed.vmi.metadata.deletion_timestamp.is_some() || observed.pod.is_some_and(|pod| pod.deleted);
    stopped && !deleted
}

fn connect(pod: Option<&LauncherPod>) -> Step {
    match pod.and_then(|pod| Some((&pod.uid, pod.container.as_ref()?))) {
        Some((uid, id)) => Step::Connect(Container { pod_uid: uid.clone(), id: id.clone() }),
        None => Step::Wait,
    }
}

/// Seconds that the guest has to shut down.
pub fn grace_period(vmi: &VirtualMachineInstance) -> u32 {
    match vmi.spec.termination_grace_period_seconds {
        Some(seconds) => u32::try_from(seconds.max(0)).unwrap_or(u32::MAX),
        None => DEFAULT_GRACE_PERIOD,
    }
}

/// UID of the pod that runs, or is to run, the VMI on this node.
pub fn active_pod<'a>(vmi: &'a VirtualMachineInstance, node: &str) -> Option<&'a str> {
    let pods = &vmi.status.as_ref()?.active_pods;
    pods.iter().find(|(_, on)| on.as_str() == node).map(|(uid, _)| uid.as_str())
}

#[cfg(test)]
mod tests;
