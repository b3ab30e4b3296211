//! migrate and evacuate/cancel: move a running machine to another node, or keep it on its node.
//!
//! A migration is an object that virt-controller carries out; admission decides whether it is allowed. An
//! eviction writes into the status of an instance that its guest has to leave the node; the cancel call
//! removes this.

use barevirt_api::names::PHASE_RUNNING;
use barevirt_api::v1::{
    EvacuateCancelOptions, MigrateOptions, VirtualMachine, VirtualMachineInstance,
    VirtualMachineInstanceMigration, VirtualMachineInstanceMigrationSpec,
};
use hyper::body::Bytes;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use crate::answer::{self, Answer, Refusal};
use crate::endpoints::On;
use crate::front_proxy::User;
use crate::instance;
use crate::machine::{given, is_dry_run};

/// Prefix of the names of migrations that the call makes.
const NAME_PREFIX: &str = "kubevirt-migrate-vm-";
/// Effect of the taint that moves guests off a node.
const NO_SCHEDULE: &str = "NoSchedule";
/// Path of the status field with the node that the guest has to leave.
const EVACUATION: &str = "/status/evacuationNodeName";

/// Creates a migration of a running machine. 202 means that it exists, not that the machine has moved.
///
/// # Errors
/// 400 for an invalid body; 404 if the machine or instance does not exist; 409 if it does not run; 422 with
/// admission's message about the migration.
pub async fn migrate(
    client: &Client,
    user: &User,
    namespace: &str,
    name: &str,
    body: &Bytes,
) -> Result<Answer, Refusal> {
    let options: MigrateOptions = given(body)?;
    machine_exists(client, namespace, name).await?;
    let vmi = instance::get(client, namespace, name).await?;
    let migration = migration(name, &vmi, &options)?;
    let dry_run = is_dry_run(&options.dry_run);
    let migrations: Api<VirtualMachineInstanceMigration> = Api::namespaced(client.clone(), namespace);
    let params = PostParams { dry_run, ..PostParams::default() };
    let made = migrations.create(&params, &migration).await.map_err(refused)?;
    let migration = made.metadata.name.unwrap_or_default();
    tracing::info!(user = user.name, namespace, name, migration, dry_run, "migration of a machine");
    Ok(answer::accepted())
}

/// Cancels the evacuation of a guest, so that it stays on its node.
///
/// # Errors
/// 400 without options, and while its node has the taint `drain_taint`, which applies to all guests there;
/// 404 if the machine or instance does not exist; 409 if it now has to leave another node.
pub async fn cancel_evacuation(
    client: &Client,
    user: &User,
    drain_taint: &str,
    (on, namespace, name): (On, &str, &str),
    body: &Bytes,
) -> Result<Answer, Refusal> {
    if on == On::Machine {
        machine_exists(client, namespace, name).await?;
    }
    let vmi = instance::get(client, namespace, name).await?;
    let status = vmi.status.unwrap_or_default();
    let leaves = status.evacuation_node_name.filter(|node| !node.is_empty());
    if let Some(node) = leaves.as_ref().or(status.node_name.as_ref()).filter(|node| !node.is_empty()) {
        let nodes: Api<Node> = Api::all(client.clone());
        let found = nodes.get_opt(node).await.map_err(|error| Refusal::from_kube("get Node", error))?;
        not_drained(found.as_ref(), node, drain_taint)?;
    }
    if leaves.is_none() {
        return Ok(answer::done());
    }
    if body.is_empty() {
        return Err(Refusal::bad_request("No body"));
    }
    let options: EvacuateCancelOptions = given(body)?;
    let patch = serde_json::from_value(json!([
        { "op": "test", "path": EVACUATION, "value": options.evacuation_node_name },
        { "op": "remove", "path": EVACUATION },
    ]));
    let patch = patch.map_err(|error| Refusal::internal(format!("write patch: {error}")))?;
    let dry_run = is_dry_run(&options.dry_run);
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(client.clone(), namespace);
    let params = PatchParams { dry_run, ..PatchParams::default() };
    let patched = vmis.patch(name, &params, &Patch::<()>::Json(patch)).await;
    patched.map_err(|error| Refusal::from_kube("patch VirtualMachineInstance", error))?;
    let node = options.evacuation_node_name;
    tracing::info!(user = user.name, namespace, name, node, dry_run, "evacuation of a guest is cancelled");
    Ok(answer::done())
}

async fn machine_exists(client: &Client, namespace: &str, name: &str) -> Result<(), Refusal> {
    let machines: Api<VirtualMachine> = Api::namespaced(client.clone(), namespace);
    let found = machines.get_metadata(name).await;
    found.map(drop).map_err(|error| Refusal::from_kube("get VirtualMachine", error))
}

/// Checks that the node is not drained. Pure. A node that no longer exists has no taint.
fn not_drained(node: Option<&Node>, name: &str, key: &str) -> Result<(), Refusal> {
    let taints = node.and_then(|node| node.spec.as_ref()?.taints.as_deref()).unwrap_or_default();
    if taints.iter().any(|taint| taint.key == key && taint.effect == NO_SCHEDULE) {
        let message = format!("Node \"{name}\" has NodeDrainTaintKey \"{key}:{NO_SCHEDULE}\"");
        return Err(Refusal::bad_request(message));
    }
    Ok(())
}

/// The migration that the call makes. Pure.
fn migration(
    name: &str,
    vmi: &VirtualMachineInstance,
    options: &MigrateOptions,
) -> Result<VirtualMachineInstanceMigration, Refusal> {
    if instance::phase(vmi) != PHASE_RUNNING {
        return Err(Refusal::conflict("virtualmachine", name, "VM is not running"));
    }
    Ok(VirtualMachineInstanceMigration {
        metadata: ObjectMeta { generate_name: Some(NAME_PREFIX.to_owned()), ..ObjectMeta::default() },
        spec: VirtualMachineInstanceMigrationSpec {
            vmi_name: Some(name.to_owned()),
            added_node_selector: options.added_node_selector.clone(),
            ..VirtualMachineInstanceMigrationSpec::default()
        },
        status: None,
    })
}

/// Admission refuses a migration with the same code as a failed `test` of a patch; here it always comes from
/// admission.
fn refused(error: kube::Error) -> Refusal {
    match error {
        kube::Error::Api(status) if status.code == 422 => Refusal::invalid(status.message),
        error => Refusal::from_kube("create VirtualMachineInstanceMigration", error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;
    use serde_json::Value;

    fn instance(phase: &str) -> VirtualMachineInstance {
        let object = json!({"metadata": {"name": "web"}, "spec": {"domain": {"devices": {}}}, "status": {"phase": phase}});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_running_machine_gets_a_migration_with_what_was_asked_for() {
        let options = serde_json::from_value(json!({"addedNodeSelector": {"disk": "ssd"}})).unwrap();
        let made = migration("web", &instance("Running"), &options).unwrap();
        let made: Value = serde_json::to_value(made).unwrap();
        assert_eq!(made["metadata"], json!({"generateName": "kubevirt-migrate-vm-"}));
        assert_eq!(made["spec"], json!({"vmiName": "web", "addedNodeSelector": {"disk": "ssd"}}));
    }

    #[test]
    fn a_guest_that_does_not_run_is_not_migrated() {
        for phase in ["", "Pending", "Scheduled", "Succeeded", "Failed"] {
            let refusal = migration("web", &instance(phase), &MigrateOptions::default()).unwrap_err();
            assert_eq!(refusal.code, StatusCode::CONFLICT, "{phase}");
            assert_eq!(
                refusal.message,
                "Operation cannot be fulfilled on virtualmachine.kubevirt.io \"web\": VM is not running"
            );
        }
    }

    #[test]
    fn a_guest_does_not_stay_on_a_node_that_all_are_to_leave() {
        let node = |key: &str, effect: &str| -> Node {
            serde_json::from_value(json!({"spec": {"taints": [{"key": key, "effect": effect}]}})).unwrap()
        };
        let refused = |node: Option<Node>| not_drained(node.as_ref(), "node01", "kubevirt.io/drain").err();
        let refusal = refused(Some(node("kubevirt.io/drain", "NoSchedule"))).unwrap();
        assert_eq!(refusal.code, StatusCode::BAD_REQUEST);
        assert_eq!(refusal.message, "Node \"node01\" has NodeDrainTaintKey \"kubevirt.io/drain:NoSchedule\"");
        for other in [Some(node("kubevirt.io/drain", "NoExecute")), Some(node("a", "NoSchedule")), None] {
            assert!(refused(other).is_none());
        }
    }

    /// The user gets admission's message and code.
    #[test]
    fn admission_speaks_for_itself() {
        let status = json!({"status": "Failure", "message": "Cannot migrate VMI, Reason: A, Message: b", "reason": "Invalid", "code": 422});
        let refusal = refused(kube::Error::Api(serde_json::from_value(status).unwrap()));
        assert_eq!(refusal.code, StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(refusal.message, "Cannot migrate VMI, Reason: A, Message: b");
    }
}
