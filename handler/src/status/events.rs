//! Events of a VMI, on transitions only, with the reasons and texts that KubeVirt's users and tools know.

use barevirt_api::names::CONDITION_SYNCHRONIZED;
use barevirt_api::names::{
    PHASE_FAILED, PHASE_RUNNING, PHASE_SUCCEEDED, REASON_DELETED, REASON_SHUTTING_DOWN, REASON_STARTED,
    REASON_STOPPED, REASON_SYNC_FAILED, is_final_phase,
};
use barevirt_api::v1::{Condition, VirtualMachineInstanceStatus};
use kube::runtime::events::{Event, EventType};

/// What the events are about, as `action`.
const ACTION: &str = "Sync";

/// The events that tell how `after` differs from `before`; an instance that is being deleted ends for that reason.
pub fn transitions(
    before: &VirtualMachineInstanceStatus,
    after: &VirtualMachineInstanceStatus,
    deleting: bool,
) -> Vec<Event> {
    let mut events = Vec::new();
    if before.phase != after.phase {
        match after.phase.as_deref() {
            Some(PHASE_RUNNING) => {
                events.push(event(
                    EventType::Normal,
                    REASON_STARTED,
                    "VirtualMachineInstance started.".to_owned(),
                ));
            }
            Some(PHASE_SUCCEEDED) => {
                let text = "The VirtualMachineInstance was shut down.".to_owned();
                events.push(event(EventType::Normal, REASON_STOPPED, text));
            }
            Some(PHASE_FAILED) => events.push(event(EventType::Warning, REASON_STOPPED, crashed(after))),
            _ => {}
        }
        if deleting && after.phase.as_deref().is_some_and(is_final_phase) {
            events.push(event(EventType::Normal, REASON_DELETED, "Signaled Deletion".to_owned()));
        }
    }
    let failure = |status: &VirtualMachineInstanceStatus| {
        Condition::find(&status.conditions, CONDITION_SYNCHRONIZED)
            .filter(|condition| condition.reason.as_deref() == Some(REASON_SYNC_FAILED))
            .map(|condition| condition.message.clone().unwrap_or_default())
    };
    if let Some(message) = failure(after).filter(|message| failure(before).as_ref() != Some(message)) {
        events.push(event(EventType::Warning, REASON_SYNC_FAILED, message));
    }
    events
}

/// The guest is being shut down.
pub fn shutting_down() -> Event {
    event(EventType::Normal, REASON_SHUTTING_DOWN, "Signaled Graceful Shutdown".to_owned())
}

fn crashed(status: &VirtualMachineInstanceStatus) -> String {
    let why = Condition::find(&status.conditions, barevirt_api::names::CONDITION_READY)
        .and_then(|condition| condition.message.as_deref())
        .filter(|message| !message.is_empty());
    match why {
        Some(why) => format!("The VirtualMachineInstance crashed: {why}"),
        None => "The VirtualMachineInstance crashed.".to_owned(),
    }
}

fn event(type_: EventType, reason: &str, note: String) -> Event {
    Event { type_, reason: reason.to_owned(), note: Some(note), action: ACTION.to_owned(), secondary: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(phase: &str) -> VirtualMachineInstanceStatus {
        VirtualMachineInstanceStatus { phase: Some(phase.to_owned()), ..Default::default() }
    }

    fn told(
        before: &VirtualMachineInstanceStatus,
        after: &VirtualMachineInstanceStatus,
    ) -> Vec<(String, String)> {
        let events = transitions(before, after, false);
        events.into_iter().map(|event| (event.reason, event.note.unwrap_or_default())).collect()
    }

    #[test]
    fn a_start_and_an_end_are_told_once() {
        let (scheduled, running, succeeded) = (status("Scheduled"), status("Running"), status("Succeeded"));
        assert_eq!(
            told(&scheduled, &running),
            [("Started".to_owned(), "VirtualMachineInstance started.".to_owned())]
        );
        assert_eq!(told(&running, &running), []);
        assert_eq!(told(&running, &succeeded)[0].0, "Stopped");
        let reasons: Vec<String> =
            transitions(&running, &succeeded, true).into_iter().map(|event| event.reason).collect();
        assert_eq!(reasons, ["Stopped", "Deleted"]);
    }

    #[test]
    fn a_crash_is_a_warning_that_says_why() {
        let mut failed = status("Failed");
        failed.conditions.push(Condition::new(
            "Ready",
            false,
            "GuestNotRunning",
            "QEMU was killed by signal 9",
        ));
        let events = transitions(&status("Running"), &failed, false);
        assert!(matches!(events[0].type_, EventType::Warning));
        assert_eq!(
            events[0].note.as_deref(),
            Some("The VirtualMachineInstance crashed: QEMU was killed by signal 9")
        );
    }

    #[test]
    fn a_failure_is_told_when_it_begins_or_changes() {
        let mut failing = status("Scheduled");
        failing.conditions.push(Condition::new("Synchronized", false, "SyncFailed", "open tap tap0"));
        assert_eq!(
            told(&status("Scheduled"), &failing),
            [("SyncFailed".to_owned(), "open tap tap0".to_owned())]
        );
        assert_eq!(told(&failing, &failing), []);
        assert_eq!(told(&failing, &status("Scheduled")), []);
    }
}
