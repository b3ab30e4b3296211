//! Node loss: decides when a node is lost, and when its machines may run elsewhere.
//!
//! Two separate questions:
//!
//! 1. *Is the node lost?* It is not Ready, or its object is gone, and for the grace period neither its kubelet's Ready
//!    condition nor its handler's heartbeat (annotation `kubevirt.io/heartbeat`) has changed. Its instances then get phase
//!    Failed with reason `NodeUnresponsive`, so that users and VirtualMachines see it. A node whose kubelet is Ready is
//!    never lost: if only its handler is missing, the guests keep running. Times are measured by our own clock from the
//!    moment we saw the last change, never by comparing clocks of machines; a controller that takes over counts from the
//!    start.
//! 2. *May the guest still be running there?* The first answer does not decide that: an unreachable node may run its guests
//!    for hours. A VM is started again only when its former instance and that instance's launcher pods are gone as objects.
//!    Pods on such a node stay, with a deletion timestamp, until one of these events:
//!    - the Node object is deleted, by a cloud provider or an administrator who knows. A node that was Ready until then may
//!      have been deleted by mistake: it gets [`QUARANTINE`] to return, as Kubernetes itself allows;
//!    - the node gets the taint `node.kubernetes.io/out-of-service`, by which an administrator declares it to be off;
//!    - the pod object is force-deleted;
//!    - the node returns, and its kubelet ends the pod.
//!
//!    In the first two cases the controller force-deletes the pods; Kubernetes' own pod garbage collection would do that some
//!    time later.
//!
//! A third rule concerns new guests: a node whose handler has been silent for five minutes takes none, even if its kubelet
//! is Ready ([`silence`]).

mod silence;

pub use silence::run;

use barevirt_api::names::{HEARTBEAT_ANNOTATION, SCHEDULABLE_LABEL};
use k8s_openapi::api::core::v1::Node;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The taint by which an administrator declares a node to be off.
pub const OUT_OF_SERVICE_TAINT: &str = "node.kubernetes.io/out-of-service";

/// How long a node that was Ready may be missing before it counts as gone.
pub const QUARANTINE: Duration = Duration::from_secs(40);

/// How long a handler may be silent: several heartbeats, which are up to 132 seconds apart. KubeVirt's limit.
const SILENCE: Duration = Duration::from_secs(300);

/// The state of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// Its kubelet reports that it is ready.
    Ready,
    /// It is not ready or missing, and counts as lost or gone after this time.
    NotReady {
        /// The remaining time.
        left: Duration,
    },
    /// It has not been ready for the grace period; its guests may or may not run.
    Lost,
    /// An administrator has declared it to be off: nothing runs there.
    OutOfService,
    /// The node does not exist: nothing runs there.
    Gone,
}

impl NodeState {
    /// Whether instances on it count as failed.
    pub fn is_lost(self) -> bool {
        match self {
            NodeState::Ready | NodeState::NotReady { .. } => false,
            NodeState::Lost | NodeState::OutOfService | NodeState::Gone => true,
        }
    }

    /// Whether nothing runs there for certain.
    pub fn is_known_dead(self) -> bool {
        match self {
            NodeState::Ready | NodeState::NotReady { .. } | NodeState::Lost => false,
            NodeState::OutOfService | NodeState::Gone => true,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Signs {
    ready: bool,
    out_of_service: bool,
    /// Values that a living node changes; they are only compared.
    heartbeat: Option<String>,
    kubelet: Option<String>,
}

impl Signs {
    fn of(node: &Node) -> Self {
        let status = node.status.as_ref();
        let ready = status
            .and_then(|status| status.conditions.as_ref())
            .and_then(|conditions| conditions.iter().find(|condition| condition.type_ == "Ready"));
        Signs {
            ready: ready.is_some_and(|condition| condition.status == "True"),
            out_of_service: node
                .spec
                .as_ref()
                .and_then(|spec| spec.taints.as_ref())
                .is_some_and(|taints| taints.iter().any(|taint| taint.key == OUT_OF_SERVICE_TAINT)),
            heartbeat: node
                .metadata
                .annotations
                .as_ref()
                .and_then(|annotations| annotations.get(HEARTBEAT_ANNOTATION).cloned()),
            kubelet: ready.map(|condition| {
                format!(
                    "{} {:?}",
                    condition.status,
                    condition.last_heartbeat_time.as_ref().map(|time| time.0)
                )
            }),
        }
    }
}

#[derive(Clone, Debug)]
enum Presence {
    /// Its signs, and when they last changed.
    There(Signs, Instant),
    /// It has been missing since then, and was Ready or unknown before.
    Missed(Instant),
    /// It is gone for good.
    Gone,
}

/// The last heartbeat of a node's handler, and since when it has not changed.
#[derive(Clone, Debug)]
struct Beat {
    heartbeat: String,
    takes_guests: bool,
    since: Instant,
}

/// The last observation of each node, and when it changed.
pub struct Nodes {
    grace: Duration,
    seen: Mutex<HashMap<String, Presence>>,
    beats: Mutex<HashMap<String, Beat>>,
}

impl Nodes {
    /// Without observations; nodes count as lost after `grace`.
    pub fn new(grace: Duration) -> Self {
        Nodes { grace, seen: Mutex::default(), beats: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Presence>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a node. Returns whether its instances are to be reconciled: its readiness or service has changed.
    pub fn saw(&self, node: &Node, now: Instant) -> bool {
        let Some(name) = node.metadata.name.clone() else { return false };
        let signs = Signs::of(node);
        self.note_heartbeat(&name, node, signs.heartbeat.as_deref(), now);
        let mut seen = self.lock();
        match seen.get_mut(&name) {
            Some(Presence::There(known, _)) if *known == signs => false,
            Some(Presence::There(known, since)) => {
                let matters = (known.ready, known.out_of_service) != (signs.ready, signs.out_of_service);
                (*known, *since) = (signs, now);
                matters
            }
            Some(Presence::Missed(_) | Presence::Gone) | None => {
                seen.insert(name, Presence::There(signs, now));
                true
            }
        }
    }

    fn beats(&self) -> MutexGuard<'_, HashMap<String, Beat>> {
        self.beats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_heartbeat(&self, name: &str, node: &Node, heartbeat: Option<&str>, now: Instant) {
        let labels = node.metadata.labels.as_ref();
        let takes_guests =
            labels.and_then(|labels| labels.get(SCHEDULABLE_LABEL)).is_some_and(|value| value == "true");
        let mut beats = self.beats();
        let Some(heartbeat) = heartbeat else {
            beats.remove(name);
            return;
        };
        let known = beats.get(name).filter(|beat| beat.heartbeat == heartbeat);
        let since = known.map_or(now, |beat| beat.since);
        beats.insert(name.to_owned(), Beat { heartbeat: heartbeat.to_owned(), takes_guests, since });
    }

    /// Nodes that are marked as schedulable although their handler has been silent for the grace period, or [`SILENCE`] if
    /// that is longer.
    pub fn silent(&self, now: Instant) -> Vec<String> {
        let limit = self.grace.max(SILENCE);
        let silent = |beat: &Beat| beat.takes_guests && now.duration_since(beat.since) >= limit;
        let mut names: Vec<String> =
            self.beats().iter().filter(|(_, beat)| silent(beat)).map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }

    /// Records that a node is gone.
    pub fn gone(&self, name: &str, now: Instant) {
        self.beats().remove(name);
        let mut seen = self.lock();
        let known_silent = matches!(seen.get(name), Some(Presence::There(signs, _)) if !signs.ready);
        seen.insert(name.to_owned(), if known_silent { Presence::Gone } else { Presence::Missed(now) });
    }

    /// The state of a node. Only meaningful once the nodes were listed.
    pub fn state(&self, name: &str, now: Instant) -> NodeState {
        let mut seen = self.lock();
        let left = |limit: Duration, since: Instant| {
            limit.checked_sub(now.duration_since(since)).filter(|left| !left.is_zero())
        };
        match seen.entry(name.to_owned()).or_insert(Presence::Missed(now)) {
            Presence::Gone => NodeState::Gone,
            Presence::Missed(since) => {
                left(QUARANTINE, *since).map_or(NodeState::Gone, |left| NodeState::NotReady { left })
            }
            // As in Kubernetes itself, the taint counts only while the kubelet is silent.
            Presence::There(signs, _) if signs.ready => NodeState::Ready,
            Presence::There(signs, _) if signs.out_of_service => NodeState::OutOfService,
            Presence::There(_, since) => {
                left(self.grace, *since).map_or(NodeState::Lost, |left| NodeState::NotReady { left })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const GRACE: Duration = Duration::from_secs(300);

    fn node(ready: &str, heartbeat: &str, taints: &[&str]) -> Node {
        let taints: Vec<_> = taints.iter().map(|key| json!({"key": key, "effect": "NoExecute"})).collect();
        serde_json::from_value(json!({
            "metadata": {"name": "n", "annotations": {HEARTBEAT_ANNOTATION: heartbeat}},
            "spec": {"taints": taints},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    #[test]
    fn a_silent_node_is_lost_after_the_grace_period() {
        let (nodes, start) = (Nodes::new(GRACE), Instant::now());
        assert!(nodes.saw(&node("True", "1", &[]), start));
        assert_eq!(nodes.state("n", start + 10 * GRACE), NodeState::Ready);
        assert!(nodes.saw(&node("Unknown", "1", &[]), start));
        assert_eq!(nodes.state("n", start), NodeState::NotReady { left: GRACE });
        assert_eq!(nodes.state("n", start + GRACE), NodeState::Lost);
    }

    #[test]
    fn a_heartbeat_postpones_it() {
        let (nodes, start) = (Nodes::new(GRACE), Instant::now());
        nodes.saw(&node("Unknown", "1", &[]), start);
        assert!(!nodes.saw(&node("Unknown", "2", &[]), start + GRACE / 2));
        assert!(!nodes.saw(&node("Unknown", "2", &[]), start + GRACE));
        assert_eq!(nodes.state("n", start + GRACE), NodeState::NotReady { left: GRACE / 2 });
        assert_eq!(nodes.state("n", start + GRACE * 2), NodeState::Lost);
    }

    #[test]
    fn a_silent_handler_takes_no_new_guests_whatever_the_kubelet_says() {
        let (nodes, start) = (Nodes::new(GRACE), Instant::now());
        let with_label = |heartbeat: &str, schedulable: &str| {
            let mut node = node("True", heartbeat, &[]);
            node.metadata.labels = Some([(SCHEDULABLE_LABEL.to_owned(), schedulable.to_owned())].into());
            node
        };
        nodes.saw(&with_label("1", "true"), start);
        assert!(nodes.silent(start + GRACE / 2).is_empty());
        // Others write to the node, too.
        nodes.saw(&with_label("1", "true"), start + GRACE / 2);
        assert_eq!(nodes.silent(start + GRACE), ["n"]);
        assert_eq!(nodes.state("n", start + GRACE), NodeState::Ready);
        nodes.saw(&with_label("1", "false"), start + GRACE);
        assert!(nodes.silent(start + GRACE * 2).is_empty(), "the loss is reported already");
        nodes.saw(&with_label("2", "true"), start + GRACE * 2);
        assert!(nodes.silent(start + GRACE * 2).is_empty());
        nodes.gone("n", start + GRACE * 2);
        assert!(nodes.silent(start + GRACE * 4).is_empty());
        // A node that never had a handler is not managed.
        nodes.saw(&serde_json::from_value(json!({"metadata": {"name": "m"}})).unwrap(), start);
        assert!(nodes.silent(start + GRACE * 9).is_empty());
    }

    #[test]
    fn only_the_out_of_service_taint_makes_a_node_dead() {
        let (nodes, start) = (Nodes::new(GRACE), Instant::now());
        nodes.saw(&node("Unknown", "1", &[]), start);
        let state = nodes.state("n", start + GRACE * 9);
        assert!(state.is_lost() && !state.is_known_dead());
        nodes.saw(&node("Unknown", "1", &[OUT_OF_SERVICE_TAINT]), start);
        assert!(nodes.state("n", start).is_known_dead());
        nodes.saw(&node("True", "1", &[OUT_OF_SERVICE_TAINT]), start);
        assert_eq!(nodes.state("n", start), NodeState::Ready);
        nodes.saw(&node("Unknown", "1", &[]), start);
        nodes.gone("n", start);
        assert_eq!(nodes.state("n", start), NodeState::Gone);
        nodes.saw(&node("True", "1", &[]), start);
        assert_eq!(nodes.state("n", start), NodeState::Ready);
    }

    #[test]
    fn a_ready_node_that_vanishes_gets_time_to_come_back() {
        let (nodes, start) = (Nodes::new(GRACE), Instant::now());
        nodes.saw(&node("True", "1", &[]), start);
        nodes.gone("n", start);
        assert_eq!(nodes.state("n", start), NodeState::NotReady { left: QUARANTINE });
        assert_eq!(nodes.state("n", start + QUARANTINE), NodeState::Gone);
        // The same holds for a node that this process never saw.
        assert_eq!(nodes.state("m", start), NodeState::NotReady { left: QUARANTINE });
        assert_eq!(nodes.state("m", start + QUARANTINE), NodeState::Gone);
    }
}
