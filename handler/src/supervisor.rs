//! The VMs of this node: watches VMIs and launcher pods, and keeps one task for each VMI.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use barevirt_api::names::{APP_LABEL, APP_LAUNCHER, NODE_NAME_LABEL};
use barevirt_api::v1::VirtualMachineInstance;
use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt;
use kube::runtime::events::{Event as Note, Recorder};
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::launchers::Launcher;
use crate::metrics::Subject;
use crate::pods::LauncherPod;
use crate::sync::plan::active_pod;
use crate::sync::{self, Context, Input, Vm};

/// Namespace and name of a VMI.
pub type Key = (String, String);

/// How long the API server may take for an event.
const EVENT: Duration = Duration::from_secs(10);

/// Where others find the launchers of this node, and tell about their guests. Cheap to clone.
#[derive(Clone, Default)]
pub struct Launchers {
    all: Arc<RwLock<BTreeMap<Key, Found>>>,
    recorder: Option<Recorder>,
}

/// A VMI of this node.
#[derive(Clone)]
struct Found {
    reference: ObjectReference,
    launcher: watch::Receiver<Option<Launcher>>,
    subject: Option<Arc<Subject>>,
}

impl Launchers {
    /// None yet; what is told about guests goes through that recorder.
    pub fn new(recorder: Recorder) -> Self {
        Self { recorder: Some(recorder), ..Self::default() }
    }

    /// The launcher of a VMI; nothing if none is connected to.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Launcher> {
        self.found(namespace, name).and_then(|found| found.launcher.borrow().clone())
    }

    fn found(&self, namespace: &str, name: &str) -> Option<Found> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        all.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// Publishes an event about a VMI. A lost one is logged and not tried anew.
    pub async fn tell(&self, namespace: &str, name: &str, note: Note) {
        let (Some(recorder), Some(found)) = (&self.recorder, self.found(namespace, name)) else { return };
        match timeout(EVENT, recorder.publish(&note, &found.reference)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(namespace, name, reason = note.reason, %error, "event not published"),
            Err(_) => warn!(namespace, name, reason = note.reason, "event not published in time"),
        }
    }

    /// Whether there is such a VMI on this node.
    pub fn knows(&self, namespace: &str, name: &str) -> bool {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        all.contains_key(&(namespace.to_owned(), name.to_owned()))
    }

    pub(crate) fn insert(
        &self,
        key: Key,
        reference: ObjectReference,
        launcher: watch::Receiver<Option<Launcher>>,
    ) {
        let found = Found { reference, launcher, subject: None };
        self.all.write().unwrap_or_else(PoisonError::into_inner).insert(key, found);
    }

    /// Takes note of what metrics tell of a VMI.
    pub(crate) fn describe(&self, key: &Key, subject: Subject) {
        if let Some(found) = self.all.write().unwrap_or_else(PoisonError::into_inner).get_mut(key) {
            found.subject = Some(Arc::new(subject));
        }
    }

    /// All with a launcher that is connected to.
    pub fn guests(&self) -> Vec<(Arc<Subject>, Launcher)> {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        let guest = |found: &Found| Some((found.subject.clone()?, found.launcher.borrow().clone()?));
        all.values().filter_map(guest).collect()
    }

    fn remove(&self, key: &Key) {
        self.all.write().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// The tasks and what they were told.
struct Supervisor {
    context: Context,
    launchers: Launchers,
    vms: BTreeMap<Key, Vm>,
    pods: BTreeMap<String, Arc<LauncherPod>>,
    /// VMIs and pods that a restarted watch has not named yet: gone, unless it does.
    unseen_vms: BTreeSet<Key>,
    unseen_pods: BTreeSet<String>,
}

enum Change {
    Vmi(Box<Event<DeserializeGuard<VirtualMachineInstance>>>),
    Pod(Box<Event<Pod>>),
    Trouble(&'static str, watcher::Error),
}

/// Watches for as long as the process lives.
pub async fn run(context: Context, launchers: Launchers) {
    let mut changes = changes(&context.client, &context.node);
    let mut supervisor = Supervisor {
        context,
        launchers,
        vms: BTreeMap::new(),
        pods: BTreeMap::new(),
        unseen_vms: BTreeSet::new(),
        unseen_pods: BTreeSet::new(),
    };
    while let Some(change) = changes.next().await {
        match change {
            Change::Vmi(event) => supervisor.vmi(*event),
            Change::Pod(event) => supervisor.pod(*event),
            Change::Trouble(kind, error) => warn!(kind, %error, "watch is tried again"),
        }
    }
}

fn changes(client: &Client, node: &str) -> BoxStream<'static, Change> {
    let vmis: Api<DeserializeGuard<VirtualMachineInstance>> = Api::all(client.clone());
    let vmis = watcher(vmis, Config::default().labels(&format!("{NODE_NAME_LABEL}={node}")))
        .default_backoff()
        .map(|event| {
            event.map_or_else(
                |error| Change::Trouble("virtualmachineinstances", error),
                |event| Change::Vmi(Box::new(event)),
            )
        });
    let pods: Api<Pod> = Api::all(client.clone());
    let config = Config::default()
        .labels(&format!("{APP_LABEL}={APP_LAUNCHER}"))
        .fields(&format!("spec.nodeName={node}"));
    let pods = watcher(pods, config).default_backoff().map(|event| {
        event.map_or_else(|error| Change::Trouble("pods", error), |event| Change::Pod(Box::new(event)))
    });
    futures::stream::select(vmis, pods).boxed()
}

impl Supervisor {
    fn vmi(&mut self, event: Event<DeserializeGuard<VirtualMachineInstance>>) {
        match event {
            Event::Init => self.unseen_vms = self.vms.keys().cloned().collect(),
            Event::Apply(object) | Event::InitApply(object) => self.apply_vmi(object),
            Event::InitDone => {
                for key in std::mem::take(&mut self.unseen_vms) {
                    self.forget(&key);
                }
            }
            Event::Delete(object) => {
                use kube::Resource;
                if let Some(key) = key(object.meta()) {
                    self.forget(&key);
                }
            }
        }
    }

    fn apply_vmi(&mut self, object: DeserializeGuard<VirtualMachineInstance>) {
        use kube::Resource;
        let Some(key) = key(object.meta()) else { return };
        self.unseen_vms.remove(&key);
        let vmi = match object.0 {
            Ok(vmi) => Arc::new(vmi),
            Err(invalid) => {
                // One object that a newer API server let in must not stop the others. Its guest goes on as it is.
                warn!(namespace = key.0, name = key.1, error = invalid.error, "instance cannot be read");
                return;
            }
        };
        let pod = active_pod(&vmi, &self.context.node).and_then(|uid| self.pods.get(uid)).cloned();
        let subject = Subject::of(&vmi);
        let input = Input { vmi, pod };
        // A task that is no more (it can only have panicked) is started again.
        let same = |vm: &&Vm| {
            vm.input.borrow().vmi.metadata.uid == input.vmi.metadata.uid && vm.input.receiver_count() > 0
        };
        match self.vms.get(&key).filter(same) {
            Some(vm) => {
                vm.input.send_replace(input);
            }
            None => {
                let reference = input.vmi.object_ref(&());
                let vm = sync::start(self.context.clone(), input);
                self.launchers.insert(key.clone(), reference, vm.launcher.clone());
                info!(namespace = key.0, name = key.1, "instance is on this node");
                self.vms.insert(key.clone(), vm);
            }
        }
        self.launchers.describe(&key, subject);
    }

    fn forget(&mut self, key: &Key) {
        if self.vms.remove(key).is_some() {
            self.launchers.remove(key);
            info!(namespace = key.0, name = key.1, "instance is gone from this node");
        }
    }

    fn pod(&mut self, event: Event<Pod>) {
        match event {
            Event::Init => self.unseen_pods = self.pods.keys().cloned().collect(),
            Event::Apply(pod) | Event::InitApply(pod) => {
                let Some(pod) = LauncherPod::read(&pod).map(Arc::new) else { return };
                self.unseen_pods.remove(&pod.uid);
                let uid = pod.uid.clone();
                if self.pods.insert(uid.clone(), Arc::clone(&pod)).as_deref() != Some(&*pod) {
                    self.tell(&uid, Some(&pod));
                }
            }
            Event::InitDone => {
                for uid in std::mem::take(&mut self.unseen_pods) {
                    self.forget_pod(&uid);
                }
            }
            Event::Delete(pod) => {
                if let Some(uid) = pod.metadata.uid {
                    self.forget_pod(&uid);
                }
            }
        }
    }

    fn forget_pod(&mut self, uid: &str) {
        if self.pods.remove(uid).is_some() {
            self.tell(uid, None);
        }
    }

    /// Tells the VMs that run in a pod what became of it.
    fn tell(&self, uid: &str, pod: Option<&Arc<LauncherPod>>) {
        for vm in self.vms.values() {
            let of_it = active_pod(&vm.input.borrow().vmi, &self.context.node) == Some(uid);
            if of_it {
                vm.input.send_modify(|input| input.pod = pod.cloned());
            }
        }
    }
}

fn key(metadata: &kube::core::ObjectMeta) -> Option<Key> {
    Some((metadata.namespace.clone()?, metadata.name.clone()?))
}

#[cfg(test)]
mod tests {
    use kube::client::Body;
    use kube::runtime::events::{Recorder, Reporter};
    use serde_json::{Value, json};

    use super::*;
    use crate::launchers::pods_dir::PodsDir;
    use crate::metrics::Panics;

    /// A supervisor whose API server never answers.
    fn supervisor() -> Supervisor {
        let silent = tower::service_fn(|_: http::Request<Body>| {
            std::future::pending::<Result<http::Response<Body>, std::io::Error>>()
        });
        let client = Client::new(silent, "default");
        let pods = tempfile::tempdir().unwrap();
        let context = Context {
            recorder: Recorder::new(
                client.clone(),
                Reporter { controller: "virt-handler".to_owned(), instance: None },
            ),
            client,
            pods: Arc::new(PodsDir::open(pods.path()).unwrap()),
            node: "node01".to_owned(),
            panics: Panics::default(),
        };
        Supervisor {
            context,
            launchers: Launchers::default(),
            vms: BTreeMap::new(),
            pods: BTreeMap::new(),
            unseen_vms: BTreeSet::new(),
            unseen_pods: BTreeSet::new(),
        }
    }

    fn vmi(name: &str, uid: &str) -> DeserializeGuard<VirtualMachineInstance> {
        object(json!({"domain": {"devices": {}}}), name, uid)
    }

    fn object(spec: Value, name: &str, uid: &str) -> DeserializeGuard<VirtualMachineInstance> {
        serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": name, "namespace": "shop", "uid": uid},
            "spec": spec,
            "status": {"phase": "Running", "nodeName": "node01", "activePods": {"pod-1": "node01"}},
        }))
        .unwrap()
    }

    fn pod(uid: &str, ip: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"uid": uid, "name": "virt-launcher"},
            "spec": {"containers": [{"name": "compute"}]},
            "status": {"podIPs": [{"ip": ip}]},
        }))
        .unwrap()
    }

    fn addresses(supervisor: &Supervisor, name: &str) -> Option<Vec<String>> {
        let vm = &supervisor.vms[&("shop".to_owned(), name.to_owned())];
        let input = vm.input.borrow();
        input.pod.as_ref().map(|pod| pod.addresses.clone())
    }

    #[tokio::test]
    async fn what_a_new_watch_does_not_name_is_forgotten() {
        let mut supervisor = supervisor();
        supervisor.vmi(Event::Apply(vmi("a", "1")));
        supervisor.vmi(Event::Apply(vmi("b", "2")));
        supervisor.vmi(Event::Init);
        supervisor.vmi(Event::InitApply(vmi("b", "2")));
        assert!(supervisor.launchers.knows("shop", "a"));
        supervisor.vmi(Event::InitDone);
        assert!(!supervisor.launchers.knows("shop", "a"));
        assert!(supervisor.launchers.knows("shop", "b"));
        supervisor.vmi(Event::Delete(vmi("b", "2")));
        assert!(supervisor.vms.is_empty());
    }

    #[tokio::test]
    async fn an_object_that_cannot_be_read_leaves_its_task_and_the_others_alone() {
        let mut supervisor = supervisor();
        supervisor.vmi(Event::Apply(vmi("a", "1")));
        supervisor.vmi(Event::Init);
        supervisor.vmi(Event::InitApply(object(json!({"domain": 1}), "a", "1")));
        supervisor.vmi(Event::InitApply(object(json!({"domain": 1}), "never-read", "3")));
        supervisor.vmi(Event::InitDone);
        assert!(supervisor.launchers.knows("shop", "a"));
        assert!(!supervisor.launchers.knows("shop", "never-read"));
    }

    #[tokio::test]
    async fn pods_and_instances_meet_in_any_order() {
        let mut supervisor = supervisor();
        supervisor.pod(Event::Apply(pod("pod-1", "10.0.0.1")));
        supervisor.vmi(Event::Apply(vmi("a", "1")));
        assert_eq!(addresses(&supervisor, "a"), Some(vec!["10.0.0.1".to_owned()]));
        supervisor.pod(Event::Apply(pod("pod-1", "10.0.0.2")));
        assert_eq!(addresses(&supervisor, "a"), Some(vec!["10.0.0.2".to_owned()]));
        // Somebody else's pod, whatever its labels say, is not the one that the controller recorded.
        supervisor.pod(Event::Apply(pod("pod-2", "10.0.0.3")));
        assert_eq!(addresses(&supervisor, "a"), Some(vec!["10.0.0.2".to_owned()]));
        supervisor.pod(Event::Delete(pod("pod-1", "10.0.0.2")));
        assert_eq!(addresses(&supervisor, "a"), None);
    }

    #[tokio::test]
    async fn an_object_made_anew_gets_a_task_of_its_own() {
        let mut supervisor = supervisor();
        supervisor.vmi(Event::Apply(vmi("a", "1")));
        let former = supervisor.vms.values().next().map(|vm| vm.input.subscribe()).unwrap();
        supervisor.vmi(Event::Apply(vmi("a", "1")));
        assert!(former.has_changed().is_ok());
        supervisor.vmi(Event::Apply(vmi("a", "2")));
        assert!(former.has_changed().is_err(), "the former task was told to end");
        assert_eq!(supervisor.vms.len(), 1);
    }
}
