//! Carries out a machine's step, and reports.

use super::patches::{patch_machine, switch_on, write_cards};
use super::plan::{Observed, Step};
use super::status::{self, Outcome};
use super::subject::subject;
use super::{data_volumes, expansion, instancetype, revision, volumes};
use crate::adoption::may_adopt;
use crate::cluster::Cluster;
use crate::expectations::{Key, Kind};
use crate::merge;
use crate::ownership;
use crate::vmi::InstanceEnd;
use crate::write;
use crate::write::FIELD_MANAGER;
use barevirt_api::names::{
    APP_LABEL, APP_LAUNCHER, REASON_FAILED_CREATE, REASON_FAILED_DATA_VOLUME_IMPORT, REASON_FAILED_DELETE,
    REASON_SUCCESSFUL_CREATE, REASON_SUCCESSFUL_DELETE, STATUS_DATA_VOLUME_ERROR, VM_FINALIZER,
    VM_NAME_LABEL, vmi_id,
};
use barevirt_api::v1::{VirtualMachine, VirtualMachineInstance};
use barevirt_component::error::response;
use barevirt_component::notes::Note;
use barevirt_component::request::{Category, Error};
use barevirt_component::request::{call, call_opt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, PostParams, Preconditions};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tracing::info;

/// When to look again while objects of a former run still exist; their end also comes as an event.
const HELD: Duration = Duration::from_secs(5);
/// When to look again while another owner's instance has our name.
const BLOCKED: Duration = Duration::from_secs(30);
/// When to look again for a missing instance type or preference, or try again to make a DataVolume. They are not watched:
/// most are made before they are named.
const MISSING: Duration = Duration::from_secs(10);
/// Reason of a machine whose volumes cannot be changed as wanted; KubeVirt's.
const VOLUMES_UPDATE_ERROR: &str = "VolumesUpdateError";
/// When to look again after the API server showed that the observation was old.
const STALE: Duration = Duration::from_millis(200);

/// Carries out the step and reports; returns when to look again.
pub(super) async fn apply(
    cluster: &Cluster,
    observed: &Observed,
    step: Step,
) -> Result<Option<Duration>, Error> {
    let vm = &observed.vm;
    let mut vmi = observed.own_vmi().cloned();
    let mut failure = None;
    let (outcome, again) = match step {
        Step::Rest | Step::Report => (Outcome::Quiet, None),
        Step::Wait(left) => (Outcome::Quiet, Some(left)),
        Step::Blocked(message) => (Outcome::Failed { reason: REASON_FAILED_CREATE, message }, Some(BLOCKED)),
        Step::Hold => {
            let mut finalizers = vm.finalizers().to_vec();
            finalizers.push(VM_FINALIZER.to_owned());
            return patch_machine(cluster, vm, json!({"finalizers": finalizers})).await.map(|()| None);
        }
        Step::Cards(interfaces, networks) => {
            return write_cards(cluster, vm, &interfaces, &networks).await.map(|()| None);
        }
        Step::Remember(name, value) => {
            return patch_machine(cluster, vm, json!({"annotations": {name: value}})).await.map(|()| None);
        }
        Step::Record => match instancetype::record(cluster, vm).await? {
            Ok(references) => (Outcome::Recorded(Box::new(references)), None),
            Err(refusal) => refused(cluster, vm, refusal),
        },
        Step::Expand => match expansion::expand(cluster, vm).await? {
            Ok(()) => return Ok(None),
            Err(refusal) => refused(cluster, vm, refusal),
        },
        Step::Provide(work) => match data_volumes::provide(cluster, vm, &work).await? {
            Ok(()) => return Ok(Some(STALE)),
            Err(refusal) => unprovided(cluster, vm, refusal),
        },
        Step::OverQuota(name, why) => unprovided(cluster, vm, data_volumes::Refusal::over_quota(&name, &why)),
        Step::SwitchOn => return switch_on(cluster, vm).await.map(|()| None),
        Step::Note(generation) => {
            note(cluster, observed, generation).await?;
            return Ok(None);
        }
        Step::Update(spec, generation) => {
            update(cluster, observed, &spec, generation).await?;
            return Ok(None);
        }
        Step::Move(body) => {
            volumes::change(cluster, observed, *body).await?;
            return Ok(Some(STALE));
        }
        Step::GiveUp => {
            if let Some(vmi) = observed.own_vmi() {
                volumes::give_up(cluster, vmi, true).await?;
            }
            (Outcome::Quiet, None)
        }
        Step::Stuck(why) => {
            let message = format!("error encountered while handling volumes update requests: {why}");
            (Outcome::Failed { reason: VOLUMES_UPDATE_ERROR, message }, None)
        }
        Step::Release => return release(cluster, observed).await,
        Step::Adopt => return adopt(cluster, observed).await,
        Step::Start(instance) => match applied_and_started(cluster, vm, *instance).await {
            Ok(Err(refusal)) => refused(cluster, vm, refusal),
            Ok(Ok(Some(started))) => {
                vmi = Some(started);
                (Outcome::Quiet, None)
            }
            Ok(Ok(None)) => (Outcome::Held, Some(HELD)),
            Err(error) if error.category() == Category::Refused => {
                let message = format!("Error creating virtual machine instance: {}", error.message());
                report_once(cluster, vm, Note::warning(REASON_FAILED_CREATE, &message), &message);
                failure = Some(error);
                (Outcome::Failed { reason: REASON_FAILED_CREATE, message }, None)
            }
            Err(error) => return Err(error),
        },
        Step::Stop(uid) => match stop(cluster, vm, &uid).await {
            Ok(Some(stopped)) => {
                vmi = Some(stopped);
                (Outcome::Quiet, None)
            }
            Ok(None) => return Ok(Some(STALE)),
            Err(error) if error.category() == Category::Refused => {
                let message =
                    format!("Error deleting virtual machine instance {}: {}", vm.name_any(), error.message());
                report_once(cluster, vm, Note::warning(REASON_FAILED_DELETE, &message), &message);
                failure = Some(error);
                (Outcome::Failed { reason: REASON_FAILED_DELETE, message }, None)
            }
            Err(error) => return Err(error),
        },
    };
    let postponed = report(cluster, observed, vmi.as_ref(), &outcome).await?;
    let filling = data_volumes::interval(&observed.data_volumes, vmi.as_ref());
    match failure {
        Some(error) => Err(error),
        None => {
            let moves = volumes::interval(&observed.volumes);
            Ok([again, postponed, filling, moves].into_iter().flatten().min())
        }
    }
}

/// Emits an event, unless the Failure condition already has that message: retries are not reported again.
fn report_once(cluster: &Cluster, vm: &VirtualMachine, note: Note, message: &str) {
    let known = vm.status.as_ref().and_then(|status| {
        barevirt_api::v1::Condition::find(&status.conditions, barevirt_api::names::CONDITION_FAILURE)
    });
    if known.and_then(|known| known.message.as_deref()) != Some(message) {
        cluster.notes.tell(note, vm.object_ref(&()));
    }
}

/// Writes the status where it differs from the stored one; returns a pause if the write can wait that long.
async fn report(
    cluster: &Cluster,
    observed: &Observed,
    vmi: Option<&VirtualMachineInstance>,
    outcome: &Outcome,
) -> Result<Option<Duration>, Error> {
    let vm = &observed.vm;
    let wanted = status::compute(observed, vmi, outcome);
    // Our types always have a JSON form: their maps have only string keys.
    let old = serde_json::to_value(vm.status.clone().unwrap_or_default()).unwrap_or_default();
    let new = serde_json::to_value(&wanted).unwrap_or_default();
    let Some(change) = merge::difference(&old, &new) else { return Ok(None) };
    if let Some(left) = status::passes(observed, &wanted) {
        return Ok(Some(left));
    }
    // virt-api adds commands to the same status: none may be lost.
    let body = json!({
        "metadata": {"resourceVersion": vm.metadata.resource_version}, "status": change
    });
    let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
    write::patch_status::<VirtualMachine>(cluster, "report the status of", &namespace, &name, &body).await?;
    let before = vm.status.as_ref().and_then(|status| status.printable_status.as_deref());
    if before != wanted.printable_status.as_deref() {
        info!(namespace, vm = name, status = wanted.printable_status, "status changed");
        if wanted.printable_status.as_deref() == Some(STATUS_DATA_VOLUME_ERROR) {
            for failed in observed.data_volumes.failed() {
                let text = format!("DataVolume {} failed to import disk image", failed.name);
                cluster.notes.tell(Note::warning(REASON_FAILED_DATA_VOLUME_IMPORT, text), vm.object_ref(&()));
            }
        }
    }
    Ok(None)
}

/// Reports what the machine names and is missing; it is looked up again later.
fn refused(
    cluster: &Cluster,
    vm: &VirtualMachine,
    refusal: instancetype::Refusal,
) -> (Outcome, Option<Duration>) {
    let instancetype::Refusal { reason, message } = refusal;
    report_once(cluster, vm, Note::warning(reason, &message), &message);
    (Outcome::Failed { reason, message }, Some(MISSING))
}

/// Reports why a DataVolume cannot be made; it is tried again later.
fn unprovided(
    cluster: &Cluster,
    vm: &VirtualMachine,
    refusal: data_volumes::Refusal,
) -> (Outcome, Option<Duration>) {
    let data_volumes::Refusal { note, message } = refusal;
    if let Some(note) = note {
        report_once(cluster, vm, note, &message);
    }
    (Outcome::Failed { reason: REASON_FAILED_CREATE, message }, Some(MISSING))
}

/// Creates the instance with the machine's instance type and preference.
async fn applied_and_started(
    cluster: &Cluster,
    vm: &VirtualMachine,
    instance: VirtualMachineInstance,
) -> Result<Result<Option<VirtualMachineInstance>, instancetype::Refusal>, Error> {
    match instancetype::applied(cluster, vm, instance).await? {
        Ok(instance) => start(cluster, vm, &instance).await.map(Ok),
        Err(refusal) => Ok(Err(refusal)),
    }
}

/// Creates the instance; `None` where a launcher of that name may still run.
async fn start(
    cluster: &Cluster,
    vm: &VirtualMachine,
    instance: &VirtualMachineInstance,
) -> Result<Option<VirtualMachineInstance>, Error> {
    let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &namespace);
    let launchers = ListParams::default()
        .labels(&format!("{APP_LABEL}={APP_LAUNCHER},{VM_NAME_LABEL}={}", vmi_id(&name)));
    let found = call("list", || format!("launcher pods of {}", subject(vm)), pods.list(&launchers)).await?;
    if let Some(pod) = found.iter().find(|pod| InstanceEnd::of(pod).is_none()) {
        info!(namespace, vm = name, pod = pod.name_any(), "the start waits for a former launcher pod");
        return Ok(None);
    }
    revision::keep(cluster, vm).await?;

    let vmis: Api<VirtualMachineInstance> = Api::namespaced(cluster.client.clone(), &namespace);
    let vmi_subject = || format!("virtual machine instance {namespace}/{name}");
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    let write = cluster.expectations.begin(Key::new(Kind::Vmi, &namespace, &name), Instant::now());
    let created = match call("create", vmi_subject, vmis.create(&params, instance)).await {
        Ok(created) => created,
        Err(Error::Api { source, .. }) if response(&source).is_some_and(|a| a.reason == "AlreadyExists") => {
            let existing = call("get", vmi_subject, vmis.get(&name)).await?;
            return match ownership::controller(existing.meta()) {
                Some(owner) if Some(&owner.uid) == vm.metadata.uid.as_ref() => Ok(Some(existing)),
                Some(owner) => Err(Error::Foreign {
                    subject: vmi_subject(),
                    owner: format!("{} {}", owner.kind, owner.name),
                }),
                // The next look adopts it, once the cache shows it.
                None => Ok(None),
            };
        }
        Err(error) => return Err(error),
    };
    write.done(created.metadata.resource_version.as_deref());
    let text = format!("Started the virtual machine by creating the new virtual machine instance {name}");
    cluster.notes.tell(Note::normal(REASON_SUCCESSFUL_CREATE, text), vm.object_ref(&()));
    info!(namespace, vm = name, uid = created.metadata.uid, "created the instance");
    Ok(Some(created))
}

/// Deletes the instance; `None` where the machine does not own it any more.
async fn stop(
    cluster: &Cluster,
    vm: &VirtualMachine,
    uid: &str,
) -> Result<Option<VirtualMachineInstance>, Error> {
    let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(cluster.client.clone(), &namespace);
    let vmi_subject = || format!("virtual machine instance {namespace}/{name}");
    // An instance that was just orphaned must live: read from the API server, and deleted at exactly that version.
    let Some(mut fresh) = call_opt("get", vmi_subject, vmis.get(&name)).await? else { return Ok(None) };
    if !ownership::is_controlled_by(fresh.meta(), vm.meta()) || fresh.metadata.uid.as_deref() != Some(uid) {
        return Ok(None);
    }
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: fresh.metadata.resource_version.clone(),
        }),
        ..DeleteParams::default()
    };
    if let Some(deleted) = write::delete(cluster, &namespace, &name, &params).await? {
        fresh = deleted;
    }
    let text = format!("Stopped the virtual machine by deleting the virtual machine instance {name}");
    cluster.notes.tell(Note::normal(REASON_SUCCESSFUL_DELETE, text), vm.object_ref(&()));
    info!(namespace, vm = name, uid, "deleted the instance");
    Ok(Some(fresh))
}

/// Becomes the controller of the orphan that has the machine's name.
async fn adopt(cluster: &Cluster, observed: &Observed) -> Result<Option<Duration>, Error> {
    let vm = &observed.vm;
    let Some(vmi) = &observed.vmi else { return Ok(None) };
    let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
    if !may_adopt(&cluster.client, || subject(vm), vm).await? {
        return Ok(Some(STALE));
    }
    let mut owners = vmi.owner_references().to_vec();
    owners.push(ownership::owner(vm));
    let body = json!({"metadata": {
        "resourceVersion": vmi.metadata.resource_version, "uid": vmi.metadata.uid, "ownerReferences": owners
    }});
    write::patch::<VirtualMachineInstance>(cluster, "adopt", &namespace, &name, &body).await?;
    info!(namespace, vm = name, uid = vmi.metadata.uid, "adopted the instance");
    Ok(None)
}

/// Records the machine's generation on its instance.
async fn note(cluster: &Cluster, observed: &Observed, generation: i64) -> Result<(), Error> {
    let Some(vmi) = observed.own_vmi() else { return Ok(()) };
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), vmi.name_any());
    let body = json!({"metadata": {
        "resourceVersion": vmi.metadata.resource_version,
        "annotations": revision::annotations(&observed.vm, vmi, Some(generation)),
    }});
    write::patch::<VirtualMachineInstance>(cluster, "patch", &namespace, &name, &body).await
}

/// Applies a change of the machine to the instance.
async fn update(
    cluster: &Cluster,
    observed: &Observed,
    spec: &Value,
    generation: Option<i64>,
) -> Result<(), Error> {
    let Some(vmi) = observed.own_vmi() else { return Ok(()) };
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), vmi.name_any());
    let annotations = revision::annotations(&observed.vm, vmi, generation);
    let metadata = json!({"resourceVersion": vmi.metadata.resource_version, "annotations": annotations});
    let body = json!({"metadata": metadata, "spec": spec});
    write::patch::<VirtualMachineInstance>(cluster, "update", &namespace, &name, &body).await?;
    info!(namespace, vm = name, change = %spec, "the instance takes a change over");
    Ok(())
}

/// Releases the machine, unless the API server still has an instance of it.
async fn release(cluster: &Cluster, observed: &Observed) -> Result<Option<Duration>, Error> {
    let vm = &observed.vm;
    let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
    let orphaning = vm.finalizers().iter().any(|finalizer| finalizer == "orphan");
    if !orphaning {
        let vmis: Api<VirtualMachineInstance> = Api::namespaced(cluster.client.clone(), &namespace);
        let vmi_subject = || format!("virtual machine instance {namespace}/{name}");
        let found = call_opt("get", vmi_subject, vmis.get_metadata(&name)).await?;
        let ours = found.is_some_and(|found| {
            found.owner_references().iter().any(|owner| Some(&owner.uid) == vm.metadata.uid.as_ref())
        });
        if ours {
            return Ok(Some(STALE));
        }
    }
    let left: Vec<&String> = vm.finalizers().iter().filter(|finalizer| *finalizer != VM_FINALIZER).collect();
    patch_machine(cluster, vm, json!({"finalizers": left})).await?;
    info!(namespace, vm = name, "released the machine");
    Ok(None)
}
