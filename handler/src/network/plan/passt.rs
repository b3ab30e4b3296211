//! The passt binding: a process of the pod without privilege forwards between the guest and the pod's own sockets.
//!
//! ```text
//! network == eth0 (pod address) == sockets of the pod -- passt -- guest (pod address)
//! ```
//!
//! Nothing is made here. Settings of the namespace let the launcher's user listen at ports below 1024 and send pings.

use super::common::{Setting, plan_sysctls};
use super::step::{PlanError, Step};
use crate::network::links::Names;
use crate::network::state::Observed;

/// The group that may send pings: [`LAUNCHER_UID`](barevirt_api::names::LAUNCHER_UID), first and last, as the kernel writes it.
const PING_GROUPS: &str = "107\t107";

/// Settings that the binding needs. Those of IPv4 count for IPv6, too.
pub(super) fn sysctls() -> Vec<Setting> {
    vec![
        Setting::needed("net/ipv4/ip_unprivileged_port_start".to_owned(), "0"),
        Setting::needed("net/ipv4/ping_group_range".to_owned(), PING_GROUPS),
    ]
}

/// What is missing, in the order to do it.
pub(super) fn plan(names: &Names, observed: &Observed) -> Result<Vec<Step>, PlanError> {
    let pod = observed.links.get(&names.pod).filter(|link| link.global().next().is_some());
    if pod.is_none() {
        return Err(PlanError::NoPodInterface(names.pod.clone()));
    }
    let mut steps = Vec::new();
    plan_sysctls(sysctls(), observed, &mut steps);
    Ok(steps)
}
