//! Rules for instance types as objects. The result of applying one is validated with the machine.

use crate::instancetype::VirtualMachineInstancetypeSpec;
use crate::validate::{Cause, Path};

/// Everything wrong with an instance type of either kind.
pub fn validate(spec: &VirtualMachineInstancetypeSpec) -> Vec<Cause> {
    let memory = Path::new("spec.memory");
    let field = memory.child("overcommitPercent");
    let percent = spec.memory.overcommit_percent.unwrap_or_default();
    let mut causes = Vec::new();
    if !(0..=100).contains(&percent) {
        let message = format!("{field} '{percent}': must be in range between 0 and 100.");
        causes.push(Cause::invalid(&field, message));
    }
    if percent != 0 && spec.memory.hugepages.is_some() {
        let message = format!("{field} and {} should not be requested together.", memory.child("hugepages"));
        causes.push(Cause::invalid(&field, message));
    }
    causes
}

/// Warnings for values that are accepted.
pub fn warnings(spec: &VirtualMachineInstancetypeSpec) -> Vec<String> {
    let deprecated =
        "launchSecurity is deprecated and will be removed in a future release. Use preference instead.";
    spec.launch_security.iter().map(|_| deprecated.to_owned()).collect()
}
