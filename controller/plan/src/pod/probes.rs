//! Probes of the guest as probes of the `compute` container. The rules are KubeVirt's.
//!
//! HTTP and TCP probes go to the pod's address, from where they reach the guest. Probes of the guest agent run the
//! launcher's own program in the container, which asks the launcher.

use barevirt_api::v1;
use k8s_openapi::api::core::v1::{ExecAction, Probe};

/// Seconds that a guest gets before its first liveness probe, beyond its specification. KubeVirt's number is for libvirt;
/// guests must not be killed sooner than in KubeVirt.
const START_UP: i32 = 10;
/// Seconds that the kubelet's timeout is longer than that of the agent, so that the agent's answer counts.
const MARGIN: i32 = 1;

/// Readiness of the container.
pub(super) fn readiness(probe: &v1::Probe) -> Probe {
    of(probe, false)
}

/// Liveness of the container: where it fails, the kubelet ends the pod.
pub(super) fn liveness(probe: &v1::Probe) -> Probe {
    let mut built = of(probe, true);
    built.initial_delay_seconds = Some(built.initial_delay_seconds.unwrap_or(0).saturating_add(START_UP));
    built
}

fn of(probe: &v1::Probe, alive: bool) -> Probe {
    let v1::Probe {
        exec,
        failure_threshold,
        guest_agent_ping,
        http_get,
        initial_delay_seconds,
        period_seconds,
        success_threshold,
        tcp_socket,
        timeout_seconds,
    } = probe;
    let or = |given: &Option<i32>, usual| Some(given.filter(|given| *given != 0).unwrap_or(usual));
    let timeout = timeout_seconds.filter(|given| *given != 0).unwrap_or(1);
    let by_agent = match (exec, guest_agent_ping) {
        (Some(exec), _) => Some(exec.command.clone().unwrap_or_default()),
        (None, Some(v1::GuestAgentPing {})) => Some(Vec::new()),
        (None, None) => None,
    };
    let asks = by_agent.is_some();
    Probe {
        exec: by_agent.map(|command| ExecAction { command: Some(ask(timeout, alive, command)) }),
        failure_threshold: or(failure_threshold, 3),
        http_get: http_get.clone(),
        initial_delay_seconds: *initial_delay_seconds,
        period_seconds: or(period_seconds, 10),
        success_threshold: or(success_threshold, 1),
        tcp_socket: tcp_socket.clone(),
        timeout_seconds: Some(if asks { timeout.saturating_add(MARGIN) } else { timeout }),
        ..Probe::default()
    }
}

/// The launcher's program, asking for a command in the guest, or only for an answer of the agent.
fn ask(timeout: i32, alive: bool, command: Vec<String>) -> Vec<String> {
    let seconds = timeout.to_string();
    let mut words =
        ["/usr/bin/virt-launcher", "probe", "--timeout-seconds", &seconds].map(str::to_owned).to_vec();
    if alive {
        words.push("--alive".to_owned());
    }
    if !command.is_empty() {
        words.push("--".to_owned());
        words.extend(command);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn built(build: fn(&v1::Probe) -> Probe, probe: Value) -> Value {
        serde_json::to_value(build(&serde_json::from_value(probe).unwrap())).unwrap()
    }

    #[test]
    fn http_and_tcp_are_the_containers_own() {
        let tcp = built(
            readiness,
            json!({"tcpSocket": {"port": 1500}, "initialDelaySeconds": 20, "timeoutSeconds": 5}),
        );
        let expected = json!({"tcpSocket": {"port": 1500}, "initialDelaySeconds": 20, "timeoutSeconds": 5,
            "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3});
        assert_eq!(tcp, expected);
        let http = built(
            liveness,
            json!({"httpGet": {"port": "web", "path": "/"}, "periodSeconds": 5, "failureThreshold": 7}),
        );
        let expected = json!({"httpGet": {"port": "web", "path": "/"}, "initialDelaySeconds": 10, "timeoutSeconds": 1,
            "periodSeconds": 5, "successThreshold": 1, "failureThreshold": 7});
        assert_eq!(http, expected);
    }

    #[test]
    fn agent_probes_run_the_launcher() {
        let exec = built(readiness, json!({"exec": {"command": ["cat", "--", "/a b"]}, "timeoutSeconds": 4}));
        assert_eq!(
            exec["exec"]["command"],
            json!(["/usr/bin/virt-launcher", "probe", "--timeout-seconds", "4", "--", "cat", "--", "/a b"])
        );
        assert_eq!(exec["timeoutSeconds"], 5);
        let ping = built(liveness, json!({"guestAgentPing": {}}));
        assert_eq!(
            ping["exec"]["command"],
            json!(["/usr/bin/virt-launcher", "probe", "--timeout-seconds", "1", "--alive"])
        );
        assert_eq!((&ping["timeoutSeconds"], &ping["initialDelaySeconds"]), (&json!(2), &json!(10)));
    }
}
