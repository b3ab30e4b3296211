//! Persistent state (UEFI variables, TPM) that moves with its guest, where its claim is reached from one node only.
//!
//! ```text
//!   the target pod is made   with a claim of its own: without the label, annotated with the migration
//!   the guest has arrived    the handler's patch names this claim in the status of the instance
//!   then                     the claim gets the label, and the name of the claim that it replaces
//!                            the former claim is deleted, or loses its label if it is a user's
//!   the migration failed     the new claim is deleted, while it has the annotation
//! ```
//!
//! QEMU sends the state, so the new claim is empty at first. The next start of the machine takes the labelled claim that no
//! other labelled claim replaces: it always finds exactly one, whenever this program is interrupted. The label is set before
//! the migration is reported as Succeeded, and before the finalizer of a deleted instance is removed.

use super::others::is_over;
use super::subject::subject;
use crate::cluster::Cluster;
use crate::generated;
use crate::ownership;
use crate::write::FIELD_MANAGER;
use barevirt_api::firmware::{STATE_LABEL as LABEL, STATE_VOLUME};
use barevirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration};
use barevirt_component::request::{Error, call, call_opt};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::{Value, json};
use tracing::{info, warn};

/// Annotation of a claim that a migration made: its UID. It is removed when the claim is the instance's.
const OF_MIGRATION: &str = "barevirt.dev/state-of-migration";
/// Annotation of a claim to which the state has moved: the name of the former claim.
const REPLACES: &str = "barevirt.dev/replaces-state";

/// The claims of an instance whose state has moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    /// The former claim.
    pub(crate) from: String,
    /// The claim that has the state.
    pub(crate) to: String,
}

/// A step towards the one claim of an instance whose state has moved.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// Merge this into the claim.
    Patch(String, Value),
    /// Delete the claim with this UID.
    Delete(String, String),
}

/// The claims between which the state of an instance has moved.
pub(crate) fn moved(vmi: &VirtualMachineInstance) -> Option<Moved> {
    let state = vmi.status.as_ref()?.migration_state.as_ref()?;
    if !is_over(state) || state.failed == Some(true) {
        return None;
    }
    let from = state.source_persistent_state_pvc_name.clone()?;
    let to = state.target_persistent_state_pvc_name.clone()?;
    (from != to).then_some(Moved { from, to })
}

/// Name of the claim that a migration makes. It is derived from the migration's UID, so that there cannot be two.
fn claim_name(vmi: &str, migration: &str) -> String {
    generated::name(&format!("{LABEL}-{vmi}-"), migration)
}

/// The claim for the target of a migration; `None` if both nodes reach the present claim.
pub(super) fn of_target(
    vmi: &VirtualMachineInstance,
    migration: &VirtualMachineInstanceMigration,
    own: &PersistentVolumeClaim,
) -> Option<PersistentVolumeClaim> {
    let spec = own.spec.clone().unwrap_or_default();
    if spec.access_modes.iter().flatten().any(|mode| mode == "ReadWriteMany") {
        return None;
    }
    let uid = migration.metadata.uid.clone().unwrap_or_default();
    Some(PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(claim_name(&vmi.name_any(), &uid)),
            namespace: vmi.namespace(),
            annotations: Some([(OF_MIGRATION.to_owned(), uid)].into()),
            owner_references: own.metadata.owner_references.clone(),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: spec.access_modes,
            resources: spec.resources,
            storage_class_name: spec.storage_class_name,
            volume_mode: spec.volume_mode,
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    })
}

/// The claim of an instance among those with its label: the one in its status, else the one that no other replaces.
pub(super) fn current(
    vmi: &VirtualMachineInstance,
    found: Vec<PersistentVolumeClaim>,
) -> Option<PersistentVolumeClaim> {
    let told = vmi.status.iter().flat_map(|status| &status.volume_status);
    let mut told = told.filter(|told| told.name == STATE_VOLUME);
    let told = told.find_map(|told| told.persistent_volume_claim_info.as_ref()?.claim_name.clone());
    let found: Vec<_> =
        found.into_iter().filter(|claim| claim.metadata.deletion_timestamp.is_none()).collect();
    let replaced: Vec<String> =
        found.iter().filter_map(|claim| claim.annotations().get(REPLACES).cloned()).collect();
    let is_told = |claim: &PersistentVolumeClaim| Some(claim.name_any()) == told;
    let is_free = |claim: &PersistentVolumeClaim| !replaced.contains(&claim.name_any());
    let place = found.iter().position(is_told).or_else(|| found.iter().position(is_free));
    place.and_then(|place| found.into_iter().nth(place))
}

/// What remains to be done with both claims.
fn steps(
    vmi: &VirtualMachineInstance,
    moved: &Moved,
    from: Option<&PersistentVolumeClaim>,
    to: Option<&PersistentVolumeClaim>,
) -> Vec<Step> {
    // Without the new claim, the former one is better than none.
    let Some(to) = to else { return vec![] };
    let mut steps = Vec::new();
    if to.annotations().contains_key(OF_MIGRATION) {
        let body = json!({"metadata": {
            "resourceVersion": to.metadata.resource_version,
            "labels": {LABEL: vmi.name_any()},
            "annotations": {OF_MIGRATION: null, REPLACES: moved.from},
        }});
        steps.push(Step::Patch(moved.to.clone(), body));
    } else if to.labels().get(LABEL) != Some(&vmi.name_any()) {
        // It is no claim that a migration made, or a user removed its label: no start would find it.
        return vec![];
    }
    let Some(from) = from.filter(|from| {
        from.metadata.deletion_timestamp.is_none() && from.labels().get(LABEL) == Some(&vmi.name_any())
    }) else {
        return steps;
    };
    let owner = ownership::controller(&vmi.metadata).map(|owner| owner.uid.clone());
    let ours = |uid: &String| Some(uid) == owner.as_ref() || Some(uid) == vmi.metadata.uid.as_ref();
    steps.push(if from.owner_references().iter().any(|owner| ours(&owner.uid)) {
        Step::Delete(moved.from.clone(), from.uid().unwrap_or_default())
    } else {
        Step::Patch(moved.from.clone(), json!({"metadata": {"labels": {LABEL: null}}}))
    });
    steps
}

/// Makes the claim to which the state has moved the instance's only one.
///
/// # Errors
/// The API server's error.
pub(crate) async fn settle(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    moved: &Moved,
) -> Result<(), Error> {
    let namespace = vmi.namespace().unwrap_or_default();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), &namespace);
    let subject_of = |name: &str| format!("claim {namespace}/{name}");
    let from = call_opt("get", || subject_of(&moved.from), claims.get(&moved.from)).await?;
    let to = call_opt("get", || subject_of(&moved.to), claims.get(&moved.to)).await?;
    if to.is_none() {
        warn!(vmi = subject(vmi), claim = moved.to, "the claim to which the state has moved is gone");
    }
    for step in steps(vmi, moved, from.as_ref(), to.as_ref()) {
        match step {
            Step::Patch(name, body) => {
                let params =
                    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
                let patch = Patch::Merge(body);
                let request = claims.patch_metadata(&name, &params, &patch);
                call("patch", || subject_of(&name), request).await?;
                info!(vmi = subject(vmi), claim = name, "marked a claim for state that has moved");
            }
            Step::Delete(name, uid) => {
                delete(&claims, &namespace, &name, uid, None).await?;
                info!(vmi = subject(vmi), claim = name, "deleted the claim that the state has left");
            }
        }
    }
    Ok(())
}

/// Deletes the claim that a failed migration made, unless the state has moved there anyway.
///
/// # Errors
/// The API server's error.
pub(crate) async fn discard(
    cluster: &Cluster,
    migration: &VirtualMachineInstanceMigration,
) -> Result<(), Error> {
    let namespace = migration.namespace().unwrap_or_default();
    let uid = migration.metadata.uid.clone().unwrap_or_default();
    let name = claim_name(migration.spec.vmi_name.as_deref().unwrap_or_default(), &uid);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), &namespace);
    let found = call_opt("get", || format!("claim {namespace}/{name}"), claims.get(&name)).await?;
    let Some(found) = found.filter(|found| found.annotations().get(OF_MIGRATION) == Some(&uid)) else {
        return Ok(());
    };
    let version = found.metadata.resource_version.clone();
    delete(&claims, &namespace, &name, found.uid().unwrap_or_default(), version).await?;
    info!(namespace, migration = migration.name_any(), claim = name, "deleted a claim that got no state");
    Ok(())
}

async fn delete(
    claims: &Api<PersistentVolumeClaim>,
    namespace: &str,
    name: &str,
    uid: String,
    resource_version: Option<String>,
) -> Result<(), Error> {
    let params = DeleteParams {
        preconditions: Some(Preconditions { uid: Some(uid), resource_version }),
        ..DeleteParams::default()
    };
    call_opt("delete", || format!("claim {namespace}/{name}"), claims.delete(name, &params)).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vmi(status: Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "i1", "ownerReferences": [machine()]},
            "spec": {"domain": {"devices": {"tpm": {"persistent": true}}}}, "status": status,
        }))
        .unwrap()
    }

    fn machine() -> Value {
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "web", "uid": "m1", "controller": true})
    }

    fn claim(name: &str, metadata: Value) -> PersistentVolumeClaim {
        let mut all = json!({"name": name, "uid": format!("uid-{name}"), "resourceVersion": "5"});
        crate::merge::apply(&mut all, &metadata);
        let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "local", "volumeName": "pv",
            "resources": {"requests": {"storage": "10Mi"}}, "volumeMode": "Filesystem"});
        serde_json::from_value(json!({"metadata": all, "spec": spec})).unwrap()
    }

    fn own() -> PersistentVolumeClaim {
        claim("old", json!({"labels": {LABEL: "web"}, "ownerReferences": [machine()]}))
    }

    fn migration() -> VirtualMachineInstanceMigration {
        let object =
            json!({"metadata": {"name": "move", "namespace": "ns", "uid": "g1"}, "spec": {"vmiName": "web"}});
        serde_json::from_value(object).unwrap()
    }

    fn made() -> PersistentVolumeClaim {
        of_target(&vmi(json!({})), &migration(), &own()).unwrap()
    }

    /// Carries the steps out.
    fn after(from: &mut Option<PersistentVolumeClaim>, to: &mut PersistentVolumeClaim, steps: Vec<Step>) {
        for step in steps {
            match step {
                Step::Delete(name, uid) => {
                    assert_eq!((name.as_str(), uid.as_str()), ("old", "uid-old"));
                    *from = None;
                }
                Step::Patch(name, body) => {
                    let which = if name == "old" { from.as_mut().unwrap() } else { &mut *to };
                    let mut value = serde_json::to_value(&*which).unwrap();
                    crate::merge::apply(&mut value, &body);
                    *which = serde_json::from_value(value).unwrap();
                }
            }
        }
    }

    #[test]
    fn a_claim_of_one_node_has_a_second_one_for_the_target() {
        let made = made();
        let value = serde_json::to_value(&made).unwrap();
        assert!(made.name_any().starts_with("persistent-state-for-web-"));
        assert_eq!(value["metadata"]["annotations"], json!({OF_MIGRATION: "g1"}));
        assert_eq!(value["metadata"]["labels"], Value::Null);
        assert_eq!(value["metadata"]["ownerReferences"][0]["uid"], "m1");
        let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "local",
            "resources": {"requests": {"storage": "10Mi"}}, "volumeMode": "Filesystem"});
        assert_eq!(value["spec"], spec);
        let mut shared = own();
        shared.spec.as_mut().unwrap().access_modes = Some(vec!["ReadWriteMany".to_owned()]);
        assert_eq!(of_target(&vmi(json!({})), &migration(), &shared), None);
    }

    #[test]
    fn the_state_has_moved_once_the_guest_has() {
        let told = |change: Value| {
            let mut state = json!({"completed": true, "endTimestamp": "2026-01-01T00:00:00Z",
                "sourcePersistentStatePVCName": "old", "targetPersistentStatePVCName": "new"});
            crate::merge::apply(&mut state, &change);
            moved(&vmi(json!({"migrationState": state})))
        };
        assert_eq!(told(json!({})), Some(Moved { from: "old".to_owned(), to: "new".to_owned() }));
        for change in [
            json!({"completed": null}),
            json!({"failed": true}),
            json!({"targetPersistentStatePVCName": "old"}),
            json!({"targetPersistentStatePVCName": null}),
        ] {
            assert_eq!(told(change), None);
        }
    }

    #[test]
    fn whenever_it_is_interrupted_the_next_start_finds_one_claim() {
        let instance = vmi(json!({}));
        let mut theirs = own();
        theirs.metadata.owner_references = None;
        for former in [own(), theirs] {
            let (mut from, mut to) = (Some(former.clone()), made());
            let moved = Moved { from: "old".to_owned(), to: to.name_any() };
            let labelled = |from: &Option<PersistentVolumeClaim>, to: &PersistentVolumeClaim| {
                let mut all: Vec<_> = from.iter().chain([to]).cloned().collect();
                all.retain(|claim| claim.labels().get(LABEL).is_some());
                all
            };
            let name = |from: &_, to: &_| current(&instance, labelled(from, to)).unwrap().name_any();
            assert_eq!(name(&from, &to), "old", "nothing has moved yet");
            while let Some(step) = steps(&instance, &moved, from.as_ref(), Some(&to)).into_iter().next() {
                after(&mut from, &mut to, vec![step]);
                assert_eq!(name(&from, &to), moved.to);
            }
            assert_eq!(labelled(&from, &to).len(), 1);
            assert_eq!(from.is_none(), !former.owner_references().is_empty(), "a user's claim stays");
            assert!(!to.annotations().contains_key(OF_MIGRATION));
        }
        let moved = Moved { from: "old".to_owned(), to: "new".to_owned() };
        assert_eq!(steps(&instance, &moved, Some(&own()), None), []);
        // The next start would find neither a claim that a user made under the new name.
        assert_eq!(steps(&instance, &moved, Some(&own()), Some(&claim("new", json!({})))), []);
    }

    #[test]
    fn a_running_instance_has_the_claim_of_its_status() {
        let told = json!({"volumeStatus": [{"name": STATE_VOLUME, "target": "",
            "persistentVolumeClaimInfo": {"claimName": "b"}}]});
        let labelled = |name| claim(name, json!({"labels": {LABEL: "web"}}));
        let all = || vec![labelled("a"), labelled("b")];
        assert_eq!(current(&vmi(told), all()).unwrap().name_any(), "b");
        assert_eq!(current(&vmi(json!({})), all()).unwrap().name_any(), "a");
        assert_eq!(current(&vmi(json!({})), vec![]), None);
    }
}
