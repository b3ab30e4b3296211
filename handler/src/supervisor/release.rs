//! Ends what is left on this node of a guest that migrated to another node.
//!
//! The watch of this node's instances loses an instance when its label changes, and does not deliver its last
//! state. So the handler asks the API server. Only if the instance itself shows that the guest is on another
//! node does the launcher get that message.

use std::time::Duration;

use barevirt_api::v1::VirtualMachineInstance;
use barevirt_protocol::v1::migrate_request::Order;
use barevirt_protocol::v1::{MigrateRequest, MigrationResult};
use kube::Api;
use kube::api::ListParams;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::migration::plan::outgoing;
use crate::sync::{Context, Vm};

/// Longest time that the API server may take.
const API_DEADLINE: Duration = Duration::from_secs(30);
/// Pause between two attempts, and their number. After them, the launcher stays until its pod ends.
const AGAIN: Duration = Duration::from_secs(2);
const TRIES: u32 = 15;

/// Tells the launcher of an instance that has left this node where its guest is, if the guest was sent to
/// another node.
pub(super) async fn release(context: Context, vm: Vm) {
    let before = vm.input.borrow().vmi.clone();
    let Some((_, uid)) = outgoing(&before, &context.node) else { return };
    // The task ends with its input. The launcher stays connected as long as this handle exists.
    let Some(launcher) = vm.launcher.borrow().clone() else { return };
    let (namespace, name) = (before.metadata.namespace.as_deref(), before.metadata.name.as_deref());
    let api: Api<VirtualMachineInstance> =
        Api::namespaced(context.client.clone(), namespace.unwrap_or_default());
    let one = ListParams::default().fields(&format!("metadata.name={}", name.unwrap_or_default()));
    for _ in 0..TRIES {
        // The handler may list instances, but not get one.
        let found = match timeout(API_DEADLINE, api.list(&one)).await {
            Ok(Ok(found)) => found.items.into_iter().next(),
            Ok(Err(error)) => {
                warn!(%error, "unknown whether a guest is on another node");
                sleep(AGAIN).await;
                continue;
            }
            Err(_) => continue,
        };
        // A deleted instance will soon have no guest on any node, because its pods are deleted.
        let Some(present) = found.filter(|found| is_elsewhere(found, &before, &context.node, uid)) else {
            return;
        };
        let result = Order::Result(MigrationResult { went: true, lost: false });
        match launcher.migrate(MigrateRequest { uid: uid.to_owned(), order: Some(result) }).await {
            Ok(()) => {
                let node = present.status.and_then(|status| status.node_name);
                return info!(namespace, name, node, "guest is on another node: its launcher here ends");
            }
            Err(error) => {
                warn!(%error, "launcher did not get the message that its guest is on another node");
                sleep(AGAIN).await;
            }
        }
    }
}

/// Whether the instance shows that its guest left by that migration, and is on another node.
fn is_elsewhere(
    found: &VirtualMachineInstance,
    before: &VirtualMachineInstance,
    node: &str,
    uid: &str,
) -> bool {
    let owner = found.status.as_ref().and_then(|status| status.node_name.as_deref());
    found.metadata.uid == before.metadata.uid
        && owner.is_some_and(|owner| owner != node)
        && outgoing(found, node).is_some_and(|(state, of)| {
            of == uid && state.completed == Some(true) && state.failed != Some(true)
        })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_the_instance_itself_says_where_its_guest_is() {
        let vmi = |owner: &str, uid: &str, change: Value| -> VirtualMachineInstance {
            let mut state =
                json!({"migrationUid": uid, "sourceNode": "a", "targetNode": "b", "completed": true});
            state.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            serde_json::from_value(json!({
                "metadata": {"uid": "u"}, "spec": {"domain": {"devices": {}}},
                "status": {"nodeName": owner, "migrationState": state},
            }))
            .unwrap()
        };
        let before = vmi("a", "m", json!({"completed": null}));
        let is = |found: &VirtualMachineInstance| is_elsewhere(found, &before, "a", "m");
        assert!(is(&vmi("b", "m", json!({}))));
        for other in [
            vmi("a", "m", json!({})),
            vmi("b", "n", json!({})),
            vmi("b", "m", json!({"failed": true})),
            vmi("b", "m", json!({"completed": false})),
        ] {
            assert!(!is(&other));
        }
        let mut anew = vmi("b", "m", json!({}));
        anew.metadata.uid = Some("v".to_owned());
        assert!(!is(&anew));
    }
}
