//! Finds a guest again after a stream to it has ended. One policy for all commands.
//!
//! ```text
//!   stream ended -> look at the instance -> decide -+-> give up
//!                            ^                      +-> open: the caller opens the stream again
//!                            |                      +-> wait
//!                            +---- half a second ---------+
//! ```
//!
//! Everything follows a guest that has moved to another node. A console also follows its machine into the next run, and
//! connects again after a component on the way has restarted. Nothing takes a stream back from another user.

use std::time::{Duration, Instant};

use barevirt_api::names;
use barevirt_api::v1::{VirtualMachine, VirtualMachineInstance};
use kube::Api;
use tokio::time::{sleep, timeout};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;

use crate::session::Session;
use crate::stream::StreamEnd;

const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long the API server may take for an answer, and the guest's side to open.
const ANSWER: Duration = Duration::from_secs(30);
/// How long a component may take to restart, and a guest to arrive on its new node.
const COMPONENT: Duration = Duration::from_secs(120);
/// How long the status may still say that a guest runs after its stream has ended. After that, another user
/// must have the stream.
const ENDING: Duration = Duration::from_secs(10);
/// How long a machine may take from one run to the next.
const NEXT_RUN: Duration = Duration::from_secs(300);

/// Close code of a stream that another user has taken, and of one whose guest has ended.
const TAKEN: u16 = 4001;
const ENDED: u16 = 4000;

/// An instance, and the node that its guest is on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) uid: String,
    pub(crate) node: String,
}

impl Place {
    pub(crate) fn of(vmi: &VirtualMachineInstance) -> Self {
        let node = vmi.status.as_ref().and_then(|status| status.node_name.clone());
        Self { uid: vmi.metadata.uid.clone().unwrap_or_default(), node: node.unwrap_or_default() }
    }

    /// Where the instance is now; empty if the user may not see it. A stream to an empty place is not opened again.
    pub(crate) async fn find(session: &Session, name: &str) -> Self {
        let vmis: Api<VirtualMachineInstance> = Api::namespaced(session.client.clone(), &session.namespace);
        match timeout(ANSWER, vmis.get(name)).await {
            Ok(Ok(vmi)) => Self::of(&vmi),
            Ok(Err(_)) | Err(_) => Self::default(),
        }
    }
}

/// How the guest's side of a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Another user has it.
    Taken,
    /// The guest's side of it ended.
    Ended,
    /// It broke off without a reason.
    Lost,
}

impl End {
    /// The meaning of a close frame.
    pub(crate) fn of(frame: Option<&CloseFrame>) -> Self {
        match frame.map(|frame| u16::from(frame.code)) {
            Some(TAKEN) => Self::Taken,
            Some(ENDED | 1000) => Self::Ended,
            Some(_) | None => Self::Lost,
        }
    }

    /// How the guest's side ended; nothing if the user's side did.
    pub(crate) fn of_stream(end: &StreamEnd) -> Option<Self> {
        match end {
            StreamEnd::Local => None,
            StreamEnd::Closed(frame) => Some(Self::of(frame.as_ref())),
            StreamEnd::Broken(_) => Some(Self::Lost),
        }
    }
}

/// What a stream follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Follow {
    /// The same run of the guest, to another node.
    Moves,
    /// The machine, also into its next run. A connection that broke is opened again.
    Runs,
}

/// A stream that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Gone {
    /// Where its guest was.
    pub(crate) place: Place,
    pub(crate) end: End,
    pub(crate) follow: Follow,
}

impl Gone {
    /// Whether the same run of the guest is on another node now.
    pub(crate) fn has_moved_to(&self, there: &Place) -> bool {
        there.uid == self.place.uid && there.node != self.place.node
    }
}

/// The next step.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Try to connect.
    Open,
    /// Look again.
    Wait,
    /// There is nothing to wait for.
    GiveUp,
}

/// Waits until the guest can be reached again and `open` succeeds; nothing if that is not to be. `next_run` is called once if the
/// machine's next run is waited for.
pub(crate) async fn again<T, F: Future<Output = Option<T>>>(
    session: &Session,
    name: &str,
    gone: &Gone,
    mut next_run: impl FnMut(),
    mut open: impl FnMut() -> F,
) -> Option<(T, Place)> {
    if gone.end == End::Taken || gone.place.uid.is_empty() {
        return None;
    }
    let began = Instant::now();
    let mut told = false;
    loop {
        let (next, found) = look(session, name, gone, began.elapsed()).await;
        match next {
            Next::GiveUp => return None,
            Next::Open => {
                // A refusal and an unreachable server may both be temporary; the deadline ends the tries.
                if let Ok(Some(opened)) = timeout(ANSWER, open()).await {
                    return Some((opened, found));
                }
            }
            Next::Wait => {
                if gone.end == End::Ended && !told && found.uid != gone.place.uid {
                    next_run();
                    told = true;
                }
            }
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Looks at the instance, and at its machine when the instance has ended.
async fn look(session: &Session, name: &str, gone: &Gone, waited: Duration) -> (Next, Place) {
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(session.client.clone(), &session.namespace);
    let vmi = match timeout(ANSWER, vmis.get_opt(name)).await {
        Ok(Ok(vmi)) => vmi,
        // The API server refuses for good.
        Ok(Err(kube::Error::Api(status))) if status.code < 500 && status.code != 429 => {
            return (Next::GiveUp, Place::default());
        }
        Ok(Err(_)) | Err(_) if waited > COMPONENT => return (Next::GiveUp, Place::default()),
        Ok(Err(_)) | Err(_) => return (Next::Wait, gone.place.clone()),
    };
    let present = vmi.as_ref().filter(|vmi| !is_ending(vmi)).map(Place::of).unwrap_or_default();
    let vm = if needs_machine(vmi.as_ref(), gone) {
        let vms: Api<VirtualMachine> = Api::namespaced(session.client.clone(), &session.namespace);
        timeout(ANSWER, vms.get_opt(name)).await.ok().and_then(Result::ok).flatten()
    } else {
        None
    };
    (decide(vmi.as_ref(), vm.as_ref(), gone, waited), present)
}

fn phase(vmi: &VirtualMachineInstance) -> &str {
    vmi.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Whether only its machine shows what happens next.
fn needs_machine(vmi: Option<&VirtualMachineInstance>, gone: &Gone) -> bool {
    let has_ended = |vmi: &VirtualMachineInstance| {
        vmi.metadata.uid.as_deref() == Some(gone.place.uid.as_str()) && is_ending(vmi)
    };
    gone.follow == Follow::Runs && vmi.is_none_or(has_ended)
}

fn is_ending(vmi: &VirtualMachineInstance) -> bool {
    vmi.metadata.deletion_timestamp.is_some() || names::is_final_phase(phase(vmi))
}

/// Whether a migration of the guest is under way, as far as its status says.
fn is_moving(vmi: &VirtualMachineInstance) -> bool {
    let state = vmi.status.as_ref().and_then(|status| status.migration_state.as_ref());
    state.is_some_and(|state| {
        state.end_timestamp.is_none() && state.completed != Some(true) && state.failed != Some(true)
    })
}

/// Decides the next step. Pure.
fn decide(
    vmi: Option<&VirtualMachineInstance>,
    vm: Option<&VirtualMachine>,
    gone: &Gone,
    waited: Duration,
) -> Next {
    let within = |longest| if waited > longest { Next::GiveUp } else { Next::Wait };
    let next_run = |vmi| match vm {
        Some(vm) if gone.follow == Follow::Runs && runs_again(vm, vmi) => within(NEXT_RUN),
        Some(_) | None => Next::GiveUp,
    };
    let Some(vmi) = vmi else { return next_run(None) };
    let there = Place::of(vmi);
    if there.uid != gone.place.uid {
        return match (gone.follow, phase(vmi)) {
            (Follow::Moves, _) => Next::GiveUp,
            (Follow::Runs, names::PHASE_RUNNING) if waited <= NEXT_RUN => Next::Open,
            (Follow::Runs, phase) if names::is_final_phase(phase) => Next::GiveUp,
            (Follow::Runs, _) => within(NEXT_RUN),
        };
    }
    if is_ending(vmi) {
        return next_run(Some(vmi));
    }
    let has_moved = !there.node.is_empty() && gone.has_moved_to(&there);
    match (gone.end, gone.follow) {
        (End::Taken, _) => Next::GiveUp,
        (End::Ended | End::Lost, _) if has_moved && waited <= COMPONENT => Next::Open,
        // The guest runs: only the connection broke.
        (End::Lost, Follow::Runs) if waited <= COMPONENT => Next::Open,
        (End::Ended | End::Lost, _) if is_moving(vmi) => within(COMPONENT),
        (End::Ended | End::Lost, _) => within(ENDING),
    }
}

/// Whether there is a machine of that name, which runs soon.
pub(crate) async fn will_run(session: &Session, name: &str) -> bool {
    let vms: Api<VirtualMachine> = Api::namespaced(session.client.clone(), &session.namespace);
    vms.get_opt(name).await.ok().flatten().is_some_and(|vm| runs_again(&vm, None))
}

/// Whether the machine will run again, by itself or on request.
fn runs_again(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>) -> bool {
    let requests = vm.status.iter().flat_map(|status| &status.state_change_requests);
    let asked = requests.into_iter().any(|request| request.action == names::ACTION_START);
    let by_itself = match vm.spec.effective_run_strategy() {
        Some(names::RUN_STRATEGY_ALWAYS) => true,
        Some(names::RUN_STRATEGY_RERUN_ON_FAILURE) => {
            vmi.is_some_and(|vmi| phase(vmi) == names::PHASE_FAILED)
        }
        _ => false,
    };
    vm.metadata.deletion_timestamp.is_none() && (asked || by_itself)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn vmi(uid: &str, phase: &str) -> VirtualMachineInstance {
        serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "vm", "uid": uid}, "spec": {"domain": {"devices": {}}}, "status": {"phase": phase, "nodeName": "a"}}))
        .unwrap()
    }

    fn moved() -> VirtualMachineInstance {
        let mut moved = vmi("1", "Running");
        moved.status.as_mut().unwrap().node_name = Some("b".to_owned());
        moved
    }

    fn moving() -> VirtualMachineInstance {
        let mut moving = vmi("1", "Running");
        let state = json!({"sourceNode": "a", "targetNode": "b"});
        moving.status.as_mut().unwrap().migration_state = serde_json::from_value(state).unwrap();
        moving
    }

    fn vm(strategy: &str, start: bool) -> VirtualMachine {
        let requests = if start { json!([{"action": "Start"}]) } else { json!([]) };
        serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "vm"},
            "spec": {"runStrategy": strategy, "template": {"spec": {"domain": {"devices": {}}}}},
            "status": {"stateChangeRequests": requests}}))
        .unwrap()
    }

    fn gone(end: End, follow: Follow) -> Gone {
        Gone { place: Place { uid: "1".to_owned(), node: "a".to_owned() }, end, follow }
    }

    /// The next step of a console.
    fn next(vmi: Option<VirtualMachineInstance>, vm: Option<VirtualMachine>, end: End, seconds: u64) -> Next {
        decide(vmi.as_ref(), vm.as_ref(), &gone(end, Follow::Runs), Duration::from_secs(seconds))
    }

    /// The next step of another stream.
    fn next_move(vmi: Option<VirtualMachineInstance>, end: End, seconds: u64) -> Next {
        decide(vmi.as_ref(), None, &gone(end, Follow::Moves), Duration::from_secs(seconds))
    }

    #[test]
    fn a_close_frame_explains_the_end_of_a_stream() {
        let of = |code: u16| End::of(Some(&CloseFrame { code: code.into(), reason: "EOF".into() }));
        assert_eq!((of(4001), of(4000), of(1000)), (End::Taken, End::Ended, End::Ended));
        // A server that shuts down, and one that gives no reason.
        assert_eq!((of(1001), End::of(None)), (End::Lost, End::Lost));
        assert_eq!(End::of_stream(&StreamEnd::Local), None);
        assert_eq!(End::of_stream(&StreamEnd::Closed(None)), Some(End::Lost));
    }

    #[test]
    fn a_way_that_broke_is_tried_again_for_a_while() {
        assert_eq!(next(Some(vmi("1", "Running")), None, End::Lost, 0), Next::Open);
        assert_eq!(next(Some(vmi("1", "Running")), None, End::Lost, 121), Next::GiveUp);
    }

    #[test]
    fn a_guest_that_ended_is_waited_for_where_its_machine_runs_again() {
        let ended = || Some(vmi("1", "Succeeded"));
        // The end of the guest has not been seen yet.
        assert_eq!(next(Some(vmi("1", "Running")), None, End::Ended, 1), Next::Wait);
        // Another user has the console.
        assert_eq!(next(Some(vmi("1", "Running")), None, End::Ended, 11), Next::GiveUp);
        assert_eq!(next(ended(), None, End::Ended, 1), Next::GiveUp);
        assert_eq!(next(None, None, End::Ended, 1), Next::GiveUp);
        for (strategy, start, next_one) in [
            ("Always", false, Next::Wait),
            ("Halted", false, Next::GiveUp),
            ("Manual", false, Next::GiveUp),
            ("Manual", true, Next::Wait),
            ("RerunOnFailure", false, Next::GiveUp),
        ] {
            assert_eq!(next(ended(), Some(vm(strategy, start)), End::Ended, 1), next_one, "{strategy}");
            assert_eq!(next(None, Some(vm(strategy, start)), End::Lost, 1), next_one, "{strategy}");
        }
        let failed = Some(vmi("1", "Failed"));
        assert_eq!(next(failed, Some(vm("RerunOnFailure", false)), End::Ended, 1), Next::Wait);
        assert_eq!(next(ended(), Some(vm("Always", false)), End::Ended, 301), Next::GiveUp);
    }

    #[test]
    fn a_guest_that_has_moved_is_found_on_its_new_node() {
        for end in [End::Ended, End::Lost] {
            assert_eq!(next(Some(moved()), None, end, 1), Next::Open);
            assert_eq!(next_move(Some(moved()), end, 1), Next::Open);
            assert_eq!(next_move(Some(moved()), end, 121), Next::GiveUp);
        }
        assert_eq!(next(Some(vmi("1", "Running")), None, End::Ended, 1), Next::Wait);
        assert_eq!(next(Some(moved()), None, End::Taken, 1), Next::GiveUp);
        assert_eq!(next_move(Some(moved()), End::Taken, 1), Next::GiveUp);
    }

    #[test]
    fn a_migration_that_is_under_way_is_waited_for() {
        assert_eq!(next_move(Some(moving()), End::Ended, 11), Next::Wait);
        assert_eq!(next_move(Some(moving()), End::Ended, 121), Next::GiveUp);
        let mut failed = moving();
        failed.status.as_mut().unwrap().migration_state.as_mut().unwrap().failed = Some(true);
        assert_eq!(next_move(Some(failed), End::Ended, 11), Next::GiveUp);
    }

    #[test]
    fn only_a_console_follows_its_machine_into_the_next_run() {
        assert_eq!(next(Some(vmi("2", "Scheduling")), None, End::Ended, 1), Next::Wait);
        assert_eq!(next(Some(vmi("2", "Running")), None, End::Ended, 1), Next::Open);
        assert_eq!(next(Some(vmi("2", "Failed")), None, End::Ended, 1), Next::GiveUp);
        let always = vm("Always", false);
        for other in [Some(vmi("2", "Running")), Some(vmi("1", "Succeeded")), None] {
            let next =
                decide(other.as_ref(), Some(&always), &gone(End::Ended, Follow::Moves), Duration::ZERO);
            assert_eq!(next, Next::GiveUp);
        }
    }

    #[test]
    fn a_connection_that_broke_on_the_same_node_is_only_a_consoles_to_open_again() {
        assert_eq!(next_move(Some(vmi("1", "Running")), End::Lost, 0), Next::Wait);
        assert_eq!(next_move(Some(vmi("1", "Running")), End::Lost, 11), Next::GiveUp);
    }
}
