//! Instances whose launcher has an older version: labelled, counted in the status of the `KubeVirt` object, and migrated to
//! a new launcher or evicted in batches, as that object says.
//!
//! ```text
//!   instances, KubeVirt object --plan (pure)--> labels, count, migrations, evictions --> API server
//! ```
//!
//! Instances that can migrate do so, within the limits; with both methods the others are evicted. Instances whose condition
//! `MigrationRequired` is set migrate as well. This is a loop of its own, not a part of the instances' reconciliation,
//! because it decides about all instances together. An evicted launcher shuts its guest down like a user's stop; a machine
//! that is to run starts it again, with a launcher of the new version.

mod plan;

use crate::cluster::Cluster;
use crate::inventory::OUTDATED;
use crate::migrations::row::WORKLOAD_UPDATE_ANNOTATION;
use crate::moves::{self, InstanceRef, MAINTENANCE, MigrationRequest, USER};
use crate::write::FIELD_MANAGER;
use barevirt_api::migratable::SERVED;
use barevirt_api::names::OUTDATED_LAUNCHER_LABEL;
use barevirt_api::v1::{KubeVirt, VirtualMachineInstance};
use barevirt_api::workload_updates::{LIVE_MIGRATE, WorkloadUpdates};
use barevirt_component::error::response;
use barevirt_component::notes::Note;
use barevirt_component::request::Error;
use barevirt_component::request::{call, call_opt};
use barevirt_plan::migration::Limits;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kube::api::{Api, EvictParams, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt};
use plan::{Instance, Observed, Plan, plan};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Pause between two looks. It is not urgent, and with many instances a look takes time.
const PAUSE: Duration = Duration::from_secs(15);
const REASON_SUCCESSFUL_EVICT: &str = "SuccessfulEvict";
const REASON_FAILED_EVICT: &str = "FailedEvict";

/// Batches of this process so far.
#[derive(Default)]
struct Batches {
    last: Option<Instant>,
    count: usize,
    looks: usize,
}

/// Works until the future is dropped; the caches are filled.
pub async fn run(cluster: Arc<Cluster>) {
    let mut batches = Batches::default();
    loop {
        if let Err(error) = pass(&cluster, &mut batches).await {
            warn!(%error, why = error.message(), "outdated instances are looked at again");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn pass(cluster: &Cluster, batches: &mut Batches) -> Result<(), Error> {
    let Some(kubevirt) = cluster.kubevirt() else { return Ok(()) };
    let config = cluster.config();
    // The instances' controller has logged those that cannot be decoded.
    let instances: Vec<Instance> = cluster
        .vmis
        .state()
        .iter()
        .filter_map(|vmi| vmi.unpack().ok())
        .filter_map(|vmi| {
            let namespace = vmi.namespace().unwrap_or_default();
            Instance::of(&vmi, cluster.migrations.is_wanted(&namespace, &vmi.name_any(), Instant::now()))
        })
        .collect();
    let limits = Limits::of(&cluster.migration_settings());
    let room = limits.per_cluster.saturating_sub(cluster.migrations.under_way());
    let plan = plan(&Observed {
        image: &config.launcher_image,
        updates: WorkloadUpdates::of(&kubevirt.spec),
        settled: is_settled(&kubevirt),
        since_batch: batches.last.map(|last| last.elapsed()),
        batches: batches.count,
        looks: batches.looks,
        room: moves_outdated(&kubevirt).then_some(room),
        instances: &instances,
    });
    apply(cluster, &kubevirt, plan, batches).await
}

/// Whether outdated instances are to migrate.
fn moves_outdated(kubevirt: &KubeVirt) -> bool {
    let strategy = kubevirt.spec.workload_update_strategy.as_ref();
    let mut methods = strategy.into_iter().flat_map(|strategy| &strategy.workload_update_methods);
    SERVED && methods.any(|method| method == LIVE_MIGRATE)
}

/// Whether all components run, in one version.
fn is_settled(kubevirt: &KubeVirt) -> bool {
    kubevirt.status.as_ref().is_some_and(|status| {
        status.phase.as_deref() == Some("Deployed")
            && status.observed_deployment_id.is_some()
            && status.observed_deployment_id == status.target_deployment_id
    })
}

async fn apply(
    cluster: &Cluster,
    kubevirt: &KubeVirt,
    plan: Plan,
    batches: &mut Batches,
) -> Result<(), Error> {
    label_all(&cluster.client, &plan.label).await?;
    if let Some(outdated) = plan.outdated {
        OUTDATED.store(outdated, Ordering::Relaxed);
        report(cluster, kubevirt, outdated).await?;
    }
    batches.looks = batches.looks.wrapping_add(1);
    for instance in &plan.migrate {
        let Instance { namespace, name, uid, moves_volumes, .. } = instance;
        let request = MigrationRequest {
            beginning: "kubevirt-workload-update-",
            why: (WORKLOAD_UPDATE_ANNOTATION, ""),
            moves_volumes: *moves_volumes,
            priority: if *moves_volumes { USER } else { MAINTENANCE },
            purpose: " for automated workload update",
        };
        // An event of the instance reports it, and the next look retries.
        if let Err(error) = moves::ask(cluster, InstanceRef { namespace, name, uid }, &request).await {
            warn!(
                namespace,
                vmi = name,
                why = error.message(),
                "could not create a migration of an instance"
            );
        }
    }
    if !plan.evict.is_empty() {
        // Counted even if no instance can leave: the next try is a batch of its own.
        (batches.last, batches.count) = (Some(Instant::now()), batches.count.wrapping_add(1));
    }
    for instance in &plan.evict {
        evict(cluster, instance).await;
    }
    Ok(())
}

/// Labels instances. Users write them, so one that cannot be labelled keeps none of the others, in other namespaces, from
/// being counted, moved and evicted.
async fn label_all(client: &Client, instances: &[(Instance, bool)]) -> Result<(), Error> {
    let mut failures = Vec::new();
    for (instance, outdated) in instances {
        match label(client, instance, *outdated).await {
            // Nobody would be answered.
            Err(error @ Error::Deadline { .. }) => return Err(error),
            Err(error) => failures.push((instance, error)),
            Ok(()) => {}
        }
    }
    if let Some((Instance { namespace, name, .. }, error)) = failures.first() {
        let (count, why) = (failures.len(), error.message());
        warn!(namespace, vmi = name, why, count, "instances cannot be labelled");
    }
    Ok(())
}

async fn label(client: &Client, instance: &Instance, outdated: bool) -> Result<(), Error> {
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(client.clone(), &instance.namespace);
    let patch = Patch::Merge(json!({"metadata": {
        "uid": instance.uid,
        "labels": {OUTDATED_LAUNCHER_LABEL: outdated.then_some("")},
    }}));
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let written = vmis.patch_metadata(&instance.name, &params, &patch);
    call_opt("label", || subject(instance), written).await.map(drop)
}

/// Writes the number to the status, if it differs.
async fn report(cluster: &Cluster, kubevirt: &KubeVirt, outdated: usize) -> Result<(), Error> {
    let outdated = i32::try_from(outdated).unwrap_or(i32::MAX);
    let told = kubevirt.status.as_ref().and_then(|status| status.outdated_virtual_machine_instance_workloads);
    if told == Some(outdated) {
        return Ok(());
    }
    let api: Api<KubeVirt> =
        Api::namespaced(cluster.client.clone(), &kubevirt.namespace().unwrap_or_default());
    let patch = Patch::Merge(json!({
        "metadata": {"uid": kubevirt.metadata.uid},
        "status": {"outdatedVirtualMachineInstanceWorkloads": outdated},
    }));
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let name = kubevirt.name_any();
    let written = api.patch_status(&name, &params, &patch);
    if call_opt("write status of", || format!("KubeVirt {name}"), written).await?.is_some() {
        info!(outdated, "counted instances with an outdated launcher");
    }
    Ok(())
}

/// A pod that stays, because of a disruption budget or its instance's eviction strategy, is tried again later.
async fn evict(cluster: &Cluster, instance: &Instance) {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &instance.namespace);
    let name = &instance.launcher;
    let params = EvictParams::default();
    let evicted = pods.evict(name, &params);
    let evicted = call("evict", || format!("pod {}/{name}", instance.namespace), evicted).await;
    let note = match evicted {
        Ok(_) => {
            info!(
                namespace = instance.namespace,
                vmi = instance.name,
                pod = name,
                "evicted an outdated launcher"
            );
            Note::normal(
                REASON_SUCCESSFUL_EVICT,
                "Evicted the launcher pod: its version is not the installed one any more",
            )
        }
        Err(Error::Api { source, .. }) if response(&source).is_some_and(|answer| answer.code == 404) => {
            return;
        }
        Err(error) => {
            let why = error.message();
            warn!(namespace = instance.namespace, vmi = instance.name, why, "an outdated launcher stays");
            Note::warning(REASON_FAILED_EVICT, format!("The outdated launcher pod cannot be evicted: {why}"))
        }
    };
    cluster.notes.tell(note, reference(instance));
}

fn subject(instance: &Instance) -> String {
    format!("virtual machine instance {}/{}", instance.namespace, instance.name)
}

fn reference(instance: &Instance) -> ObjectReference {
    ObjectReference {
        api_version: Some(VirtualMachineInstance::api_version(&()).into_owned()),
        kind: Some(VirtualMachineInstance::kind(&()).into_owned()),
        namespace: Some(instance.namespace.clone()),
        name: Some(instance.name.clone()),
        uid: Some(instance.uid.clone()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use kube::client::Body;
    use std::sync::Mutex;

    fn instance(name: &str) -> Instance {
        let vmi = json!({ "metadata": { "name": name, "namespace": "ns", "uid": name }, "spec": { "domain": { "devices": {} } } });
        Instance::of(&serde_json::from_value(vmi).unwrap(), false).unwrap()
    }

    /// An API server that cannot write the instance `large`.
    fn server(asked: Arc<Mutex<Vec<String>>>) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            let metadata = json!({ "name": name, "namespace": "ns" });
            let answer = match name.as_str() {
                "large" => json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 500 }),
                _ => json!({ "apiVersion": "v1", "kind": "PartialObjectMetadata", "metadata": metadata }),
            };
            let code = if name == "large" { 500_u16 } else { 200 };
            asked.lock().unwrap().push(name);
            let answer = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
            std::future::ready(answer)
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn an_instance_that_cannot_be_labelled_does_not_delay_the_labels_of_others() {
        let asked = Arc::new(Mutex::new(vec![]));
        let wanted = ["large", "web"].map(|name| (instance(name), true));
        label_all(&server(asked.clone()), &wanted).await.unwrap();
        assert_eq!(*asked.lock().unwrap(), ["large", "web"]);
    }

    #[test]
    fn settled_is_one_whole_version() {
        let read = |status: serde_json::Value| {
            let kubevirt = json!({"metadata": {"name": "kubevirt"}, "spec": {}, "status": status});
            is_settled(&serde_json::from_value(kubevirt).unwrap())
        };
        let ids = |observed: &str, target: &str| json!({"phase": "Deployed", "observedDeploymentID": observed, "targetDeploymentID": target});
        assert!(read(ids("a", "a")));
        assert!(!read(ids("a", "b")));
        assert!(!read(json!({"phase": "Deployed"})));
        assert!(!read(json!({"phase": "Deploying", "observedDeploymentID": "a", "targetDeploymentID": "a"})));
    }
}
