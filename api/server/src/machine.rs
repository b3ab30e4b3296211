//! start, stop and restart of a VirtualMachine. A pure function decides on a list of patches, which are then
//! sent.
//!
//! The meaning of each call under each run strategy is KubeVirt's. `Always`, `Once` and `Halted` are changed
//! by patching the spec; `Manual` and `RerunOnFailure` by a state change request in the status, which
//! virt-controller carries out. Every patch tests the values that the decision was based on; if they have
//! changed, the call is decided again, so that one of two simultaneous users gets a 409. A request resets the
//! count of failed starts, so it is carried out at once.

use barevirt_api::names;
use barevirt_api::v1::{Condition, StateChangeRequest, VirtualMachine, VirtualMachineInstance};
use hyper::StatusCode;
use hyper::body::Bytes;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::answer::{self, Answer, Refusal};
use crate::endpoints::MachineAction;
use crate::front_proxy::User;
use crate::instance::phase;

/// `StartOptions`, `StopOptions` and `RestartOptions` in one: each call reads its own fields.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Options {
    /// start: the guest starts with paused CPUs.
    #[serde(default)]
    pub paused: bool,
    /// stop: seconds for the guest to shut down, instead of its spec's.
    pub grace_period: Option<i64>,
    /// restart: 0 for a forced restart.
    pub grace_period_seconds: Option<i64>,
    /// `All`: only validate, change nothing.
    #[serde(default)]
    pub dry_run: Vec<String>,
}

/// One patch to send.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// JSON patch of the machine.
    Machine(Value),
    /// JSON patch of the machine's status.
    MachineStatus(Value),
    /// JSON patch of the instance.
    Instance(Value),
}

/// Parses the body of a call; an empty one means defaults.
///
/// # Errors
/// 400.
pub fn options(body: &[u8]) -> Result<Options, Refusal> {
    given(body)
}

/// The options of a call; defaults without a body.
///
/// # Errors
/// 400.
pub fn given<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, Refusal> {
    if body.is_empty() {
        return Ok(T::default());
    }
    serde_json::from_slice(body).map_err(|error| {
        Refusal::bad_request(format!("Can not unmarshal Request body to struct, error: {error}"))
    })
}

/// Why a machine does not start whose volumes were moving to other claims; KubeVirt's message.
const RECOVERY_REQUIRED: &str = "VM recovery required: Volume migration failed, leaving some volumes pointing to non-consistent targets; manual intervention is needed to reassign them to their original volumes.";

/// Whether a start may be requested before the user has chosen the machine's claims. As in KubeVirt, the
/// request removes an instance that would else stay as a record; virt-controller starts the machine after the
/// choice.
fn start_may_wait(strategy: &str, vmi: Option<&VirtualMachineInstance>) -> bool {
    strategy == names::RUN_STRATEGY_MANUAL && vmi.is_some_and(|vmi| names::is_final_phase(phase(vmi)))
}

/// The patches that a call leads to. Pure.
///
/// # Errors
/// 400 and 409, with KubeVirt's messages.
pub fn decide(
    action: MachineAction,
    vm: &VirtualMachine,
    vmi: Option<&VirtualMachineInstance>,
    options: &Options,
) -> Result<Vec<Change>, Refusal> {
    let name = vm.metadata.name.as_deref().unwrap_or_default();
    let conflict = |why: String| Err(Refusal::conflict("virtualmachines", name, why));
    let Some(strategy) = vm.spec.effective_run_strategy() else {
        return Err(Refusal::internal("neither running nor runStrategy is set"));
    };
    let alive = vmi.filter(|vmi| !names::is_final_phase(phase(vmi)));
    let conditions = vm.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    match action {
        MachineAction::Start
            if Condition::is_set(conditions, names::CONDITION_MANUAL_RECOVERY_REQUIRED)
                && !start_may_wait(strategy, vmi) =>
        {
            conflict(RECOVERY_REQUIRED.into())
        }
        MachineAction::Restart if Condition::is_set(conditions, names::CONDITION_VOLUMES_CHANGE) => {
            conflict(RECOVERY_REQUIRED.into())
        }
        MachineAction::Start => match strategy {
            _ if alive.is_some_and(|vmi| !["", names::PHASE_WAITING_FOR_SYNC].contains(&phase(vmi))) => {
                conflict("VM is already running".into())
            }
            // virt-controller switches the machine on when it sees the request, which has the option.
            names::RUN_STRATEGY_HALTED if options.paused => requests(vm, alive, vec![start_request(options)]),
            names::RUN_STRATEGY_HALTED => Ok(vec![Change::Machine(run(vm, true))]),
            names::RUN_STRATEGY_RERUN_ON_FAILURE
                if vmi.is_some_and(|vmi| phase(vmi) == names::PHASE_FAILED) =>
            {
                conflict(format!("{strategy} does not support starting VM from failed state"))
            }
            names::RUN_STRATEGY_MANUAL | names::RUN_STRATEGY_RERUN_ON_FAILURE => {
                // A finished instance has to be removed first.
                let ended = vmi.filter(|vmi| names::is_final_phase(phase(vmi)));
                let stop = ended.and_then(uid).map(stop_request);
                requests(vm, alive, stop.into_iter().chain([start_request(options)]).collect())
            }
            other => conflict(format!("{other} does not support manual start requests")),
        },
        MachineAction::Stop => stop(vm, strategy, alive, options, name),
        MachineAction::Restart => {
            match options.grace_period_seconds {
                Some(seconds) if seconds > 0 => {
                    return Err(Refusal::bad_request(
                        "For force restart, only gracePeriod=0 is supported for now",
                    ));
                }
                Some(seconds) if seconds < 0 => {
                    return Err(Refusal::bad_request("gracePeriod has to be greater or equal to 0"));
                }
                _ => {}
            }
            if matches!(
                strategy,
                names::RUN_STRATEGY_HALTED | names::RUN_STRATEGY_ONCE | names::RUN_STRATEGY_WAIT_AS_RECEIVER
            ) {
                return conflict(format!("RunStategy {strategy} does not support manual restart requests"));
            }
            let Some((vmi, uid)) = alive.and_then(|vmi| Some((vmi, uid(vmi)?))) else {
                return conflict("VM is not running".into());
            };
            let mut changes = Vec::new();
            if let Some(seconds) = options.grace_period_seconds {
                changes.push(grace(vmi, seconds));
            }
            let restart = vec![stop_request(uid), json!({ "action": "Start" })];
            changes.extend(requests(vm, Some(vmi), restart)?);
            Ok(changes)
        }
    }
}

fn stop(
    vm: &VirtualMachine,
    strategy: &str,
    alive: Option<&VirtualMachineInstance>,
    options: &Options,
    name: &str,
) -> Result<Vec<Change>, Refusal> {
    let conflict = |why: String| Err(Refusal::conflict("virtualmachines", name, why));
    let shorter = match (alive, options.grace_period) {
        (_, Some(seconds)) if seconds < 0 => {
            return Err(Refusal::bad_request("gracePeriod has to be greater or equal to 0"));
        }
        (Some(vmi), Some(seconds)) => Some(grace(vmi, seconds)),
        _ => None,
    };
    let request = |vmi: &VirtualMachineInstance| Some(requests(vm, alive, vec![stop_request(uid(vmi)?)]));
    match strategy {
        names::RUN_STRATEGY_HALTED => {
            let Some(vmi) = alive else { return conflict("VM is not running".into()) };
            let old = vmi.spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE);
            match (shorter, options.grace_period) {
                // The machine is already being stopped; only its grace period can be shortened.
                (Some(shorter), Some(seconds)) if seconds < old => Ok(vec![shorter]),
                _ => conflict(format!(
                    "{strategy} only supports manual stop requests with a shorter graceperiod"
                )),
            }
        }
        names::RUN_STRATEGY_ALWAYS | names::RUN_STRATEGY_ONCE | names::RUN_STRATEGY_WAIT_AS_RECEIVER => {
            Ok(shorter.into_iter().chain([Change::Machine(run(vm, false))]).collect())
        }
        _ => match alive.and_then(request) {
            Some(request) => Ok(shorter.into_iter().chain(request?).collect()),
            None => conflict("VM is not running".into()),
        },
    }
}

/// KubeVirt's default of `terminationGracePeriodSeconds`.
const DEFAULT_GRACE: i64 = 30;

fn uid(vmi: &VirtualMachineInstance) -> Option<&str> {
    vmi.metadata.uid.as_deref()
}

fn stop_request(uid: &str) -> Value {
    json!({ "action": "Stop", "uid": uid })
}

/// Sets `running` or `runStrategy`, whichever the machine uses.
fn run(vm: &VirtualMachine, on: bool) -> Value {
    match (&vm.spec.running, &vm.spec.run_strategy) {
        (Some(running), _) => json!([
            { "op": "test", "path": "/spec/running", "value": running },
            { "op": "replace", "path": "/spec/running", "value": on },
        ]),
        (None, strategy) => json!([
            { "op": "test", "path": "/spec/runStrategy", "value": strategy },
            { "op": "replace", "path": "/spec/runStrategy",
              "value": if on { names::RUN_STRATEGY_ALWAYS } else { names::RUN_STRATEGY_HALTED } },
        ]),
    }
}

/// A start request with the options of this start.
fn start_request(options: &Options) -> Value {
    let mut request = json!({ "action": names::ACTION_START });
    if options.paused {
        request["data"] = json!({ names::START_PAUSED: "true" });
    }
    request
}

/// Adds state change requests to the machine. A request is refused while another is pending, with two
/// exceptions: a stop replaces any pending request, and any request replaces a stop after the guest has
/// ended, when only the clean-up remains. KubeVirt refuses the second case, so a user who stops a machine,
/// waits until it is stopped and starts it again sometimes gets the answer that the stop is underway.
fn requests(
    vm: &VirtualMachine,
    alive: Option<&VirtualMachineInstance>,
    wanted: Vec<Value>,
) -> Result<Vec<Change>, Refusal> {
    let may_replace = |pending: &[StateChangeRequest]| {
        wanted.iter().all(|request| request["action"] == names::ACTION_STOP)
            || alive.is_none() && pending.iter().all(|request| request.action == names::ACTION_STOP)
    };
    let mut patch = match &vm.status {
        None => vec![
            json!({ "op": "test", "path": "/status", "value": null }),
            json!({ "op": "add", "path": "/status", "value": { "stateChangeRequests": wanted } }),
        ],
        Some(status) if status.state_change_requests.is_empty() => vec![
            json!({ "op": "test", "path": "/status/stateChangeRequests", "value": null }),
            json!({ "op": "add", "path": "/status/stateChangeRequests", "value": wanted }),
        ],
        Some(status) if !may_replace(&status.state_change_requests) => {
            let name = vm.metadata.name.as_deref().unwrap_or_default();
            let why = "unable to complete request: stop/start already underway";
            return Err(Refusal::conflict("virtualmachines", name, why.to_owned()));
        }
        Some(status) => vec![
            json!({ "op": "test", "path": "/status/stateChangeRequests", "value": status.state_change_requests }),
            json!({ "op": "replace", "path": "/status/stateChangeRequests", "value": wanted }),
        ],
    };
    if vm.status.as_ref().is_some_and(|status| status.start_failure.is_some()) {
        patch.push(json!({ "op": "remove", "path": "/status/startFailure" }));
    }
    Ok(vec![Change::MachineStatus(Value::Array(patch))])
}

fn grace(vmi: &VirtualMachineInstance, seconds: i64) -> Change {
    let path = "/spec/terminationGracePeriodSeconds";
    let old = vmi.spec.termination_grace_period_seconds;
    Change::Instance(json!([
        { "op": "test", "path": path, "value": old },
        { "op": if old.is_some() { "replace" } else { "add" }, "path": path, "value": seconds },
    ]))
}

/// How often a call is tried if the object changes between reading and patching.
pub(crate) const LOOKS: usize = 5;

/// Whether the options ask for a dry run.
pub(crate) fn is_dry_run(words: &[String]) -> bool {
    words.iter().any(|word| word == "All")
}

/// Carries a call out: reads, decides, patches. 202 means that the request was recorded, not that it is
/// carried out.
///
/// # Errors
/// 404 for a machine that does not exist; the errors of [`decide`]; 409 if the machine changed at every
/// attempt.
pub async fn act(
    client: &Client,
    user: &User,
    action: MachineAction,
    namespace: &str,
    name: &str,
    body: &Bytes,
) -> Result<Answer, Refusal> {
    let options = options(body)?;
    let vms: Api<VirtualMachine> = Api::namespaced(client.clone(), namespace);
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(client.clone(), namespace);
    let dry_run = is_dry_run(&options.dry_run);
    let params = PatchParams { dry_run, ..PatchParams::default() };
    let mut refused: Option<(_, Refusal)> = None;
    for _ in 0..LOOKS {
        let vm = vms.get(name).await.map_err(|error| Refusal::from_kube("get VirtualMachine", error))?;
        let vmi = vmis
            .get_opt(name)
            .await
            .map_err(|error| Refusal::from_kube("get VirtualMachineInstance", error))?;
        let versions = (vm.resource_version(), vmi.as_ref().and_then(ResourceExt::resource_version));
        if let Some((seen, refusal)) = &refused
            && *seen == versions
        {
            // The object did not change in the meantime: the patch itself is wrong.
            return Err(refusal.clone());
        }
        let mut changes = decide(action, &vm, vmi.as_ref(), &options)?.into_iter();
        if let Some(first) = changes.next() {
            match send(&vms, &vmis, name, &params, first).await {
                // The patch tests the values that the decision was based on, and they have changed: nothing
                // was done.
                Err(refusal) if refusal.code == StatusCode::CONFLICT => {
                    refused = Some((versions, refusal));
                    continue;
                }
                other => other?,
            }
        }
        for change in changes {
            send(&vms, &vmis, name, &params, change).await?;
        }
        tracing::info!(user = user.name, namespace, name, action = action.subresource(), dry_run, "accepted");
        return Ok(answer::accepted());
    }
    Err(refused.map_or_else(|| Refusal::internal("no look was taken"), |(_, refusal)| refusal))
}

async fn send(
    vms: &Api<VirtualMachine>,
    vmis: &Api<VirtualMachineInstance>,
    name: &str,
    params: &PatchParams,
    change: Change,
) -> Result<(), Refusal> {
    let patch = |value| {
        serde_json::from_value(value)
            .map(Patch::<()>::Json)
            .map_err(|error| Refusal::internal(format!("write patch: {error}")))
    };
    let refused = |error| Refusal::from_kube("patch", error);
    match change {
        Change::Machine(value) => vms.patch(name, params, &patch(value)?).await.map_err(refused).map(drop),
        Change::MachineStatus(value) => {
            vms.patch_status(name, params, &patch(value)?).await.map_err(refused).map(drop)
        }
        Change::Instance(value) => vmis.patch(name, params, &patch(value)?).await.map_err(refused).map(drop),
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
