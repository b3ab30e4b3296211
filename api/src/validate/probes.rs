//! Rules for readiness and liveness probes, and for starting paused.

use super::{Cause, Path};
use crate::syntax::quoted;
use crate::v1::{Probe, VirtualMachineInstanceSpec};

pub(super) fn validate(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let on_pod_network = spec.networks.iter().any(|network| network.pod.is_some());
    for (name, probe) in
        [("readinessProbe", spec.readiness_probe.as_ref()), ("livenessProbe", spec.liveness_probe.as_ref())]
    {
        if let Some(probe) = probe {
            check(&path.child(name), probe, on_pod_network, causes);
        }
    }
    start(path, spec, causes);
}

fn check(field: &Path, probe: &Probe, on_pod_network: bool, causes: &mut Vec<Cause>) {
    let handlers = [
        probe.http_get.is_some(),
        probe.tcp_socket.is_some(),
        probe.exec.is_some(),
        probe.guest_agent_ping.is_some(),
    ];
    match handlers.iter().filter(|given| **given).count() {
        0 => causes.push(Cause::required(
            field,
            format!("either {field}.tcpSocket, {field}.exec or {field}.httpGet must be set if a {field} is specified"),
        )),
        1 => {}
        _ => causes.push(Cause::invalid(field, format!("{field} must have exactly one probe type set"))),
    }
    if probe.exec.as_ref().is_some_and(|exec| exec.command.iter().flatten().next().is_none()) {
        let field = field.child("exec.command");
        causes.push(Cause::required(&field, format!("{field} is a required field")));
    }
    for (name, given) in [("httpGet", probe.http_get.is_some()), ("tcpSocket", probe.tcp_socket.is_some())] {
        if given && !on_pod_network {
            let field = field.child(name);
            causes.push(Cause::invalid(
                &field,
                format!("{field} is only allowed if the Pod Network is attached"),
            ));
        }
    }
}

fn start(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let field = path.child("startStrategy");
    match spec.start_strategy.as_deref() {
        None | Some("") => {}
        Some("Paused") => {
            if spec.liveness_probe.is_some() {
                let probe = path.child("livenessProbe");
                causes.push(Cause::invalid(
                    &field,
                    format!("either {field} or {probe} should be provided.Pausing VMI with LivenessProbe is not supported"),
                ));
            }
        }
        Some(other) => causes.push(Cause::invalid(
            &field,
            format!("{field} is set with an unrecognized option: {}", quoted(other)),
        )),
    }
}
