//! What to do next for one VMI: pure.
//!
//! ```text
//! VMI Scheduled here, its launcher pod runs
//!   no connection                        -> Connect        find the launcher and prove who it is
//!   connected, network not looked at     -> Prepare        make what is missing, hand over descriptors
//!   prepared, spec not known to launcher -> Sync           what should run
//!   QEMU is there, realtime is asked for -> RealTime       the launcher lets the guest go after it
//!   VMI is being deleted                 -> Shutdown       once, and again with less time if the grace period shrinks
//!   pings of the agent began to fail     -> TellFailedPings  an event, and no more: what follows is the kubelet's
//!   a disk is offered, not held          -> Plug           take it from its pod and hand it to the launcher
//!   status differs from what is seen     -> Report         one patch
//!   else                                 -> Wait           for the API server, the launcher, or a retry
//! ```
//!
//! A handler that starts anew goes through the same steps; each finds that all is there.

use barevirt_api::names::{PHASE_RUNNING, PHASE_SCHEDULED, is_final_phase};
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_protocol::names::HotDisk;
use barevirt_protocol::v1::{LauncherStatus, Phase};

use crate::launchers::cgroup::Container;
use crate::pods::LauncherPod;
use crate::status::volumes;

/// Grace period where the spec has none: KubeVirt's default.
pub const DEFAULT_GRACE_PERIOD: u32 = 30;

/// The launcher's reasons for an end that somebody asked it for.
const STOPPED: [&str; 2] = ["Stopped", "StoppedBeforeStart"];

/// What is known of the launcher since it was connected to.
#[derive(Debug, Clone, Copy)]
pub struct Session<'a> {
    /// Its last status; nothing before the first.
    pub status: Option<&'a LauncherStatus>,
    /// The connection is broken.
    pub lost: bool,
    /// The network was looked at and what was missing was made.
    pub prepared: bool,
    /// Hash of the spec that it was told.
    pub synced: Option<&'a str>,
    /// Grace period that it was told to shut down with.
    pub shutdown: Option<u32>,
    /// Process id of the QEMU whose virtual CPUs were made realtime.
    pub real_time: Option<u32>,
    /// How often pings had begun to fail when an event last told so, or when the launcher was connected to.
    pub failed_pings: u64,
}

/// All that the next step depends on.
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
    /// The launcher, if it is connected to.
    pub session: Option<Session<'a>>,
    /// The status to be reported differs from the one that the VMI has.
    pub report: bool,
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The launcher is of no more interest: let go of it.
    Disconnect,
    /// Find the launcher in this container.
    Connect(Container),
    /// Make the guest's network and hand over descriptors.
    Prepare,
    /// Tell the launcher what should run.
    Sync,
    /// Make virtual CPUs realtime.
    RealTime {
        /// QEMU's process id as the launcher knows it.
        qemu: u32,
    },
    /// Hand over disks that are to be plugged in: each with the UID of the pod that offers it.
    Plug(Vec<(HotDisk, String)>),
    /// Tell the launcher to shut the guest down.
    Shutdown {
        /// Seconds until it is ended by force.
        grace: u32,
    },
    /// Tell of pings of the guest agent that fail.
    TellFailedPings(u64),
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
    if is_final_phase(phase) || !ours {
        return if session.is_some() { Step::Disconnect } else { Step::Wait };
    }
    if phase != PHASE_SCHEDULED && phase != PHASE_RUNNING {
        return Step::Wait;
    }
    let Some(session) = session else { return connect(observed.pod) };
    let launcher = session.status.map(LauncherStatus::phase);
    if matches!(launcher, Some(Phase::Succeeded | Phase::Failed)) {
        // Also when the connection is gone meanwhile: the verdict was heard.
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
    } else if launcher != Some(Phase::Stopping) {
        if !session.prepared {
            return Step::Prepare;
        }
        if session.synced != Some(observed.spec_hash) {
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
            return Step::TellFailedPings(failed);
        }
        let disks = session.status.filter(|status| status.ready).map(|status| volumes::missing(vmi, status));
        if let Some(disks) = disks.filter(|disks| !disks.is_empty()) {
            return Step::Plug(disks);
        }
    }
    if observed.report { Step::Report } else { Step::Wait }
}

/// The launcher was told to stop, and neither the VMI nor its pod is being deleted: the kubelet ends the pod for reasons of
/// its own, an eviction or the end of the node. It writes them into the pod's status, and the controller the verdict from
/// there; what the launcher says knows nothing of it.
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
mod tests {
    use barevirt_api::v1::VirtualMachineInstanceStatus;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn vmi(phase: &str) -> VirtualMachineInstance {
        VirtualMachineInstance {
            status: Some(VirtualMachineInstanceStatus {
                phase: Some(phase.to_owned()),
                node_name: Some("node01".to_owned()),
                active_pods: [("uid-1".to_owned(), "node01".to_owned())].into(),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn deleted(mut vmi: VirtualMachineInstance) -> VirtualMachineInstance {
        vmi.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        vmi
    }

    fn pod() -> LauncherPod {
        LauncherPod {
            uid: "uid-1".to_owned(),
            name: "virt-launcher-x".to_owned(),
            container: Some("abc".to_owned()),
            addresses: Vec::new(),
            allow_emulation: true,
            deleted: false,
            readiness: None,
        }
    }

    fn launcher(phase: Phase) -> LauncherStatus {
        LauncherStatus { phase: phase.into(), ..Default::default() }
    }

    const FRESH: Session<'static> = Session {
        status: None,
        lost: false,
        prepared: false,
        synced: None,
        shutdown: None,
        real_time: None,
        failed_pings: 0,
    };

    fn next(vmi: &VirtualMachineInstance, session: Option<Session<'_>>, report: bool) -> Step {
        let pod = pod();
        plan(Observed { vmi, spec_hash: "h", pod: Some(&pod), node: "node01", session, report })
    }

    #[test]
    fn from_scheduled_to_running() {
        let vmi = vmi(PHASE_SCHEDULED);
        let container = Container { pod_uid: "uid-1".to_owned(), id: "abc".to_owned() };
        assert_eq!(next(&vmi, None, false), Step::Connect(container));
        assert_eq!(next(&vmi, Some(FRESH), true), Step::Wait);
        let waiting = launcher(Phase::Waiting);
        let session = Session { status: Some(&waiting), ..FRESH };
        assert_eq!(next(&vmi, Some(session), false), Step::Prepare);
        let session = Session { prepared: true, ..session };
        assert_eq!(next(&vmi, Some(session), false), Step::Sync);
        let running = launcher(Phase::Running);
        let session = Session { synced: Some("h"), status: Some(&running), ..session };
        assert_eq!(next(&vmi, Some(session), true), Step::Report);
        assert_eq!(next(&vmi, Some(session), false), Step::Wait);
    }

    #[test]
    fn realtime_comes_before_the_guest_is_said_to_run_and_once_for_each_qemu() {
        let mut vmi = vmi(PHASE_SCHEDULED);
        let mut running = launcher(Phase::Running);
        (running.ready, running.qemu_pid) = (true, 12);
        let session = Session { status: Some(&running), prepared: true, synced: Some("h"), ..FRESH };
        assert_eq!(next(&vmi, Some(session), true), Step::Report);
        vmi.spec.domain.cpu = Some(serde_json::from_value(serde_json::json!({"realtime": {}})).unwrap());
        assert_eq!(next(&vmi, Some(session), true), Step::RealTime { qemu: 12 });
        let mut waiting = launcher(Phase::Starting);
        waiting.qemu_pid = 12;
        let before = Session { status: Some(&waiting), ..session };
        assert_eq!(next(&vmi, Some(before), false), Step::Wait);
        let waiting = LauncherStatus { awaits_real_time: true, ..waiting };
        let before = Session { status: Some(&waiting), ..session };
        assert_eq!(next(&vmi, Some(before), false), Step::RealTime { qemu: 12 });
        let other = Session { real_time: Some(11), ..session };
        assert_eq!(next(&vmi, Some(other), true), Step::RealTime { qemu: 12 });
        let done = Session { real_time: Some(12), ..session };
        assert_eq!(next(&vmi, Some(done), true), Step::Report);
    }

    #[test]
    fn pings_that_fail_are_told_once_for_each_beginning() {
        let running = LauncherStatus { failed_pings: 2, ..launcher(Phase::Running) };
        let session =
            Session { status: Some(&running), prepared: true, synced: Some("h"), failed_pings: 1, ..FRESH };
        assert_eq!(next(&vmi(PHASE_RUNNING), Some(session), true), Step::TellFailedPings(2));
        let told = Session { failed_pings: 2, ..session };
        assert_eq!(next(&vmi(PHASE_RUNNING), Some(told), true), Step::Report);
        let ending = Session { shutdown: Some(DEFAULT_GRACE_PERIOD), ..session };
        assert_eq!(next(&deleted(vmi(PHASE_RUNNING)), Some(ending), false), Step::Wait);
    }

    #[test]
    fn nothing_happens_for_vmis_that_are_not_ours_yet_or_any_more() {
        for phase in ["", "Pending", "Scheduling", "Succeeded", "Failed", "Unknown"] {
            assert_eq!(next(&vmi(phase), None, true), Step::Wait, "{phase}");
        }
        let mut elsewhere = vmi(PHASE_SCHEDULED);
        if let Some(status) = &mut elsewhere.status {
            status.node_name = Some("node02".to_owned());
        }
        assert_eq!(next(&elsewhere, None, true), Step::Wait);
        assert_eq!(next(&elsewhere, Some(FRESH), true), Step::Disconnect);
    }

    #[test]
    fn no_connection_before_the_container_runs() {
        let vmi = vmi(PHASE_SCHEDULED);
        let mut pod = pod();
        pod.container = None;
        let observed = Observed {
            vmi: &vmi,
            spec_hash: "h",
            pod: Some(&pod),
            node: "node01",
            session: None,
            report: false,
        };
        assert_eq!(plan(observed), Step::Wait);
        assert_eq!(plan(Observed { pod: None, ..observed }), Step::Wait);
    }

    #[test]
    fn a_deleted_vmi_is_shut_down_once_and_again_only_with_less_time() {
        let running = launcher(Phase::Running);
        let session = Session { status: Some(&running), prepared: true, synced: Some("h"), ..FRESH };
        let mut vmi = deleted(vmi(PHASE_RUNNING));
        assert_eq!(next(&vmi, Some(session), false), Step::Shutdown { grace: DEFAULT_GRACE_PERIOD });
        let session = Session { shutdown: Some(DEFAULT_GRACE_PERIOD), ..session };
        assert_eq!(next(&vmi, Some(session), false), Step::Wait);
        vmi.spec.termination_grace_period_seconds = Some(0);
        assert_eq!(next(&vmi, Some(session), false), Step::Shutdown { grace: 0 });
    }

    #[test]
    fn a_deleted_vmi_is_not_started() {
        let waiting = launcher(Phase::Waiting);
        let session = Session { status: Some(&waiting), shutdown: Some(30), ..FRESH };
        assert_eq!(next(&deleted(vmi(PHASE_SCHEDULED)), Some(session), false), Step::Wait);
    }

    #[test]
    fn a_verdict_is_reported_even_when_the_launcher_is_gone() {
        let failed = launcher(Phase::Failed);
        let session = Session { status: Some(&failed), lost: true, ..FRESH };
        assert_eq!(next(&vmi(PHASE_RUNNING), Some(session), true), Step::Report);
        assert_eq!(next(&vmi("Failed"), Some(session), false), Step::Disconnect);
    }

    #[test]
    fn an_end_that_nobody_of_the_cluster_asked_for_is_left_to_the_controller() {
        let mut stopped = launcher(Phase::Succeeded);
        stopped.reason = "Stopped".to_owned();
        let session = Session { status: Some(&stopped), ..FRESH };
        let running = vmi(PHASE_RUNNING);
        assert_eq!(next(&running, Some(session), true), Step::Wait);
        assert_eq!(next(&deleted(running.clone()), Some(session), true), Step::Report);
        let pod = LauncherPod { deleted: true, ..pod() };
        let observed = Observed {
            vmi: &running,
            spec_hash: "h",
            pod: Some(&pod),
            node: "node01",
            session: Some(session),
            report: true,
        };
        assert_eq!(plan(observed), Step::Report);
        stopped.reason = "GuestShutdown".to_owned();
        let session = Session { status: Some(&stopped), ..FRESH };
        assert_eq!(next(&running, Some(session), true), Step::Report);
    }

    #[test]
    fn a_lost_launcher_is_looked_for_again() {
        let running = launcher(Phase::Running);
        let session = Session {
            status: Some(&running),
            lost: true,
            prepared: true,
            synced: Some("h"),
            shutdown: None,
            real_time: None,
            failed_pings: 0,
        };
        assert_eq!(next(&vmi(PHASE_RUNNING), Some(session), true), Step::Disconnect);
    }

    #[test]
    fn the_pod_of_this_node_counts() {
        let mut vmi = vmi(PHASE_RUNNING);
        if let Some(status) = &mut vmi.status {
            status.active_pods.insert("uid-0".to_owned(), "node02".to_owned());
        }
        assert_eq!(active_pod(&vmi, "node01"), Some("uid-1"));
        assert_eq!(active_pod(&vmi, "node03"), None);
    }
}
