//! A model of the API server, kubelet, scheduler, handler, users and nodes. It executes plans that were made from old
//! observations, as the real shell does: names are unique, preconditions count.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Event {
    /// Reconcile with the pod as it was this many events ago.
    Reconcile {
        pod_lag: usize,
    },
    PodRuns,
    PodEnds,
    /// The kubelet refuses the pod; after a restart even one that it ran, about which it then reports nothing.
    PodRefused,
    /// The kubelet finishes a deletion.
    PodRemoved,
    UserDeletesPod,
    UserForcesPod,
    UserDeletesVmi,
    /// Another client makes a pod with our name and labels.
    Squatter,
    /// Another process takes over, and knows only what was written.
    ControllerDies,
    HandlerRuns,
    NodeLost,
    NodeDeleted,
    Wait,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        20 => (0..3usize).prop_map(|pod_lag| Event::Reconcile { pod_lag }),
        8 => Just(Event::PodRuns),
        1 => Just(Event::PodEnds),
        6 => Just(Event::PodRefused),
        2 => Just(Event::PodRemoved),
        1 => Just(Event::UserDeletesPod),
        3 => Just(Event::UserForcesPod),
        1 => Just(Event::UserDeletesVmi),
        3 => Just(Event::Squatter),
        2 => Just(Event::ControllerDies),
        2 => Just(Event::HandlerRuns),
        1 => Just(Event::NodeLost),
        1 => Just(Event::NodeDeleted),
        2 => Just(Event::Wait),
    ];
    proptest::collection::vec(event, 1..60)
}

struct World {
    vmi: Option<VirtualMachineInstance>,
    pod: Option<Pod>,
    pod_history: Vec<Option<Pod>>,
    node: NodeState,
    now: i64,
    version: u64,
    pods_made: usize,
    /// Number of pods that other clients removed.
    pods_lost: usize,
    /// UIDs of pods that this process made.
    created_pods: Vec<String>,
    /// Number of processes that died.
    deaths: usize,
    squatters: usize,
    /// Pods whose guest may have run: handed over, and not confirmed as removed.
    guests: Vec<String>,
}

impl World {
    fn new() -> Self {
        World {
            vmi: Some(vmi(json!({"phase": "Pending"}))),
            pod: None,
            pod_history: vec![],
            node: NodeState::Ready,
            now: NOW,
            version: 100,
            pods_made: 0,
            pods_lost: 0,
            created_pods: vec![],
            deaths: 0,
            squatters: 0,
            guests: vec![],
        }
    }

    fn bump(&mut self) {
        self.version += 1;
        if let Some(vmi) = &mut self.vmi {
            vmi.metadata.resource_version = Some(self.version.to_string());
        }
    }

    fn observe(&self, pod_lag: usize) -> Option<Observed> {
        let vmi = self.vmi.clone()?;
        let seen = if pod_lag == 0 {
            self.pod.clone()
        } else {
            let index = self.pod_history.len().checked_sub(pod_lag);
            index.and_then(|index| self.pod_history.get(index)).cloned().unwrap_or_default()
        };
        // As in `observe`: where a stale answer could do harm, the API server is asked.
        let past = super::super::phase(&vmi) != "Pending" || vmi.metadata.deletion_timestamp.is_some();
        let pod = if seen.is_none() && past { self.pod.clone() } else { seen };
        let mut observed = observed(vmi, pod.clone());
        let uid = pod.as_ref().and_then(|pod| pod.metadata.uid.clone());
        observed.is_created_here = uid.is_some_and(|uid| self.created_pods.contains(&uid));
        observed.node = pod.map(|_| self.node);
        observed.now = at(self.now);
        Some(observed)
    }

    fn apply(&mut self, observed: &Observed, plan: Plan) {
        for action in plan.actions {
            match action {
                Action::CreateClaim(_) | Action::DeleteClaim { .. } | Action::SettleState(_) => {
                    panic!("this instance keeps nothing")
                }
                Action::ResizePod { .. } => panic!("this instance does not grow"),
                Action::Attach { .. } | Action::Detach { .. } => panic!("it has no such volumes"),
                Action::Provision { .. } | Action::Release { .. } => panic!("it has no claims"),
                Action::EndPod { .. } => panic!("it never moves"),
                Action::AnnotatePod { .. } => panic!("it has one network, and is never evicted"),
                Action::CreatePod(mut pod) => {
                    // The instance is read again before the creation, and the API server's names are unique.
                    let fresh = self.vmi.as_ref().map(|vmi| vmi.metadata.resource_version.clone());
                    if fresh != Some(observed.vmi.metadata.resource_version.clone()) || self.pod.is_some() {
                        return;
                    }
                    // Where a guest may have run, no pod is made any more.
                    assert_eq!(self.guests, Vec::<String>::new());
                    self.pods_made += 1;
                    pod.metadata.uid = Some(format!("p{}", self.pods_made));
                    self.created_pods.push(format!("p{}", self.pods_made));
                    pod.metadata.creation_timestamp =
                        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(self.now)));
                    pod.spec.as_mut().unwrap().node_name = Some("node01".to_owned());
                    self.pod = Some(*pod);
                }
                Action::DeletePod { uid, grace, .. } => {
                    if let Some(pod) = self.pod.as_mut().filter(|pod| pod.metadata.uid == Some(uid)) {
                        if grace == 0 {
                            self.pod = None;
                        } else {
                            pod.metadata.deletion_timestamp =
                                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(self.now)));
                            pod.metadata.deletion_grace_period_seconds = Some(grace.into());
                        }
                    }
                }
                Action::Patch(body) => {
                    let Some(vmi) = &self.vmi else { return };
                    if body["metadata"]["resourceVersion"] != json!(vmi.metadata.resource_version) {
                        return;
                    }
                    let mut value = serde_json::to_value(vmi).unwrap();
                    crate::merge::apply(&mut value, &body);
                    let vmi: VirtualMachineInstance = serde_json::from_value(value).unwrap();
                    let active = vmi.status.iter().flat_map(|status| &status.active_pods);
                    for (uid, _) in active.filter(|(_, node)| !node.is_empty()) {
                        if !self.guests.contains(uid) {
                            self.guests.push(uid.clone());
                        }
                    }
                    let gone = vmi.metadata.deletion_timestamp.is_some()
                        && vmi.metadata.finalizers.iter().flatten().next().is_none();
                    self.vmi = (!gone).then_some(vmi);
                    self.bump();
                }
            }
        }
    }

    fn step(&mut self, event: &Event) {
        let alive = self.node == NodeState::Ready;
        match event {
            Event::Reconcile { pod_lag } => {
                if let Some(observed) = self.observe(*pod_lag) {
                    let plan = plan(&observed);
                    self.apply(&observed, plan);
                }
            }
            Event::PodRuns => {
                if let Some(pod) = self.pod.as_mut().filter(|pod| alive && pod.status.is_none()) {
                    pod.status = running().status;
                }
            }
            Event::PodEnds => {
                if let Some(pod) = self.pod.as_mut().filter(|_| alive) {
                    pod.status = pod_with(json!({"phase": "Failed",
                        "containerStatuses": container(json!({"terminated": {"exitCode": 137}}))}))
                    .status;
                }
            }
            Event::PodRefused => {
                let lives = |pod: &&mut Pod| crate::vmi::InstanceEnd::of(pod).is_none();
                if let Some(pod) = self.pod.as_mut().filter(|_| alive).filter(lives) {
                    pod.status = refused().status;
                }
            }
            Event::PodRemoved => {
                let going = self.pod.as_ref().is_some_and(|pod| pod.metadata.deletion_timestamp.is_some());
                if going && alive {
                    self.pod = None;
                    self.pods_lost += 1;
                }
            }
            Event::UserDeletesPod => {
                if let Some(pod) = &mut self.pod {
                    pod.metadata.deletion_timestamp =
                        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(self.now)));
                    pod.metadata.deletion_grace_period_seconds = Some(40);
                }
            }
            Event::UserForcesPod => self.pods_lost += usize::from(self.pod.take().is_some()),
            Event::UserDeletesVmi => {
                if let Some(vmi) = self.vmi.take() {
                    self.vmi = Some(deleting(vmi));
                    self.bump();
                }
            }
            Event::Squatter => {
                if self.pod.is_none() && self.vmi.is_some() {
                    self.squatters += 1;
                    let mut pod = running();
                    pod.metadata.uid = Some(format!("s{}", self.squatters));
                    self.pod = Some(pod);
                }
            }
            Event::ControllerDies => {
                self.created_pods.clear();
                self.deaths += 1;
            }
            Event::HandlerRuns => {
                let scheduled = self.vmi.as_ref().is_some_and(|vmi| super::super::phase(vmi) == "Scheduled");
                if scheduled && alive {
                    if let Some(status) = self.vmi.as_mut().and_then(|vmi| vmi.status.as_mut()) {
                        status.phase = Some("Running".to_owned());
                    }
                    self.bump();
                }
            }
            Event::NodeLost => {
                if alive {
                    self.node = NodeState::Lost;
                }
            }
            Event::NodeDeleted => self.node = NodeState::Gone,
            Event::Wait => self.now += 7,
        }
        self.pod_history.push(self.pod.clone());
    }

    fn check(&self) {
        // A guest runs in only one pod, over the whole life of the instance.
        assert!(self.guests.len() <= 1, "guests in {:?}", self.guests);
        // And never in one that another client made.
        assert!(self.guests.iter().all(|uid| uid.starts_with('p')), "guests in {:?}", self.guests);
        // Each pod but the first has a reason.
        if let Some(vmi) = &self.vmi {
            let refused = refusal::noted(vmi).len();
            assert!(refused <= refusal::MOST);
            assert!(self.pods_made <= 1 + refused + self.pods_lost + self.deaths);
        }
        // An instance is never gone before its pod, unless nothing runs there for certain.
        if self.vmi.is_none() {
            assert!(self.pod.is_none(), "a pod outlives its instance");
        }
    }

    /// Reconciles with fresh observations until nothing changes; then nothing may be planned.
    fn settle(&mut self) {
        for _ in 0..8 {
            self.now += 20;
            let Some(observed) = self.observe(0) else { return };
            let plan = plan(&observed);
            if plan.actions.is_empty() {
                return;
            }
            self.apply(&observed, plan);
            self.pod_history.push(self.pod.clone());
            self.check();
        }
        panic!("does not settle: {:?}", self.observe(0).map(|observed| plan(&observed)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn one_guest_and_peace_at_the_end(events in events()) {
        let mut world = World::new();
        for event in &events {
            world.step(event);
            world.check();
        }
        world.settle();
        // A settled world does not change.
        if let Some(observed) = world.observe(0) {
            prop_assert_eq!(plan(&observed).actions, vec![]);
        }
    }

    #[test]
    fn a_deleted_instance_goes_once_its_pod_does(events in events()) {
        let mut world = World::new();
        for event in &events {
            world.step(event);
        }
        world.step(&Event::UserDeletesVmi);
        world.settle();
        // Only a pod on a node that does not answer, or a pod that is being deleted, can still hold it.
        world.node = NodeState::Ready;
        for _ in 0..3 {
            world.step(&Event::PodRemoved);
            world.settle();
        }
        prop_assert!(world.vmi.is_none() && world.pod.is_none());
    }
}
