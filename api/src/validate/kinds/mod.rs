//! Kinds beside machines and instances.
//!
//! Most of them have no machinery here yet. They are served all the same, so that what exists can be listed, watched and
//! removed; a new object is refused with the reason, after KubeVirt's own rules for it. A change that leaves the
//! specification alone always passes, so that finalizers can go; one of the specification passes where KubeVirt lets it
//! pass, with a warning that it has no effect.
//!
//! Where a rule looks at other objects, they are parameters.

pub mod backup;
pub mod clone;
pub mod eviction;
pub mod export;
pub mod instancetype;
pub mod kubevirt;
pub mod lock;
pub mod migration;
pub mod migration_policy;
pub mod pool;
pub mod preference;
pub mod preset;
pub mod replica_set;
mod rotation;
pub mod selector;
pub mod snapshot;
pub mod status;
mod workload_updates;

#[cfg(test)]
mod tests;

pub use crate::duration;
pub use selector::matches as selects;

use super::{Cause, CauseKind, Path};
use crate::gates::Gates;

/// The cause that refuses every new object of a kind without machinery.
fn not_there(kind: &str, why: &str) -> Cause {
    Cause::new(CauseKind::NotSupported, &Path::new(""), format!("{kind} is not supported yet: {why}"))
}

/// The same for a kind behind a gate: as long as the gate is off, that is the reason.
fn gated(gates: &Gates, gate: &str, off: &str, kind: &str, why: &str) -> Cause {
    if gates.is_on(gate) {
        not_there(kind, why)
    } else {
        Cause::new(CauseKind::NotSupported, &Path::new(""), off)
    }
}

/// A warning for a changed specification that has no effect.
pub fn without_effect<T: PartialEq>(kind: &str, old: &T, new: &T) -> Option<String> {
    (old != new).then(|| format!("{kind} is not supported yet: the change of spec has no effect"))
}

/// A specification that stays as it was made; the words are KubeVirt's.
fn immutable<T: PartialEq>(old: &T, new: &T, words: &str) -> Vec<Cause> {
    if old == new { Vec::new() } else { vec![Cause::invalid(&Path::new("spec"), words)] }
}

/// KubeVirt's words for most kinds.
const IMMUTABLE: &str = "spec in immutable after creation";
