//! Machines: creates an instance of the same name whenever the run strategy or a command asks for one.
//!
//! ```text
//!                 start: instance created          instance Running
//!   Stopped ---------------------------> Starting ------------------> Running
//!      ^  ^                                 |                            |
//!      |  +-- instance gone <-- Stopping <--+---- instance deleted ------+
//!      |
//!      +-- CrashLoopBackOff: instances that end before they ran are retried after 10 n^2 seconds
//! ```
//!
//! A machine never creates an instance while the former object exists, or a launcher pod of it that may still run. The name
//! guarantees the former, the instance's finalizer the latter; and since users remove finalizers, launcher pods of that name
//! are looked up in the API server before each start.
//!
//! A machine that names an instance type or a preference keeps a copy of each, from which its instances are made, or gets
//! their values, as the installation says. It also keeps a copy of itself from its start ([`Drift`]), which shows whether
//! the running instance matches the machine.
//!
//! DataVolumes of its templates are made first, and a start waits until its instance can have them. Machines without
//! templates cause no requests for this.
//!
//! Status is computed whole after each step and written through the status subresource only where it differs: a start costs
//! three writes here, the copy, the instance and `Running`; the next start without a change in between makes no copy.
//! `Starting` and `Migrating` are written only where they last.

mod apply;
mod back_off;
mod data_volumes;
mod expansion;
mod instancetype;
mod patches;
mod plan;
mod revision;
mod status;
mod subject;
#[cfg(test)]
mod tests;
mod volumes;

pub use barevirt_plan::data_volumes::{DataVolumes, Work};
pub use barevirt_plan::live_update::Live;
pub use barevirt_plan::revision::Drift;
pub use barevirt_plan::template::instance;
pub use barevirt_plan::volume_migration::Move;
pub use instancetype::References;
pub use plan::{Claim, Observed, Step, plan};
pub use status::{Outcome, compute as compute_status};

use crate::cluster::Cluster;
use crate::expectations::{Key, Kind};
use crate::migrations::Matter;
use crate::vmi::others::{is_asked, is_moving, state};
use barevirt_api::settings::ReferencePolicy;
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_component::error::chain;
use barevirt_component::request::Error;
use barevirt_plan::live_update::Follows;
use barevirt_plan::{cards, hotplug, live_update, volume_migration};
use k8s_openapi::jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use std::time::{Duration, Instant};
use tracing::warn;

/// One reconciliation; returns when the next one is due without an event.
pub async fn reconcile(cluster: &Cluster, namespace: &str, name: &str) -> Result<Option<Duration>, Error> {
    let now = Instant::now();
    let owed = [Kind::Vm, Kind::Vmi].map(|kind| Key::new(kind, namespace, name));
    if owed.iter().any(|key| cluster.expectations.owes(key, now)) {
        return Ok(Some(Duration::from_secs(1)));
    }
    // Read only now, without an await in between, so that it is not older than the check above.
    let Some(vm) = cluster.vms.get(&ObjectRef::new(name).within(namespace)) else { return Ok(None) };
    let vm = match vm.unpack() {
        Ok(vm) => vm,
        Err(error) => {
            // It is logged and left alone; the others go on.
            warn!(namespace, name, error = %chain(&error), "a machine that cannot be read");
            return Ok(None);
        }
    };
    let vmi = match cluster.vmis.get(&ObjectRef::new(name).within(namespace)) {
        None => None,
        Some(found) => match found.unpack() {
            Ok(vmi) => Some(vmi),
            // Its own reconciler logs it; an undecodable instance is left alone.
            Err(_) => return Ok(None),
        },
    };
    let mut observed = Observed {
        vm,
        vmi,
        drift: Drift::None,
        live: Live::Done,
        volumes: Move::Nothing,
        data_volumes: DataVolumes::default(),
        references: ReferencePolicy::default(),
        moving_for: Duration::ZERO,
        now: Timestamp::now(),
    };
    // For most machines it decides nothing.
    if observed.vm.spec.instancetype.is_some() || observed.vm.spec.preference.is_some() {
        observed.references = cluster.config().settings.references;
    }
    observed.moving_for = moving_for(cluster, observed.own_vmi(), now);
    observed.drift = revision::drift(cluster, &observed.vm, observed.own_vmi()).await?;
    observed.live = live(cluster, &observed).await?;
    observed.volumes = volumes::observe(cluster, &observed).await?;
    observed.data_volumes = data_volumes::observe(cluster, &observed.vm, observed.own_vmi()).await?;
    let step = plan(&observed);
    apply::apply(cluster, &observed, step).await
}

/// How long the guest has been migrating; a long time where its migration is not known.
fn moving_for(cluster: &Cluster, vmi: Option<&VirtualMachineInstance>, now: Instant) -> Duration {
    let migration =
        vmi.filter(|vmi| is_moving(vmi)).and_then(|vmi| Some((vmi, state(vmi)?.migration_uid.as_ref()?)));
    match migration {
        None => Duration::ZERO,
        Some((vmi, uid)) if is_asked(&cluster.migrations, vmi) => {
            cluster.migrations.noticed(uid, Matter::OnItsWay, now)
        }
        Some(_) => Duration::MAX,
    }
}

/// The part of the machine's change that its instance takes over. Instance type and preference are read only where there may
/// be a change.
async fn live(cluster: &Cluster, observed: &Observed) -> Result<Live, Error> {
    let Some(vmi) = observed.own_vmi().filter(|vmi| observed.drift != Drift::None || cards::leave(vmi))
    else {
        return Ok(Live::Done);
    };
    let mut follows = Follows::of(&cluster.config().settings);
    if !observed.drift.leaves_the_guest() {
        follows = follows.before_a_restart();
    }
    follows.volumes &= hotplug::concerns(&observed.vm.spec.template.spec, vmi);
    // A volume that is to move is not unplugged instead.
    follows.volumes &= !volume_migration::concerns(&observed.vm, vmi);
    follows.cards &= cards::concern(&observed.vm.spec.template.spec, vmi);
    if !follows.size && !follows.volumes && !follows.cards {
        return Ok(Live::Done);
    }
    match instancetype::expanded(cluster, &observed.vm).await? {
        Ok(wanted) => Ok(live_update::plan(&wanted, vmi, &follows)),
        // The next start reports it.
        Err(_) => Ok(Live::Done),
    }
}
