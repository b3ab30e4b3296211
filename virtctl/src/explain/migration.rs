//! A migration of the cluster: how far it is, what limits it, and where to look next.

use std::fmt::Write as _;

use anyhow::{Context, bail};
use barevirt_api::v1::{
    Condition, VirtualMachineInstance, VirtualMachineInstanceMigration, VirtualMachineInstanceMigrationState,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use serde::Serialize;
use serde_json::json;

use super::arguments::Explain;
use crate::debug;
use crate::session::{self, Session};

/// What is printed about a migration.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Explained {
    name: String,
    namespace: String,
    vmi: String,
    phase: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    migration_state: Option<VirtualMachineInstanceMigrationState>,
    /// Conditions of the migration that are true.
    conditions: Vec<Condition>,
    /// What limits it now; the reason why that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    bottleneck: Option<String>,
}

/// Explains a migration.
pub(super) async fn explain(asked: &Explain, name: &str, session: &Session) -> anyhow::Result<()> {
    if !asked.show.is_empty() {
        bail!("--show is for machines, and {name} is a migration");
    }
    let migrations: Api<VirtualMachineInstanceMigration> =
        Api::namespaced(session.client.clone(), &session.namespace);
    let migration = migrations.get(name).await.map_err(session::plain);
    let migration = migration.with_context(|| format!("get VirtualMachineInstanceMigration {name}"))?;
    let uid = migration.metadata.uid.clone().unwrap_or_default();
    let mut explained = explained(migration);
    if explained.phase == "Running" {
        // While it runs, the instance has the newest record, and the source's launcher has the figures.
        let vmis: Api<VirtualMachineInstance> = Api::namespaced(session.client.clone(), &session.namespace);
        let vmi = vmis.get_opt(&explained.vmi).await.map_err(session::plain)?;
        let state = vmi.and_then(|vmi| vmi.status).and_then(|status| status.migration_state);
        if let Some(state) = state.filter(|state| state.migration_uid.as_deref() == Some(&uid)) {
            explained.migration_state = Some(state);
        }
        explained.bottleneck = Some(match debug::report(session, &explained.vmi).await {
            Ok(report) if report["migration"]["uid"] == json!(uid) => report["migration"]["bottleneck"]
                .as_str()
                .unwrap_or("not known: QEMU has no figures of this stage")
                .to_owned(),
            Ok(_) => "not known: the guest's launcher does not send".to_owned(),
            Err(error) => format!("not known: {error:#}"),
        });
    }
    match asked.output {
        Some(format) => print!("{}", format.text(&explained)?),
        None => print!("{}", text(&explained)),
    }
    Ok(())
}

fn explained(migration: VirtualMachineInstanceMigration) -> Explained {
    let status = migration.status.unwrap_or_default();
    Explained {
        name: migration.metadata.name.unwrap_or_default(),
        namespace: migration.metadata.namespace.unwrap_or_default(),
        vmi: migration.spec.vmi_name.unwrap_or_default(),
        phase: status.phase.unwrap_or_else(|| "Pending".to_owned()),
        migration_state: status.migration_state,
        conditions: status.conditions.into_iter().filter(|condition| condition.status == "True").collect(),
        bottleneck: None,
    }
}

/// The explanation for people.
fn text(explained: &Explained) -> String {
    let Explained { name, namespace, vmi, phase, migration_state, conditions, bottleneck } = explained;
    let mut text = format!("VirtualMachineInstanceMigration {namespace}/{name}\n");
    let mut row = |what: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(text, "  {what:<12}{value}");
        }
    };
    row("instance", vmi);
    row("phase", phase);
    if let Some(state) = migration_state {
        let node = |node: &Option<String>| node.clone().unwrap_or_else(|| "a node not known yet".to_owned());
        row("nodes", &format!("from {} to {}", node(&state.source_node), node(&state.target_node)));
        row("mode", state.mode.as_deref().unwrap_or_default());
        row("policy", state.migration_policy_name.as_deref().unwrap_or_default());
        let time = |at: &Option<Time>| at.as_ref().map(|Time(at)| at.to_string()).unwrap_or_default();
        row("began", &time(&state.start_timestamp));
        row("ended", &time(&state.end_timestamp));
        row("aborted", state.abort_status.as_deref().unwrap_or_default());
        row("failed", state.failure_reason.as_deref().unwrap_or_default());
    }
    for condition in conditions {
        let message = condition.message.as_deref().unwrap_or_default();
        row("condition", format!("{} {message}", condition.type_).trim_end());
    }
    row("limit", bottleneck.as_deref().unwrap_or_default());
    row("look at", &next(phase, vmi));
    text
}

/// Where the reason is if a migration stays in this phase.
fn next(phase: &str, vmi: &str) -> String {
    match phase {
        "Pending" => format!(
            "kubectl get vmim -A, which shows how many are under way; kubectl describe vmi {vmi}: MigrationBackoff, FailedCreate"
        ),
        "Scheduling" | "Scheduled" => {
            "kubectl describe pod of the target: what the scheduler says".to_owned()
        }
        "PreparingTarget" => "virt-handler's log on the target's node".to_owned(),
        "TargetReady" => "virt-handler's log on the source's node".to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn migration(phase: &str, state: serde_json::Value) -> Explained {
        let object = json!({
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachineInstanceMigration",
            "metadata": {"name": "move", "namespace": "shop"},
            "spec": {"vmiName": "web"},
            "status": {"phase": phase, "migrationState": state, "conditions": [
                {"type": "migrationRejectedByResourceQuota", "status": "True", "message": "exceeded quota"},
                {"type": "migrationAbortRequested", "status": "False"},
            ]},
        });
        explained(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_migration_under_way_says_what_limits_it() {
        let mut running =
            migration("Running", json!({"sourceNode": "node01", "targetNode": "node02", "mode": "PreCopy"}));
        running.bottleneck = Some("limited by the dirty rate".into());
        assert_eq!(
            text(&running),
            "VirtualMachineInstanceMigration shop/move
  instance    web
  phase       Running
  nodes       from node01 to node02
  mode        PreCopy
  condition   migrationRejectedByResourceQuota exceeded quota
  limit       limited by the dirty rate
"
        );
    }

    #[test]
    fn one_that_waits_says_where_the_reason_is_and_one_that_failed_says_it() {
        let pending = text(&migration("Pending", json!(null)));
        assert!(
            pending.contains("look at     kubectl get vmim -A") && pending.contains("vmi web"),
            "{pending}"
        );
        let failed = text(&migration(
            "Failed",
            json!({"failureReason": "no space", "endTimestamp": "2026-01-02T03:04:05Z"}),
        ));
        assert!(
            failed.contains("failed      no space") && failed.contains("ended       2026-01-02T03:04:05Z"),
            "{failed}"
        );
    }
}
