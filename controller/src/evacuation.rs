//! Instances that are to leave their node: their pod was evicted, or the node has the drain taint. This module creates a
//! migration.
//!
//! ```text
//!   status.evacuationNodeName, taint ──> may leave: it runs there, can migrate, no migration yet ──> kubevirt-evacuation-...
//! ```
//!
//! How many migrate at a time, and how long an instance rests after a failure, is decided by [`crate::migrations`].

use crate::cluster::Cluster;
use crate::expectations::{Key, Kind};
use crate::migrations::row::EVACUATION_ANNOTATION;
use crate::moves::{self, CRITICAL, InstanceRef, MAINTENANCE, MigrationRequest};
use crate::vmi::others::is_moving;
use crate::vmi::phase;
use barevirt_api::names::{CONDITION_LIVE_MIGRATABLE, PHASE_RUNNING};
use barevirt_api::v1::{Condition, VirtualMachineInstance};
use barevirt_component::request::Error;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::time::{Duration, Instant};

/// The client that requested the eviction.
const SOURCE_ANNOTATION: &str = "kubevirt.io/eviction-source";
/// How often an instance is looked at that has not left yet.
const INTERVAL: Duration = Duration::from_secs(5);

/// Looks at an instance once; returns when to look again while it is to leave.
///
/// # Errors
/// The API server fails to create the migration.
pub async fn reconcile(cluster: &Cluster, namespace: &str, name: &str) -> Result<Option<Duration>, Error> {
    let now = Instant::now();
    let Some(vmi) = cluster.vmis.get(&ObjectRef::new(name).within(namespace)) else { return Ok(None) };
    // Its own reconciler logs an instance that cannot be read.
    let Ok(vmi) = vmi.unpack() else { return Ok(None) };
    let node = vmi.status.as_ref().and_then(|status| status.node_name.as_deref()).unwrap_or_default();
    let drained = cluster.node(node).is_some_and(|node| cluster.is_drained(&node));
    let strategy = cluster.config().settings.eviction_strategy;
    if !leaves(&vmi, drained, strategy.as_deref()) {
        return Ok(None);
    }
    let owed = cluster.expectations.owes(&Key::new(Kind::Vmi, namespace, name), now);
    if owed || !is_free(&vmi) || cluster.migrations.is_wanted(namespace, name, now) {
        return Ok(Some(INTERVAL));
    }
    let uid = vmi.uid().unwrap_or_default();
    let instance = InstanceRef { namespace, name, uid: &uid };
    moves::ask(cluster, instance, &request(&vmi, node)).await?;
    Ok(Some(INTERVAL))
}

/// Whether the instance is to leave its node, and can.
fn leaves(vmi: &VirtualMachineInstance, drained: bool, cluster_strategy: Option<&str>) -> bool {
    let Some(status) = &vmi.status else { return false };
    let marked = status.evacuation_node_name.is_some() && status.evacuation_node_name == status.node_name;
    let strategy = vmi.spec.eviction_strategy.as_deref().or(cluster_strategy);
    (marked || drained)
        && vmi.metadata.deletion_timestamp.is_none()
        && phase(vmi) == PHASE_RUNNING
        && matches!(strategy, Some("LiveMigrate" | "LiveMigrateIfPossible"))
        && Condition::is_set(&status.conditions, CONDITION_LIVE_MIGRATABLE)
}

/// Whether no former migration is still in progress.
fn is_free(vmi: &VirtualMachineInstance) -> bool {
    !is_moving(vmi) && vmi.status.as_ref().is_none_or(|status| status.active_pods.len() <= 1)
}

fn request<'a>(vmi: &VirtualMachineInstance, node: &'a str) -> MigrationRequest<'a> {
    let by_descheduler = vmi.annotations().get(SOURCE_ANNOTATION).is_some_and(|by| by == "descheduler");
    MigrationRequest {
        beginning: "kubevirt-evacuation-",
        why: (EVACUATION_ANNOTATION, node),
        moves_volumes: false,
        priority: if by_descheduler { MAINTENANCE } else { CRITICAL },
        purpose: "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn vmi(spec: Value, change: Value) -> VirtualMachineInstance {
        let mut vmi = json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u1"},
            "spec": {"domain": {"devices": {}}, "evictionStrategy": "LiveMigrate"},
            "status": {"phase": "Running", "nodeName": "a", "evacuationNodeName": "a", "activePods": {"p": "a"},
                "conditions": [{"type": "LiveMigratable", "status": "True"}]},
        });
        crate::merge::apply(&mut vmi["spec"], &spec);
        crate::merge::apply(&mut vmi, &change);
        serde_json::from_value(vmi).unwrap()
    }

    #[test]
    fn running_migratable_marked_instances_leave() {
        let none = || json!({});
        assert!(leaves(&vmi(none(), none()), false, None));
        assert!(leaves(&vmi(json!({"evictionStrategy": "LiveMigrateIfPossible"}), none()), false, None));
        let inherits = vmi(json!({"evictionStrategy": null}), none());
        assert!(leaves(&inherits, false, Some("LiveMigrate")) && !leaves(&inherits, false, None));
        for strategy in ["None", "External"] {
            let own = vmi(json!({"evictionStrategy": strategy}), none());
            assert!(!leaves(&own, true, Some("LiveMigrate")), "{strategy}");
        }
        let unmarked = vmi(none(), json!({"status": {"evacuationNodeName": null}}));
        assert!(leaves(&unmarked, true, None) && !leaves(&unmarked, false, None));
        for change in [
            json!({"status": {"nodeName": "b"}}),
            json!({"status": {"phase": "Scheduled"}}),
            json!({"status": {"conditions": [{"type": "LiveMigratable", "status": "False"}]}}),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        ] {
            assert!(!leaves(&vmi(none(), change.clone()), false, None), "{change}");
        }
    }

    #[test]
    fn nothing_is_asked_for_while_something_moves_it() {
        assert!(is_free(&vmi(json!({}), json!({}))));
        let moving = json!({"status": {"migrationState": {"migrationUid": "m1"}}});
        assert!(!is_free(&vmi(json!({}), moving)));
        assert!(!is_free(&vmi(json!({}), json!({"status": {"activePods": {"q": "b"}}}))));
    }

    #[test]
    fn an_eviction_by_the_descheduler_has_the_lowest_priority() {
        let plain = vmi(json!({}), json!({}));
        assert_eq!((request(&plain, "a").priority, request(&plain, "a").why.1), (CRITICAL, "a"));
        let annotations = json!({"metadata": {"annotations": {SOURCE_ANNOTATION: "descheduler"}}});
        assert_eq!(request(&vmi(json!({}), annotations), "a").priority, MAINTENANCE);
    }
}
