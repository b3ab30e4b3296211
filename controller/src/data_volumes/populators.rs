//! Claims that name a populator: what concerns them is read, and the next step carried out. [`plan`] makes the decisions.

use super::again::REFUSED;
use super::observe::class;
use crate::cluster::Cluster;
use crate::write::FIELD_MANAGER;
use barevirt_api::cdi::{
    DATA_VOLUME_DEFINITION, DataVolume, PopulatorKind as Kind, VolumeCloneSource, VolumeImportSource,
    VolumeUploadSource, populator, prime_name,
};
use barevirt_component::data_volumes::is_ours;
use barevirt_component::notes::Note;
use barevirt_component::request::{Category, Error, call, call_opt};
use barevirt_plan::imports::Event;
use barevirt_plan::imports::populator::{Class, Observed, Plan, Source, Step, plan, volume_name};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::fmt::Debug;
use std::time::Duration;
use tracing::info;

/// Event: the DataVolume could not be made; CDI's name for it.
const FAILED_CREATE: &str = "ErrCreatingPVCPrime";

/// One reconciliation; returns when the next one is due without an event.
pub(super) async fn reconcile(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
) -> Result<Option<Duration>, Error> {
    let Some((kind, observed)) = observe(&cluster.client, namespace, name).await? else { return Ok(None) };
    let planned = plan(&observed);
    // As with DataVolumes: a CDI that was installed a moment ago finds its objects untouched.
    if planned.step.is_some() {
        for definition in [DATA_VOLUME_DEFINITION, kind.definition()] {
            if !is_ours(&cluster.client, definition).await? {
                return Ok(None);
            }
        }
    }
    apply(cluster, &observed.claim, planned).await
}

/// Looks; `None` where there is no claim that names a populator.
async fn observe(client: &Client, namespace: &str, name: &str) -> Result<Option<(Kind, Observed)>, Error> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let about = |name: &str| format!("claim {namespace}/{name}");
    let Some(claim) = call_opt("get", || about(name), claims.get(name)).await? else { return Ok(None) };
    let Some((kind, source)) = populator(&claim).map(|(kind, source)| (kind, source.to_owned())) else {
        return Ok(None);
    };
    let prime: Option<DataVolume> = get(client, namespace, &prime_name(&claim)).await?;
    let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    let mut observed =
        Observed { claim, source: None, class: Class::default(), prime, prime_claim: None, volume: None };
    if bound {
        return Ok(Some((kind, observed)));
    }
    if let Some(prime) = &observed.prime {
        let own = prime.name_any();
        observed.prime_claim = call_opt("get", || about(&own), claims.get(&own)).await?;
    }
    let volume = volume_name(&observed.claim, observed.prime.as_ref(), observed.prime_claim.as_ref());
    if let Some(volume) = volume {
        let volumes: Api<PersistentVolume> = Api::all(client.clone());
        observed.volume =
            call_opt("get", || format!("persistent volume {volume}"), volumes.get(volume)).await?;
    }
    if observed.prime.is_none() {
        observed.source = self::source(client, namespace, kind, &source).await?;
        observed.class = class(client, &observed.claim).await?;
    }
    Ok(Some((kind, observed)))
}

async fn get<K>(client: &Client, namespace: &str, name: &str) -> Result<Option<K>, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    let all: Api<K> = Api::namespaced(client.clone(), namespace);
    call_opt("get", || format!("{} {namespace}/{name}", K::kind(&())), all.get(name)).await
}

async fn source(client: &Client, namespace: &str, kind: Kind, name: &str) -> Result<Option<Source>, Error> {
    Ok(match kind {
        Kind::Import => {
            let found: Option<VolumeImportSource> = get(client, namespace, name).await?;
            found.map(|found| Source::Import(Box::new(found)))
        }
        Kind::Clone => {
            let found: Option<VolumeCloneSource> = get(client, namespace, name).await?;
            found.map(|found| Source::Clone(Box::new(found)))
        }
        Kind::Upload => {
            let found: Option<VolumeUploadSource> = get(client, namespace, name).await?;
            found.map(|found| Source::Upload(Box::new(found)))
        }
    })
}

async fn apply(
    cluster: &Cluster,
    claim: &PersistentVolumeClaim,
    planned: Plan,
) -> Result<Option<Duration>, Error> {
    let Plan { step, event, again } = planned;
    if let Some(step) = step {
        let makes = matches!(step, Step::MakePrime(_));
        match perform(&cluster.client, claim, step).await {
            Err(error) if makes && error.category() == Category::Refused => {
                cluster.notes.tell(Note::warning(FAILED_CREATE, error.message()), claim.object_ref(&()));
                return Ok(Some(REFUSED));
            }
            done => done?,
        }
    }
    if let Some(Event { warning, reason, message }) = event {
        let note = if warning { Note::warning(reason, message) } else { Note::normal(reason, message) };
        cluster.notes.tell(note, claim.object_ref(&()));
    }
    Ok(again)
}

async fn perform(client: &Client, claim: &PersistentVolumeClaim, step: Step) -> Result<(), Error> {
    let (namespace, name, prime) =
        (claim.namespace().unwrap_or_default(), claim.name_any(), prime_name(claim));
    let manager = || Some(FIELD_MANAGER.to_owned());
    let change = PatchParams { field_manager: manager(), ..PatchParams::default() };
    let all: Api<DataVolume> = Api::namespaced(client.clone(), &namespace);
    let about = || format!("data volume {namespace}/{prime}");
    match step {
        Step::Note(mut note) => {
            // The decision holds only for this version of the claim.
            note["metadata"]["uid"] = json!(claim.metadata.uid);
            note["metadata"]["resourceVersion"] = json!(claim.metadata.resource_version);
            let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
            let note = Patch::Merge(&note);
            let patched = claims.patch_metadata(&name, &change, &note);
            call("patch", || format!("claim {namespace}/{name}"), patched).await.map(drop)
        }
        Step::MakePrime(wanted) => {
            let make = PostParams { field_manager: manager(), ..PostParams::default() };
            call("create", about, all.create(&make, &wanted)).await?;
            info!(namespace, claim = name, data_volume = prime, "a claim with a populator is filled");
            Ok(())
        }
        Step::Rebind(volume, patch) => {
            let volumes: Api<PersistentVolume> = Api::all(client.clone());
            let patch = Patch::Merge(&patch);
            let patched = volumes.patch(&volume, &change, &patch);
            call("patch", || format!("persistent volume {volume}"), patched).await?;
            info!(namespace, claim = name, volume, "a filled volume is given to its claim");
            Ok(())
        }
        Step::RemovePrime(uid) => {
            let preconditions = Preconditions { uid: Some(uid), resource_version: None };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            call_opt("delete", about, all.delete(&prime, &params)).await.map(drop)
        }
    }
}
