//! Fields of a machine that may not change during a snapshot or restore.

use crate::syntax::quoted;
use crate::v1::{VirtualMachine, VirtualMachineStatus};
use crate::validate::{Cause, CauseKind, Path};

/// Everything wrong with a change of a machine during a snapshot or restore.
pub fn machine(old: &VirtualMachine, new: &VirtualMachine) -> Vec<Cause> {
    let Some(VirtualMachineStatus { snapshot_in_progress, restore_in_progress, .. }) = &new.status else {
        return Vec::new();
    };
    let field = Path::new("spec");
    let mut causes = Vec::new();
    let mut locked = |message: String| causes.push(Cause::new(CauseKind::NotSupported, &field, message));
    if let Some(snapshot) = snapshot_in_progress {
        let snapshot = quoted(snapshot);
        if old.spec.template.spec.volumes != new.spec.template.spec.volumes {
            locked(format!("Cannot update vm disks or volumes until snapshot {snapshot:?} completes"));
        }
        if (old.spec.running, &old.spec.run_strategy) != (new.spec.running, &new.spec.run_strategy) {
            locked(format!("Cannot update vm running state until snapshot {snapshot:?} completes"));
        }
    }
    if let Some(restore) = restore_in_progress
        && old.spec.effective_run_strategy() != new.spec.effective_run_strategy()
    {
        locked(format!("Cannot update VM runStrategy until restore {:?} completes", quoted(restore)));
    }
    causes
}
