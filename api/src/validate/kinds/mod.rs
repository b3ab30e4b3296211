//! Rules for all kinds except machines and instances.
//!
//! Most of these kinds have no controller here yet. They are still served, so that existing objects can be
//! listed, watched and deleted. A new object is refused with the reason, after KubeVirt's own rules for it. A
//! change that leaves the specification as it is always passes, so that finalizers can be removed. A change
//! of the specification passes where KubeVirt allows it, with a warning that it has no effect.
//!
//! Rules that need other objects get them as parameters.

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

/// The cause that refuses every new object of a kind without a controller.
fn not_there(kind: &str, why: &str) -> Cause {
    Cause::new(CauseKind::NotSupported, &Path::new(""), format!("{kind} is not supported yet: {why}"))
}

/// The same for a kind behind a gate: while the gate is off, this is the reason.
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

/// A specification that may not change after creation; the message is KubeVirt's.
fn immutable<T: PartialEq>(old: &T, new: &T, words: &str) -> Vec<Cause> {
    if old == new { Vec::new() } else { vec![Cause::invalid(&Path::new("spec"), words)] }
}

/// KubeVirt's message for most kinds.
const IMMUTABLE: &str = "spec in immutable after creation";
