//! Plans the steps from the state of the pod's network namespace to the wanted state. Pure.
//!
//! [`plan`] compares [`Observed`] with a card that is [`Wanted`] and lists what is missing, in the order in
//! which to do it. A handler that returns to a complete pod gets an empty plan. Everything that is created
//! goes away with the namespace, or with its card if that is removed earlier.

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

/// The missing steps, in the order in which to do them.
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
