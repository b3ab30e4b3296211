//! `objectgraph`: the objects that a machine or an instance depends on, as a tree, for programs that copy or
//! move it elsewhere.
//!
//! ```text
//! VirtualMachine -+- VirtualMachineInstance --- Pod
//!                 +- instance type, preference (optional), and the machine's copies of them
//!                 +- secrets of credentials
//!                 +- DataVolume --- PersistentVolumeClaim, claims, config maps, secrets, service accounts
//!                 +- NetworkAttachmentDefinition (optional)
//! ```
//!
//! The tree is computed from the object itself; only [`LookedUpObjects`] is looked up in addition. A named object need
//! not exist: the user may have no permission to know.

mod tree;

use barevirt_api::firmware::{self, STATE_LABEL};
use barevirt_api::gates::Gates;
use barevirt_api::names::{APP_LABEL, APP_LAUNCHER, CREATED_BY_LABEL, is_final_phase};
use barevirt_api::v1::{ObjectGraphNode, ObjectGraphOptions, VirtualMachine, VirtualMachineInstance};
use barevirt_api::validate::kinds::selector;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use crate::answer::{self, Answer, Refusal};
use crate::endpoints::On;
use crate::{instance, machine};

/// KubeVirt's gate; without it the call is refused.
const GATE: &str = "ObjectGraph";

/// Objects that were looked up for a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LookedUpObjects {
    /// The launcher pod.
    pod: Option<String>,
    /// The claim with a machine's UEFI variables and TPM state.
    state: Option<String>,
}

/// The tree of a machine or an instance.
///
/// # Errors
/// 400 without the gate, and for invalid options; 404 for an object that does not exist.
pub async fn of(
    client: &Client,
    gates: &Gates,
    on: On,
    (namespace, name): (&str, &str),
    body: &[u8],
) -> Result<Answer, Refusal> {
    if !gates.is_on(GATE) {
        let message = "ObjectGraph feature gate not enabled: Unable to return object graph.";
        return Err(Refusal::bad_request(message));
    }
    let options: ObjectGraphOptions = machine::given(body)?;
    let mut root = match on {
        On::Machine => {
            let vms: Api<VirtualMachine> = Api::namespaced(client.clone(), namespace);
            let vm = vms.get(name).await.map_err(|error| Refusal::from_kube("get VirtualMachine", error))?;
            let seen = LookedUpObjects {
                pod: match tree::is_created(&vm) {
                    true => launcher(client, namespace, instance_of(client, namespace, name).await?).await?,
                    false => None,
                },
                state: match firmware::needs_state(&vm.spec.template.spec) {
                    true => state_claim(client, namespace, name).await?,
                    false => None,
                },
            };
            tree::machine(&vm, &seen)
        }
        On::Instance | On::Everyone | On::Cluster | On::Namespace => {
            let vmi = instance::get(client, namespace, name).await?;
            let pod = launcher(client, namespace, vmi.uid()).await?;
            tree::instance(&vmi, pod)
        }
    };
    root.children = kept(root.children, &options)?;
    Ok(answer::ok(&root))
}

/// The children that match the options, with their own matching children. If a node is left out, its children
/// are left out as well.
fn kept(
    children: Vec<ObjectGraphNode>,
    options: &ObjectGraphOptions,
) -> Result<Vec<ObjectGraphNode>, Refusal> {
    let without_optional = options.include_optional_nodes == Some(false);
    let mut kept = Vec::new();
    for mut child in children {
        let selected = match &options.label_selector {
            Some(wanted) => selector::matches(wanted, Some(&child.labels)).map_err(Refusal::bad_request)?,
            None => true,
        };
        if selected && !(without_optional && child.optional == Some(true)) {
            child.children = self::kept(child.children, options)?;
            kept.push(child);
        }
    }
    Ok(kept)
}

/// The UID of a machine's instance; `None` if it has been deleted in the meantime.
async fn instance_of(client: &Client, namespace: &str, name: &str) -> Result<Option<String>, Refusal> {
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(client.clone(), namespace);
    let found = vmis.get_metadata_opt(name).await;
    let found = found.map_err(|error| Refusal::from_kube("get VirtualMachineInstance", error))?;
    Ok(found.and_then(|vmi| vmi.metadata.uid))
}

/// The launcher pod of the instance with this UID.
async fn launcher(client: &Client, namespace: &str, uid: Option<String>) -> Result<Option<String>, Refusal> {
    let Some(uid) = uid else { return Ok(None) };
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let found = pods.list(&made_for(&uid)).await.map_err(|error| Refusal::from_kube("list pods", error))?;
    Ok(newest_launcher(&found.items))
}

/// Selects launchers of the instance with this UID, because an earlier instance may have had the same name.
fn made_for(uid: &str) -> ListParams {
    ListParams::default().labels(&format!("{APP_LABEL}={APP_LAUNCHER},{CREATED_BY_LABEL}={uid}"))
}

/// Prefers running pods, then the newest.
fn newest_launcher(pods: &[Pod]) -> Option<String> {
    let lives = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        !phase.is_some_and(is_final_phase)
    };
    let newest = pods.iter().max_by_key(|pod| (lives(pod), pod.creation_timestamp()));
    newest.map(ResourceExt::name_any)
}

/// The claim with a machine's state, if it exists: the newest that is not being deleted.
async fn state_claim(client: &Client, namespace: &str, name: &str) -> Result<Option<String>, Refusal> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let labelled = ListParams::default().labels(&format!("{STATE_LABEL}={name}"));
    let found = claims
        .list(&labelled)
        .await
        .map_err(|error| Refusal::from_kube("list persistent volume claims", error))?;
    let stays = |claim: &&PersistentVolumeClaim| claim.metadata.deletion_timestamp.is_none();
    let newest = found.items.iter().filter(stays).max_by_key(|claim| claim.creation_timestamp());
    Ok(newest.map(ResourceExt::name_any))
}

#[cfg(test)]
#[path = "object_graph/tests.rs"]
mod tests;
