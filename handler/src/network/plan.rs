//! From what is in the pod's network namespace to what should be there: pure.
//!
//! [`plan`] compares [`Observed`] with a card that is [`Wanted`] and lists what is missing, in the order to do it. A handler
//! that comes back to a pod that is complete gets an empty plan. What is made goes with the namespace, or with its card
//! where that leaves before.

pub mod bridge;
mod common;
mod gone;
pub mod masquerade;
mod passt;
mod step;
pub mod tap;

pub use self::common::Setting;
pub use self::step::{PlanError, Service, Step};

use super::links::Names;
use super::state::{Binding, Observed, Wanted};

/// All settings that a card depends on.
pub fn sysctls(wanted: &Wanted, names: &Names) -> Vec<Setting> {
    match &wanted.binding {
        Binding::Masquerade(_) => masquerade::sysctls(&names.bridge, true),
        Binding::Tap => Vec::new(),
        Binding::Passt => passt::sysctls(),
        Binding::Bridge | Binding::ManagedTap | Binding::Gone => {
            let port = bridge::port_sysctls(names);
            bridge::sysctls(names, true).into_iter().chain(port).collect()
        }
    }
}

/// What is missing, in the order to do it.
pub fn plan(wanted: &Wanted, observed: &Observed) -> Result<Vec<Step>, PlanError> {
    let names = wanted.names(&observed.links);
    match &wanted.binding {
        Binding::Masquerade(binding) => masquerade::plan(wanted, binding, &names, observed),
        Binding::Bridge | Binding::ManagedTap => bridge::plan(wanted, &names, observed),
        Binding::Tap => tap::plan(wanted, &names, observed),
        Binding::Passt => passt::plan(&names, observed),
        Binding::Gone => Ok(gone::plan(&names, observed)),
    }
}

#[cfg(test)]
mod tests;
