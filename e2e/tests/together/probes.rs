//! Probes of a guest, and a guest that panics.

use anyhow::{Result, ensure};
use barevirt_e2e::wait::{self, BOOT, RUNNING};
use barevirt_e2e::{Console, Namespace, guest, in_namespace};
use serde_json::{Value, json};
use std::time::Duration;

const COMMAND: Duration = Duration::from_secs(60);
/// Time for a probe each second, and for the kubelet to report it.
const TOLD: Duration = Duration::from_secs(60);

fn ready(vmi: &Value) -> Option<bool> {
    let conditions = vmi["status"]["conditions"].as_array()?;
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready")?;
    Some(ready["status"] == "True")
}

fn probed(kind: &str, probe: Value) -> Value {
    let mut manifest = guest::with_grace(guest::instance("vm"), 1);
    guest::spec_of(&mut manifest)[kind] = probe;
    manifest
}

fn wait_ready(namespace: &Namespace, wanted: bool) -> Result<()> {
    let what = if wanted { "to be ready" } else { "not to be ready" };
    namespace.wait("vmi", "vm", what, TOLD, |vmi| ready(vmi) == Some(wanted)).map(drop)
}

/// The life of one guest. Each step is a behaviour of its own.
#[test]
fn a_guest_is_ready_while_its_port_is_open_and_fails_when_its_kernel_panics() {
    in_namespace("readiness", |namespace| {
        namespace.apply(&probed(
            "readinessProbe",
            json!({"tcpSocket": {"port": 1500}, "periodSeconds": 1, "failureThreshold": 2}),
        ))?;
        let vmi = namespace.wait_phase("vm", "Running", RUNNING)?;
        ensure!(ready(&vmi) == Some(false), "ready before anything listens: {}", vmi["status"]);
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        console.ok(
            "(while :; do echo x | nc -l -p 1500; done) >/dev/null 2>&1 & echo $! >/tmp/server",
            COMMAND,
        )?;
        wait_ready(namespace, true)?;
        console.ok("kill $(cat /tmp/server); killall nc; true", COMMAND)?;
        wait_ready(namespace, false)?;
        fails_when_its_kernel_panics(namespace, &mut console)
    });
}

fn fails_when_its_kernel_panics(namespace: &Namespace, console: &mut Console) -> Result<()> {
    console.ok("modprobe -q pvpanic-pci; echo 1 >/proc/sys/kernel/sysrq", COMMAND)?;
    console.send("echo c >/proc/sysrq-trigger\n")?;
    let vmi = namespace.wait_phase("vm", "Failed", BOOT)?;
    ensure!(vmi["status"]["reason"] == "GuestPanicked", "{}", vmi["status"]);
    namespace.wait_event("vm", "GuestPanicked").map(drop)
}

#[test]
fn a_guest_that_does_not_answer_its_liveness_probe_is_ended() {
    in_namespace("liveness", |namespace| {
        let probe = json!({"tcpSocket": {"port": 1500}, "periodSeconds": 1, "failureThreshold": 3});
        namespace.apply(&guest::without_system(probed("livenessProbe", probe)))?;
        wait::until_true("the end of the guest", BOOT, || {
            let vmi = namespace.need("vmi", "vm")?;
            Ok(matches!(vmi["status"]["phase"].as_str(), Some("Succeeded" | "Failed")))
        })?;
        Ok(())
    });
}

#[test]
fn an_agent_probe_without_an_agent_fails_with_the_reason() {
    in_namespace("execprobe", |namespace| {
        let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 2});
        namespace.apply(&guest::without_system(probed("readinessProbe", probe)))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let pod = namespace.launcher("vm")?;
        let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let event = namespace.wait_event(&name, "Unhealthy")?;
        ensure!(event.contains("Readiness probe failed"), "{event}");
        ensure!(ready(&namespace.need("vmi", "vm")?) == Some(false));
        Ok(())
    });
}

#[test]
fn pings_of_the_agent_can_be_paused_and_a_failed_one_is_reported() {
    in_namespace("agentping", |namespace| {
        let probe = json!({"guestAgentPing": {}, "periodSeconds": 1});
        let mut manifest = guest::without_system(probed("readinessProbe", probe));
        let pause = "kubevirt.io/pause-guest-agent-probes";
        manifest["metadata"]["annotations"] = json!({ pause: "true" });
        namespace.apply(&manifest)?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        // The guest has no agent.
        wait_ready(namespace, true)?;
        namespace.kubectl(&["annotate", "vmi", "vm", &format!("{pause}-")])?;
        wait_ready(namespace, false)?;
        namespace.wait_event("vm", "GuestAgentPingFailed").map(drop)
    });
}
