//! Reopens a console after a component on the way, or the machine, restarted, or the guest moved to another node.

use std::time::{Duration, Instant};

use barevirt_api::names;
use barevirt_api::v1::{VirtualMachine, VirtualMachineInstance};
use hyper::body::Bytes;
use kube::Api;
use tokio::sync::mpsc;

use super::{End, LOOK_EVERY, Line, Place, path, until_escape};
use crate::session::Session;
use crate::stream;

/// How long a component may take to restart.
const COMPONENT: Duration = Duration::from_secs(120);
/// How long the status may still say that a guest runs after its console has ended. After that, another user
/// must have the console.
const ENDING: Duration = Duration::from_secs(10);
/// How long a machine may take from one run to the next.
const NEXT_RUN: Duration = Duration::from_secs(300);

/// The result of the wait.
pub(super) enum Again {
    /// It answers.
    Line(Box<Line>),
    /// The user did not want to wait.
    Left,
    /// There is nothing to wait for.
    No,
}

/// The next step.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Try to connect.
    Open,
    /// Look again.
    Wait,
    /// Nothing.
    GiveUp,
}

/// Waits for the console, while ctrl-] still leaves.
pub(super) async fn again(
    session: &Session,
    name: &str,
    place: &Place,
    end: &End,
    keys: &mut mpsc::Receiver<Bytes>,
) -> anyhow::Result<Again> {
    if *end == End::Lost {
        eprint!(
            "\r\nThe connection to the console of {name} broke off: connecting again, Ctrl+] leaves.\r\n"
        );
    }
    let began = Instant::now();
    let mut told = false;
    let mut typing = true;
    loop {
        let (next, found) = look(session, name, place, end, began.elapsed()).await;
        match next {
            Next::GiveUp => return Ok(Again::No),
            Next::Open => {
                // A refusal and an unreachable server may both be temporary; the deadline ends the tries.
                if let Ok(Ok(socket)) = stream::open(session, &path(session, name)).await {
                    if found.uid == place.uid && found.node != place.node {
                        eprint!("\r\n{name} has moved to node {}.\r\n", found.node);
                    }
                    eprint!("Connected to {name} console again.\r\n");
                    return Ok(Again::Line(Box::new(Line { socket, place: found })));
                }
            }
            Next::Wait => {
                if *end == End::Ended && !told && found.uid != place.uid {
                    eprint!("\r\n{name} has ended: waiting for its next run, Ctrl+] leaves.\r\n");
                    told = true;
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            typed = keys.recv(), if typing => match typed {
                Some(typed) if until_escape(&typed).1 => return Ok(Again::Left),
                Some(_) => {}
                None => typing = false,
            },
        }
    }
}

/// Looks at the instance, and at its machine when the instance has ended.
async fn look(session: &Session, name: &str, place: &Place, end: &End, waited: Duration) -> (Next, Place) {
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(session.client.clone(), &session.namespace);
    let vmi = match vmis.get_opt(name).await {
        Ok(vmi) => vmi,
        // The API server refuses for good.
        Err(kube::Error::Api(status)) if status.code < 500 && status.code != 429 => {
            return (Next::GiveUp, Place::default());
        }
        Err(_) if waited > COMPONENT => return (Next::GiveUp, Place::default()),
        Err(_) => return (Next::Wait, place.clone()),
    };
    let present = vmi.as_ref().filter(|vmi| !is_ending(vmi)).map(Place::of).unwrap_or_default();
    let vms: Api<VirtualMachine> = Api::namespaced(session.client.clone(), &session.namespace);
    let vm =
        if needs_machine(vmi.as_ref(), &place.uid) { vms.get_opt(name).await.ok().flatten() } else { None };
    (decide(vmi.as_ref(), vm.as_ref(), place, end, waited), present)
}

fn phase(vmi: &VirtualMachineInstance) -> &str {
    vmi.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Whether only its machine shows what happens next.
fn needs_machine(vmi: Option<&VirtualMachineInstance>, uid: &str) -> bool {
    vmi.is_none_or(|vmi| vmi.metadata.uid.as_deref() == Some(uid) && is_ending(vmi))
}

fn is_ending(vmi: &VirtualMachineInstance) -> bool {
    vmi.metadata.deletion_timestamp.is_some() || names::is_final_phase(phase(vmi))
}

/// Decides the next step. Pure.
fn decide(
    vmi: Option<&VirtualMachineInstance>,
    vm: Option<&VirtualMachine>,
    place: &Place,
    end: &End,
    waited: Duration,
) -> Next {
    let within = |longest| if waited > longest { Next::GiveUp } else { Next::Wait };
    let Some(vmi) = vmi else {
        return if vm.is_some_and(|vm| runs_again(vm, None)) { within(NEXT_RUN) } else { Next::GiveUp };
    };
    if vmi.metadata.uid.as_deref() != Some(&place.uid) {
        return match phase(vmi) {
            names::PHASE_RUNNING if waited <= NEXT_RUN => Next::Open,
            phase if names::is_final_phase(phase) => Next::GiveUp,
            _ => within(NEXT_RUN),
        };
    }
    if is_ending(vmi) {
        return if vm.is_some_and(|vm| runs_again(vm, Some(vmi))) { within(NEXT_RUN) } else { Next::GiveUp };
    }
    match end {
        // The guest runs: only the connection broke.
        End::Lost if waited <= COMPONENT => Next::Open,
        End::Ended if Place::of(vmi).node != place.node && waited <= COMPONENT => Next::Open,
        End::Ended => within(ENDING),
        End::Lost | End::Left | End::Taken => Next::GiveUp,
    }
}

/// Whether there is a machine of that name, which runs soon.
pub(super) async fn will_run(session: &Session, name: &str) -> bool {
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

    fn vm(strategy: &str, start: bool) -> VirtualMachine {
        let requests = if start { json!([{"action": "Start"}]) } else { json!([]) };
        serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "vm"},
            "spec": {"runStrategy": strategy, "template": {"spec": {"domain": {"devices": {}}}}},
            "status": {"stateChangeRequests": requests}}))
        .unwrap()
    }

    fn next(
        vmi: Option<VirtualMachineInstance>,
        vm: Option<VirtualMachine>,
        end: &End,
        seconds: u64,
    ) -> Next {
        let place = Place { uid: "1".to_owned(), node: "a".to_owned() };
        decide(vmi.as_ref(), vm.as_ref(), &place, end, Duration::from_secs(seconds))
    }

    #[test]
    fn a_way_that_broke_is_tried_again_for_a_while() {
        assert_eq!(next(Some(vmi("1", "Running")), None, &End::Lost, 0), Next::Open);
        assert_eq!(next(Some(vmi("1", "Running")), None, &End::Lost, 121), Next::GiveUp);
    }

    #[test]
    fn a_guest_that_ended_is_waited_for_where_its_machine_runs_again() {
        let ended = || Some(vmi("1", "Succeeded"));
        // The end of the guest has not been seen yet.
        assert_eq!(next(Some(vmi("1", "Running")), None, &End::Ended, 1), Next::Wait);
        // Another user has the console.
        assert_eq!(next(Some(vmi("1", "Running")), None, &End::Ended, 11), Next::GiveUp);
        assert_eq!(next(ended(), None, &End::Ended, 1), Next::GiveUp);
        assert_eq!(next(None, None, &End::Ended, 1), Next::GiveUp);
        for (strategy, start, next_one) in [
            ("Always", false, Next::Wait),
            ("Halted", false, Next::GiveUp),
            ("Manual", false, Next::GiveUp),
            ("Manual", true, Next::Wait),
            ("RerunOnFailure", false, Next::GiveUp),
        ] {
            assert_eq!(next(ended(), Some(vm(strategy, start)), &End::Ended, 1), next_one, "{strategy}");
            assert_eq!(next(None, Some(vm(strategy, start)), &End::Lost, 1), next_one, "{strategy}");
        }
        let failed = Some(vmi("1", "Failed"));
        assert_eq!(next(failed, Some(vm("RerunOnFailure", false)), &End::Ended, 1), Next::Wait);
        assert_eq!(next(ended(), Some(vm("Always", false)), &End::Ended, 301), Next::GiveUp);
    }

    #[test]
    fn a_guest_that_has_moved_is_found_on_its_new_node() {
        let mut moved = vmi("1", "Running");
        assert_eq!(next(Some(moved.clone()), None, &End::Ended, 1), Next::Wait);
        moved.status.as_mut().unwrap().node_name = Some("b".to_owned());
        assert_eq!(next(Some(moved.clone()), None, &End::Ended, 1), Next::Open);
        assert_eq!(next(Some(moved), None, &End::Taken, 1), Next::GiveUp);
    }

    #[test]
    fn the_next_run_is_had_once_it_runs() {
        assert_eq!(next(Some(vmi("2", "Scheduling")), None, &End::Ended, 1), Next::Wait);
        assert_eq!(next(Some(vmi("2", "Running")), None, &End::Ended, 1), Next::Open);
        assert_eq!(next(Some(vmi("2", "Failed")), None, &End::Ended, 1), Next::GiveUp);
    }
}
