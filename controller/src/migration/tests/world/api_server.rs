//! Objects: what was stored when, and writes as the API server applies them.

use super::*;

impl World {
    pub(super) fn bump(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    pub(super) fn remember(&mut self) {
        self.vmi_history.push(self.vmi.clone());
        self.pod_history.push(self.pods.clone());
    }

    /// The state of that many events ago, but not older than this process's own writes.
    pub(super) fn seen<T: Clone>(history: &[T], barrier: usize, lag: usize, now: &T) -> T {
        let index = history.len().saturating_sub(lag).max(barrier);
        history.get(index).cloned().unwrap_or_else(|| now.clone())
    }

    pub(super) fn vmi_seen(&self, lag: usize) -> Option<VirtualMachineInstance> {
        Self::seen(&self.vmi_history, self.vmi_barrier, lag, &self.vmi)
    }

    pub(super) fn pods_seen(&self, lag: usize) -> BTreeMap<String, Pod> {
        Self::seen(&self.pod_history, self.pod_barrier, lag, &self.pods)
    }

    /// Applies a patch as the API server does; returns whether it was accepted.
    pub(super) fn patch_vmi(&mut self, body: &Value) -> bool {
        let Some(vmi) = &self.vmi else { return false };
        if body["metadata"]["resourceVersion"] != json!(vmi.metadata.resource_version) {
            return false;
        }
        let value = with(serde_json::to_value(vmi).unwrap(), body.clone());
        let mut vmi: VirtualMachineInstance = serde_json::from_value(value).unwrap();
        vmi.metadata.resource_version = Some(self.bump());
        let gone = vmi.metadata.deletion_timestamp.is_some() && vmi.finalizers().is_empty();
        self.vmi = (!gone).then_some(vmi);
        true
    }

    pub(super) fn remove_pod(&mut self, name: &str) {
        if let Some(pod) = self.pods.remove(name) {
            self.missing.insert(pod.uid().unwrap(), self.now);
        }
    }

    pub(super) fn delete_pod(&mut self, uid: &str, grace: u32) {
        let now = Time(at(self.now));
        let found = self.pods.values_mut().find(|pod| pod.metadata.uid.as_deref() == Some(uid));
        let Some(pod) = found else { return };
        if grace > 0 {
            pod.metadata.deletion_timestamp.get_or_insert(now);
            pod.metadata.deletion_grace_period_seconds = Some(grace.into());
        } else {
            let name = pod.name_any();
            self.remove_pod(&name);
        }
    }

    pub(super) fn ask(&mut self, anyway: bool) {
        let busy = self.vmims.values().any(|one| !Phase::of(one).unwrap().is_final());
        if self.asked >= 4 || (busy && !anyway) || self.vmi.is_none() {
            return;
        }
        self.asked += 1;
        let name = format!("m{}", self.asked);
        let mut one = migration(json!({"metadata": {"name": name, "uid": format!("uid-{name}"),
            "resourceVersion": self.bump(), "creationTimestamp": text(self.now)}}));
        if self.asked == 3 {
            one.metadata.finalizers = None;
        }
        self.vmims.insert(name, one);
    }

    /// A handler's write, based on the present instance.
    pub(super) fn handler(&mut self, change: impl FnOnce(&mut Value)) {
        let Some(vmi) = &self.vmi else { return };
        let mut value = serde_json::to_value(vmi).unwrap();
        change(&mut value);
        let mut vmi: VirtualMachineInstance = serde_json::from_value(value).unwrap();
        vmi.metadata.resource_version = Some(self.bump());
        self.vmi = Some(vmi);
    }
}
