//! Evictions of launcher pods, decided from the pod and its instance. An attachment pod stays as long as its
//! instance, because the guest has its disk.
//!
//! A pod only counts as such if the controller has recorded it on its instance, because the pod's owner can
//! write its name and labels. The target pod of a migration is recorded late: before that, its labels and the
//! unfinished migration that they name say what it is.
//!
//! The API server sends two reviews for one eviction. One webhook decides whether the pod is evicted; it
//! answers every client and writes nothing. The other marks the instance that has to move; only the API server
//! knows its path (docs/adr/0012).
//!
//! If an object cannot be read, the pod stays, and the client tries the eviction again, as with a disruption
//! budget.

use barevirt_api::hotplug::target_pods;
use barevirt_api::names::{
    APP_HOTPLUG_DISK, APP_LABEL, APP_LAUNCHER, CREATED_BY_LABEL, DOMAIN_ANNOTATION, MIGRATION_JOB_LABEL,
    MIGRATION_SELECTOR_LABEL, is_final_phase, vmi_id,
};
use barevirt_api::settings::Settings;
use barevirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration};
use barevirt_api::validate::kinds::eviction::{Decision, decide};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::admission::AdmissionResponse;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::request::Request;

/// Annotation on evictions: the client that requests them.
const REQUESTED_BY: &str = "requested-by";
/// The descheduler's value of that annotation.
const DESCHEDULER: &str = "sigs.k8s.io/descheduler";
/// Annotation on instances: the client that requested their eviction.
const SOURCE_ANNOTATION: &str = "kubevirt.io/eviction-source";

pub(super) async fn answer(client: &Client, settings: &Settings, request: &Request) -> AdmissionResponse {
    let response = AdmissionResponse::from(request);
    match evict(client, settings, request).await {
        Ok(()) => response,
        Err(message) => {
            let mut response = response.deny(message);
            response.result.code = 429;
            response.result.reason = "TooManyRequests".to_owned();
            response
        }
    }
}

/// Answers an eviction; an error says why the pod stays. It writes nothing, whichever client asks.
async fn evict(client: &Client, settings: &Settings, request: &Request) -> Result<(), String> {
    match find(client, settings, request).await? {
        Found { decision: Decision::Pass, .. } => Ok(()),
        Found { decision: Decision::Deny(message) | Decision::Mark(message), .. } => Err(message),
    }
}

/// Marks the instance if the eviction means that it has to leave its node.
pub(super) async fn mark(client: &Client, settings: &Settings, request: &Request) -> Result<(), String> {
    let Found { decision: Decision::Mark(_), name, node } = find(client, settings, request).await? else {
        return Ok(());
    };
    let (namespace, node) = (request.namespace.as_deref().unwrap_or_default(), node.as_deref());
    let instances: Api<VirtualMachineInstance> = Api::namespaced(client.clone(), namespace);
    let params = PatchParams { dry_run: is_dry_run(request), ..PatchParams::default() };
    let marked = instances.patch(&name, &params, &Patch::Merge(&marked(node, request))).await;
    marked.map_err(|error| format!("kubevirt failed marking the vmi for eviction: {error}"))?;
    tracing::info!(namespace, name, node, "instance is to leave its node");
    Ok(())
}

/// The consequences of an eviction.
struct Found {
    decision: Decision,
    /// The instance; empty if there is none.
    name: String,
    /// The pod's node.
    node: Option<String>,
}

/// Reads the pod and its instance; an error says what could not be read.
async fn find(client: &Client, settings: &Settings, request: &Request) -> Result<Found, String> {
    let passes = || Found { decision: Decision::Pass, name: String::new(), node: None };
    let namespace = request.namespace.as_deref().unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pod = pods.get_opt(&request.name).await;
    let pod = pod.map_err(|error| format!("kubevirt failed getting the pod: {error}"))?;
    let Some((pod, name)) = pod.as_ref().and_then(|pod| Some((pod, instance_name(pod)?))) else {
        return Ok(passes());
    };
    let instances: Api<VirtualMachineInstance> = Api::namespaced(client.clone(), namespace);
    let instance = instances.get_opt(name).await;
    let instance = instance.map_err(|error| format!("kubevirt failed getting the vmi: {error}"))?;
    let Some(instance) = instance else { return Ok(passes()) };
    if holds_disk_of(&instance, pod) {
        let pod = &request.name;
        return Err(format!(
            "cannot evict hotplug pod: {pod} associated with running vmi: {name} in namespace {namespace}"
        ));
    }
    if !is_launcher_of(&instance, pod) && !is_target_of(client, namespace, &instance, pod).await? {
        return Ok(passes());
    }
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let decision = decide(&instance, settings.eviction_strategy.as_deref(), node.as_deref());
    Ok(Found { decision, name: name.to_owned(), node })
}

/// The instance of a pod whose labels say that it is a launcher or attachment pod, if the pod has not ended.
fn instance_name(pod: &Pod) -> Option<&str> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let ended = matches!(phase, Some("Succeeded" | "Failed"));
    let ours = [APP_LAUNCHER, APP_HOTPLUG_DISK];
    let is_ours = pod.labels().get(APP_LABEL).is_some_and(|app| ours.contains(&app.as_str()));
    pod.annotations().get(DOMAIN_ANNOTATION).filter(|_| is_ours && !ended).map(String::as_str)
}

/// Whether a pod is an attachment pod of an instance that has not ended.
fn holds_disk_of(instance: &VirtualMachineInstance, pod: &Pod) -> bool {
    let (Some(status), Some(uid)) = (&instance.status, pod.metadata.uid.as_deref()) else { return false };
    let recorded = status.volume_status.iter().filter_map(|volume| volume.hotplug_volume.as_ref());
    let mut here = recorded.filter_map(|recorded| recorded.attach_pod_uid.as_deref());
    // A guest that moves will have the disk on the other node.
    let moving = status.migration_state.as_ref().filter(|state| state.end_timestamp.is_none());
    let mut there = moving.into_iter().flat_map(target_pods);
    !is_final_phase(status.phase.as_deref().unwrap_or_default())
        && (here.any(|known| known == uid) || there.any(|known| known == uid))
}

fn is_launcher_of(instance: &VirtualMachineInstance, pod: &Pod) -> bool {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let node = instance.status.as_ref().and_then(|status| status.active_pods.get(uid));
    // An instance without a node has no guest yet.
    node.is_some_and(|node| !node.is_empty())
}

/// Whether the guest is to move to this pod, and was not handed over yet.
async fn is_target_of(
    client: &Client,
    namespace: &str,
    instance: &VirtualMachineInstance,
    pod: &Pod,
) -> Result<bool, String> {
    let Some(job) = job(instance, pod) else { return Ok(false) };
    let migrations: Api<VirtualMachineInstanceMigration> = Api::namespaced(client.clone(), namespace);
    let selector = format!("{MIGRATION_SELECTOR_LABEL}={}", vmi_id(&instance.name_any()));
    let found = migrations.list(&ListParams::default().labels(&selector)).await;
    let found =
        found.map_err(|error| format!("kubevirt failed listing the migrations of the vmi: {error}"))?;
    Ok(found.items.iter().any(|migration| is_under_way(migration, job)))
}

/// UID of the migration that a launcher of the instance is the target of, by its labels.
fn job<'a>(instance: &VirtualMachineInstance, pod: &'a Pod) -> Option<&'a str> {
    let labels = pod.labels();
    let is_launcher = labels.get(APP_LABEL).is_some_and(|app| app == APP_LAUNCHER);
    let uid = instance.metadata.uid.as_ref()?;
    let is_own = labels.get(CREATED_BY_LABEL) == Some(uid);
    labels.get(MIGRATION_JOB_LABEL).filter(|_| is_launcher && is_own).map(String::as_str)
}

fn is_under_way(migration: &VirtualMachineInstanceMigration, uid: &str) -> bool {
    let phase = migration.status.as_ref().and_then(|status| status.phase.as_deref());
    migration.metadata.uid.as_deref() == Some(uid) && !is_final_phase(phase.unwrap_or_default())
}

fn marked(node: Option<&str>, request: &Request) -> Value {
    let mut mark = json!({ "status": { "evacuationNodeName": node } });
    let by = request.object.as_ref().and_then(|eviction| eviction.annotations().get(REQUESTED_BY));
    if by.is_some_and(|by| by == DESCHEDULER) {
        mark["metadata"] = json!({ "annotations": { SOURCE_ANNOTATION: "descheduler" } });
    }
    mark
}

fn is_dry_run(request: &Request) -> bool {
    let options = request.object.as_ref().map(|eviction| &eviction.data["deleteOptions"]["dryRun"]);
    request.dry_run || options.is_some_and(|dry_run| dry_run[0] == "All")
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;
    use hyper::body::Incoming;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use serde_json::from_value;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::net::TcpListener;

    fn request(eviction: &Value, dry_run: bool) -> Request {
        from_value(json!({
            "uid": "u", "kind": { "group": "policy", "version": "v1", "kind": "Eviction" },
            "resource": { "group": "", "version": "v1", "resource": "pods" }, "subResource": "eviction",
            "name": "virt-launcher-web-x", "namespace": "shop", "operation": "CREATE", "userInfo": {},
            "object": eviction, "dryRun": dry_run,
        }))
        .unwrap()
    }

    fn pod(labels: &Value, phase: &str) -> Pod {
        from_value(json!({
            "metadata": { "name": "virt-launcher-web-x", "uid": "p-1", "labels": labels,
                          "annotations": { "kubevirt.io/domain": "web" } },
            "status": { "phase": phase },
        }))
        .unwrap()
    }

    #[test]
    fn only_launchers_that_the_controller_recorded_matter() {
        let label = json!({ "kubevirt.io": "virt-launcher" });
        assert_eq!(instance_name(&pod(&label, "Running")), Some("web"));
        assert_eq!(instance_name(&pod(&label, "Succeeded")), None);
        assert_eq!(instance_name(&pod(&json!({ "app": "web" }), "Running")), None);
        for (active, node, known) in [("p-1", "node01", true), ("p-1", "", false), ("p-2", "node01", false)] {
            let instance: VirtualMachineInstance = from_value(json!({
                "metadata": { "name": "web" }, "spec": { "domain": { "devices": {} } },
                "status": { "activePods": { active: node } },
            }))
            .unwrap();
            assert_eq!(is_launcher_of(&instance, &pod(&label, "Running")), known);
        }
    }

    #[test]
    fn an_attachment_pod_stays_as_long_as_its_instance() {
        let label = json!({ "kubevirt.io": "hotplug-disk" });
        assert_eq!(instance_name(&pod(&label, "Running")), Some("web"));
        assert_eq!(instance_name(&pod(&label, "Failed")), None);
        for (phase, recorded, holds) in
            [("Running", "p-1", true), ("Running", "p-2", false), ("Failed", "p-1", false)]
        {
            let instance: VirtualMachineInstance = from_value(json!({
                "metadata": { "name": "web" }, "spec": { "domain": { "devices": {} } },
                "status": { "phase": phase, "volumeStatus": [{ "name": "root", "target": "vda" },
                    { "name": "data", "target": "sda", "hotplugVolume": { "attachPodUID": recorded } }] },
            }))
            .unwrap();
            assert_eq!(holds_disk_of(&instance, &pod(&label, "Running")), holds, "{phase} {recorded}");
        }
    }

    #[test]
    fn an_attachment_pod_that_a_guest_moves_to_stays_until_the_migration_has_ended() {
        let label = json!({ "kubevirt.io": "hotplug-disk" });
        let ended = json!("2026-11-27T10:00:00Z");
        for (pods, end, holds) in
            [("p-0,p-1", Value::Null, true), ("p-0", Value::Null, false), ("p-0,p-1", ended, false)]
        {
            let instance: VirtualMachineInstance = from_value(json!({
                "metadata": { "name": "web" }, "spec": { "domain": { "devices": {} } },
                "status": { "phase": "Running", "migrationState": {
                    "migrationUid": "m-1", "targetAttachmentPodUID": pods, "endTimestamp": end } },
            }))
            .unwrap();
            assert_eq!(holds_disk_of(&instance, &pod(&label, "Running")), holds, "{pods}");
        }
    }

    #[test]
    fn a_mark_names_the_node_and_a_descheduler() {
        let plain = request(&json!({ "metadata": { "name": "virt-launcher-web-x" } }), false);
        assert_eq!(marked(Some("node01"), &plain), json!({ "status": { "evacuationNodeName": "node01" } }));
        let annotations = json!({ "requested-by": "sigs.k8s.io/descheduler" });
        let asked = request(&json!({ "metadata": { "annotations": annotations } }), false);
        assert_eq!(
            marked(Some("node01"), &asked)["metadata"]["annotations"],
            json!({ "kubevirt.io/eviction-source": "descheduler" })
        );
    }

    /// A minimal API server for evictions, which counts writes. It has one pod, an instance and a migration.
    async fn api_server(writes: Arc<AtomicUsize>, pod: Value, migration: Value) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let (writes, pod, migration) = (writes.clone(), pod.clone(), migration.clone());
                let service = service_fn(move |asked: hyper::Request<Incoming>| {
                    if asked.method() != hyper::Method::GET {
                        writes.fetch_add(1, Ordering::Relaxed);
                    }
                    let path = asked.uri().path();
                    let body = if path.contains("/pods/") {
                        pod.clone()
                    } else if path.ends_with("/virtualmachineinstancemigrations") {
                        let of_instance =
                            asked.uri().query().is_some_and(|query| query.contains("vmi-name%3Dweb"));
                        assert!(of_instance, "{}", asked.uri());
                        json!({
                            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigrationList",
                            "metadata": {}, "items": [migration],
                        })
                    } else {
                        json!({
                            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                            "metadata": { "name": "web", "namespace": "shop", "uid": "i-1" },
                            "spec": { "evictionStrategy": "External", "domain": { "devices": {} } },
                            "status": { "phase": "Running", "nodeName": "node01", "activePods": { "p-1": "node01" } },
                        })
                    };
                    let mut answer = hyper::Response::new(Full::<hyper::body::Bytes>::from(body.to_string()));
                    answer.headers_mut().insert("content-type", "application/json".parse().unwrap());
                    async move { Ok::<_, std::convert::Infallible>(answer) }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(tcp), service));
            }
        });
        barevirt_component::certificates::install_provider();
        Client::try_from(kube::Config::new(format!("http://{address}").parse().unwrap())).unwrap()
    }

    /// A pod as the API server has it.
    fn stored(uid: &str, node: &str, labels: &Value) -> Value {
        let mut pod = serde_json::to_value(pod(labels, "Running")).unwrap();
        pod["metadata"]["uid"] = json!(uid);
        pod["spec"] = json!({ "nodeName": node, "containers": [] });
        pod
    }

    #[tokio::test]
    async fn an_eviction_review_writes_nothing() {
        let writes = Arc::new(AtomicUsize::new(0));
        let launcher = stored("p-1", "node01", &json!({ "kubevirt.io": "virt-launcher" }));
        let client = api_server(writes.clone(), launcher, json!({})).await;
        let (settings, review) = (Settings::default(), request(&json!({ "metadata": {} }), false));
        let response = answer(&client, &settings, &review).await;
        assert_eq!((response.allowed, response.result.code), (false, 429));
        assert!(response.result.message.starts_with("Eviction triggered evacuation of VMI"));
        assert_eq!(writes.load(Ordering::Relaxed), 0);
        super::mark(&client, &settings, &review).await.unwrap();
        assert_eq!(writes.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn the_target_of_an_unfinished_migration_stays_before_the_hand_over() {
        let cases = [
            ("i-1", "m-1", "Scheduling", false),
            ("i-1", "m-1", "", false),
            // It has ended, is another one, or another instance's.
            ("i-1", "m-1", "Failed", true),
            ("i-1", "m-2", "Scheduling", true),
            ("i-2", "m-1", "Scheduling", true),
        ];
        for (instance, job, phase, passes) in cases {
            let writes = Arc::new(AtomicUsize::new(0));
            let labels = json!({ "kubevirt.io": "virt-launcher", "kubevirt.io/created-by": instance,
                                 "kubevirt.io/migrationJobUID": job });
            let migration = json!({ "metadata": { "name": "move", "uid": "m-1" },
                                    "spec": { "vmiName": "web" }, "status": { "phase": phase } });
            let client = api_server(writes.clone(), stored("p-2", "node02", &labels), migration).await;
            let (settings, review) = (Settings::default(), request(&json!({ "metadata": {} }), false));
            let response = answer(&client, &settings, &review).await;
            assert_eq!(response.allowed, passes, "{instance} {job} {phase}: {}", response.result.message);
            if !passes {
                assert_eq!(response.result.code, 429);
                assert_eq!(response.result.message, "Eviction request for target Pod");
            }
            super::mark(&client, &settings, &review).await.unwrap();
            assert_eq!(writes.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn a_dry_run_is_recognised_by_request_and_delete_options() {
        let plain = json!({ "metadata": {} });
        let inside = json!({ "metadata": {}, "deleteOptions": { "dryRun": ["All"] } });
        assert!(!is_dry_run(&request(&plain, false)));
        assert!(is_dry_run(&request(&plain, true)));
        assert!(is_dry_run(&request(&inside, false)));
    }
}
