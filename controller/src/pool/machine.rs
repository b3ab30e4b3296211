//! The machines of a pool: their names, and the template applied to each.

use super::generation;
use super::state::Kept;
use crate::{merge, ownership};
use barevirt_api::names::{POOL_FINALIZER, POOL_REVISION_LABEL};
use barevirt_api::pool::{VirtualMachinePool, VirtualMachinePoolSpec, VirtualMachineTemplateSpec};
use barevirt_api::v1::{VirtualMachine, VirtualMachineSpec, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The name of a machine by its number.
pub(super) fn name(pool: &VirtualMachinePool, index: u32) -> String {
    format!("{}-{index}", pool.name_any())
}

/// The number in a machine's name.
pub(super) fn index(name: &str) -> Option<u32> {
    name.rsplit_once('-').and_then(|(_, index)| index.parse().ok())
}

/// A new machine with that number.
pub(super) fn new(pool: &VirtualMachinePool, index: u32) -> VirtualMachine {
    let template = pool.spec.virtual_machine_template.metadata.clone().unwrap_or_default();
    let mut labels = template.labels.unwrap_or_default();
    labels.insert(POOL_REVISION_LABEL.to_owned(), generation::name(pool));
    VirtualMachine {
        metadata: ObjectMeta {
            name: Some(name(pool, index)),
            namespace: pool.namespace(),
            labels: Some(labels),
            annotations: template.annotations,
            owner_references: Some(vec![ownership::owner(pool)]),
            finalizers: (Kept::of(pool) == Kept::All).then(|| vec![POOL_FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: spec(pool, index),
        status: None,
    }
}

/// The template applied to the machine with that number.
fn spec(pool: &VirtualMachinePool, index: u32) -> VirtualMachineSpec {
    let mut spec = numbered(&pool.spec, index);
    let labels = spec.template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(POOL_REVISION_LABEL.to_owned(), generation::name(pool));
    spec
}

/// The template with the number appended to the names that are specific to each machine.
fn numbered(pool: &VirtualMachinePoolSpec, index: u32) -> VirtualMachineSpec {
    let mut spec = pool.virtual_machine_template.spec.clone().unwrap_or_default();
    let mut own = vec![];
    for template in &mut spec.data_volume_templates {
        if let Some(name) = template.metadata.as_mut().and_then(|metadata| metadata.name.as_mut()) {
            own.push(name.clone());
            append(name, index);
        }
    }
    let names = pool.name_generation.clone().unwrap_or_default();
    for volume in &mut spec.template.spec.volumes {
        claims(volume, &own, index);
        if names.append_index_to_config_map_refs == Some(true) {
            config_maps(volume, index);
        }
        if names.append_index_to_secret_refs == Some(true) {
            secrets(volume, index);
        }
    }
    spec
}

fn append(name: &mut String, index: u32) {
    name.push('-');
    name.push_str(&index.to_string());
}

/// Claims and DataVolumes that belong to the machine.
fn claims(volume: &mut Volume, own: &[String], index: u32) {
    if let Some(claim) = &mut volume.persistent_volume_claim
        && own.contains(&claim.claim_name)
    {
        append(&mut claim.claim_name, index);
    }
    if let Some(source) = &mut volume.data_volume
        && own.contains(&source.name)
    {
        append(&mut source.name, index);
    }
}

fn config_maps(volume: &mut Volume, index: u32) {
    if let Some(name) = volume.config_map.as_mut().and_then(|source| source.name.as_mut()) {
        append(name, index);
    }
}

fn secrets(volume: &mut Volume, index: u32) {
    if let Some(name) = volume.secret.as_mut().and_then(|source| source.secret_name.as_mut()) {
        append(name, index);
    }
    if let Some(source) = &mut volume.cloud_init_no_cloud {
        for secret in [&mut source.secret_ref, &mut source.network_data_secret_ref].into_iter().flatten() {
            append(&mut secret.name, index);
        }
    }
    if let Some(source) = &mut volume.cloud_init_config_drive {
        for secret in [&mut source.secret_ref, &mut source.network_data_secret_ref].into_iter().flatten() {
            append(&mut secret.name, index);
        }
    }
}

/// The merge patch that updates a machine to the pool's present template. Labels and annotations of the former template are
/// removed; all others stay, such as those of our own components.
pub(super) fn update(
    pool: &VirtualMachinePool,
    machine: &VirtualMachine,
    index: u32,
    former: Option<&VirtualMachineTemplateSpec>,
) -> Value {
    let mut wanted = spec(pool, index);
    keep_identity(machine, &mut wanted);
    // Our types always have a JSON form: their maps have only string keys.
    let (old, new) = (serde_json::to_value(&machine.spec), serde_json::to_value(&wanted));
    let change = merge::difference(&old.unwrap_or_default(), &new.unwrap_or_default());
    let former = former.and_then(|template| template.metadata.as_ref());
    let template = new_metadata(pool, index);
    let mut body = json!({"metadata": {
        "resourceVersion": machine.metadata.resource_version,
        "labels": texts(former.and_then(|one| one.labels.as_ref()), template.labels.as_ref()),
        "annotations": texts(former.and_then(|one| one.annotations.as_ref()), template.annotations.as_ref()),
    }});
    if let Some(change) = change {
        body["spec"] = change;
    }
    body
}

fn new_metadata(pool: &VirtualMachinePool, index: u32) -> ObjectMeta {
    new(pool, index).metadata
}

/// All of `now`, and null for keys that are only in `before`.
fn texts(
    before: Option<&BTreeMap<String, String>>,
    now: Option<&BTreeMap<String, String>>,
) -> Map<String, Value> {
    let gone = before.into_iter().flatten().map(|(name, _)| (name.clone(), Value::Null));
    gone.chain(now.into_iter().flatten().map(|(name, value)| (name.clone(), json!(value)))).collect()
}

/// Keeps the firmware UUID and serial number, by which the guest is identified.
fn keep_identity(machine: &VirtualMachine, wanted: &mut VirtualMachineSpec) {
    let Some(before) = &machine.spec.template.spec.domain.firmware else { return };
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let (uuid, serial) = (given(&before.uuid), given(&before.serial));
    if uuid.is_none() && serial.is_none() {
        return;
    }
    let firmware = wanted.template.spec.domain.firmware.get_or_insert_default();
    firmware.uuid = uuid.or(firmware.uuid.take());
    firmware.serial = serial.or(firmware.serial.take());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(spec: Value) -> VirtualMachinePool {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "p1", "generation": 4}, "spec": spec,
        }))
        .unwrap()
    }

    fn template() -> Value {
        json!({
            "metadata": {"labels": {"app": "web"}, "annotations": {"team": "a"}},
            "spec": {
                "runStrategy": "Always",
                "dataVolumeTemplates": [{"metadata": {"name": "root"}, "spec": {}}],
                "template": {"spec": {"domain": {"devices": {}}, "volumes": [
                    {"name": "a", "dataVolume": {"name": "root"}},
                    {"name": "b", "persistentVolumeClaim": {"claimName": "root"}},
                    {"name": "c", "persistentVolumeClaim": {"claimName": "shared"}},
                    {"name": "d", "configMap": {"name": "settings"}},
                    {"name": "e", "secret": {"secretName": "key"}},
                    {"name": "f", "cloudInitNoCloud": {"secretRef": {"name": "user"},
                        "networkDataSecretRef": {"name": "net"}}},
                    {"name": "g", "cloudInitConfigDrive": {"secretRef": {"name": "user"}}},
                ]}},
            },
        })
    }

    fn names(machine: &VirtualMachine) -> Value {
        let volumes = serde_json::to_value(&machine.spec.template.spec.volumes).unwrap();
        json!([
            volumes[0]["dataVolume"]["name"],
            volumes[1]["persistentVolumeClaim"]["claimName"],
            volumes[2]["persistentVolumeClaim"]["claimName"],
            volumes[3]["configMap"]["name"],
            volumes[4]["secret"]["secretName"],
            volumes[5]["cloudInitNoCloud"]["secretRef"]["name"],
            volumes[5]["cloudInitNoCloud"]["networkDataSecretRef"]["name"],
            volumes[6]["cloudInitConfigDrive"]["secretRef"]["name"],
        ])
    }

    #[test]
    fn names_of_a_machines_own_objects_get_its_number() {
        let plain = new(&pool(json!({"selector": {}, "virtualMachineTemplate": template()})), 3);
        assert_eq!(plain.metadata.name.as_deref(), Some("web-3"));
        assert_eq!(
            names(&plain),
            json!(["root-3", "root-3", "shared", "settings", "key", "user", "net", "user"])
        );
        let data_volume = plain.spec.data_volume_templates[0].metadata.as_ref().unwrap();
        assert_eq!(data_volume.name.as_deref(), Some("root-3"));
        let labels = plain.metadata.labels.as_ref().unwrap();
        assert_eq!((labels["app"].as_str(), labels[POOL_REVISION_LABEL].as_str()), ("web", "web-4"));
        let below = plain.spec.template.metadata.as_ref().unwrap().labels.as_ref().unwrap();
        assert_eq!(below[POOL_REVISION_LABEL], "web-4");

        let generation = json!({"appendIndexToConfigMapRefs": true, "appendIndexToSecretRefs": true});
        let named = pool(json!({
            "selector": {}, "virtualMachineTemplate": template(), "nameGeneration": generation,
        }));
        assert_eq!(
            names(&new(&named, 12)),
            json!(["root-12", "root-12", "shared", "settings-12", "key-12", "user-12", "net-12", "user-12"])
        );
        assert_eq!((index("web-12"), index("web"), index("web-x")), (Some(12), None, None));
    }

    #[test]
    fn an_update_is_the_difference_and_keeps_what_is_not_the_templates() {
        let old = pool(json!({"selector": {}, "virtualMachineTemplate": template()}));
        let mut machine = new(&old, 0);
        machine.metadata.resource_version = Some("9".to_owned());
        let annotations = machine.metadata.annotations.get_or_insert_default();
        annotations.insert("barevirt.dev/pci-layout".to_owned(), "L".to_owned());
        machine.spec.template.spec.domain.firmware.get_or_insert_default().uuid = Some("U".to_owned());
        let mut changed = template();
        changed["metadata"] = json!({"labels": {"app": "web", "tier": "front"}});
        changed["spec"]["template"]["spec"]["domain"]["cpu"] = json!({"cores": 2});
        let mut new = pool(json!({"selector": {}, "virtualMachineTemplate": changed}));
        new.metadata.generation = Some(5);
        let former = old.spec.virtual_machine_template;
        let body = update(&new, &machine, 0, Some(&former));
        assert_eq!(body["metadata"]["resourceVersion"], "9");
        assert_eq!(
            body["metadata"]["labels"],
            json!({"app": "web", "tier": "front", POOL_REVISION_LABEL: "web-5"})
        );
        assert_eq!(body["metadata"]["annotations"], json!({"team": null}));
        assert_eq!(
            body["spec"],
            json!({"template": {
                "metadata": {"labels": {POOL_REVISION_LABEL: "web-5"}},
                "spec": {"domain": {"cpu": {"cores": 2}}},
            }})
        );
    }
}
