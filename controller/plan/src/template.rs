//! The instance that a machine starts.

use crate::owner::owner;
use crate::{requests, revision};
use barevirt_api::names::{
    MIGRATION_TARGET_ANNOTATION, PCI_LAYOUT_ANNOTATION, RUN_STRATEGY_WAIT_AS_RECEIVER,
    VM_GENERATION_ANNOTATION,
};
use barevirt_api::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sha1::{Digest, Sha1};
use std::collections::BTreeMap;

/// Start strategy of an instance whose guest stays paused until a user resumes it.
const START_STRATEGY_PAUSED: &str = "Paused";

/// Builds it. What the guest can see stays the same across starts: the UUID is derived from the machine's name as in
/// KubeVirt, hardware addresses from the instance's name (`barevirt_api::identity`).
pub fn instance(vm: &VirtualMachine) -> VirtualMachineInstance {
    let template = vm.spec.template.metadata.clone().unwrap_or_default();
    let mut annotations = template.annotations.unwrap_or_default();
    if let Some(generation) = vm.metadata.generation {
        annotations.insert(VM_GENERATION_ANNOTATION.to_owned(), generation.to_string());
    }
    if vm.spec.effective_run_strategy() == Some(RUN_STRATEGY_WAIT_AS_RECEIVER) {
        annotations.insert(MIGRATION_TARGET_ANNOTATION.to_owned(), "true".to_owned());
    }
    annotations.extend(
        remembered(vm.metadata.annotations.as_ref()).map(|(name, value)| (name.clone(), value.clone())),
    );
    let name = vm.metadata.name.clone().unwrap_or_default();
    let mut spec = vm.spec.template.spec.clone();
    let firmware = spec.domain.firmware.get_or_insert_default();
    if firmware.uuid.as_deref().unwrap_or_default().is_empty() {
        firmware.uuid = Some(uuid(&name));
    }
    let commands = vm.status.as_ref().map(|status| status.state_change_requests.as_slice());
    if requests::starts_paused(commands.unwrap_or_default()) {
        spec.start_strategy = Some(START_STRATEGY_PAUSED.to_owned());
    }
    VirtualMachineInstance {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: vm.metadata.namespace.clone(),
            labels: template.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![owner(vm)]),
            ..ObjectMeta::default()
        },
        spec,
        status: Some(VirtualMachineInstanceStatus {
            virtual_machine_revision_name: Some(revision::name(vm)),
            ..VirtualMachineInstanceStatus::default()
        }),
    }
}

/// Whether an object's annotations say that a migration brings the guest: it is never started here.
pub fn is_receiver(annotations: Option<&BTreeMap<String, String>>) -> bool {
    annotations.and_then(|all| all.get(MIGRATION_TARGET_ANNOTATION)).is_some_and(|value| value == "true")
}

/// The annotation that an instance leaves for the next one.
pub fn remembered(annotations: Option<&BTreeMap<String, String>>) -> Option<(&String, &String)> {
    annotations?.get_key_value(PCI_LAYOUT_ANNOTATION)
}

/// KubeVirt's UUID for a machine's name: version 5 (RFC 9562) in its name space, 6a1a24a1-4061-4607-8bf4-a3963d0c5895.
fn uuid(name: &str) -> String {
    const NAME_SPACE: u128 = 0x6a1a_24a1_4061_4607_8bf4_a396_3d0c_5895;
    let digest = Sha1::new().chain_update(NAME_SPACE.to_be_bytes()).chain_update(name.as_bytes()).finalize();
    let mut bytes = [0; 16];
    for (byte, digit) in bytes.iter_mut().zip(digest) {
        *byte = digit;
    }
    bytes[6] = (bytes[6] & 0x0f) | 0x50;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex = format!("{:032x}", u128::from_be_bytes(bytes));
    let part = |range| hex.get(range).unwrap_or_default();
    format!("{}-{}-{}-{}-{}", part(0..8), part(8..12), part(12..16), part(16..20), part(20..32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_uuid_is_kubevirts() {
        // As uuid.uuid5(uuid.UUID("6a1a24a1-4061-4607-8bf4-a3963d0c5895"), "testvm") gives it.
        assert_eq!(uuid("testvm"), "5a9fc181-957e-5c32-9e5a-2de5e9673531");
    }

    #[test]
    fn takes_the_template_and_leaves_the_machines_own() {
        let vm: VirtualMachine = serde_json::from_value(json!({
            "metadata": {"name": "vm", "namespace": "ns", "uid": "u", "generation": 3, "labels": {"own": "1"}},
            "spec": {"running": true, "template": {
                "metadata": {"name": "other", "labels": {"a": "b"}, "annotations": {"c": "d"}},
                "spec": {"domain": {"devices": {}, "firmware": {"uuid": "given"}}}}}
        }))
        .unwrap();
        let vmi = instance(&vm);
        assert_eq!(vmi.metadata.name.as_deref(), Some("vm"));
        assert_eq!(vmi.metadata.labels, Some([("a".to_owned(), "b".to_owned())].into()));
        let annotations = vmi.metadata.annotations.unwrap();
        assert_eq!(annotations.get(VM_GENERATION_ANNOTATION).map(String::as_str), Some("3"));
        assert_eq!(annotations.get("c").map(String::as_str), Some("d"));
        assert_eq!(vmi.spec.domain.firmware.unwrap().uuid.as_deref(), Some("given"));
        assert_eq!(vmi.metadata.owner_references.unwrap()[0].uid, "u");
    }
}
