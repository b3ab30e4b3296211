//! Nodes, their kubelets, and the scheduler.

use super::*;

impl World {
    pub(super) fn node(&self, name: &str) -> NodeState {
        self.nodes.get(name).copied().unwrap_or(NodeState::Gone)
    }

    pub(super) fn node_of(&self, pod: &Pod) -> NodeState {
        let name = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        name.map_or(NodeState::Ready, |name| self.node(name))
    }

    pub(super) fn is_ready(&self, uid: &str) -> bool {
        self.places.get(uid).is_some_and(|node| self.node(node) == NodeState::Ready)
    }

    /// It ends without a report.
    pub(super) fn dies(&mut self, uid: &str) {
        self.alive.remove(uid);
        self.lost |= self.running.remove(uid);
        // Between both nodes, neither side runs it.
        self.lost |= self.flight.as_ref().is_some_and(|flight| {
            flight.sent && ![&flight.from, &flight.to].into_iter().any(|side| self.alive.contains(side))
        });
    }

    /// It ends, and its handler has its last report.
    pub(super) fn ends(&mut self, uid: &str) {
        self.dies(uid);
        self.reported.insert(uid.to_owned());
    }

    /// The guest runs there from now on.
    pub(super) fn runs_at(&mut self, uid: &str) {
        self.running.insert(uid.to_owned());
        self.ran.insert(uid.to_owned());
    }

    /// Nodes of sources, which are never lost in this model: other tests cover that their loss ends an instance.
    pub(super) fn sources(&self) -> BTreeSet<String> {
        let flight = self.flight.iter().map(|flight| &flight.from);
        let running =
            self.running.iter().filter(|uid| self.flight.as_ref().is_none_or(|flight| flight.to != **uid));
        flight.chain(running).filter_map(|uid| self.places.get(uid).cloned()).collect()
    }

    /// Places unscheduled pods on a node without another pod of the instance.
    pub(super) fn schedule(&mut self) {
        let taken: BTreeSet<String> =
            self.pods.values().filter_map(|pod| pod.spec.as_ref()?.node_name.clone()).collect();
        let free =
            NODES.into_iter().find(|node| self.node(node) == NodeState::Ready && !taken.contains(*node));
        let waits = self.pods.values_mut().find(|pod| pod.spec.as_ref().unwrap().node_name.is_none());
        let Some(pod) = waits else { return };
        let Some(node) = free else {
            pod.status = target(json!({"phase": "Pending", "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}))
            .status;
            return;
        };
        pod.spec.as_mut().unwrap().node_name = Some(node.to_owned());
        self.places.insert(pod.uid().unwrap(), node.to_owned());
    }

    pub(super) fn pods_say(&mut self) {
        let uids: Vec<(String, String)> =
            self.pods.values().map(|pod| (pod.name_any(), pod.uid().unwrap())).collect();
        for (name, uid) in uids {
            if !self.is_ready(&uid) || !self.started.contains(&uid) {
                continue;
            }
            let status = if self.alive.contains(&uid) {
                runs().status
            } else {
                target(json!({"phase": "Failed"})).status
            };
            self.pods.get_mut(&name).unwrap().status = status;
        }
    }
}
