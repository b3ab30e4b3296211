//! `VirtualMachineInstancePreset`.

use crate::v1::VirtualMachineInstancePreset;
use crate::validate::{Cause, CauseKind, Path};

/// Everything wrong with a new preset.
pub fn create(preset: &VirtualMachineInstancePreset) -> Vec<Cause> {
    let mut causes = Vec::new();
    if preset.spec.domain.is_none() {
        causes.push(Cause::required(&Path::new("spec.domain"), "missing domain."));
    }
    causes.push(Cause::new(
        CauseKind::NotSupported,
        &Path::new(""),
        "VirtualMachineInstancePreset is not supported: KubeVirt has deprecated it; VirtualMachineInstancetype and \
         VirtualMachinePreference take its place",
    ));
    causes
}
