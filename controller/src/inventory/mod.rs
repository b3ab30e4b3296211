//! Machines and instances as metrics. Only the leader exports any. The sizes of claims also show which have grown.
//!
//! ```text
//!   watch of machines  ──► MachineRow  ──┐
//!   watch of claims    ──► ClaimRow    ──┤
//!   watches of types   ──► Vended      ──┤
//!   watch of instances ──► InstanceRow ──┼──► lines, at each scrape
//!                    └──► phase times ───┤
//!   state of migrations ─────────────────┘
//! ```
//!
//! Rows are kept beside the packed caches, and made again when an object changes: a scrape unpacks nothing.

mod claims;
mod instance;
mod labels;
mod machine;
mod phases;
mod resources;
mod row;
mod vendors;

use crate::migrations::Migrations;
use barevirt_api::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration};
use barevirt_component::installation::Installation;
use barevirt_component::metrics::names::{
    VM_CREATED, VM_DISKS, VM_INFO, VM_LABELS, VM_LIMITS, VM_REQUESTS, VM_VNIC, VMI_ADDRESSES, VMI_INFO,
    VMI_MIGRATION_END, VMI_MIGRATION_START, VMI_NON_EVICTABLE, VMI_OUTDATED, VMI_OVERHEAD, VMI_VNIC,
    VMIM_FAILED, VMIM_PENDING, VMIM_RUNNING, VMIM_SCHEDULING, VMIM_SUCCEEDED, VMIM_UNSET,
};
use barevirt_component::metrics::{Metrics, begin};
use claims::Claims;
pub use claims::Grown;
use instance::InstanceRow;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Client;
use kube::runtime::watcher::Event;
use labels::Shown;
use machine::MachineRow;
use phases::Phases;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::gauge::ConstGauge;
use resources::Resources;
use row::{Key, Labels, Vnic, key};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vendors::Vended;

/// Running instances with an outdated launcher at the last look, for metrics.
pub static OUTDATED: AtomicUsize = AtomicUsize::new(0);

/// The rows of all objects, up to date with the caches.
#[derive(Clone, Default)]
pub struct Inventory(Arc<Contents>);

#[derive(Default)]
struct Contents {
    installation: Installation,
    leading: AtomicBool,
    machines: Mutex<HashMap<Key, MachineRow>>,
    instances: Mutex<HashMap<Key, InstanceRow>>,
    claims: Mutex<Claims>,
    vended: Mutex<Vended>,
    migrations: Migrations,
    phases: Phases,
    /// Labels of machines that are exported.
    shown: Mutex<Shown>,
}

impl fmt::Debug for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inventory").field("leading", &self.0.leading).finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inventory {
    /// Empty, under these settings.
    pub fn new(installation: Installation) -> Self {
        Inventory(Arc::new(Contents { installation, ..Contents::default() }))
    }

    /// Registers the metrics.
    pub fn export(&self, metrics: &mut Metrics) {
        metrics.collect(self.clone());
        self.0.phases.export(metrics);
    }

    /// The state of migrations.
    pub fn migrations(&self) -> &Migrations {
        &self.0.migrations
    }

    /// Called when this process becomes the leader.
    pub fn lead(&self) {
        self.0.leading.store(true, Ordering::Relaxed);
    }

    /// Watches the selected labels of machines, the instance types and preferences of known vendors, and the sizes of claims,
    /// until the future is dropped. Tells where claims may have grown.
    pub async fn follow(&self, client: Client, namespace: &str, tell: impl Fn(&Grown)) {
        let saw = |event: &Event<PersistentVolumeClaim>| {
            let grown = locked(&self.0.claims).saw(event);
            if let Some(grown) = grown {
                tell(&grown);
            }
        };
        tokio::join!(
            labels::follow(client.clone(), namespace, |shown| *locked(&self.0.shown) = shown),
            vendors::follow(client.clone(), |kind, event| locked(&self.0.vended).saw(kind, event)),
            claims::follow(client, saw),
        );
    }

    /// The size of a new disk on a claim; `None` if it is not known.
    pub fn claim_bytes(&self, namespace: &str, claim: &str) -> Option<u64> {
        locked(&self.0.claims).get(namespace, claim)?.bytes()
    }

    /// A machine was seen.
    pub fn saw_machine(&self, machine: &VirtualMachine) {
        let meta = &machine.metadata;
        let key =
            key(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
        locked(&self.0.machines).insert(key, MachineRow::of(machine));
    }

    /// A machine no longer exists.
    pub fn machine_gone(&self, namespace: &str, name: &str) {
        locked(&self.0.machines).remove(&key(namespace, name));
    }

    /// An instance was seen.
    pub fn saw_instance(&self, instance: &VirtualMachineInstance) {
        let meta = &instance.metadata;
        let key =
            key(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
        let row = InstanceRow::of(instance, &self.0.installation.settings());
        let former = locked(&self.0.instances).insert(key, row);
        // An instance that was unknown may have been in its phase for long.
        if let Some(former) = former.filter(|former| former.is(instance)) {
            self.0.phases.saw(former.phase(), instance);
        }
    }

    /// A migration was seen whose former state is still recorded.
    pub fn saw_migration(&self, migration: &VirtualMachineInstanceMigration) {
        let meta = &migration.metadata;
        let (namespace, name) =
            (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
        // A migration that was unknown may have been in its phase for long.
        if let Some(former) = self.0.migrations.phase(namespace, name) {
            self.0.phases.saw_migration(former, migration);
        }
    }

    /// An instance no longer exists.
    pub fn instance_gone(&self, namespace: &str, name: &str) {
        locked(&self.0.instances).remove(&key(namespace, name));
    }
}

impl Collector for Inventory {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        if !self.0.leading.load(Ordering::Relaxed) {
            return Ok(());
        }
        let machines = locked(&self.0.machines);
        let vended = locked(&self.0.vended);
        let mut family = begin(&mut encoder, &VM_INFO)?;
        for (key, row) in machines.iter() {
            line(&mut family, key, &row.labels(&key.0, &vended), 1.0)?;
        }
        for (metric, group) in machine::CHANGED {
            let mut family = begin(&mut encoder, metric)?;
            for (key, row) in machines.iter() {
                line(&mut family, key, &[], row.changed(group))?;
            }
        }
        let mut family = begin(&mut encoder, &VM_CREATED)?;
        for (key, row) in machines.iter() {
            row.created.map_or(Ok(()), |created| line(&mut family, key, &[], created))?;
        }
        let instances = locked(&self.0.instances);
        encode_resources(&mut encoder, &machines, &instances)?;
        let mut family = begin(&mut encoder, &VM_VNIC)?;
        for (key, row) in machines.iter() {
            vnics(&mut family, key, &row.vnics)?;
        }
        let claims = locked(&self.0.claims);
        let mut family = begin(&mut encoder, &VM_DISKS)?;
        for (key, row) in machines.iter() {
            for disk in &row.disks {
                // A claim that does not exist yet has no size.
                let Some(claim) = claims.get(&key.0, &disk.claim) else { continue };
                let labels = [
                    ("persistentvolumeclaim", &*disk.claim),
                    ("volume_mode", &claim.mode),
                    ("device", &disk.name),
                ];
                line(&mut family, key, &labels, disk.size(claim))?;
            }
        }
        drop(claims);
        let shown = locked(&self.0.shown).clone();
        let mut family = begin(&mut encoder, &VM_LABELS)?;
        for ((namespace, name), row) in machines.iter() {
            let exported = row.own.exported(&shown);
            if !exported.is_empty() {
                let own = [("namespace", &**namespace), ("name", &**name)];
                let all: Vec<(&str, &str)> = own
                    .into_iter()
                    .chain(exported.iter().map(|(name, value)| (name.as_str(), *value)))
                    .collect();
                ConstGauge::new(1.0).encode(family.encode_family(&all)?)?;
            }
        }
        drop(machines);

        let strategy = self.0.installation.settings().eviction_strategy;
        let mut family = begin(&mut encoder, &VMI_INFO)?;
        for (key, row) in instances.iter() {
            line(&mut family, key, &row.labels(&key.0, strategy.as_deref(), &vended), 1.0)?;
        }
        drop(vended);
        let mut family = begin(&mut encoder, &VMI_NON_EVICTABLE)?;
        for (key, row) in instances.iter() {
            let stays = if row.is_evictable(strategy.as_deref()) { 0.0 } else { 1.0 };
            line(&mut family, key, &[("node", row.node())], stays)?;
        }
        let mut family = begin(&mut encoder, &VMI_ADDRESSES)?;
        for (key, row) in instances.iter() {
            for labels in row.addresses() {
                line(&mut family, key, &labels, 1.0)?;
            }
        }
        let mut family = begin(&mut encoder, &VMI_VNIC)?;
        for (key, row) in instances.iter() {
            vnics(&mut family, key, &row.vnics)?;
        }
        let mut family = begin(&mut encoder, &VMI_OVERHEAD)?;
        for (key, row) in instances.iter() {
            row.overhead.map_or(Ok(()), |bytes| line(&mut family, key, &[], bytes))?;
        }
        self.encode_moves(&mut encoder, &instances)?;
        drop(instances);
        self.encode_migrations(&mut encoder)?;
        let outdated = u32::try_from(OUTDATED.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        ConstGauge::new(f64::from(outdated)).encode(begin(&mut encoder, &VMI_OUTDATED)?)
    }
}

impl Inventory {
    /// When the last migration of each instance began and ended.
    fn encode_moves(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        instances: &HashMap<Key, InstanceRow>,
    ) -> Result<(), fmt::Error> {
        let name_of = |(namespace, vmi): &Key, uid: &str| {
            let mut all = self.0.migrations.of_instance(namespace, vmi).into_iter();
            // KubeVirt's word for a migration whose object is gone.
            all.find(|(_, row)| *row.uid == *uid).map_or_else(|| "<none>".into(), |(name, _)| name)
        };
        let moves: Vec<_> = instances
            .iter()
            .filter_map(|(key, row)| Some((key, row.node(), row.moved.as_ref()?)))
            .map(|(key, node, moved)| (key, node, moved, name_of(key, &moved.uid)))
            .collect();
        let mut family = begin(encoder, &VMI_MIGRATION_START)?;
        for (key, node, moved, name) in &moves {
            let Some(begun) = moved.begun else { continue };
            line(&mut family, key, &[("node", *node), ("migration_name", &**name)], begun)?;
        }
        let mut family = begin(encoder, &VMI_MIGRATION_END)?;
        for (key, node, moved, name) in &moves {
            let Some(ended) = moved.ended else { continue };
            let labels = [("node", *node), ("migration_name", &**name), ("status", moved.outcome)];
            line(&mut family, key, &labels, ended)?;
        }
        Ok(())
    }

    fn encode_migrations(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let counts = self.0.migrations.counts();
        let metrics = [&VMIM_UNSET, &VMIM_PENDING, &VMIM_SCHEDULING, &VMIM_RUNNING];
        for (metric, count) in metrics.into_iter().zip(counts) {
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            ConstGauge::new(f64::from(count)).encode(begin(encoder, metric)?)?;
        }
        let ended = self.0.migrations.ended();
        for (metric, moved) in [(&VMIM_SUCCEEDED, true), (&VMIM_FAILED, false)] {
            let mut family = begin(encoder, metric)?;
            for ((namespace, name), vmi, _) in ended.iter().filter(|(_, _, did)| *did == moved) {
                let labels: Labels<'_> = vec![("namespace", namespace), ("vmi", vmi), ("vmim", name)];
                ConstGauge::new(1.0).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// What machines ask for. Of a machine with an instance type it is known while it has an instance.
fn encode_resources(
    encoder: &mut DescriptorEncoder<'_>,
    machines: &HashMap<Key, MachineRow>,
    instances: &HashMap<Key, InstanceRow>,
) -> Result<(), fmt::Error> {
    let known: Vec<(&Key, &Resources)> = machines
        .iter()
        .filter_map(|(key, row)| {
            let applied = || instances.get(key)?.resources.as_ref();
            Some((key, row.resources.as_ref().or_else(applied)?))
        })
        .collect();
    let mut family = begin(encoder, &VM_REQUESTS)?;
    for (key, resources) in &known {
        for (resource, unit, source, value) in &resources.requests {
            let labels = [("resource", *resource), ("unit", *unit), ("source", *source)];
            line(&mut family, key, &labels, *value)?;
        }
    }
    let mut family = begin(encoder, &VM_LIMITS)?;
    for (key, resources) in &known {
        for (resource, unit, value) in &resources.limits {
            line(&mut family, key, &[("resource", *resource), ("unit", *unit)], *value)?;
        }
    }
    Ok(())
}

fn line(
    family: &mut MetricEncoder<'_>,
    (namespace, name): &Key,
    labels: &[(&'static str, &str)],
    value: f64,
) -> Result<(), fmt::Error> {
    // An empty label equals no label.
    let own = [("namespace", &**namespace), ("name", &**name)];
    let given: Labels<'_> =
        own.into_iter().chain(labels.iter().copied()).filter(|(_, value)| !value.is_empty()).collect();
    ConstGauge::new(value).encode(family.encode_family(&given)?)
}

fn vnics(family: &mut MetricEncoder<'_>, key: &Key, vnics: &[Vnic]) -> Result<(), fmt::Error> {
    for Vnic { name, binding_type, binding, network, model } in vnics {
        let labels = [
            ("vnic_name", &**name),
            ("binding_type", *binding_type),
            ("network", &**network),
            ("binding_name", &**binding),
            ("model", &**model),
        ];
        line(family, key, &labels, 1.0)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
