//! Commands in `status.stateChangeRequests`: virt-api adds them, the controller removes completed ones.

use barevirt_api::names::{ACTION_START, ACTION_STOP, START_PAUSED, is_final_phase};
use barevirt_api::v1::{StateChangeRequest, VirtualMachineInstance};

/// The remaining requests: completed ones are removed from the front, in order.
pub fn left<'a>(
    requests: &'a [StateChangeRequest],
    vmi: Option<&VirtualMachineInstance>,
) -> &'a [StateChangeRequest] {
    let done = requests.iter().take_while(|request| is_done(request, vmi)).count();
    requests.get(done..).unwrap_or_default()
}

fn is_done(request: &StateChangeRequest, vmi: Option<&VirtualMachineInstance>) -> bool {
    match request.action.as_str() {
        // It is meant for one instance; another instance, or none, shows that the one was stopped.
        ACTION_STOP => vmi.is_none_or(|vmi| request.uid.is_none() || request.uid != vmi.metadata.uid),
        ACTION_START => vmi.is_some_and(|vmi| {
            vmi.metadata.deletion_timestamp.is_none() && !is_final_phase(crate::phase(vmi))
        }),
        // Admission accepts no other command; an unknown one would block those behind it.
        _ => true,
    }
}

/// Whether the next command is to stop this instance.
pub fn stops(requests: &[StateChangeRequest], vmi: &VirtualMachineInstance) -> bool {
    left(requests, Some(vmi))
        .first()
        .is_some_and(|request| request.action == ACTION_STOP && request.uid == vmi.metadata.uid)
}

/// Whether the next command is to start.
pub fn starts(requests: &[StateChangeRequest], vmi: Option<&VirtualMachineInstance>) -> bool {
    left(requests, vmi).first().is_some_and(|request| request.action == ACTION_START)
}

/// Whether the next command is to start with the guest paused.
pub fn starts_paused(requests: &[StateChangeRequest]) -> bool {
    left(requests, None).first().is_some_and(|request| {
        request.action == ACTION_START && request.data.get(START_PAUSED).is_some_and(|value| value == "true")
    })
}

/// A command to start.
pub fn start() -> StateChangeRequest {
    StateChangeRequest { action: ACTION_START.to_owned(), ..StateChangeRequest::default() }
}
