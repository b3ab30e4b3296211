//! Events about a VMI, only on transitions, with the reasons and texts that KubeVirt's users and tools know.

use barevirt_api::names::{
    CONDITION_ACCESS_CREDENTIALS, CONDITION_LIVE_MIGRATABLE, CONDITION_PAUSED, CONDITION_POST_COPY_RECOVERY,
    CONDITION_READY, CONDITION_SYNCHRONIZED, PHASE_FAILED, PHASE_RUNNING, PHASE_SCHEDULED, PHASE_SUCCEEDED,
    REASON_ACCESS_CREDENTIALS_FAILED, REASON_ACCESS_CREDENTIALS_SYNCED, REASON_CONNECTION_BROKEN,
    REASON_CONNECTION_REPLACED, REASON_CREATED, REASON_DELETED, REASON_DISK_NOT_GROWN, REASON_GUEST_PANICKED,
    REASON_IO_ERROR, REASON_MIGRATED, REASON_NO_POST_COPY, REASON_PAUSED_IO_ERROR, REASON_PING_FAILED,
    REASON_SHUTTING_DOWN, REASON_SMALLER_DISK, REASON_STARTED, REASON_STOPPED, REASON_SYNC_FAILED,
    is_final_phase,
};
use barevirt_api::v1::{Condition, VirtualMachineInstance, VirtualMachineInstanceStatus, VolumeStatus};
use barevirt_protocol::v1::LauncherStatus;
use kube::runtime::events::{Event, EventType};

/// The field `action` of the events.
const ACTION: &str = "Sync";

/// Longest note that the API server accepts, in bytes.
const LONGEST_NOTE: usize = 1024;

/// The events for the difference between `before` and `after`. For an instance that is being deleted, the
/// deletion is the reason for its end.
pub fn transitions(
    before: &VirtualMachineInstanceStatus,
    after: &VirtualMachineInstanceStatus,
    deleting: bool,
) -> Vec<Event> {
    let mut events = Vec::new();
    if before.phase != after.phase {
        match after.phase.as_deref() {
            Some(PHASE_RUNNING) => {
                let made = (REASON_CREATED, "VirtualMachineInstance defined.");
                for (reason, text) in [made, (REASON_STARTED, "VirtualMachineInstance started.")] {
                    events.push(event(EventType::Normal, reason, text.to_owned()));
                }
            }
            Some(PHASE_SUCCEEDED) => {
                let text = "The VirtualMachineInstance was shut down.".to_owned();
                events.push(event(EventType::Normal, REASON_STOPPED, text));
            }
            Some(PHASE_FAILED) => {
                // The event has the launcher's reason.
                if after.reason.as_deref() == Some(REASON_GUEST_PANICKED) {
                    let text = "GuestPanicked (details unavailable)".to_owned();
                    events.push(event(EventType::Warning, REASON_GUEST_PANICKED, text));
                }
                // A guest that could not be started: users and tools know this reason for it.
                if before.phase.as_deref() == Some(PHASE_SCHEDULED) && !deleting {
                    let why = reason_of_end(after).unwrap_or("the guest could not be started");
                    events.push(event(EventType::Warning, REASON_SYNC_FAILED, why.to_owned()));
                }
                events.push(event(EventType::Warning, REASON_STOPPED, crashed(after)));
            }
            _ => {}
        }
        if deleting && after.phase.as_deref().is_some_and(is_final_phase) {
            events.push(event(EventType::Normal, REASON_DELETED, "Signaled Deletion".to_owned()));
        }
    }
    events.extend(credentials(before, after));
    events.extend(io_error(before, after));
    events.extend(volumes(before, after));
    events.extend(post_copy(before, after));
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

/// Access credentials were applied, or could not be applied. The texts are KubeVirt's.
fn credentials(before: &VirtualMachineInstanceStatus, after: &VirtualMachineInstanceStatus) -> Option<Event> {
    let synced = |status: &VirtualMachineInstanceStatus| {
        let condition = Condition::find(&status.conditions, CONDITION_ACCESS_CREDENTIALS)?;
        Some((condition.status == "True", condition.message.clone().unwrap_or_default()))
    };
    let (worked, message) = synced(after).filter(|now| synced(before).as_ref() != Some(now))?;
    Some(if worked {
        let note = "Access credentials sync successful.".to_owned();
        event(EventType::Normal, REASON_ACCESS_CREDENTIALS_SYNCED, note)
    } else {
        let note = format!("Access credentials sync failed: {message}");
        event(EventType::Warning, REASON_ACCESS_CREDENTIALS_FAILED, note)
    })
}

/// The connection of a migration broke in post-copy, or was replaced. If it was not replaced, the event of the
/// guest's end says so.
fn post_copy(before: &VirtualMachineInstanceStatus, after: &VirtualMachineInstanceStatus) -> Option<Event> {
    let broken = |status: &VirtualMachineInstanceStatus| {
        let condition = Condition::find(&status.conditions, CONDITION_POST_COPY_RECOVERY)?;
        Some(condition.message.clone().unwrap_or_default())
    };
    let failed = after.migration_state.as_ref().is_some_and(|state| state.failed == Some(true));
    match (broken(before), broken(after)) {
        (None, Some(message)) => Some(event(EventType::Warning, REASON_CONNECTION_BROKEN, message)),
        (Some(_), None) if !failed && !after.phase.as_deref().is_some_and(is_final_phase) => {
            let note = "the migration continues in post-copy over a new connection".to_owned();
            Some(event(EventType::Normal, REASON_CONNECTION_REPLACED, note))
        }
        (Some(_), None | Some(_)) | (None, None) => None,
    }
}

/// Events about hotplugged volumes, and about disks that do not grow. The reasons and messages of a new phase are
/// KubeVirt's.
fn volumes<'a>(
    before: &'a VirtualMachineInstanceStatus,
    after: &'a VirtualMachineInstanceStatus,
) -> impl Iterator<Item = Event> + 'a {
    let is_short = |entry: &VolumeStatus| entry.reason.as_deref() == Some(REASON_DISK_NOT_GROWN);
    after.volume_status.iter().filter_map(move |entry| {
        if entry.hotplug_volume.is_none() && !is_short(entry) {
            return None;
        }
        let (reason, message) = (entry.reason.as_deref()?, entry.message.clone()?);
        let was = before.volume_status.iter().find(|was| was.name == entry.name);
        let is_news = was.is_none_or(|was| was.phase != entry.phase || was.message != entry.message);
        let has_grown = was.is_some_and(is_short) && !is_short(entry);
        // A new message without a new phase is a problem.
        let stands = was.is_some_and(|was| was.phase == entry.phase);
        let type_ = if stands { EventType::Warning } else { EventType::Normal };
        (is_news && !has_grown).then(|| event(type_, reason, message))
    })
}

/// New disks that are smaller than was asked for; reported when their guest has started.
pub fn smaller_disks(
    before: &VirtualMachineInstanceStatus,
    after: &VirtualMachineInstanceStatus,
    launcher: &LauncherStatus,
) -> Vec<Event> {
    if before.phase == after.phase || after.phase.as_deref() != Some(PHASE_RUNNING) {
        return Vec::new();
    }
    let told = launcher.smaller.iter().map(|disk| disk.text.clone());
    told.map(|text| event(EventType::Normal, REASON_SMALLER_DISK, text)).collect()
}

/// A disk error has stopped the guest.
fn io_error(before: &VirtualMachineInstanceStatus, after: &VirtualMachineInstanceStatus) -> Option<Event> {
    let stopped = |status: &VirtualMachineInstanceStatus| {
        Condition::find(&status.conditions, CONDITION_PAUSED)
            .filter(|condition| condition.reason.as_deref() == Some(REASON_PAUSED_IO_ERROR))
            .map(|condition| condition.message.clone().unwrap_or_default())
    };
    let message = stopped(after).filter(|_| stopped(before).is_none())?;
    Some(event(EventType::Warning, REASON_IO_ERROR, message))
}

/// An instance that should be migrated on eviction cannot be migrated.
pub fn not_movable(
    strategy: Option<&str>,
    before: &VirtualMachineInstanceStatus,
    after: &VirtualMachineInstanceStatus,
) -> Option<Event> {
    let why = |status: &VirtualMachineInstanceStatus| {
        Condition::find(&status.conditions, CONDITION_LIVE_MIGRATABLE)
            .filter(|condition| condition.status == "False")
            .map(|condition| condition.message.clone().unwrap_or_default())
    };
    let message = why(after).filter(|_| strategy == Some("LiveMigrate") && why(before).is_none())?;
    let note = format!("EvictionStrategy is set but vmi is not migratable; {message}");
    Some(event(EventType::Warning, REASON_MIGRATED, note))
}

/// The guest is being shut down.
pub fn shutting_down() -> Event {
    event(EventType::Normal, REASON_SHUTTING_DOWN, "Signaled Graceful Shutdown".to_owned())
}

/// A migration that may use post-copy cannot use it.
pub fn no_post_copy(node: &str) -> Event {
    let words = "the target's pod has no /dev/userfaultfd, or QEMU cannot use it";
    let message =
        format!("The migration continues without post-copy: node {node} does not support it ({words})");
    event(EventType::Normal, REASON_NO_POST_COPY, message)
}

/// A probe pinged the guest agent, and the agent did not answer.
pub fn ping_failed(vmi: &VirtualMachineInstance) -> Event {
    let name = vmi.metadata.name.as_deref().unwrap_or_default();
    event(EventType::Warning, REASON_PING_FAILED, format!("GuestAgentPing probe failed for VMI {name}"))
}

fn crashed(status: &VirtualMachineInstanceStatus) -> String {
    match reason_of_end(status) {
        Some(why) => format!("The VirtualMachineInstance crashed: {why}"),
        None => "The VirtualMachineInstance crashed.".to_owned(),
    }
}

/// Why the guest has ended, where that is known.
fn reason_of_end(status: &VirtualMachineInstanceStatus) -> Option<&str> {
    let ready = Condition::find(&status.conditions, CONDITION_READY)?;
    ready.message.as_deref().filter(|message| !message.is_empty())
}

fn event(type_: EventType, reason: &str, mut note: String) -> Event {
    note.truncate(note.floor_char_boundary(LONGEST_NOTE));
    Event { type_, reason: reason.to_owned(), note: Some(note), action: ACTION.to_owned(), secondary: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(phase: &str) -> VirtualMachineInstanceStatus {
        VirtualMachineInstanceStatus { phase: Some(phase.to_owned()), ..Default::default() }
    }

    fn events_of(
        before: &VirtualMachineInstanceStatus,
        after: &VirtualMachineInstanceStatus,
    ) -> Vec<(String, String)> {
        let events = transitions(before, after, false);
        events.into_iter().map(|event| (event.reason, event.note.unwrap_or_default())).collect()
    }

    #[test]
    fn a_start_and_an_end_cause_their_events_once() {
        let (scheduled, running, succeeded) = (status("Scheduled"), status("Running"), status("Succeeded"));
        assert_eq!(
            events_of(&scheduled, &running),
            [
                ("Created".to_owned(), "VirtualMachineInstance defined.".to_owned()),
                ("Started".to_owned(), "VirtualMachineInstance started.".to_owned()),
            ]
        );
        assert_eq!(events_of(&running, &running), []);
        assert_eq!(events_of(&running, &succeeded)[0].0, "Stopped");
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
    fn a_guest_that_could_not_be_started_causes_kubevirts_events() {
        let mut failed = status("Failed");
        let why = "volume data: open disk.img: user 107 may not";
        failed.conditions.push(Condition::new("Ready", false, "GuestNotRunning", why));
        let stopped = ("Stopped".to_owned(), format!("The VirtualMachineInstance crashed: {why}"));
        let sync = ("SyncFailed".to_owned(), why.to_owned());
        assert_eq!(events_of(&status("Scheduled"), &failed), [sync, stopped.clone()]);
        assert_eq!(events_of(&status("Running"), &failed), [stopped]);
        let reasons = transitions(&status("Scheduled"), &failed, true).into_iter().map(|event| event.reason);
        assert_eq!(reasons.collect::<Vec<_>>(), ["Stopped", "Deleted"]);
    }

    #[test]
    fn a_note_is_as_long_as_the_api_server_takes() {
        let mut failed = status("Failed");
        failed.conditions.push(Condition::new("Ready", false, "GuestNotRunning", "ä".repeat(2000)));
        let note = events_of(&status("Running"), &failed).remove(0).1;
        assert!((1020..=1024).contains(&note.len()), "{}", note.len());
    }

    #[test]
    fn changed_credentials_cause_an_event() {
        let with = |worked: bool, message: &str| {
            let mut status = status("Running");
            let condition = Condition::new("AccessCredentialsSynchronized", worked, "", message);
            status.conditions.push(condition);
            status
        };
        let (none, failed, worked) =
            (status("Running"), with(false, "Guest agent is offline"), with(true, ""));
        assert_eq!(
            events_of(&none, &failed),
            [(
                "AccessCredentialsSyncFailed".to_owned(),
                "Access credentials sync failed: Guest agent is offline".to_owned()
            )]
        );
        assert_eq!(
            events_of(&failed, &worked),
            [("AccessCredentialsSyncSuccess".to_owned(), "Access credentials sync successful.".to_owned())]
        );
        assert_eq!(events_of(&worked, &worked), []);
        assert_eq!(events_of(&worked, &none), []);
    }

    #[test]
    fn failed_storage_and_a_guest_panic_cause_one_event_each() {
        let mut stopped = status("Running");
        stopped.conditions.push(Condition::new("Paused", true, "PausedIOError", "low-level IO error"));
        assert_eq!(
            events_of(&status("Running"), &stopped),
            [("IOerror".to_owned(), "low-level IO error".to_owned())]
        );
        assert_eq!(events_of(&stopped, &stopped), []);
        let by_user = Condition::new("Paused", true, "PausedByUser", "");
        let by_user = VirtualMachineInstanceStatus { conditions: vec![by_user], ..status("Running") };
        assert_eq!(events_of(&status("Running"), &by_user), []);
        let panicked =
            VirtualMachineInstanceStatus { reason: Some("GuestPanicked".to_owned()), ..status("Failed") };
        let reasons: Vec<String> =
            events_of(&status("Running"), &panicked).into_iter().map(|(reason, _)| reason).collect();
        assert_eq!(reasons, ["GuestPanicked", "Stopped"]);
        assert_eq!(events_of(&panicked, &panicked), []);
    }

    #[test]
    fn a_smaller_disk_is_reported_when_its_guest_has_started() {
        use barevirt_protocol::v1::DiskTrouble;
        let trouble = DiskTrouble { volume: "data".to_owned(), text: "it is small".to_owned() };
        let launcher = LauncherStatus { smaller: vec![trouble], ..LauncherStatus::default() };
        let told = |before: &str, after: &str| smaller_disks(&status(before), &status(after), &launcher);
        let events = told("Scheduled", "Running");
        assert_eq!(events.len(), 1);
        assert_eq!(
            (events[0].reason.as_str(), events[0].note.as_deref()),
            ("ToleratedSmallPV", Some("it is small"))
        );
        assert!(matches!(events[0].type_, EventType::Normal));
        assert!(told("Running", "Running").is_empty() && told("Scheduled", "Failed").is_empty());
    }

    #[test]
    fn a_disk_that_does_not_grow_causes_one_event() {
        let with = |reason: Option<&str>, message: &str| {
            let volume = |name: &str| VolumeStatus {
                name: name.to_owned(),
                reason: reason.map(str::to_owned),
                message: reason.map(|_| message.to_owned()),
                ..VolumeStatus::default()
            };
            let hot = VolumeStatus { hotplug_volume: Some(Default::default()), ..volume("hot") };
            VirtualMachineInstanceStatus { volume_status: vec![volume("boot"), hot], ..status("Running") }
        };
        let (usual, short) = (with(Some("VolumeReady"), "it is there"), with(Some("DiskNotGrown"), "busy"));
        let told = ("DiskNotGrown".to_owned(), "busy".to_owned());
        assert_eq!(events_of(&usual, &short), [told.clone(), told]);
        let kinds = transitions(&usual, &short, false);
        assert!(kinds.iter().all(|event| matches!(event.type_, EventType::Warning)));
        assert_eq!(events_of(&short, &short), []);
        assert_eq!(events_of(&short, &usual), [], "it has grown");
        assert_eq!(events_of(&short, &with(None, "")), []);
    }

    #[test]
    fn an_unmigratable_guest_with_an_eviction_strategy_causes_one_event() {
        let mut running = status("Running");
        running.conditions.push(Condition::new("LiveMigratable", false, "DisksNotLiveMigratable", "why"));
        let wants = Some("LiveMigrate");
        let event = not_movable(wants, &status("Scheduled"), &running).unwrap();
        assert_eq!(event.reason, "Migrated");
        assert_eq!(event.note.as_deref(), Some("EvictionStrategy is set but vmi is not migratable; why"));
        assert!(not_movable(wants, &running, &running).is_none());
        assert!(not_movable(Some("LiveMigrateIfPossible"), &status("Scheduled"), &running).is_none());
        assert!(not_movable(wants, &status("Scheduled"), &status("Running")).is_none());
    }

    #[test]
    fn a_failure_causes_an_event_when_it_begins_or_changes() {
        let mut failing = status("Scheduled");
        failing.conditions.push(Condition::new("Synchronized", false, "SyncFailed", "open tap tap0"));
        assert_eq!(
            events_of(&status("Scheduled"), &failing),
            [("SyncFailed".to_owned(), "open tap tap0".to_owned())]
        );
        assert_eq!(events_of(&failing, &failing), []);
        assert_eq!(events_of(&failing, &status("Scheduled")), []);
    }
}
