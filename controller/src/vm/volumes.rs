//! Volumes of a machine that move to other claims with its guest: the state of these claims, and their other users.
//!
//! Read from the API server, and only while the template names a claim that the instance does not have.

use super::plan::Observed;
use crate::cluster::Cluster;
use crate::migrations::row::Row;
use crate::vmi::{claim_info, look_for_claim, phase};
use crate::write;
use barevirt_api::names::is_final_phase;
use barevirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration};
use barevirt_component::request::Error;
use barevirt_plan::volume_migration::{Move, VolumeClaims, changed, concerns, plan};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::api::{DeleteParams, Preconditions};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tracing::info;

/// How often missing claims and a migrating guest are looked at.
const INTERVAL: Duration = Duration::from_secs(5);
/// How often volumes that cannot move are looked at again.
const STUCK: Duration = Duration::from_secs(30);

/// Plans the change of the volumes.
pub(super) async fn observe(cluster: &Cluster, observed: &Observed) -> Result<Move, Error> {
    let vm = &observed.vm;
    let alive = |vmi: &&VirtualMachineInstance| vmi.metadata.deletion_timestamp.is_none();
    let Some(vmi) = observed.own_vmi().filter(alive) else { return Ok(Move::Nothing) };
    let namespace = vm.namespace().unwrap_or_default();
    let mut claims = BTreeMap::new();
    if concerns(vm, vmi) {
        for (name, (from, to)) in changed(&vm.spec.template.spec, vmi) {
            let source = look_for_claim(&cluster.client, &namespace, from).await?;
            let destination = look_for_claim(&cluster.client, &namespace, to).await?;
            let user = user(cluster, vmi, to);
            let there = destination.filter(|claim| claim.metadata.deletion_timestamp.is_none());
            let found = VolumeClaims {
                source: source.as_ref().map(claim_info),
                destination: there.as_ref().map(claim_info),
                user,
            };
            claims.insert(name.to_owned(), found);
        }
    }
    Ok(plan(vm, vmi, &claims, &Time(observed.now)))
}

/// Another instance of the namespace that uses the claim.
fn user(cluster: &Cluster, vmi: &VirtualMachineInstance, claim: &str) -> Option<String> {
    let (namespace, name) = (vmi.namespace(), vmi.name_any());
    let all = cluster.vmis.state();
    let others = all.iter().filter(|other| other.namespace() == namespace && other.name_any() != name);
    let uses = |other: &VirtualMachineInstance| {
        !is_final_phase(phase(other))
            && other.spec.volumes.iter().any(|volume| volume.claim().is_some_and(|on| on.name == claim))
    };
    let found = others.filter_map(|other| other.unpack().ok()).find(uses)?;
    Some(format!("virtual machine instance {}", found.name_any()))
}

/// When to look again.
pub(super) fn interval(volumes: &Move) -> Option<Duration> {
    match volumes {
        Move::Wait | Move::GiveUp => Some(INTERVAL),
        Move::Restart(_) | Move::Blocked(_) => Some(STUCK),
        Move::Nothing | Move::Apply(_) => None,
    }
}

/// Whether a patch of the instance cancels the move of its volumes.
fn takes_back(body: &Value) -> bool {
    body["status"].get("migratedVolumes").is_some_and(Value::is_null)
}

/// Makes volumes of the instance move to other claims, or stay; in the latter case migrations for them are aborted.
pub(super) async fn change(cluster: &Cluster, observed: &Observed, mut body: Value) -> Result<(), Error> {
    let Some(vmi) = observed.own_vmi() else { return Ok(()) };
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), vmi.name_any());
    body["metadata"] = json!({"resourceVersion": vmi.metadata.resource_version});
    write::patch::<VirtualMachineInstance>(cluster, "move volumes of", &namespace, &name, &body).await?;
    info!(namespace, vm = name, change = %body, "volumes of the instance change their claims");
    if takes_back(&body) {
        give_up(cluster, vmi, false).await?;
    }
    Ok(())
}

/// Aborts unfinished migrations of the instance: all of them, or only those that this program created.
pub(super) async fn give_up(cluster: &Cluster, vmi: &VirtualMachineInstance, all: bool) -> Result<(), Error> {
    let (namespace, name) = (vmi.namespace().unwrap_or_default(), vmi.name_any());
    for (migration, row) in cluster.migrations.of_instance(&namespace, &name) {
        let Row { uid, phase, backs_off, going, .. } = row;
        if phase.is_final() || going || !(all || backs_off) {
            continue;
        }
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid: Some(uid.into()), resource_version: None }),
            ..DeleteParams::default()
        };
        write::delete::<VirtualMachineInstanceMigration>(cluster, &namespace, &migration, &params).await?;
        info!(
            namespace,
            vmi = name,
            migration = &*migration,
            "gave a migration up: its volumes stay where they are"
        );
    }
    Ok(())
}
