//! Claims that a client is to send an image into: their pods and annotations. [`plan`] makes the decisions.

use super::again::REFUSED;
use super::observe;
use super::steps::{self, Place};
use crate::cluster::Cluster;
use barevirt_api::cdi::{DATA_VOLUME, DataVolume};
use barevirt_api::names::{CA_BUNDLE_KEY, CA_CONFIG_MAP};
use barevirt_component::data_volumes::are_ours;
use barevirt_component::notes::Note;
use barevirt_component::request::{Category, Error, call, call_opt};
use barevirt_import_job::upload_pod_name;
use barevirt_plan::imports::uploads::{Plan, Target, plan, pod};
use barevirt_plan::imports::{Event, Step};
use k8s_openapi::api::core::v1::{ConfigMap, ObjectReference, PersistentVolumeClaim, Pod};
use kube::api::Api;
use kube::{Resource, ResourceExt};
use std::time::Duration;
use tracing::info;

/// Event: the pod could not be created.
const FAILED_CREATE: &str = "FailedCreate";

/// One reconciliation; returns when the next one is due without an event.
pub(super) async fn reconcile(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
) -> Result<Option<Duration>, Error> {
    let Some(mut target) = look(cluster, namespace, name).await? else { return Ok(None) };
    let mut planned = plan(&target);
    if planned.opens {
        // Only its own pod may have it open.
        let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), namespace);
        target.used_by = observe::user(&pods, name, |_| true).await?;
        planned = plan(&target);
    }
    // As with DataVolumes: a CDI that was installed a moment ago finds its objects untouched.
    if planned != Plan::default() && !are_ours(&cluster.client).await? {
        return Ok(None);
    }
    if planned.opens {
        let pod = pod(&target, &authorities(cluster).await?, &observe::installation(cluster).await?);
        planned.step = Some(Step::MakePod(Box::new(pod)));
    }
    apply(cluster, &target.claim, planned).await
}

/// Looks; `None` where the claim does not exist.
async fn look(cluster: &Cluster, namespace: &str, name: &str) -> Result<Option<Target>, Error> {
    let client = &cluster.client;
    let about = |kind: &str, name: &str| format!("{kind} {namespace}/{name}");
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let Some(claim) = call_opt("get", || about("claim", name), claims.get(name)).await? else {
        return Ok(None);
    };
    let owner = claim.owner_references().iter().find(|owner| owner.controller == Some(true));
    let data_volume = match owner.filter(|owner| owner.kind == DATA_VOLUME) {
        Some(owner) => {
            let all: Api<DataVolume> = Api::namespaced(client.clone(), namespace);
            let found = call_opt("get", || about("data volume", &owner.name), all.get(&owner.name)).await?;
            // The claim is deleted with this owner.
            match found.filter(|found| found.uid().as_ref() == Some(&owner.uid)) {
                None => return Ok(None),
                found => found,
            }
        }
        None => None,
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let own = upload_pod_name(name);
    let pod = call_opt("get", || about("pod", &own), pods.get(&own)).await?;
    Ok(Some(Target { claim, data_volume, pod, used_by: None }))
}

/// The authorities of the clients that a pod accepts, PEM.
async fn authorities(cluster: &Cluster) -> Result<String, Error> {
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), cluster.namespace());
    let about = || format!("config map {}/{CA_CONFIG_MAP}", cluster.namespace());
    let bundle = call("get", about, maps.get(CA_CONFIG_MAP)).await?;
    Ok(bundle.data.and_then(|mut data| data.remove(CA_BUNDLE_KEY)).unwrap_or_default())
}

async fn apply(
    cluster: &Cluster,
    claim: &PersistentVolumeClaim,
    planned: Plan,
) -> Result<Option<Duration>, Error> {
    let Plan { step, event, again, .. } = planned;
    if let Some(step) = step {
        match perform(cluster, claim, step).await {
            Err(error) if error.category() == Category::Refused => {
                let message = error.message();
                cluster.notes.tell(Note::warning(FAILED_CREATE, message), reference(claim));
                return Ok(Some(REFUSED));
            }
            done => done?,
        }
    }
    if let Some(Event { warning, reason, message }) = event {
        let note = if warning { Note::warning(reason, message) } else { Note::normal(reason, message) };
        cluster.notes.tell(note, reference(claim));
    }
    Ok(again)
}

fn reference(claim: &PersistentVolumeClaim) -> ObjectReference {
    claim.object_ref(&())
}

async fn perform(cluster: &Cluster, claim: &PersistentVolumeClaim, mut step: Step) -> Result<(), Error> {
    let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
    let pod = upload_pod_name(&name);
    if let Step::PatchClaim(patch) = &mut step {
        // The decision holds only for this version of the claim.
        patch["metadata"]["resourceVersion"] = serde_json::json!(claim.metadata.resource_version);
    }
    let opens = matches!(step, Step::MakePod(_));
    steps::perform(cluster, &Place { namespace: &namespace, claim: &name, pod: &pod }, step).await?;
    if opens {
        info!(namespace, claim = name, "a claim is opened for an upload");
    }
    Ok(())
}
