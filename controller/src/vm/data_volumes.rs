//! The DataVolumes of a machine's templates: created where they are missing, and checked until they are filled.
//!
//! They are not watched: most clusters do not have the kind. They are read from the API server; for a running machine only
//! until all are filled, and then not again before the machine or this process changes.

use super::subject::subject;
use crate::adoption::may_adopt;
use crate::cluster::Cluster;
use crate::ownership;
use crate::vmi::phase;
use crate::write::FIELD_MANAGER;
use barevirt_api::cdi::{self, DataVolumeSpec};
use barevirt_api::names::{
    PHASE_RUNNING, REASON_FAILED_DATA_VOLUME_CREATE, REASON_FAILED_DATA_VOLUME_IMPORT,
    REASON_SOURCE_CLAIM_NOT_AVAILABLE, REASON_SUCCESSFUL_DATA_VOLUME_CREATE,
    REASON_UNAUTHORIZED_DATA_VOLUME_CREATE,
};
use barevirt_api::v1::{DataVolumeTemplateSpec, VirtualMachine, VirtualMachineInstance};
use barevirt_component::notes::Note;
use barevirt_component::request::{Category, Error};
use barevirt_component::request::{call, call_opt};
use barevirt_plan::data_volumes::{self as planned, DataVolumeState, DataVolumes, Origin, Work};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Resource, ResourceExt};
use serde_json::json;
use std::time::Duration;
use tracing::info;

/// How often unfilled DataVolumes are looked at.
pub(super) const INTERVAL: Duration = Duration::from_secs(5);
/// How often DataVolumes are looked at that CDI has given up: a user has to act.
const FAILED: Duration = Duration::from_secs(30);

/// Why a DataVolume cannot be made for now.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Refusal {
    /// The event, if there is one.
    pub(super) note: Option<Note>,
    /// Message of the Failure condition.
    pub(super) message: String,
}

impl Refusal {
    fn new(note: Option<Note>, why: &str) -> Self {
        Refusal { note, message: format!("Error encountered while creating DataVolumes: {why}") }
    }

    /// A quota leaves no space for a claim.
    pub(super) fn over_quota(name: &str, why: &str) -> Self {
        let note = Note::warning(
            REASON_FAILED_DATA_VOLUME_IMPORT,
            format!("DataVolume {name} exceeds quota limits"),
        );
        Refusal::new(Some(note), &format!("DataVolume {name} importer is not running due to an error: {why}"))
    }
}

fn data_volumes(cluster: &Cluster, namespace: &str) -> Api<DynamicObject> {
    Api::namespaced_with(cluster.client.clone(), namespace, &cdi::resource(cdi::DATA_VOLUME))
}

/// Looks up the DataVolumes of a machine. `vmi` is its instance.
pub(super) async fn observe(
    cluster: &Cluster,
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
) -> Result<DataVolumes, Error> {
    let templates = &vm.spec.data_volume_templates;
    let runs_with_all = vmi.is_some_and(|vmi| phase(vmi) == PHASE_RUNNING) && cluster.filled.is_done(vm);
    if templates.is_empty() || vm.metadata.deletion_timestamp.is_some() || runs_with_all {
        return Ok(DataVolumes::default());
    }
    let namespace = vm.namespace().unwrap_or_default();
    let all = data_volumes(cluster, &namespace);
    let mut found = vec![];
    for template in templates {
        let name = template.name();
        let there = call_opt("get", || format!("data volume {namespace}/{name}"), all.get(name)).await?;
        found.push(there.map(|there| DataVolumeState::of(&there, vm)));
    }
    let found = DataVolumes(found);
    if found.are_filled() {
        cluster.filled.done(vm);
    }
    Ok(found)
}

/// When to look again, where something may still change.
pub(super) fn interval(volumes: &DataVolumes, vmi: Option<&VirtualMachineInstance>) -> Option<Duration> {
    // Without an instance no pod will bind claims that wait for a first consumer.
    let settled = volumes.are_filled() || (vmi.is_none() && volumes.are_ready());
    let any = volumes.0.iter().any(Option::is_some);
    (any && !settled).then(|| if volumes.failed().next().is_some() { FAILED } else { INTERVAL })
}

/// Does the work, up to the first refusal.
pub(super) async fn provide(
    cluster: &Cluster,
    vm: &VirtualMachine,
    work: &Work,
) -> Result<Result<(), Refusal>, Error> {
    for name in &work.adopt {
        adopt(cluster, vm, name).await?;
    }
    for template in work.make.iter().filter_map(|index| vm.spec.data_volume_templates.get(*index)) {
        if let Err(refusal) = make(cluster, vm, template).await? {
            return Ok(Err(refusal));
        }
    }
    Ok(Ok(()))
}

async fn make(
    cluster: &Cluster,
    vm: &VirtualMachine,
    template: &DataVolumeTemplateSpec,
) -> Result<Result<(), Refusal>, Error> {
    let (namespace, name) = (vm.namespace().unwrap_or_default(), template.name());
    let resolved = resolve(cluster, vm, template).await?;
    let (spec, origin) = match resolved.and_then(|spec| planned::origin(&spec).map(|origin| (spec, origin))) {
        Ok(found) => found,
        Err(why) => {
            let why = format!("unable to create DataVolume manifest: {why}");
            return Ok(Err(Refusal::new(None, &why)));
        }
    };
    if let Some(origin) = &origin
        && !may_copy(cluster, vm, origin).await?
    {
        let (account, place) = (planned::account(vm), origin.place());
        let why = format!(
            "User {account} has insufficient permissions in clone source namespace {}",
            place.namespace
        );
        let text = format!("Not authorized to create DataVolume {name}: {why}");
        let note = Note::warning(REASON_UNAUTHORIZED_DATA_VOLUME_CREATE, text);
        return Ok(Err(Refusal::new(Some(note), &format!("not authorized to create DataVolume: {why}"))));
    }
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    let wanted = planned::manifest(vm, template, spec);
    let all = data_volumes(cluster, &namespace);
    match call("create", || format!("data volume {namespace}/{name}"), all.create(&params, &wanted)).await {
        Ok(_) => {
            let text = format!("Created DataVolume {name}");
            cluster.notes.tell(Note::normal(REASON_SUCCESSFUL_DATA_VOLUME_CREATE, text), vm.object_ref(&()));
            info!(namespace, vm = vm.name_any(), data_volume = name, "made a data volume");
            if let Some(origin) = &origin {
                report_missing_origin(cluster, vm, name, origin).await?;
            }
            Ok(Ok(()))
        }
        // It was made a moment ago, or the namespace is ending: the next look shows.
        Err(error) if matches!(error.category(), Category::Conflict | Category::Ending) => Err(error),
        Err(error) => {
            let why = match error.category() {
                Category::Gone => format!(
                    "spec.dataVolumeTemplates needs CDI: this cluster has no kind DataVolume of {}/v1beta1",
                    cdi::GROUP
                ),
                _ => error.message(),
            };
            let text = format!("Error creating DataVolume {name}: {why}");
            let note = Note::warning(REASON_FAILED_DATA_VOLUME_CREATE, text);
            Ok(Err(Refusal::new(Some(note), &format!("failed to create DataVolume: {why}"))))
        }
    }
}

/// The specification with its source, or why there is none.
async fn resolve(
    cluster: &Cluster,
    vm: &VirtualMachine,
    template: &DataVolumeTemplateSpec,
) -> Result<Result<DataVolumeSpec, String>, Error> {
    let namespace = vm.namespace().unwrap_or_default();
    let place = match planned::data_source(&template.spec, &namespace) {
        Ok(place) => place,
        Err(why) => return Ok(Err(why)),
    };
    let mut source = None;
    if let Some(place) = place {
        let resource = cdi::resource(cdi::DATA_SOURCE);
        let all: Api<DynamicObject> =
            Api::namespaced_with(cluster.client.clone(), &place.namespace, &resource);
        let about = format!("DataSource {}/{}", place.namespace, place.name);
        let Some(found) = call_opt("get", || about.clone(), all.get(&place.name)).await? else {
            return Ok(Err(format!("there is no {about}")));
        };
        source = Some(found.data);
    }
    Ok(planned::resolved(&template.spec, &namespace, source.as_ref()))
}

/// Asks the API server whether the machine's account may copy.
async fn may_copy(cluster: &Cluster, vm: &VirtualMachine, origin: &Origin) -> Result<bool, Error> {
    let alternatives = planned::questions(vm, origin);
    if alternatives.is_empty() {
        return Ok(true);
    }
    let reviews: Api<SubjectAccessReview> = Api::all(cluster.client.clone());
    for questions in alternatives {
        let mut all = true;
        for question in questions {
            let about = || format!("access review of {}", subject(vm));
            let answer = call("create", about, reviews.create(&PostParams::default(), &question)).await?;
            let answer = answer.status.unwrap_or_default();
            all &= answer.allowed && !answer.denied.unwrap_or_default();
        }
        if all {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A copy may be requested before its source exists. Only an account that may copy the source gets a report of whether it exists.
async fn report_missing_origin(
    cluster: &Cluster,
    vm: &VirtualMachine,
    name: &str,
    origin: &Origin,
) -> Result<(), Error> {
    let Origin::Claim(place) = origin else { return Ok(()) };
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), &place.namespace);
    let about = || format!("claim {}/{}", place.namespace, place.name);
    if call_opt("get", about, claims.get_metadata(&place.name)).await?.is_none() {
        let text = format!(
            "Source PVC {} not available: Target PVC {name} will remain unpopulated until source is created",
            place.name
        );
        cluster.notes.tell(Note::warning(REASON_SOURCE_CLAIM_NOT_AVAILABLE, text), vm.object_ref(&()));
    }
    Ok(())
}

/// Makes the machine the owner of a DataVolume without one, at the observed version.
async fn adopt(cluster: &Cluster, vm: &VirtualMachine, name: &str) -> Result<(), Error> {
    let namespace = vm.namespace().unwrap_or_default();
    if !may_adopt(&cluster.client, || subject(vm), vm).await? {
        return Ok(());
    }
    let all = data_volumes(cluster, &namespace);
    let about = || format!("data volume {namespace}/{name}");
    let Some(found) = call_opt("get", about, all.get_metadata(name)).await? else { return Ok(()) };
    if ownership::controller(&found.metadata).is_some() || found.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let mut owners = found.owner_references().to_vec();
    owners.retain(|owner| Some(&owner.uid) != vm.metadata.uid.as_ref());
    owners.push(ownership::owner(vm));
    let body = json!({"metadata": {
        "resourceVersion": found.metadata.resource_version, "uid": found.metadata.uid, "ownerReferences": owners
    }});
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let patch = Patch::Merge(&body);
    call("adopt", about, all.patch_metadata(name, &params, &patch)).await?;
    info!(namespace, vm = vm.name_any(), data_volume = name, "adopted a data volume");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volumes(phase: &str) -> DataVolumes {
        let state = DataVolumeState {
            name: "root".to_owned(),
            phase: phase.to_owned(),
            ..DataVolumeState::default()
        };
        DataVolumes(vec![Some(state)])
    }

    #[test]
    fn unfinished_data_volumes_are_looked_at_again() {
        let vmi = VirtualMachineInstance::new("web", Default::default());
        for (phase, alone, with_instance) in [
            ("", Some(INTERVAL), Some(INTERVAL)),
            ("ImportInProgress", Some(INTERVAL), Some(INTERVAL)),
            ("Failed", Some(FAILED), Some(FAILED)),
            // No pod will bind it.
            ("WaitForFirstConsumer", None, Some(INTERVAL)),
            ("PendingPopulation", None, Some(INTERVAL)),
            ("Succeeded", None, None),
        ] {
            assert_eq!(interval(&volumes(phase), None), alone, "{phase}");
            assert_eq!(interval(&volumes(phase), Some(&vmi)), with_instance, "{phase}");
        }
        assert_eq!(interval(&DataVolumes(vec![None]), None), None);
        assert_eq!(interval(&DataVolumes::default(), Some(&vmi)), None);
    }
}
