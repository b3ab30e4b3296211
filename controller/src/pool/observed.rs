//! The observation of a pool with its machines: everything that a plan depends on.

use super::generation::{self, Older};
use barevirt_api::names::{CONDITION_READY, PHASE_RUNNING};
use barevirt_api::pool::{VirtualMachinePool, VirtualMachineTemplateSpec};
use barevirt_api::v1::{Condition, VirtualMachine, VirtualMachineInstance};
use barevirt_api::validate::kinds::selector;
use k8s_openapi::jiff::Timestamp;
use kube::Resource;

/// Machines that are created or deleted at once; the rest follows with the next look. KubeVirt has 250.
pub(super) const BURST: usize = 50;
/// A machine of the pool, with its instance.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The machine.
    pub vm: VirtualMachine,
    /// The instance of its name.
    pub instance: Option<VirtualMachineInstance>,
}

impl Machine {
    pub(super) fn is_ready(&self) -> bool {
        let status = self.vm.status.as_ref();
        status.is_some_and(|status| Condition::is_set(&status.conditions, CONDITION_READY))
    }

    pub(super) fn is_deleting(&self) -> bool {
        self.vm.metadata.deletion_timestamp.is_some()
    }

    /// Whether its guest is usable.
    pub(super) fn is_available(&self) -> bool {
        self.instance.as_ref().is_some_and(|instance| {
            let conditions = instance.status.as_ref().map(|status| status.conditions.as_slice());
            instance.metadata.deletion_timestamp.is_none()
                && crate::vmi::phase(instance) == PHASE_RUNNING
                && Condition::is_set(conditions.unwrap_or_default(), CONDITION_READY)
        })
    }
}

/// Everything that a plan depends on.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The pool.
    pub pool: VirtualMachinePool,
    /// Its machines, also those that are being deleted.
    pub machines: Vec<Machine>,
    /// Machines without a controller that the pool still holds.
    pub strays: Vec<VirtualMachine>,
    /// Numbers that no machine of the namespace has in its name, in ascending order.
    pub free: Vec<u32>,
    /// Older generations that machines or instances were made from.
    pub(super) older: Older,
    /// Whether no older generation is left.
    pub pruned: bool,
    /// The present time, for ages.
    pub now: Timestamp,
}

impl Observed {
    /// The template of that generation.
    pub(super) fn template(&self, revision: &str) -> Option<&VirtualMachineTemplateSpec> {
        if revision == generation::name(&self.pool) {
            return Some(&self.pool.spec.virtual_machine_template);
        }
        let spec = self.older.get(revision)?.as_ref()?;
        Some(&spec.virtual_machine_template)
    }

    pub(super) fn selects(&self, machine: &Machine) -> bool {
        selector::matches(&self.pool.spec.selector, machine.vm.meta().labels.as_ref()) == Ok(true)
    }

    /// Whether the pool selects the machines that it makes. Admission requires that, but pools may be older than the rule.
    pub(super) fn is_sane(&self) -> bool {
        let metadata = self.pool.spec.virtual_machine_template.metadata.as_ref();
        selector::matches(&self.pool.spec.selector, metadata.and_then(|metadata| metadata.labels.as_ref()))
            == Ok(true)
    }
}
