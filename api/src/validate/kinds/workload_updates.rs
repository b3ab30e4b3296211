//! Rules for `workloadUpdateStrategy` of the `KubeVirt` object.

use crate::duration;
use crate::migratable::SERVED;
use crate::syntax::quoted;
use crate::v1::KubeVirtWorkloadUpdateStrategy;
use crate::validate::{Cause, Path};
use crate::workload_updates::{EVICT, LIVE_MIGRATE};

/// Everything wrong with the strategy. The definition allows any text as a method, and an unknown one would
/// have no effect.
pub(super) fn rules(path: &Path, strategy: &KubeVirtWorkloadUpdateStrategy, causes: &mut Vec<Cause>) {
    rules_when(path, strategy, SERVED, causes);
}

/// The same, for a version that serves migrations or for one that does not.
pub(super) fn rules_when(
    path: &Path,
    strategy: &KubeVirtWorkloadUpdateStrategy,
    served: bool,
    causes: &mut Vec<Cause>,
) {
    let KubeVirtWorkloadUpdateStrategy {
        batch_eviction_interval: interval,
        batch_eviction_size: size,
        workload_update_methods: methods,
    } = strategy;
    let field = path.child("workloadUpdateMethods");
    for (index, method) in methods.iter().enumerate() {
        if method != EVICT && method != LIVE_MIGRATE {
            let message = format!("{} is not one of {LIVE_MIGRATE}, {EVICT}", quoted(method));
            causes.push(Cause::not_supported(&field.index(index), message));
        }
    }
    let is_named = |name: &str| methods.iter().any(|method| method == name);
    if !served && is_named(LIVE_MIGRATE) && !is_named(EVICT) {
        let message = format!(
            "{field} {LIVE_MIGRATE} alone is not supported yet: nothing can migrate. Together with {EVICT} it is taken, and \
             instances are evicted"
        );
        causes.push(Cause::not_supported(&field, message));
    }
    if size.is_some_and(|size| size < 0) {
        let field = path.child("batchEvictionSize");
        causes.push(Cause::invalid(&field, format!("{field} must be greater than or equal to 0")));
    }
    if let Some(interval) = interval.as_deref().filter(|interval| duration::parse(interval).is_none()) {
        let field = path.child("batchEvictionInterval");
        causes.push(Cause::invalid(&field, format!("{} is not a duration", quoted(interval))));
    }
}
