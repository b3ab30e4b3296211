//! What has to be done for a guest that migrates. Pure.

use barevirt_api::names::{BLOCK_TARGET_ANNOTATION, FAIL_MIGRATION_ANNOTATION};
use barevirt_api::quantity;
use barevirt_api::v1::{
    VirtualMachineInstance, VirtualMachineInstanceMigrationState as State, VmimConfigurationOptions,
};
use barevirt_protocol::v1::{LauncherStatus, MigrationState as Stage, MigrationStatus};

use super::compression::wants_compression;
use super::limits::bandwidth;

/// Connections for a guest's memory in addition to the first one. Each has a thread of QEMU at both ends, which encrypts some 0.3 GiB
/// a second, so four fill a network of 10 Gbit/s. More would take processors from other guests.
const CHANNELS: u8 = 4;
/// Bytes per second that one connection sends. QEMU looks at its limit every tenth of a second and gives each channel half a mebibyte
/// before it counts, so with many channels a small limit would not be kept; and one connection is enough for it.
const ONE_CONNECTION: u64 = 256 << 20;

/// A step for a guest that leaves this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Move {
    /// Starts to send it.
    Send {
        /// UID of the migration.
        uid: String,
    },
    /// Cancels the migration.
    Abort {
        /// UID of the migration.
        uid: String,
    },
    /// Tells the target that everything was sent, and that the guest now belongs to it.
    Go {
        /// UID of the migration.
        uid: String,
        /// Whether a user has paused the guest.
        hold: bool,
    },
    /// Makes a new connection between both ends: the former one broke in post-copy.
    Rejoin {
        /// UID of the migration.
        uid: String,
    },
    /// Tells the launcher on this node where the guest is.
    Result {
        /// UID of the migration.
        uid: String,
        /// Whether the target has the guest.
        went: bool,
        /// Whether the target has ended and may have run the guest.
        lost: bool,
    },
}

/// The migration in an instance's status, if it has a UID.
fn state(vmi: &VirtualMachineInstance) -> Option<(&State, &str)> {
    let state = vmi.status.as_ref()?.migration_state.as_ref()?;
    let uid = state.migration_uid.as_deref().filter(|uid| !uid.is_empty())?;
    Some((state, uid))
}

fn owner(vmi: &VirtualMachineInstance) -> &str {
    vmi.status.as_ref().and_then(|status| status.node_name.as_deref()).unwrap_or_default()
}

/// The migration by which the instance arrives on this node, while it is in progress: its UID and its source.
#[must_use]
pub fn incoming<'a>(vmi: &'a VirtualMachineInstance, node: &str) -> Option<(&'a str, &'a str)> {
    let (state, uid) = state(vmi)?;
    let source = state.source_node.as_deref().filter(|source| !source.is_empty())?;
    let here = state.target_node.as_deref() == Some(node) && source != node && owner(vmi) == source;
    (here && state.completed != Some(true)).then_some((uid, source))
}

/// Whether the migration in progress is not wanted any more, or its source's pod or node has ended.
#[must_use]
pub fn is_cancelled(vmi: &VirtualMachineInstance) -> bool {
    state(vmi).is_some_and(|(state, _)| state.abort_requested == Some(true))
}

/// The state of the migration by which the instance leaves or has left this node.
#[must_use]
pub fn outgoing<'a>(vmi: &'a VirtualMachineInstance, node: &str) -> Option<(&'a State, &'a str)> {
    state(vmi).filter(|(state, _)| {
        state.source_node.as_deref() == Some(node)
            && state.target_node.as_deref().is_some_and(|to| to != node)
    })
}

/// Whether the instance will leave this node by a migration that was handed over to the handlers. Its target
/// is created with the devices that the guest has now, so later changes would be missing there.
#[must_use]
pub fn is_handed_over(vmi: &VirtualMachineInstance, node: &str) -> bool {
    owner(vmi) == node && outgoing(vmi, node).is_some_and(|(state, _)| state.completed != Some(true))
}

/// What the launcher reports about that migration.
#[must_use]
pub fn reported<'a>(launcher: &'a LauncherStatus, uid: &str) -> Option<&'a MigrationStatus> {
    launcher.migration.as_ref().filter(|status| status.uid == uid)
}

/// Whether the target's launcher can run the guest of the migration before all of its memory has arrived.
#[must_use]
pub fn offers_post_copy(launcher: &LauncherStatus, uid: &str) -> bool {
    reported(launcher, uid).is_some_and(|status| status.offers_post_copy)
}

/// Whether the source's launcher needs a new connection, because the former one broke in post-copy.
#[must_use]
pub fn awaits_connection(status: &MigrationStatus) -> bool {
    status.recovery.as_ref().is_some_and(|recovery| recovery.awaits_connection)
}

/// Whether the guest is, or may be, on another node. What is left here then says nothing about the guest.
#[must_use]
pub fn is_away(launcher: &LauncherStatus) -> bool {
    launcher.migration.as_ref().is_some_and(|status| matches!(status.state(), Stage::Sent | Stage::Left))
}

/// Whether the guest is leaving this node. Nothing about it is changed meanwhile.
#[must_use]
pub fn is_leaving(launcher: &LauncherStatus) -> bool {
    let stages = [Stage::Sending, Stage::Switching, Stage::Sent, Stage::Left];
    launcher.migration.as_ref().is_some_and(|status| stages.contains(&status.state()))
}

/// Disks that a migration copies: those that exist only on this node, and those whose volumes move to other
/// claims.
///
/// # Errors
/// Returns the name of a volume that is to move but that the launcher does not offer: without its contents
/// the guest would have an empty disk.
pub fn copied(vmi: &VirtualMachineInstance, launcher: &LauncherStatus) -> Result<Vec<String>, String> {
    let mut disks = launcher.local_disks.clone();
    for moved in vmi.status.iter().flat_map(|status| &status.migrated_volumes) {
        let name = &moved.volume_name;
        if !launcher.claim_disks.iter().any(|disk| disk.volume == *name) {
            return Err(name.clone());
        }
        disks.push(name.clone());
    }
    Ok(disks)
}

/// Disks that the guest only reads, and that were made of the manifest and of objects. A migration copies them if the target
/// takes them: the objects may have changed since.
#[must_use]
pub fn images(launcher: &LauncherStatus) -> Vec<String> {
    let images = launcher.made_disks.iter().filter(|disk| disk.read_only);
    images.map(|disk| disk.volume.clone()).collect()
}

/// How many connections for memory a launcher takes in addition to the first one.
#[must_use]
pub fn memory_channels(launcher: &LauncherStatus) -> u8 {
    u8::try_from(launcher.memory_channels).unwrap_or(u8::MAX).min(CHANNELS)
}

/// How many of them a guest has that leaves this launcher, unless its migration may use post-copy. As in KubeVirt, there are none where
/// the machine has a limit of processor time, from which the threads would take. Nor are there for a bandwidth that the first one
/// has, except one that compresses.
#[must_use]
pub fn leaving_channels(
    vmi: &VirtualMachineInstance,
    settings: &VmimConfigurationOptions,
    launcher: &LauncherStatus,
) -> u8 {
    let limits = vmi.spec.domain.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    let is_limited = limits.and_then(|limits| limits.get("cpu")).is_some_and(|cpu| !quantity::is_zero(cpu));
    let most = match bandwidth(settings) {
        _ if is_limited => 0,
        1..ONE_CONNECTION => u8::from(wants_compression(settings)),
        _ => CHANNELS,
    };
    memory_channels(launcher).min(most)
}

/// Why the migration fails at its start, if an annotation of the instance asks for that; the message is KubeVirt's.
#[must_use]
pub fn fails_as_asked(vmi: &VirtualMachineInstance) -> Option<&'static str> {
    let asked = vmi.metadata.annotations.as_ref()?.contains_key(FAIL_MIGRATION_ANNOTATION);
    asked.then_some("Failed migration to satisfy functional test condition")
}

/// Whether an annotation of the instance says that targets of its migrations do not become ready.
#[must_use]
pub fn is_target_blocked(vmi: &VirtualMachineInstance) -> bool {
    vmi.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(BLOCK_TARGET_ANNOTATION))
}

/// The migration whose result the launcher waits for, if the instance's status already has another one.
fn overtaken<'a>(launcher: &'a LauncherStatus, uid: &str) -> Option<&'a str> {
    let told = launcher.migration.as_ref()?;
    (told.uid != uid && told.state() == Stage::Sent).then_some(told.uid.as_str())
}

/// The next step for a guest of this node. `gone` is the UID of the migration whose target got the message that it
/// has the guest.
#[must_use]
pub fn source(
    vmi: &VirtualMachineInstance,
    node: &str,
    launcher: &LauncherStatus,
    gone: Option<&str>,
) -> Option<Move> {
    let (state, uid) = outgoing(vmi, node)?;
    if let Some(former) = overtaken(launcher, uid) {
        // The guest is still this node's, so it has not arrived. Whether the target ran it was in the former record.
        let lost = owner(vmi) == node;
        return lost.then(|| Move::Result { uid: former.to_owned(), went: false, lost });
    }
    let uid = || uid.to_owned();
    let status = reported(launcher, &uid());
    let stage = status.map_or(Stage::Unspecified, MigrationStatus::state);
    let is_over = state.completed == Some(true);
    let aborts = state.abort_requested == Some(true);
    match stage {
        Stage::Sending | Stage::Switching | Stage::Sent if is_over => {
            let went = state.failed != Some(true) && owner(vmi) != node;
            // A migration that completed without a failure, while the guest is still here, contradicts
            // itself. The handler waits for the next status.
            let never_ran = state.target_state.as_ref().and_then(|own| own.domain_detected) == Some(false);
            let lost = !went && !never_ran;
            (went || state.failed == Some(true)).then(|| Move::Result { uid: uid(), went, lost })
        }
        Stage::Sending | Stage::Switching if aborts && !status.is_some_and(|status| status.aborted) => {
            Some(Move::Abort { uid: uid() })
        }
        Stage::Sent if gone != Some(uid().as_str()) => {
            Some(Move::Go { uid: uid(), hold: status.is_some_and(|status| status.hold) })
        }
        Stage::Sent if status.is_some_and(awaits_connection) => Some(Move::Rejoin { uid: uid() }),
        Stage::Unspecified if !is_over && !aborts && owner(vmi) == node => {
            let sends = state.is_prepared() && fails_as_asked(vmi).is_none();
            sends.then(|| Move::Send { uid: uid() })
        }
        Stage::Unspecified
        | Stage::Sending
        | Stage::Switching
        | Stage::Sent
        | Stage::Left
        | Stage::Over
        | Stage::Awaited
        | Stage::Receiving
        | Stage::Received
        | Stage::Arrived => None,
    }
}

#[cfg(test)]
mod tests {
    use barevirt_protocol::v1::{ClaimDisk, MadeDisk, MigrationRecovery};
    use serde_json::{Value, json};

    use super::*;

    fn vmi(owner: &str, change: Value) -> VirtualMachineInstance {
        let mut state = json!({"migrationUid": "m", "sourceNode": "a", "targetNode": "b"});
        for (name, value) in change.as_object().unwrap() {
            state[name] = value.clone();
        }
        serde_json::from_value(json!({
            "metadata": {}, "spec": {"domain": {"devices": {}}},
            "status": {"nodeName": owner, "migrationState": state},
        }))
        .unwrap()
    }

    fn launcher(stage: Stage) -> LauncherStatus {
        let told = MigrationStatus { uid: "m".to_owned(), state: stage.into(), ..MigrationStatus::default() };
        LauncherStatus { migration: Some(told), ..LauncherStatus::default() }
    }

    #[test]
    fn disks_that_move_to_other_claims_are_copied_as_those_of_the_node() {
        let mut launcher =
            LauncherStatus { local_disks: vec!["root".to_owned()], ..LauncherStatus::default() };
        let mut moves = vmi("a", json!({}));
        assert_eq!(copied(&moves, &launcher), Ok(vec!["root".to_owned()]));
        let volumes = json!([{"volumeName": "data"}]);
        moves.status.as_mut().unwrap().migrated_volumes = serde_json::from_value(volumes).unwrap();
        // A launcher of an older version does not report it.
        assert_eq!(copied(&moves, &launcher), Err("data".to_owned()));
        launcher.claim_disks =
            ["data", "more"].map(|volume| ClaimDisk { volume: volume.to_owned(), bytes: 1 }).into();
        assert_eq!(copied(&moves, &launcher), Ok(vec!["root".to_owned(), "data".to_owned()]));
    }

    #[test]
    fn of_disks_made_of_objects_those_that_are_only_read_are_images() {
        let made = |volume: &str, read_only| MadeDisk { volume: volume.to_owned(), bytes: 1, read_only };
        let made_disks = vec![made("seed", false), made("settings", true)];
        assert_eq!(images(&LauncherStatus { made_disks, ..LauncherStatus::default() }), ["settings"]);
    }

    #[test]
    fn a_guest_has_more_connections_where_its_launcher_can_and_its_processors_are_not_limited() {
        let mut vmi = vmi("a", json!({}));
        let settings = VmimConfigurationOptions::default();
        let mut limited = |cpu: &str, memory_channels| {
            vmi.spec.domain.resources = serde_json::from_value(json!({"limits": {"cpu": cpu}})).unwrap();
            let launcher = LauncherStatus { memory_channels, ..LauncherStatus::default() };
            leaving_channels(&vmi, &settings, &launcher)
        };
        // A launcher of an older version reports none.
        assert_eq!([limited("0", 0), limited("0", 2), limited("0", 16), limited("0", 300)], [0, 2, 4, 4]);
        assert_eq!(limited("1500m", 4), 0);
        vmi.spec.domain.resources = None;
        let launcher = LauncherStatus { memory_channels: 4, ..LauncherStatus::default() };
        assert_eq!((leaving_channels(&vmi, &settings, &launcher), memory_channels(&launcher)), (4, 4));
    }

    #[test]
    fn a_bandwidth_that_one_connection_has_is_kept_by_one() {
        let vmi = vmi("a", json!({}));
        let launcher = LauncherStatus { memory_channels: 4, ..LauncherStatus::default() };
        let with = |bandwidth: &str, compression: &str| {
            let settings =
                json!({"bandwidthPerMigration": bandwidth, "experimental": {"compression": compression}});
            leaving_channels(&vmi, &serde_json::from_value(settings).unwrap(), &launcher)
        };
        assert_eq!(["0", "1Mi", "255Mi", "256Mi", "2Gi"].map(|limit| with(limit, "none")), [4, 0, 0, 4, 4]);
        assert_eq!(["0", "1Mi", "2Gi"].map(|limit| with(limit, "zstd")), [4, 1, 4]);
    }

    #[test]
    fn it_is_sent_once_the_target_has_an_address() {
        let fresh = LauncherStatus::default();
        let send = Some(Move::Send { uid: "m".to_owned() });
        assert_eq!(source(&vmi("a", json!({})), "a", &fresh, None), None);
        let ready = json!({"targetNodeAddress": "10.0.0.2"});
        assert_eq!(source(&vmi("a", ready.clone()), "a", &fresh, None), send);
        assert_eq!(source(&vmi("a", ready.clone()), "b", &fresh, None), None);
        // The launcher reports about an earlier migration.
        let mut before = launcher(Stage::Over);
        before.migration.as_mut().unwrap().uid = "l".to_owned();
        assert_eq!(source(&vmi("a", ready.clone()), "a", &before, None), send);
        for stage in [Stage::Sending, Stage::Switching, Stage::Over] {
            assert_eq!(source(&vmi("a", ready.clone()), "a", &launcher(stage), None), None);
        }
        for over in [json!({"abortRequested": true}), json!({"completed": true, "failed": true})] {
            let mut state = over;
            state["targetNodeAddress"] = json!("10.0.0.2");
            assert_eq!(source(&vmi("a", state), "a", &fresh, None), None);
        }
    }

    #[test]
    fn a_migration_that_is_asked_to_fail_is_not_sent() {
        let mut vmi = vmi("a", json!({"targetNodeAddress": "10.0.0.2"}));
        assert!(source(&vmi, "a", &LauncherStatus::default(), None).is_some());
        vmi.metadata.annotations = Some([(FAIL_MIGRATION_ANNOTATION.to_owned(), String::new())].into());
        assert_eq!(source(&vmi, "a", &LauncherStatus::default(), None), None);
    }

    #[test]
    fn an_abort_is_sent_once_and_not_after_the_switchover() {
        let aborts = vmi("a", json!({"abortRequested": true}));
        let abort = Some(Move::Abort { uid: "m".to_owned() });
        assert_eq!(source(&aborts, "a", &launcher(Stage::Sending), None), abort);
        let mut sending = launcher(Stage::Sending);
        sending.migration.as_mut().unwrap().aborted = true;
        assert_eq!(source(&aborts, "a", &sending, None), None);
        let go = Some(Move::Go { uid: "m".to_owned(), hold: false });
        assert_eq!(source(&aborts, "a", &launcher(Stage::Sent), None), go);
        assert_eq!(source(&aborts, "a", &launcher(Stage::Sent), Some("m")), None);
    }

    #[test]
    fn a_broken_connection_is_replaced_when_the_launcher_wants_it() {
        let recovering = |awaits_connection| {
            let mut sent = launcher(Stage::Sent);
            let told = sent.migration.as_mut().unwrap();
            told.recovery = Some(MigrationRecovery { tries: 1, awaits_connection });
            sent
        };
        let step = |launcher: &LauncherStatus, gone| source(&vmi("a", json!({})), "a", launcher, gone);
        let rejoin = Some(Move::Rejoin { uid: "m".to_owned() });
        assert_eq!(step(&recovering(true), Some("m")), rejoin);
        assert_eq!(step(&recovering(false), Some("m")), None);
        // A target without the order to let the guest run needs that first.
        assert!(matches!(step(&recovering(true), None), Some(Move::Go { .. })));
        // The result comes before everything.
        let failed = vmi("a", json!({"completed": true, "failed": true}));
        assert!(matches!(source(&failed, "a", &recovering(true), Some("m")), Some(Move::Result { .. })));
    }

    #[test]
    fn the_migration_result_follows_the_status() {
        let result = |went, lost| Some(Move::Result { uid: "m".to_owned(), went, lost });
        let sent = launcher(Stage::Sent);
        let completed = json!({"completed": true});
        assert_eq!(source(&vmi("b", completed.clone()), "a", &sent, Some("m")), result(true, false));
        // The owner is written in the same patch.
        assert_eq!(source(&vmi("a", completed), "a", &sent, Some("m")), None);
        // The target's handler knows that it never ran there; the controller does not know.
        let never = json!({"completed": true, "failed": true, "targetState": {"domainDetected": false}});
        assert_eq!(source(&vmi("a", never), "a", &sent, Some("m")), result(false, false));
        let failed = json!({"completed": true, "failed": true});
        assert_eq!(source(&vmi("a", failed), "a", &sent, Some("m")), result(false, true));
    }

    #[test]
    fn a_launcher_ends_whose_result_was_replaced_by_that_of_another_migration() {
        let mut sent = launcher(Stage::Sent);
        sent.migration.as_mut().unwrap().uid = "l".to_owned();
        let lost = Some(Move::Result { uid: "l".to_owned(), went: false, lost: true });
        for state in
            [json!({}), json!({"targetNodeAddress": "10.0.0.2"}), json!({"completed": true, "failed": true})]
        {
            assert_eq!(source(&vmi("a", state), "a", &sent, None), lost);
        }
        assert_eq!(source(&vmi("b", json!({"completed": true})), "a", &sent, None), None);
    }

    #[test]
    fn a_target_is_one_for_as_long_as_the_source_has_the_guest() {
        assert_eq!(incoming(&vmi("a", json!({})), "b"), Some(("m", "a")));
        assert_eq!(incoming(&vmi("a", json!({})), "a"), None);
        assert_eq!(incoming(&vmi("b", json!({"completed": true})), "b"), None);
        assert_eq!(incoming(&vmi("a", json!({"completed": true, "failed": true})), "b"), None);
        assert_eq!(incoming(&vmi("c", json!({})), "b"), None);
    }
}
