//! An instance whose volumes are to move to a claim that another one has, or that volumes of an older one move to: it says that
//! it gives way, or takes that back ([`super::claim_lock`]). Pure.
//!
//! Only here: while its guest is handed over, nothing is planned for an instance but [`super::moving`].

use super::action::Plan;
use super::instance_end::bounded;
use super::observed::Observed;
use super::status::status_patch;
use barevirt_api::names::REASON_CLAIM_IN_USE;
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_component::notes::Note;
use barevirt_plan::volume_migration::turn::{gives_way, tell};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;
use std::time::Duration;

/// How often others are looked at: their changes are no events of this instance.
const INTERVAL: Duration = Duration::from_secs(5);

/// Whether volumes of the instance are to move to other claims.
pub(super) fn is_due(vmi: &VirtualMachineInstance) -> bool {
    vmi.status.as_ref().is_some_and(|status| !status.migrated_volumes.is_empty())
}

/// The plan for a running instance whose guest is not moving.
pub(super) fn plan(observed: &Observed) -> Plan {
    let vmi = &observed.vmi;
    if !is_due(vmi) {
        return Plan::default();
    }
    let mut status = vmi.status.clone().unwrap_or_default();
    let why = observed.goes_first.as_deref().map(bounded);
    tell(&mut status, why.as_deref(), &Time(observed.now));
    let plan = Plan::default().act_if(status_patch(vmi, json!({}), &status)).again_in(INTERVAL);
    match why {
        Some(why) if gives_way(vmi).is_none() => plan.tell(Note::warning(REASON_CLAIM_IN_USE, why)),
        _ => plan,
    }
}
