//! What the controller plans for a machine. Pure: no client, no clock, no files. `virtctl explain` and `virtctl diff` use
//! the same planner, so their output matches what the controller does.
//!
//! ```text
//!   VirtualMachine --template--> VirtualMachineInstance --pod--> Pod
//!         |                              |
//!         +---- revision, live_update,   +   the part of a change that is taken over while the guest runs
//!               hotplug, cards ----------+   (difference: field by field)
//!
//!   DataVolume --imports--> claim, importer pod, status             where there is no CDI
//! ```
//!
//! The modules, from the outside in. Each module uses only modules that are listed below it.
//!
//! **What is planned for an object**
//!
//! - [`template`]: the instance that a machine starts; [`difference`]: what a change of a machine means for its instance.
//! - [`imports`]: claims, pods and status of DataVolumes; [`migration`]: settings of a migration.
//! - [`pod`]: the launcher pod of an instance, and pods beside it.
//!
//! **Parts of these plans**
//!
//! - [`data_volumes`]: DataVolumes that a machine's templates ask for; [`revision`]: copies of machines.
//! - [`volume_migration`]: volumes that move to other claims; [`live_update`]: changes that a running instance takes over;
//!   [`cards`] and [`hotplug`]: hotplug of network cards and volumes.
//!
//! **Shared by all**
//!
//! - [`config`]: settings of the installation; [`requests`]: commands in the status of a machine.
//! - [`fields`] and [`merge`]: differences of values; [`generated`]: names that follow from a text; [`owner`]: owner references.

pub mod cards;
pub mod config;
pub mod data_volumes;
pub mod difference;
pub mod fields;
pub mod generated;
pub mod hotplug;
pub mod imports;
pub mod live_update;
pub mod merge;
pub mod migration;
pub mod owner;
pub mod pod;
pub mod requests;
pub mod revision;
pub mod template;
pub mod volume_migration;

use barevirt_api::names::PHASE_PENDING;
use barevirt_api::v1::VirtualMachineInstance;

/// The phase of an instance; `Pending` where it has none.
pub fn phase(vmi: &VirtualMachineInstance) -> &str {
    let phase = vmi.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    if phase.is_empty() { PHASE_PENDING } else { phase }
}

/// Whether a migration of the guest has begun and has no result yet.
pub fn is_on_its_way(vmi: &VirtualMachineInstance) -> bool {
    let state = vmi.status.as_ref().and_then(|status| status.migration_state.as_ref());
    state.is_some_and(|state| {
        let is_over = state.completed == Some(true) && state.end_timestamp.is_some();
        state.migration_uid.as_ref().is_some_and(|uid| !uid.is_empty()) && !is_over
    })
}
