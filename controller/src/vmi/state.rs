//! The claim of an instance with UEFI variables or TPM state: KubeVirt's backend storage.
//!
//! It has the same owner as the instance: a machine's claim outlives its instances and is deleted with the machine; the
//! claim of an instance without an owner is deleted with that instance. It is found by its label, and its name is derived
//! from its owner, so that there cannot be two. It is read from the API server, and only for instances that have not
//! started. A machine without persistent state loses its claim at its next start, as in KubeVirt.

use super::kept;
use crate::cluster::Cluster;
use crate::generated;
use crate::ownership;
use barevirt_api::cdi;
use barevirt_api::firmware::{self, STATE_LABEL as LABEL, STATE_VOLUME as VOLUME};
use barevirt_api::v1::{PersistentVolumeClaimInfo, VirtualMachineInstance, VolumeStatus};
use barevirt_component::request::Error;
use barevirt_component::request::{call, call_opt};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, VolumeResourceRequirements,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, ListParams};
use serde_json::Value;

/// Makes CDI, if installed, adapt the claim to its storage class.
const PROFILE_LABEL: &str = "cdi.kubevirt.io/applyStorageProfile";
/// More than enough: the variables and the TPM need less than a mebibyte.
const SIZE: &str = "10Mi";
/// Annotations of default storage classes; the first is preferred.
const DEFAULT_CLASSES: [&str; 2] =
    ["storageclass.kubevirt.io/is-default-virt-class", "storageclass.kubernetes.io/is-default-class"];

/// Reason of an instance whose claim cannot be made.
pub(super) const FAILED_CREATE: &str = "FailedBackendStorageCreate";
/// Reason of an instance whose claim is unusable.
const FAILED_PROBE: &str = "FailedBackendStorageProbe";
/// Reason of an instance whose claim is not ready yet.
const NOT_READY: &str = "BackendStorageNotReady";

/// The observation for an instance that needs a claim.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct State {
    /// Its claim.
    pub claim: Option<PersistentVolumeClaim>,
    /// The class of the claim, or of the claim that is to be made.
    pub class: Option<StorageClass>,
    /// Name of that class, which may not exist.
    pub class_name: Option<String>,
    /// Access mode of a new claim.
    pub access_mode: String,
    /// Claims of a machine that keeps nothing any more: names and UIDs.
    pub left_over: Vec<(String, String)>,
}

/// The next step.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// The instance keeps nothing.
    Nothing,
    /// Its machine does not keep anything any more either: delete these claims.
    Forget(Vec<(String, String)>),
    /// Its claim can be mounted.
    Ready(String),
    /// Create the claim.
    Create(Box<PersistentVolumeClaim>),
    /// Wait: reason and message.
    Wait(&'static str, String),
}

/// Plans the next step.
pub(super) fn step(vmi: &VirtualMachineInstance, state: Option<&State>) -> Step {
    let Some(state) = state else { return Step::Nothing };
    if !firmware::needs_state(&vmi.spec) {
        return match state.left_over.as_slice() {
            [] => Step::Nothing,
            left => Step::Forget(left.to_vec()),
        };
    }
    let Some(claim) = &state.claim else {
        return match &state.class_name {
            Some(class) => Step::Create(Box::new(new_claim(vmi, class, &state.access_mode))),
            None => Step::Wait(FAILED_CREATE, "no default storage class found".to_owned()),
        };
    };
    let name = claim.name_any();
    let waits_for_consumer = || {
        state
            .class
            .as_ref()
            .is_some_and(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"))
    };
    match claim.status.as_ref().and_then(|status| status.phase.as_deref()) {
        Some("Bound") => Step::Ready(name),
        Some("Lost") => Step::Wait(FAILED_PROBE, format!("backend storage PVC {name} lost")),
        _ if waits_for_consumer() => Step::Ready(name),
        _ if state.class.is_none() => {
            let class = state.class_name.as_deref().unwrap_or_default();
            Step::Wait(FAILED_PROBE, format!("storage class {class} of PVC {name} not found"))
        }
        _ => Step::Wait(NOT_READY, format!("PVC pending: {name}")),
    }
}

/// Adds the claim to the instance's status.
pub(super) fn note(state: Option<&State>, volumes: &mut Vec<VolumeStatus>) {
    let Some(claim) = state.and_then(|state| state.claim.as_ref()) else { return };
    let info = PersistentVolumeClaimInfo {
        claim_name: Some(claim.name_any()),
        access_modes: claim.spec.as_ref().and_then(|spec| spec.access_modes.clone()).unwrap_or_default(),
        ..PersistentVolumeClaimInfo::default()
    };
    volumes.retain(|volume| volume.name != VOLUME);
    volumes.push(VolumeStatus {
        name: VOLUME.to_owned(),
        persistent_volume_claim_info: Some(info),
        ..VolumeStatus::default()
    });
}

fn new_claim(vmi: &VirtualMachineInstance, class: &str, access_mode: &str) -> PersistentVolumeClaim {
    let owners = match vmi.owner_references() {
        [] => vec![ownership::owner(vmi)],
        owners => owners.to_vec(),
    };
    let name = vmi.name_any();
    let seed = owners.first().map(|owner| owner.uid.clone()).unwrap_or_default();
    let labels = [(LABEL, name.as_str()), (PROFILE_LABEL, "true")];
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            // Each instance of a replica set has its own claim.
            name: Some(generated::name(&format!("{LABEL}-{name}-"), &format!("{seed}/{name}"))),
            namespace: vmi.namespace(),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            owner_references: Some(owners),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec![access_mode.to_owned()]),
            resources: Some(VolumeResourceRequirements {
                requests: Some([("storage".to_owned(), Quantity(SIZE.to_owned()))].into()),
                limits: None,
            }),
            storage_class_name: Some(class.to_owned()),
            volume_mode: Some("Filesystem".to_owned()),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}

/// The class of new claims: the installation's, otherwise the cluster's default for machines, otherwise the cluster's
/// default.
fn choose<'a>(named: Option<&str>, classes: &'a [StorageClass]) -> Option<&'a StorageClass> {
    if let Some(named) = named {
        return classes.iter().find(|class| class.name_any() == named);
    }
    let is = |class: &StorageClass, annotation: &str| {
        class.annotations().get(annotation).is_some_and(|value| value == "true")
    };
    DEFAULT_CLASSES
        .into_iter()
        .find_map(|annotation| classes.iter().rev().find(|class| is(class, annotation)))
}

/// A configured class is assumed to be shared between nodes, the cluster's default is not; CDI's profile of the class
/// overrides both.
fn access_mode(named: bool, profile: Option<&Value>) -> String {
    let sets = profile.and_then(|profile| profile["status"]["claimPropertySets"].as_array());
    let modes: Vec<&str> = sets
        .into_iter()
        .flatten()
        .filter(|set| set["volumeMode"] == "Filesystem")
        .filter_map(|set| set["accessModes"].as_array())
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let has = |mode: &str| modes.contains(&mode);
    let shared = has("ReadWriteMany") || (named && !has("ReadWriteOnce"));
    if shared { "ReadWriteMany" } else { "ReadWriteOnce" }.to_owned()
}

/// Looks. `None` for an instance that keeps nothing, unless it is about to start and its machine has claims left.
pub(super) async fn observe(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    begins: bool,
) -> Result<Option<State>, Error> {
    let needed = firmware::needs_state(&vmi.spec);
    let machine = ownership::controller(&vmi.metadata).filter(|owner| owner.kind == "VirtualMachine");
    if !needed && (!begins || machine.is_none()) {
        return Ok(None);
    }
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), vmi.name_any());
    let subject = || format!("claims of {}", super::subject::subject(vmi));
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), &namespace);
    let labelled = ListParams::default().labels(&format!("{LABEL}={name}"));
    let found = call("list", subject, claims.list(&labelled)).await?.items;
    if !needed {
        let left_over = left_over(machine.map(|machine| machine.uid.as_str()).unwrap_or_default(), &found);
        return Ok(Some(State { left_over, ..State::default() }));
    }
    let claim = kept::current(vmi, found);

    let classes: Api<StorageClass> = Api::all(cluster.client.clone());
    if let Some(claim) = claim {
        let class_name = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.clone());
        let bound = claim.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Bound"));
        let class = match &class_name {
            Some(class) if !bound => {
                call_opt("get", || format!("storage class {class}"), classes.get(class)).await?
            }
            _ => None,
        };
        return Ok(Some(State { claim: Some(claim), class, class_name, ..State::default() }));
    }
    let config = cluster.config();
    let named = config.settings.pods.state_class.as_deref();
    let all = call("list", || "storage classes".to_owned(), classes.list(&ListParams::default())).await?;
    let class = choose(named, &all.items).cloned();
    // The claim that waits for it reports a configured class that does not exist.
    let class_name = named.map(str::to_owned).or_else(|| class.as_ref().map(ResourceExt::name_any));
    let profile = match &class_name {
        Some(class) => profile(cluster, class).await?,
        None => None,
    };
    let access_mode = access_mode(named.is_some(), profile.as_ref());
    Ok(Some(State { class, class_name, access_mode, ..State::default() }))
}

/// The labelled claims that the machine owns; other claims with the label are never deleted.
fn left_over(machine: &str, found: &[PersistentVolumeClaim]) -> Vec<(String, String)> {
    let ours = |claim: &&PersistentVolumeClaim| {
        claim.metadata.deletion_timestamp.is_none()
            && claim.owner_references().iter().any(|owner| owner.uid == machine)
    };
    found.iter().filter(ours).map(|claim| (claim.name_any(), claim.uid().unwrap_or_default())).collect()
}

/// CDI's profile of a class; `None` without CDI.
async fn profile(cluster: &Cluster, class: &str) -> Result<Option<Value>, Error> {
    let profiles: Api<DynamicObject> =
        Api::all_with(cluster.client.clone(), &cdi::resource("StorageProfile"));
    let found = call_opt("get", || format!("storage profile {class}"), profiles.get(class)).await?;
    Ok(found.map(|profile| profile.data))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn vmi(owners: Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "i1", "ownerReferences": owners},
            "spec": {"domain": {"devices": {"tpm": {"persistent": true}}}},
        }))
        .unwrap()
    }

    fn machine() -> Value {
        json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "web", "uid": "m1", "controller": true}])
    }

    fn class(name: &str, annotation: Option<&str>, binding: &str) -> StorageClass {
        let annotations = annotation.map(|annotation| json!({annotation: "true"}));
        serde_json::from_value(json!({
            "metadata": {"name": name, "annotations": annotations}, "provisioner": "p", "volumeBindingMode": binding,
        }))
        .unwrap()
    }

    fn with_claim(phase: &str, class: Option<StorageClass>) -> State {
        let claim = serde_json::from_value(json!({
            "metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"]}, "status": {"phase": phase},
        }))
        .unwrap();
        State { claim: Some(claim), class, class_name: Some("local".to_owned()), ..State::default() }
    }

    #[test]
    fn a_claim_belongs_to_the_machine_and_has_one_name_over_its_instances() {
        let state = State {
            class_name: Some("local".to_owned()),
            access_mode: "ReadWriteOnce".to_owned(),
            ..State::default()
        };
        let created = |vmi: &VirtualMachineInstance| match step(vmi, Some(&state)) {
            Step::Create(claim) => serde_json::to_value(claim).unwrap(),
            other => panic!("{other:?}"),
        };
        let claim = created(&vmi(machine()));
        assert!(claim["metadata"]["name"].as_str().unwrap().starts_with("persistent-state-for-web-"));
        assert_eq!(claim["metadata"]["labels"]["persistent-state-for"], "web");
        assert_eq!(claim["metadata"]["ownerReferences"][0]["uid"], "m1");
        assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "10Mi");
        assert_eq!(claim["spec"]["storageClassName"], "local");
        let mut second = vmi(machine());
        second.metadata.uid = Some("i2".to_owned());
        assert_eq!(created(&second)["metadata"]["name"], claim["metadata"]["name"]);
        let alone = created(&vmi(json!([])));
        assert_eq!(alone["metadata"]["ownerReferences"][0]["uid"], "i1");
        assert_eq!(alone["metadata"]["ownerReferences"][0]["kind"], "VirtualMachineInstance");
    }

    #[test]
    fn it_is_mounted_once_it_is_bound_or_waits_for_its_pod() {
        let vmi = vmi(machine());
        let step = |state: &State| step(&vmi, Some(state));
        let ready = Step::Ready("c".to_owned());
        assert_eq!(step(&with_claim("Bound", None)), ready);
        assert_eq!(step(&with_claim("Pending", Some(class("local", None, "WaitForFirstConsumer")))), ready);
        for (state, reason) in [
            (with_claim("Pending", Some(class("local", None, "Immediate"))), NOT_READY),
            (with_claim("Pending", None), FAILED_PROBE),
            (with_claim("Lost", None), FAILED_PROBE),
            (State::default(), FAILED_CREATE),
        ] {
            assert!(matches!(step(&state), Step::Wait(given, _) if given == reason), "{state:?}");
        }
    }

    #[test]
    fn a_machine_without_persistent_state_needs_no_claim() {
        let mut vmi = vmi(json!([]));
        vmi.spec.domain.devices.tpm = None;
        assert_eq!(step(&vmi, Some(&State::default())), Step::Nothing);
    }

    #[test]
    fn a_machine_that_keeps_nothing_any_more_loses_its_own_claims() {
        let claim = |name: &str, owner: &str, deleted: bool| -> PersistentVolumeClaim {
            let owners = json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "web", "uid": owner}]);
            let deleted = deleted.then_some("2026-01-01T00:00:00Z");
            serde_json::from_value(json!({"metadata": {"name": name, "uid": format!("uid-{name}"),
                "ownerReferences": owners, "deletionTimestamp": deleted}}))
            .unwrap()
        };
        let found = [claim("a", "m1", false), claim("b", "m2", false), claim("c", "m1", true)];
        let left = left_over("m1", &found);
        assert_eq!(left, [("a".to_owned(), "uid-a".to_owned())]);
        let state = State { left_over: left.clone(), ..State::default() };
        let mut vmi = vmi(machine());
        assert!(!matches!(step(&vmi, Some(&state)), Step::Forget(_)));
        vmi.spec.domain.devices.tpm = None;
        assert_eq!(step(&vmi, Some(&state)), Step::Forget(left));
    }

    #[test]
    fn the_class_for_machines_comes_before_the_clusters() {
        let [virt, plain] = DEFAULT_CLASSES;
        let classes = [class("a", Some(plain), "x"), class("b", Some(virt), "x"), class("c", None, "x")];
        let name = |named, classes| choose(named, classes).map(ResourceExt::name_any);
        assert_eq!(name(None, &classes[..]).as_deref(), Some("b"));
        assert_eq!(name(None, &classes[..1]).as_deref(), Some("a"));
        assert_eq!(name(Some("c"), &classes[..]).as_deref(), Some("c"));
        assert_eq!(name(None, &classes[2..]), None);
    }

    #[test]
    fn only_a_class_that_is_named_is_taken_to_be_shared() {
        let profile = |modes: Value| json!({"status": {"claimPropertySets": [{"volumeMode": "Filesystem", "accessModes": modes}]}});
        let (once, many) =
            (profile(json!(["ReadWriteOnce"])), profile(json!(["ReadWriteOnce", "ReadWriteMany"])));
        for (named, profile, expected) in [
            (true, None, "ReadWriteMany"),
            (false, None, "ReadWriteOnce"),
            (true, Some(&once), "ReadWriteOnce"),
            (false, Some(&many), "ReadWriteMany"),
        ] {
            assert_eq!(access_mode(named, profile), expected);
        }
    }

    #[test]
    fn the_status_names_the_claim_once() {
        let mut volumes = vec![];
        for _ in 0..2 {
            note(Some(&with_claim("Bound", None)), &mut volumes);
        }
        let found = serde_json::to_value(&volumes).unwrap();
        let info = json!({"claimName": "c", "accessModes": ["ReadWriteOnce"]});
        assert_eq!(found.as_array().unwrap().len(), 1);
        assert_eq!(found[0]["name"], "persistent-state-for-this-vm");
        assert_eq!(found[0]["persistentVolumeClaimInfo"]["claimName"], info["claimName"]);
        assert_eq!(found[0]["persistentVolumeClaimInfo"]["accessModes"], info["accessModes"]);
    }
}
