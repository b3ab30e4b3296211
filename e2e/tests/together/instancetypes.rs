//! Instance types and preferences: their effect on a machine, and that an existing machine does not change
//! with them.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::{kubectl, try_kubectl_with};
use barevirt_e2e::wait::{BOOT, RUNNING, SHUTDOWN, SOON};
use barevirt_e2e::{Console, Namespace, guest, in_namespace};
use serde_json::{Value, json};

/// An instance type of the namespace.
pub(crate) fn instancetype(name: &str, vcpus: u32) -> Value {
    json!({
        "apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineInstancetype",
        "metadata": { "name": name }, "spec": { "cpu": { "guest": vcpus }, "memory": { "guest": "128Mi" } },
    })
}

/// A preference of the namespace: vCPUs are cores, devices are virtio.
fn preference(name: &str) -> Value {
    json!({
        "apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachinePreference",
        "metadata": { "name": name },
        "spec": {
            "cpu": { "preferredCPUTopology": "cores" },
            "devices": { "preferredDiskBus": "virtio", "preferredInterfaceModel": "virtio" },
        },
    })
}

/// The small guest, without fields that either of them sets.
fn machine(name: &str, run_strategy: &str) -> Value {
    let mut machine = guest::machine(name, run_strategy);
    let spec = guest::spec_of(&mut machine);
    spec["domain"] = json!({ "devices": {} });
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("networks");
    }
    machine["spec"]["instancetype"] = json!({ "name": "own", "kind": "VirtualMachineInstancetype" });
    machine["spec"]["preference"] = json!({ "name": "own", "kind": "VirtualMachinePreference" });
    machine
}

fn prepare(namespace: &Namespace) -> Result<()> {
    namespace.apply(&instancetype("own", 2))?;
    namespace.apply(&preference("own"))
}

/// The copy that a machine's status names there.
pub(crate) fn revision(vm: &Value, reference: &str) -> String {
    vm["status"][reference]["controllerRevisionRef"]["name"].as_str().unwrap_or_default().to_owned()
}

fn recorded(namespace: &Namespace, name: &str) -> Result<Value> {
    namespace.wait("vm", name, "to name its copies", SOON, |vm| {
        !revision(vm, "instancetypeRef").is_empty() && !revision(vm, "preferenceRef").is_empty()
    })
}

#[test]
fn a_guest_is_of_the_size_that_its_instance_type_says() {
    in_namespace("sized", |namespace| {
        prepare(namespace)?;
        namespace.apply(&machine("vm", "Always"))?;
        let vmi = namespace.wait_phase("vm", "Running", RUNNING)?;
        ensure!(vmi["spec"]["domain"]["cpu"]["cores"] == 2, "{}", vmi["spec"]["domain"]["cpu"]);
        let annotations = &vmi["metadata"]["annotations"];
        ensure!(annotations["kubevirt.io/instancetype-name"] == "own", "{annotations}");
        ensure!(annotations["kubevirt.io/preference-name"] == "own", "{annotations}");
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        ensure!(console.ok("nproc", SOON)? == "2");
        // The kernel reserves some of it.
        let memory = console.ok("awk '/^MemTotal/ { print $2 }' /proc/meminfo", SOON)?;
        let kibibytes: u32 = memory.trim().parse().with_context(|| format!("memory {memory:?}"))?;
        ensure!((64 << 10..128 << 10).contains(&kibibytes), "{kibibytes} KiB are not of 128 MiB");
        Ok(())
    });
}

#[test]
fn a_field_that_both_decide_is_refused_by_its_path() {
    in_namespace("conflict", |namespace| {
        prepare(namespace)?;
        let mut manifest = machine("vm", "Halted");
        guest::spec_of(&mut manifest)["domain"]["memory"] = json!({ "guest": "64Mi" });
        guest::spec_of(&mut manifest)["domain"]["cpu"] = json!({ "cores": 1 });
        let message = namespace.refusal(&manifest)?;
        for field in ["memory.guest", "cpu.cores"] {
            let wanted = format!(
                "VM field(s) spec.template.spec.domain.{field} conflicts with selected instance type"
            );
            ensure!(message.contains(&wanted), "{wanted} is not in {message}");
        }
        Ok(())
    });
}

#[test]
fn a_restarted_machine_keeps_its_copy_of_the_instance_type() {
    in_namespace("copies", |namespace| {
        prepare(namespace)?;
        namespace.apply(&guest::without_system(machine("vm", "Halted")))?;
        let vm = recorded(namespace, "vm")?;
        let kept = namespace.need("controllerrevision", &revision(&vm, "instancetypeRef"))?;
        ensure!(kept["data"]["spec"]["cpu"]["guest"] == 2, "{}", kept["data"]);
        ensure!(kept["metadata"]["ownerReferences"][0]["uid"] == vm["metadata"]["uid"]);
        let labels = &kept["metadata"]["labels"];
        ensure!(labels["instancetype.kubevirt.io/object-name"] == "own", "{labels}");

        // Only a new machine is smaller.
        namespace.apply(&instancetype("own", 1))?;
        let cores = |namespace: &Namespace, cores: u32| -> Result<()> {
            namespace.virtctl(&["start", "vm"])?;
            let vmi = namespace.wait_phase("vm", "Running", RUNNING)?;
            ensure!(vmi["spec"]["domain"]["cpu"]["cores"] == cores, "{}", vmi["spec"]["domain"]["cpu"]);
            namespace.virtctl(&["stop", "vm"])?;
            namespace.wait_gone("vmi", "vm", SHUTDOWN)
        };
        cores(namespace, 2)?;
        namespace.apply(&machine("other", "Halted"))?;
        let other = recorded(namespace, "other")?;
        let kept = namespace.need("controllerrevision", &revision(&other, "instancetypeRef"))?;
        ensure!(kept["data"]["spec"]["cpu"]["guest"] == 1, "{}", kept["data"]);

        // Without its copy the machine uses the current objects.
        let before = revision(&vm, "instancetypeRef");
        let none = json!({ "status": { "instancetypeRef": null } }).to_string();
        namespace.kubectl(&["patch", "vm", "vm", "--subresource=status", "--type=merge", "-p", &none])?;
        namespace.wait("vm", "vm", "to name another copy", SOON, |vm| {
            let now = revision(vm, "instancetypeRef");
            !now.is_empty() && now != before
        })?;
        cores(namespace, 1)
    });
}

#[test]
fn a_machine_starts_once_its_missing_instance_type_exists() {
    in_namespace("gone", |namespace| {
        prepare(namespace)?;
        namespace.apply(&guest::without_system(machine("vm", "Halted")))?;
        recorded(namespace, "vm")?;
        namespace.delete("virtualmachineinstancetype", "own")?;
        let none = json!({ "status": { "instancetypeRef": null } }).to_string();
        namespace.kubectl(&["patch", "vm", "vm", "--subresource=status", "--type=merge", "-p", &none])?;
        namespace.virtctl(&["start", "vm"])?;
        namespace.wait("vm", "vm", "to say what is missing", SOON, |vm| {
            let conditions = vm["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|condition| {
                condition["type"] == "Failure" && condition["reason"] == "FailedFindInstancetype"
            })
        })?;
        namespace.apply(&instancetype("own", 1))?;
        namespace.wait_status("vm", "Running", RUNNING).map(drop)
    });
}

#[test]
fn expanding_shows_the_machine_on_its_own() {
    in_namespace("expand", |namespace| {
        prepare(namespace)?;
        let base = format!("/apis/subresources.kubevirt.io/v1/namespaces/{}", namespace.name());
        let manifest = machine("vm", "Halted");
        let is_expanded = |vm: &Value| -> Result<()> {
            ensure!(vm["kind"] == "VirtualMachine", "{vm}");
            ensure!(
                vm["spec"].get("instancetype").is_none() && vm["spec"].get("preference").is_none(),
                "{vm}"
            );
            let domain = &vm["spec"]["template"]["spec"]["domain"];
            ensure!(domain["cpu"]["cores"] == 2 && domain["memory"]["guest"] == "128Mi", "{domain}");
            ensure!(domain["devices"]["disks"][0]["disk"]["bus"] == "virtio", "{domain}");
            Ok(())
        };

        // The machine of the body need not exist.
        let whole = format!("{base}/expand-vm-spec");
        let put = |manifest: &Value| {
            try_kubectl_with(&["replace", "--raw", &whole, "-f", "-"], &manifest.to_string())
        };
        let output = put(&manifest)?;
        ensure!(output.code == 0, "{}", output.text());
        is_expanded(&serde_json::from_str(&output.stdout)?)?;
        ensure!(namespace.get("vm", "vm")?.is_none(), "nothing is stored");

        let mut lost = manifest.clone();
        lost["spec"]["instancetype"]["name"] = json!("nobody");
        let output = put(&lost)?;
        let text = output.text();
        ensure!(output.code != 0 && text.contains("nobody") && text.contains("not found"), "{text}");
        let mut elsewhere = manifest.clone();
        elsewhere["metadata"]["namespace"] = json!("elsewhere");
        let output = put(&elsewhere)?;
        ensure!(
            output.code != 0 && output.text().contains("VM namespace must be empty or"),
            "{}",
            output.text()
        );

        namespace.apply(&manifest)?;
        let shown = kubectl(&["get", "--raw", &format!("{base}/virtualmachines/vm/expand-spec")])?;
        is_expanded(&serde_json::from_str(&shown)?)?;
        ensure!(
            namespace.need("vm", "vm")?["spec"]["instancetype"]["name"] == "own",
            "the machine stays as it is"
        );
        Ok(())
    });
}

#[test]
fn common_ones_are_installed() {
    in_namespace("common", |namespace| {
        for (kind, name) in [
            ("virtualmachineclusterinstancetype", "u1.small"),
            ("virtualmachineclusterinstancetype", "cx1.medium"),
            ("virtualmachineclusterpreference", "debian"),
            ("virtualmachineclusterpreference", "windows.11"),
        ] {
            kubectl(&["get", kind, name])?;
        }
        let mut manifest = machine("vm", "Halted");
        manifest["spec"]["instancetype"] = json!({ "name": "u1.nano" });
        manifest["spec"]["preference"] = json!({ "name": "alpine" });
        namespace.apply(&manifest)?;
        recorded(namespace, "vm").map(drop)
    });
}
