//! Tests of a VM's task between an API server and a launcher. The API server is a small fake that speaks HTTP
//! to the real client: it stores one instance, checks resource versions, applies merge patches, and collects
//! events.

mod hostile;
mod moves;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use http::{Method, Request, Response};
use http_body_util::BodyExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::client::Body;
use kube::runtime::events::Reporter;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tower::service_fn;

use super::*;
use crate::fake_launcher::FakeLauncher;
use crate::network::tests::bridge::{attach_red, link_names};
use crate::network::tests::{connect, namespace};

const WAIT: Duration = Duration::from_secs(10);
const NODE: &str = "node01";

/// The fake API server.
#[derive(Default)]
struct Server {
    vmi: Mutex<Value>,
    patches: Mutex<Vec<Value>>,
    events: Mutex<Vec<String>>,
    /// Makes the next patch fail because another client wrote first.
    conflict: AtomicBool,
}

impl Server {
    fn answer(&self, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
        let body: Value = serde_json::from_slice(body).unwrap();
        // A repetition is written into the earlier event.
        if path.contains("/events") {
            let text = format!("{} {} {}", body["type"], body["reason"], body["note"]).replace('"', "");
            self.events.lock().unwrap().push(text);
            return (201, body);
        }
        assert_eq!(
            (method, path),
            (&Method::PATCH, "/apis/kubevirt.io/v1/namespaces/shop/virtualmachineinstances/web")
        );
        let mut vmi = self.vmi.lock().unwrap();
        if self.conflict.swap(false, Ordering::SeqCst) {
            bump(&mut vmi);
        }
        if body["metadata"]["resourceVersion"] != vmi["metadata"]["resourceVersion"] {
            return (
                409,
                json!({"kind": "Status", "status": "Failure", "reason": "Conflict", "message": "", "code": 409}),
            );
        }
        self.patches.lock().unwrap().push(body.clone());
        merge(&mut vmi, &body);
        bump(&mut vmi);
        (200, vmi.clone())
    }

    fn client(self: &Arc<Self>) -> Client {
        let server = Arc::clone(self);
        let service = service_fn(move |request: Request<Body>| {
            let server = Arc::clone(&server);
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let (code, answer) = server.answer(&head.method, head.uri.path(), &body);
                let answer =
                    Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(answer?)
            }
        });
        Client::new(service, "default")
    }

    fn read(&self) -> VirtualMachineInstance {
        serde_json::from_value(self.vmi.lock().unwrap().clone()).unwrap()
    }

    fn phase(&self) -> String {
        self.read().status.and_then(|status| status.phase).unwrap_or_default()
    }
}

/// Sets a new resource version. Every write also changes the generation, because the kind has no status
/// subresource.
fn bump(vmi: &mut Value) {
    let version: u64 = vmi["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    vmi["metadata"]["resourceVersion"] = json!((version + 1).to_string());
    vmi["metadata"]["generation"] = json!(version + 1);
}

/// Applies a merge patch (RFC 7386).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else { return target.clone_from(patch) };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in patch {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(name);
        } else {
            merge(&mut target[name], value);
        }
    }
}

fn vmi(pod_uid: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "web", "namespace": "shop", "uid": "u-1", "resourceVersion": "7", "generation": 7},
        "spec": {
            "domain": {
                "memory": {"guest": "128Mi"},
                "devices": {"interfaces": [{"name": "default", "masquerade": {}}]},
            },
            "networks": [{"name": "default", "pod": {}}],
        },
        "status": {"phase": "Scheduled", "nodeName": NODE, "activePods": {pod_uid: NODE}},
    })
}

/// A node with one VM.
struct Node {
    server: Arc<Server>,
    fake: FakeLauncher,
    context: Context,
    /// The other end of the pod's interface. It lives as long as its namespace.
    network: std::os::fd::OwnedFd,
}

impl Node {
    fn new() -> Option<Self> {
        Self::with(FakeLauncher::start()?)
    }

    fn with(fake: FakeLauncher) -> Option<Self> {
        let network = namespace()?;
        connect(&network, &fake.network_namespace(), true);
        let server = Arc::new(Server::default());
        *server.vmi.lock().unwrap() = vmi(&fake.container.pod_uid);
        let client = server.client();
        let reporter = Reporter { controller: "virt-handler".to_owned(), instance: None };
        let context = Context {
            recorder: Recorder::new(client.clone(), reporter),
            client,
            pods: Arc::new(PodsDir::open(fake.pods.path()).unwrap()),
            kubelet: fake.pods.path().to_owned(),
            node: NODE.to_owned(),
            migration: Migration::nowhere(),
            installation: Installation::default(),
            panics: Panics::default(),
        };
        Some(Self { server, fake, context, network })
    }

    fn input(&self) -> Input {
        let pod = LauncherPod {
            uid: self.fake.container.pod_uid.clone(),
            name: "virt-launcher-web-x".to_owned(),
            container: Some(self.fake.container.id.clone()),
            addresses: vec!["10.244.9.7".to_owned()],
            allow_emulation: true,
            deleted: false,
            readiness: None,
            links: Vec::new(),
        };
        Input { vmi: Arc::new(self.server.read()), pod: Some(Arc::new(pod)) }
    }

    /// Starts a handler's task.
    fn start(&self) -> Vm {
        start(self.context.clone(), self.input())
    }

    /// Waits for a phase. Meanwhile it passes the API server's state to the task, as a watch would.
    async fn reach(&self, vm: &Vm, phase: &str) {
        let reached = async {
            while self.server.phase() != phase {
                sleep(Duration::from_millis(20)).await;
                self.tell(vm);
            }
        };
        let reached = timeout(WAIT, reached).await;
        assert!(reached.is_ok(), "phase {} instead of {phase}", self.server.phase());
    }

    /// Passes the API server's state to the task.
    fn tell(&self, vm: &Vm) {
        let input = self.input();
        vm.input.send_if_modified(|present| {
            let newer = present.vmi.metadata.resource_version != input.vmi.metadata.resource_version;
            *present = input;
            newer
        });
    }

    fn writes(&self) -> usize {
        self.server.patches.lock().unwrap().len()
    }

    fn events(&self) -> Vec<String> {
        self.server.events.lock().unwrap().clone()
    }

    /// Waits until the events of a start are published, which is after its status is written.
    async fn tells_of_start(&self) {
        let told = async {
            while self.events().len() < 2 {
                sleep(Duration::from_millis(20)).await;
            }
        };
        assert!(timeout(WAIT, told).await.is_ok(), "{:?}", self.events());
    }
}

#[tokio::test]
async fn a_guest_from_scheduled_to_its_end_takes_one_write_for_each_phase() {
    let Some(node) = Node::new() else { return };
    let vm = node.start();
    node.reach(&vm, "Running").await;
    node.tells_of_start().await;
    assert_eq!(node.writes(), 1, "{:?}", node.server.patches);
    let status = node.server.read().status.unwrap();
    assert_eq!(status.interfaces[0].ip_address.as_deref(), Some("10.244.9.7"));
    assert_eq!(status.machine.unwrap().type_.as_deref(), Some("pc-q35-10.0"));
    assert!(vm.launcher.borrow().is_some());

    // The handler is killed and restarted: the guest keeps running, nothing is written, and the launcher is
    // found again.
    drop(vm);
    let vm = node.start();
    let mut found = vm.launcher.clone();
    timeout(WAIT, found.wait_for(Option::is_some)).await.unwrap().unwrap();
    sleep(Duration::from_millis(500)).await;
    assert_eq!((node.writes(), node.server.phase().as_str()), (1, "Running"));

    node.server.vmi.lock().unwrap()["metadata"]["deletionTimestamp"] = json!(Time(Timestamp::now()));
    bump(&mut node.server.vmi.lock().unwrap());
    node.reach(&vm, "Succeeded").await;
    assert_eq!(node.writes(), 2);
    let status = node.server.read().status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("GuestShutdown"));
    assert_eq!(status.phase_transition_timestamps.len(), 2);
    timeout(WAIT, found.wait_for(Option::is_none)).await.unwrap().unwrap();
    assert_eq!(
        node.events(),
        [
            "Normal Created VirtualMachineInstance defined.",
            "Normal Started VirtualMachineInstance started.",
            "Normal ShuttingDown Signaled Graceful Shutdown",
            "Normal Stopped The VirtualMachineInstance was shut down.",
            "Normal Deleted Signaled Deletion",
        ]
    );
}

#[tokio::test]
async fn a_conflicting_write_is_not_overwritten() {
    let Some(node) = Node::new() else { return };
    node.server.conflict.store(true, Ordering::SeqCst);
    let vm = node.start();
    node.reach(&vm, "Running").await;
    node.tells_of_start().await;
    let patches = node.server.patches.lock().unwrap();
    assert_eq!(patches.len(), 1);
    // The patch was computed from the version of the other client.
    assert_eq!(patches[0]["metadata"]["resourceVersion"], "8");
    assert_eq!(node.events().len(), 2);
}

#[tokio::test]
async fn a_launcher_that_is_killed_is_left_to_the_controller() {
    let Some(mut node) = Node::new() else { return };
    let vm = node.start();
    node.reach(&vm, "Running").await;
    node.fake.kill();
    let mut found = vm.launcher.clone();
    timeout(WAIT, found.wait_for(Option::is_none)).await.unwrap().unwrap();
    // The container ends: there are no more attempts, no error report, and no made-up result.
    vm.input.send_modify(|input| {
        let pod = input.pod.as_deref().cloned().map(|pod| LauncherPod { container: None, ..pod });
        input.pod = pod.map(Arc::new);
    });
    sleep(Duration::from_millis(500)).await;
    assert_eq!((node.writes(), node.server.phase().as_str()), (1, "Running"));
    assert_eq!(node.events().len(), 2);
}

impl Node {
    /// Changes the instance, as the controller does.
    fn change(&self, vm: &Vm, change: impl FnOnce(&mut Value)) {
        {
            let mut vmi = self.server.vmi.lock().unwrap();
            change(&mut vmi);
            bump(&mut vmi);
        }
        self.tell(vm);
    }

    /// Waits until the status reports this source for the card `red`.
    async fn red(&self, vm: &Vm, source: &str) {
        let told = || {
            let interfaces = self.server.read().status.unwrap().interfaces;
            let red = interfaces.into_iter().find(|one| one.name.as_deref() == Some("red"));
            red.and_then(|red| red.info_source)
        };
        let reached = async {
            while told().as_deref() != Some(source) {
                sleep(Duration::from_millis(20)).await;
                self.tell(vm);
            }
        };
        let reached = timeout(WAIT, reached).await;
        assert!(reached.is_ok(), "{:?} instead of {source}", told());
    }
}

#[tokio::test]
async fn a_card_is_plugged_and_unplugged_in_a_running_guest_and_a_missing_link_affects_no_other_card() {
    let Some(node) = Node::new() else { return };
    let vm = node.start();
    node.reach(&vm, "Running").await;
    let pod = node.fake.network_namespace();
    let before = link_names(&pod);
    let multus = json!({"name": "red", "infoSource": "multus-status", "podInterfaceName": "podb1f51a511f1"});
    node.change(&vm, |vmi| {
        let (spec, status) = (json!({"name": "red", "bridge": {}}), multus.clone());
        vmi["spec"]["domain"]["devices"]["interfaces"].as_array_mut().unwrap().push(spec);
        let network = json!({"name": "red", "multus": {"networkName": "red"}});
        vmi["spec"]["networks"].as_array_mut().unwrap().push(network);
        vmi["status"]["interfaces"].as_array_mut().unwrap().push(status);
    });
    // The card is requested, but its link is missing. Another card's state still reaches the launcher.
    sleep(Duration::from_millis(300)).await;
    node.change(&vm, |vmi| vmi["spec"]["domain"]["devices"]["interfaces"][0]["state"] = json!("down"));
    let down = async {
        while node.server.read().status.unwrap().interfaces[0].link_state.as_deref() != Some("down") {
            sleep(Duration::from_millis(20)).await;
            node.tell(&vm);
        }
    };
    timeout(WAIT, down).await.unwrap();
    node.red(&vm, "multus-status").await;
    attach_red(&node.network, &pod, Vec::new());
    node.red(&vm, "domain, multus-status").await;
    assert!(link_names(&pod).contains("k6t-b1f51a511f1"));

    node.change(&vm, |vmi| vmi["spec"]["domain"]["devices"]["interfaces"][1]["state"] = json!("absent"));
    node.red(&vm, "multus-status").await;
    // Only the link that Multus created is left, for Multus to remove.
    let link = BTreeSet::from(["podb1f51a511f1".to_owned()]);
    assert_eq!(link_names(&pod).difference(&before).cloned().collect::<BTreeSet<_>>(), link);
    let writes = node.writes();
    node.change(&vm, |vmi| {
        for list in ["/spec/domain/devices/interfaces", "/spec/networks", "/status/interfaces"] {
            vmi.pointer_mut(list).unwrap().as_array_mut().unwrap().truncate(1);
        }
    });
    sleep(Duration::from_millis(500)).await;
    assert_eq!((node.writes(), node.server.read().status.unwrap().interfaces.len()), (writes, 1));
}

#[tokio::test]
async fn cards_have_a_queue_for_each_cpu_that_is_granted_and_keep_them_when_more_are() {
    let Some(node) = Node::new() else { return };
    {
        let mut vmi = node.server.vmi.lock().unwrap();
        vmi["spec"]["domain"]["cpu"] = json!({"sockets": 4, "maxSockets": 4});
        vmi["spec"]["domain"]["devices"]["networkInterfaceMultiqueue"] = json!(true);
        // Its pod is not large enough yet.
        vmi["status"]["currentCPUTopology"] = json!({"sockets": 2});
    }
    let vm = node.start();
    node.reach(&vm, "Running").await;
    attach_red(&node.network, &node.fake.network_namespace(), Vec::new());
    node.change(&vm, |vmi| {
        let card = json!({"name": "red", "bridge": {}});
        vmi["spec"]["domain"]["devices"]["interfaces"].as_array_mut().unwrap().push(card);
        let network = json!({"name": "red", "multus": {"networkName": "red"}});
        vmi["spec"]["networks"].as_array_mut().unwrap().push(network);
        let told =
            json!({"name": "red", "infoSource": "multus-status", "podInterfaceName": "podb1f51a511f1"});
        vmi["status"]["interfaces"].as_array_mut().unwrap().push(told);
    });
    node.red(&vm, "domain, multus-status").await;
    let queues = || {
        let interfaces = node.server.read().status.unwrap().interfaces;
        interfaces.into_iter().map(|one| one.queue_count).collect::<Vec<_>>()
    };
    assert_eq!(queues(), [Some(2), Some(2)]);

    node.change(&vm, |vmi| {
        let resized = json!({"type": "HotVCPUChange", "status": "True", "reason": "PodResized"});
        vmi["status"]["conditions"] = json!([resized]);
    });
    drop(vm);
    let vm = node.start();
    let mut found = vm.launcher.clone();
    timeout(WAIT, found.wait_for(Option::is_some)).await.unwrap().unwrap();
    sleep(Duration::from_millis(500)).await;
    assert_eq!(queues(), [Some(2), Some(2)]);
}
