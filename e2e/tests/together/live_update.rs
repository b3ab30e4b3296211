//! Changes of a running guest: sockets, memory, placement, instance type.

use crate::instancetypes::{instancetype, revision};
use anyhow::{Context, Result, ensure};
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, guest, in_namespace};
use serde_json::{Value, json};
use std::time::Duration;

/// Time until the kubelet resizes a pod, and a guest plugs or unplugs memory.
const CHANGE: Duration = Duration::from_secs(120);

fn condition<'v>(object: &'v Value, wanted: &str) -> Option<&'v Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == wanted)
}

/// A machine `vm` with these CPUs and this memory.
fn machine(cpu: Value, memory: &str) -> Value {
    let mut machine = guest::machine("vm", "Always");
    let domain = &mut guest::spec_of(&mut machine)["domain"];
    domain["cpu"] = cpu;
    domain["memory"] = json!({"guest": memory});
    machine
}

fn start(namespace: &Namespace, machine: &Value) -> Result<()> {
    namespace.apply(machine)?;
    namespace.wait_phase("vm", "Running", RUNNING).map(drop)
}

fn change(namespace: &Namespace, template: &Value) -> Result<()> {
    namespace.merge("vm", "vm", &json!({"spec": {"template": {"spec": template}}}))
}

fn set_sockets(namespace: &Namespace, sockets: u32) -> Result<()> {
    change(namespace, &json!({"domain": {"cpu": {"sockets": sockets}}}))
}

/// Waits until the instance has that many sockets and no change is under way.
fn wait_sockets(namespace: &Namespace, sockets: u32) -> Result<Value> {
    namespace.wait("vmi", "vm", &format!("to have {sockets} sockets"), CHANGE, |vmi| {
        vmi["status"]["currentCPUTopology"]["sockets"] == sockets && condition(vmi, "HotVCPUChange").is_none()
    })
}

/// The requests of the launcher's container.
fn requests(namespace: &Namespace) -> Result<Value> {
    let pod = namespace.launcher("vm")?;
    let containers = pod["spec"]["containers"].as_array().context("a pod with containers")?;
    let compute = containers.iter().find(|container| container["name"] == "compute").context("compute")?;
    Ok(compute["resources"]["requests"].clone())
}

/// What the instance says of its pod's memory beside the guest's, in MiB.
fn overhead(vmi: &Value) -> Result<u64> {
    let said = vmi["status"]["memory"]["memoryOverhead"].as_str().context("an overhead")?;
    said.strip_suffix("Mi").and_then(|number| number.parse().ok()).with_context(|| said.to_owned())
}

fn needs_no_restart(namespace: &Namespace) -> Result<()> {
    let vm = namespace.need("vm", "vm")?;
    ensure!(condition(&vm, "RestartRequired").is_none(), "{}", vm["status"]["conditions"]);
    Ok(())
}

/// One guest that nobody looks into. Each step is a behaviour of its own.
#[test]
fn sockets_come_with_a_larger_pod_too_many_wait_for_a_restart_and_placement_is_taken_over() {
    in_namespace("live-sockets", |namespace| {
        start(namespace, &guest::without_system(machine(json!({"sockets": 1}), "128Mi")))?;
        sockets_come_and_the_pod_grows_with_them(namespace)?;
        needs_no_restart(namespace)?;
        too_many_wait_for_a_restart(namespace)?;
        placement_is_taken_over_by_the_instance(namespace)?;
        needs_no_restart(namespace)?;
        another_instance_type_is_taken_over_if_only_the_size_differs(namespace)
    });
}

fn sockets_come_and_the_pod_grows_with_them(namespace: &Namespace) -> Result<()> {
    let vmi = namespace.need("vmi", "vm")?;
    ensure!(vmi["spec"]["domain"]["cpu"]["maxSockets"] == 4, "{}", vmi["spec"]["domain"]["cpu"]);
    let (before, uid) = (requests(namespace)?, vmi["metadata"]["uid"].clone());
    let small = overhead(&vmi)?;
    set_sockets(namespace, 2)?;
    let vmi = wait_sockets(namespace, 2)?;
    ensure!(vmi["metadata"]["uid"] == uid, "another instance");
    ensure!(overhead(&vmi)? > small, "{small} {}", vmi["status"]["memory"]);
    let after = requests(namespace)?;
    ensure!(before["cpu"] == "100m" && after["cpu"] == "200m", "{before} {after}");
    Ok(())
}

fn too_many_wait_for_a_restart(namespace: &Namespace) -> Result<()> {
    set_sockets(namespace, 9)?;
    needs_restart(namespace, "CPU sockets updated in template spec to a value higher than what's available")?;
    set_sockets(namespace, 2)?;
    wait_no_restart(namespace)
}

fn is_restart_required(vm: &Value) -> bool {
    condition(vm, "RestartRequired").is_some_and(|found| found["status"] == "True")
}

/// Waits until the machine needs a restart, for this reason.
fn needs_restart(namespace: &Namespace, why: &str) -> Result<()> {
    let vm = namespace.wait("vm", "vm", "to need a restart", SOON, is_restart_required)?;
    let said = condition(&vm, "RestartRequired").context("a condition")?;
    ensure!(said["message"] == why, "{said}");
    Ok(())
}

fn wait_no_restart(namespace: &Namespace) -> Result<()> {
    namespace.wait("vm", "vm", "not to need one any more", SOON, |vm| !is_restart_required(vm)).map(drop)
}

/// The machine names one of the instance types, and has a copy of it.
fn name_instancetype(namespace: &Namespace, name: &str, template: &Value) -> Result<()> {
    let named = json!({"name": name, "kind": "VirtualMachineInstancetype"});
    let change = json!({"spec": {"instancetype": named, "template": {"spec": template}}});
    namespace.merge("vm", "vm", &change)?;
    namespace
        .wait("vm", "vm", &format!("to have a copy of {name}"), SOON, |vm| {
            vm["status"]["instancetypeRef"]["name"] == name && !revision(vm, "instancetypeRef").is_empty()
        })
        .map(drop)
}

fn another_instance_type_is_taken_over_if_only_the_size_differs(namespace: &Namespace) -> Result<()> {
    let mut other = instancetype("other", 3);
    other["spec"]["cpu"]["maxSockets"] = json!(5);
    for manifest in [instancetype("two", 2), instancetype("three", 3), other] {
        namespace.apply(&manifest)?;
    }
    let uid = namespace.need("vmi", "vm")?["metadata"]["uid"].clone();
    // The same size, now by an instance type.
    name_instancetype(namespace, "two", &json!({"domain": {"cpu": null, "memory": null}}))?;
    name_instancetype(namespace, "three", &json!({}))?;
    let vmi = wait_sockets(namespace, 3)?;
    ensure!(vmi["metadata"]["uid"] == uid, "another instance");
    needs_no_restart(namespace)?;
    name_instancetype(namespace, "other", &json!({}))?;
    needs_restart(namespace, "a non-live-updatable field was changed in the template spec")?;
    name_instancetype(namespace, "three", &json!({}))?;
    wait_no_restart(namespace)
}

fn placement_is_taken_over_by_the_instance(namespace: &Namespace) -> Result<()> {
    let toleration = json!([{"key": "a", "operator": "Exists", "effect": "NoExecute"}]);
    change(namespace, &json!({"nodeSelector": {"kubernetes.io/os": "none"}, "tolerations": toleration}))?;
    namespace.wait("vmi", "vm", "to take the placement over", SOON, |vmi| {
        vmi["spec"]["nodeSelector"]["kubernetes.io/os"] == "none" && vmi["spec"]["tolerations"] == toleration
    })?;
    change(namespace, &json!({"nodeSelector": null, "tolerations": null}))?;
    namespace
        .wait("vmi", "vm", "to forget it", SOON, |vmi| {
            vmi["spec"]["nodeSelector"].is_null() && vmi["spec"]["tolerations"].is_null()
        })
        .map(drop)
}

/// Linux 6.9 or later without a visible hypervisor, as under emulation, accepts only processors that existed
/// at its start, so this guest starts with two. Each step is a behaviour of its own.
#[test]
fn a_guest_gives_sockets_back_and_gets_them_again_and_its_memory_comes_and_goes() {
    in_namespace("live-guest", |namespace| {
        start(namespace, &machine(json!({"sockets": 2}), "1Gi"))?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        sockets_go_and_come(namespace, &mut console)?;
        needs_no_restart(namespace)?;
        memory_comes_and_goes(namespace, &mut console)?;
        needs_no_restart(namespace)
    });
}

fn sockets_go_and_come(namespace: &Namespace, console: &mut Console) -> Result<()> {
    let present = "cat /sys/devices/system/cpu/present";
    ensure!(console.ok(present, SOON)?.contains("0-1"));
    set_sockets(namespace, 1)?;
    wait_sockets(namespace, 1)?;
    ensure!(!console.ok(present, SOON)?.contains("0-1"));
    // The pod shrinks after the guest has given its CPU back.
    wait::until_true("the pod to be smaller", SOON, || Ok(requests(namespace)?["cpu"] == "100m"))?;
    set_sockets(namespace, 2)?;
    wait_sockets(namespace, 2)?;
    wait::until_true("the processor to be there again", SOON, || {
        Ok(console.ok(present, SOON)?.contains("0-1"))
    })
}

/// How much memory the guest has, in KiB.
fn total(console: &mut Console) -> Result<u64> {
    let said = console.ok("grep MemTotal /proc/meminfo", SOON)?;
    let number = said.split_whitespace().find_map(|word| word.parse().ok());
    number.with_context(|| said.clone())
}

fn memory_comes_and_goes(namespace: &Namespace, console: &mut Console) -> Result<()> {
    let before = total(console)?;
    for (wanted, bytes) in [("1280Mi", 1280_u64 << 20), ("1Gi", 1 << 30)] {
        change(namespace, &json!({"domain": {"memory": {"guest": wanted}}}))?;
        namespace.wait("vmi", "vm", &format!("to have {wanted}"), CHANGE, |vmi| {
            let memory = &vmi["status"]["memory"];
            let is = |field: &str| {
                memory[field] == wanted || memory[field].as_str() == Some(&format!("{}Mi", bytes >> 20))
            };
            is("guestCurrent") && is("guestRequested") && condition(vmi, "HotMemoryChange").is_none()
        })?;
        let grown = total(console)? > before + (200 << 10);
        ensure!(grown == (bytes > 1 << 30), "{wanted}: {before} before, {} now", total(console)?);
    }
    Ok(())
}
