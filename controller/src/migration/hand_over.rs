//! Hands an instance over to the handlers of both nodes, in one patch. Pure.

use super::action::{Action, Plan};
use super::observed::Observed;
use super::status::SUCCESSFUL_HAND_OVER;
use crate::merge;
use crate::vmi::overhead;
use barevirt_api::firmware::STATE_VOLUME;
use barevirt_api::hotplug::UID_SEPARATOR;
use barevirt_api::names::MIGRATION_TARGET_NODE_LABEL;
use barevirt_api::v1::{
    VirtualMachineInstance, VirtualMachineInstanceMigrationSourceState, VirtualMachineInstanceMigrationState,
    VirtualMachineInstanceMigrationTargetState, VirtualMachineInstanceStatus,
};
use barevirt_component::notes::Note;
use barevirt_plan::migration::Effective;
use barevirt_plan::pod::state::claim as state_claim;
use barevirt_plan::pod::target::launcher_name;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;

/// The target pod runs: from here on the handlers of both nodes act.
pub(super) fn hand_over(
    observed: &Observed,
    vmi: &VirtualMachineInstance,
    pod: &Pod,
    effective: &Effective,
    disks: &[String],
) -> Plan {
    let own = vmi.status.clone().unwrap_or_default();
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    let uid = pod.uid().unwrap_or_default();
    let migration_uid = observed.migration.metadata.uid.clone();
    let attachments = (!disks.is_empty()).then(|| disks.join(UID_SEPARATOR));
    let (source_node, source_pod) = (own.node_name.clone(), Some(launcher_name(vmi)));
    let state = VirtualMachineInstanceMigrationState {
        migration_uid: migration_uid.clone(),
        source_node: source_node.clone(),
        source_pod: source_pod.clone(),
        target_node: Some(node.clone()),
        target_pod: Some(pod.name_any()),
        migration_configuration: Some(effective.configuration.clone()),
        migration_policy_name: effective.policy.clone(),
        target_attachment_pod_uid: attachments.clone(),
        target_memory_overhead: overhead::of_pod(pod),
        source_persistent_state_pvc_name: kept_on(&own).map(str::to_owned),
        target_persistent_state_pvc_name: state_claim(pod).map(str::to_owned),
        source_state: Some(VirtualMachineInstanceMigrationSourceState {
            pod: source_pod,
            node: source_node,
            migration_uid: migration_uid.clone(),
            ..VirtualMachineInstanceMigrationSourceState::default()
        }),
        target_state: Some(VirtualMachineInstanceMigrationTargetState {
            pod: Some(pod.name_any()),
            node: Some(node.clone()),
            migration_uid,
            attachment_pod_uid: attachments,
            ..VirtualMachineInstanceMigrationTargetState::default()
        }),
        ..VirtualMachineInstanceMigrationState::default()
    };
    let handed = change(vmi, |vmi| {
        let status = vmi.status.get_or_insert_default();
        status.active_pods.insert(uid, node.clone());
        status.migration_state = Some(state);
        vmi.labels_mut().insert(MIGRATION_TARGET_NODE_LABEL.to_owned(), node);
    });
    let message = "Migration target pod is ready for preparation by virt-handler.";
    Plan::default().act_if(handed).tell(Note::normal(SUCCESSFUL_HAND_OVER, message))
}

/// The claim with the instance's TPM and firmware state.
fn kept_on(status: &VirtualMachineInstanceStatus) -> Option<&str> {
    let told = status.volume_status.iter().find(|told| told.name == STATE_VOLUME)?;
    told.persistent_volume_claim_info.as_ref()?.claim_name.as_deref()
}

/// The patch of an instance, which applies only to the observed version. Labels and status are compared.
pub(super) fn change(
    vmi: &VirtualMachineInstance,
    edit: impl FnOnce(&mut VirtualMachineInstance),
) -> Option<Action> {
    let mut edited = vmi.clone();
    edit(&mut edited);
    // Our types always have a JSON form: their maps have only string keys.
    let (old, new) = (serde_json::to_value(vmi).ok()?, serde_json::to_value(&edited).ok()?);
    let mut body = merge::difference(&old, &new)?;
    body["metadata"]["resourceVersion"] = json!(vmi.metadata.resource_version);
    Some(Action::Vmi(body))
}
