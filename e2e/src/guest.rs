//! Manifests of machines, from one builder: a small guest that boots fast, which each test changes as needed.

use serde_json::{Value, json};

/// Registry prefix and tag of the images under test.
fn image(name: &str) -> String {
    let or = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    format!("{}/barevirt/{name}:{}", or("REGISTRY", "localhost"), or("TAG", "devel"))
}

/// The small guest's image: root without a password on the serial console, a web server on port 80.
pub fn tiny_image() -> String {
    image("guest-tiny")
}

/// The Debian guest's image.
pub fn debian_image() -> String {
    image("guest-debian")
}

/// The part of a VMI that is also in a VM's template. The grace period is 0 unless a test changes it.
fn spec() -> Value {
    json!({
        "terminationGracePeriodSeconds": 0,
        "domain": {
            "memory": { "guest": "128Mi" },
            "devices": {
                "disks": [{ "name": "root", "disk": { "bus": "virtio" } }],
                "interfaces": [{ "name": "default", "masquerade": {} }],
            },
        },
        "networks": [{ "name": "default", "pod": {} }],
        "volumes": [{ "name": "root", "containerDisk": { "image": tiny_image() } }],
    })
}

/// A VirtualMachineInstance with the small guest.
pub fn instance(name: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": { "name": name, "labels": { "guest": name } },
        "spec": spec(),
    })
}

/// A VirtualMachine with the small guest.
pub fn machine(name: &str, run_strategy: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": { "name": name },
        "spec": {
            "runStrategy": run_strategy,
            "template": { "metadata": { "labels": { "guest": name } }, "spec": spec() },
        },
    })
}

/// The instance's own specification, in either kind.
pub fn spec_of(manifest: &mut Value) -> &mut Value {
    if manifest["kind"] == "VirtualMachine" {
        &mut manifest["spec"]["template"]["spec"]
    } else {
        &mut manifest["spec"]
    }
}

/// Adds an element to a list, which is made if it does not exist.
pub fn push(list: &mut Value, element: Value) {
    match list {
        Value::Array(elements) => elements.push(element),
        other => *other = Value::Array(vec![element]),
    }
}

/// Adds cloud-init with that user data.
pub fn with_user_data(mut manifest: Value, user_data: &str) -> Value {
    let spec = spec_of(&mut manifest);
    push(&mut spec["domain"]["devices"]["disks"], json!({ "name": "seed", "disk": { "bus": "virtio" } }));
    push(&mut spec["volumes"], json!({ "name": "seed", "cloudInitNoCloud": { "userData": user_data } }));
    manifest
}

/// A guest without a system: its root disk is empty, so its firmware stops and waits. For tests that do not look
/// into the guest, because an emulated boot needs several seconds of processor time.
pub fn without_system(mut manifest: Value) -> Value {
    spec_of(&mut manifest)["volumes"][0] = json!({ "name": "root", "emptyDisk": { "capacity": "1Mi" } });
    manifest
}

/// A guest that moves when it is evicted, and has no disk: its system is the initial file system, in its memory.
pub fn movable(manifest: Value) -> Value {
    let mut manifest = in_memory(manifest, &["/boot/small", "/boot/small-initrd"]);
    let spec = spec_of(&mut manifest);
    spec["evictionStrategy"] = json!("LiveMigrate");
    // The last ones are also those of this kernel on the small guest's disk.
    let arguments = "root=none console=ttyS0 quiet net.ifnames=0 nokaslr tsc=reliable \
                     no_timer_check memhp_default_state=online_movable pcie_ports=compat";
    spec["domain"]["firmware"]["kernelBoot"]["kernelArgs"] = json!(arguments);
    manifest
}

/// Starts the guest on that node if it can be there. It may move to others.
pub fn prefer(manifest: &mut Value, node: &str) {
    spec_of(manifest)["affinity"] = json!({ "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 100, "preference": {
            "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In", "values": [node] }],
        } }],
    } });
}

/// A guest without a disk whose kernel is Debian's, which has more drivers, but boots much more slowly than the small one.
pub fn with_debians_kernel(manifest: Value) -> Value {
    in_memory(manifest, &["/boot/vmlinuz", "/boot/initrd"])
}

fn in_memory(mut manifest: Value, [kernel, initrd]: &[&str; 2]) -> Value {
    let spec = spec_of(&mut manifest);
    spec["volumes"] = json!([]);
    let domain = &mut spec["domain"];
    domain["devices"]["disks"] = json!([]);
    domain["memory"]["guest"] = json!("192Mi");
    domain["firmware"]["kernelBoot"] = json!({
        // The kernel's check of the timer fails where the guest waits for a processor.
        "kernelArgs": "console=ttyS0 quiet net.ifnames=0 no_timer_check",
        "container": { "image": tiny_image(), "kernelPath": kernel, "initrdPath": initrd },
    });
    manifest
}

/// Gives the guest that many seconds to shut itself down.
pub fn with_grace(mut manifest: Value, seconds: u32) -> Value {
    spec_of(&mut manifest)["terminationGracePeriodSeconds"] = json!(seconds);
    manifest
}

/// User data that makes the guest count on its console, five lines a second, with its boot id in each.
pub const COUNTING: &str = "#!/bin/sh
boot=$(cat /proc/sys/kernel/random/boot_id)
(n=0; while true; do n=$((n+1)); echo \"tick $n $boot\"; sleep 0.2; done) >/dev/ttyS0 2>&1 &
";
