//! What is different where the guest does not start here, but comes from another node.

use std::sync::Arc;

use barevirt_api::valid::ValidVmi;
use barevirt_api::validate::Cause;

use super::wanted::Wanted;
use crate::assembly::Incoming;
use crate::verdict::Verdict;

/// What a guest that comes was started with, where it has grown since: the rest of its memory comes with it.
///
/// # Errors
/// When it is not valid so.
pub fn as_started(wanted: &Arc<Wanted>) -> Result<Arc<Wanted>, Verdict> {
    let vmi = wanted.vmi.vmi();
    let memory = vmi.status.as_ref().and_then(|status| status.memory.as_ref());
    let at_boot = memory.and_then(|memory| memory.guest_at_boot.clone());
    let Some((at_boot, _)) = at_boot.zip(wanted.incoming.as_ref()) else { return Ok(Arc::clone(wanted)) };
    let mut started = vmi.clone();
    started.spec.domain.memory.get_or_insert_default().guest = Some(at_boot);
    let vmi = ValidVmi::new(started).map_err(|causes| {
        Verdict::failed("MachineRefused", format!("as it was started: {}", Cause::joined(&causes)))
    })?;
    Ok(Arc::new(Wanted { vmi, ..Wanted::clone(wanted) }))
}

/// Of a guest that runs elsewhere already: the machine is as it was resolved there.
#[must_use]
pub fn incoming(wanted: &Wanted) -> Option<Incoming> {
    let uid = wanted.incoming.clone()?;
    let machine = wanted.vmi.vmi().status.as_ref().and_then(|status| status.machine.as_ref());
    let machine_type = machine.and_then(|machine| machine.type_.clone()).filter(|name| !name.is_empty());
    Some(Incoming { uid, machine_type })
}
