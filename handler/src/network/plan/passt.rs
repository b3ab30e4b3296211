//! The passt binding: a process of the pod without privileges forwards between the guest and sockets of the pod.
//!
//! ```text
//! network == eth0 (pod address) == sockets of the pod -- passt -- guest (pod address)
//! ```
//!
//! The handler creates nothing. Two settings of the network namespace let the launcher's user listen at ports below
//! 1024 and send pings.

use super::common::{Setting, plan_sysctls};
use super::step::{PlanError, Step};
use crate::network::links::Names;
use crate::network::state::Observed;

/// The range of groups that may send pings, as the kernel writes it: [`LAUNCHER_UID`](barevirt_api::names::LAUNCHER_UID)
/// alone.
const PING_GROUPS: &str = "107\t107";

/// Settings that the binding needs. These IPv4 settings apply to IPv6, too.
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
