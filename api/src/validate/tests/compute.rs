use super::*;

#[test]
fn memory_rules() {
    let request = "spec.domain.resources.requests.memory";
    let limit = "spec.domain.resources.limits.memory";
    let guest = "spec.domain.memory.guest";
    check(rows![
        ["/spec/domain/resources/requests/memory" => "-1Mi"] => request, "spec.domain.resources.requests.memory '-1Mi': must be greater than or equal to 0.";
        ["/spec/domain/resources/requests/memory" => "1k"] => request, "spec.domain.resources.requests.memory '1k': must be greater than or equal to 1M.";
        ["/spec/domain/resources/requests/memory" => "1Gi"] => request, "spec.domain.resources.requests.memory '1Gi' is greater than spec.domain.resources.limits.memory '256Mi'";
        ["/spec/domain/resources/requests/memory" => "lots"] => request, "is not a number";
        ["/spec/domain/resources/limits/memory" => "-1Mi"] => limit, "must be greater than or equal to 0.";
        ["/spec/domain/memory/guest" => "512Mi"] => guest, "spec.domain.memory.guest '512Mi' must be equal to or less than the memory limit spec.domain.resources.limits.memory '256Mi'";
        ["/spec/domain/memory/guest" => "1k"] => guest, "must be greater than or equal to 1M.";
        ["/spec/domain/memory/guest" => "0"] => guest, "must be greater than or equal to 1M.";
        ["/spec/domain/memory/guest" => "99Ei"] => guest, "is out of range";
        ["/spec/domain/memory" => null, "/spec/domain/resources" => null] => guest, "no memory requested, at least one of 'spec.domain.memory.guest', 'spec.domain.memory.hugepages.pageSize' or 'spec.domain.resources.requests.memory' must be set";
        ["/spec/domain/resources/limits/gpu" => "-1"] => "spec.domain.resources.limits.gpu", "must be greater than or equal to 0";
    ]);
}

/// A policy lets only virt-controller make pods that ask for it, and virt-controller makes the pods of instances.
#[test]
fn no_instance_asks_for_userfaultfd() {
    for list in ["requests", "limits"] {
        let mut object = right();
        object["spec"]["domain"]["resources"][list]["devices.kubevirt.io/userfaultfd"] = json!("1");
        let causes = causes_of(&object);
        let [cause] = causes.as_slice() else { panic!("{causes:#?}") };
        assert_eq!(cause.field, format!("spec.domain.resources.{list}.devices.kubevirt.io/userfaultfd"));
        assert!(cause.message.contains("only for targets of migrations"), "{cause}");
    }
}

#[test]
fn huge_page_rules() {
    let page = "spec.domain.memory.hugepages.pageSize";
    let request = "spec.domain.resources.requests.memory";
    check(rows![
        ["/spec/domain/memory/hugepages" => {"pageSize": "two"}] => page, "spec.domain.memory.hugepages.pageSize 'two': quantities must match the regular expression";
        ["/spec/domain/memory/hugepages" => {"pageSize": "0"}] => page, "must be greater than 0.";
        ["/spec/domain/memory/hugepages" => {"pageSize": "1Gi"}] => request, "spec.domain.resources.requests.memory '128Mi' must be equal to or larger than page size spec.domain.memory.hugepages.pageSize '1Gi'";
        ["/spec/domain/memory/hugepages" => {"pageSize": "3Mi"}] => request, "spec.domain.resources.requests.memory '128Mi' is not a multiple of the page size spec.domain.memory.hugepages.pageSize '3Mi'";
        ["/spec/domain/resources" => {}, "/spec/domain/memory" => {"guest": "3Mi", "hugepages": {"pageSize": "2Mi"}}] => request, "'3Mi' is not a multiple";
    ]);
    check_refused(rows![
        ["/spec/domain/resources/requests/hugepages-2Mi" => "128Mi"] => "spec.domain.resources.requests.hugepages-2Mi", "";
    ]);
    accepts(&[
        &[("/spec/domain/memory/hugepages", json!({"pageSize": "2Mi"}))],
        &[
            ("/spec/domain/resources", json!({})),
            ("/spec/domain/memory", json!({"hugepages": {"pageSize": "2Mi"}})),
        ],
    ]);
}

#[test]
fn cpu_rules() {
    check(rows![
        ["/spec/domain/resources/requests/cpu" => "-1"] => "spec.domain.resources.requests.cpu", "must be greater than or equal to 0.";
        ["/spec/domain/resources/limits/cpu" => "-1"] => "spec.domain.resources.limits.cpu", "must be greater than or equal to 0.";
        ["/spec/domain/resources/requests/cpu" => "3"] => "spec.domain.resources.requests.cpu", "spec.domain.resources.requests.cpu '3' is greater than spec.domain.resources.limits.cpu '2'";
        ["/spec/domain/cpu" => {"sockets": 4, "maxSockets": 2}] => "spec.domain.cpu.sockets", "Number of sockets in CPU topology is greater than the maximum sockets allowed";
        ["/spec/domain/cpu" => {"sockets": 256}] => "spec.domain.cpu", "more than 255 are not supported yet";
        ["/spec/domain/cpu" => {"sockets": 1, "cores": 2, "maxSockets": 128}] => "spec.domain.cpu", "256 virtual CPUs";
        ["/spec/domain/cpu" => {"cores": 4294967295_u32, "threads": 4294967295_u32, "sockets": 4294967295_u32}] => "spec.domain.cpu", "more than 255";
        ["/spec/domain/cpu/features" => [{"name": "vmx", "policy": "perhaps"}]] => "spec.domain.cpu.features[0].policy", "CPU feature vmx uses policy perhaps that is not supported.";
        ["/spec/domain/cpu/model" => "Nehalem,+vmx"] => "spec.domain.cpu.model", "has invalid value Nehalem,+vmx";
    ]);
}

/// The scheduler, not validation, refuses more requested CPUs than any node has.
#[test]
fn cpus_of_a_request_are_left_to_the_scheduler() {
    let resources = json!({"requests": {"cpu": "1M", "memory": "1Ei"}});
    let bare = with(with(right(), "/spec/domain/resources", resources), "/spec/domain/cpu", Value::Null);
    let asked = with(bare, "/spec/domain/memory", Value::Null);
    assert_eq!(causes_of(&asked), []);
    let doubled = with(asked, "/spec/domain/cpu", json!({"sockets": 1_000_000, "cores": 2}));
    assert_eq!(causes_of(&doubled).len(), 1);
}

#[test]
fn firmware_rules() {
    check(rows![
        ["/spec/domain/machine/type" => "pc-i440fx-9.0"] => "spec.domain.machine.type", "spec.domain.machine.type is not supported: pc-i440fx-9.0 (allowed values: [q35* pc-q35*])";
        ["/spec/domain/machine/type" => "q35,accel=tcg"] => "spec.domain.machine.type", "is not supported";
        ["/spec/domain/firmware/bootloader" => {"bios": {}, "efi": {"secureBoot": false}}] => "spec.domain.firmware.bootloader", "spec.domain.firmware.bootloader has both EFI and BIOS configured, but they are mutually exclusive.";
        ["/spec/domain/firmware/bootloader" => {"efi": {}}] => "spec.domain", "spec.domain has EFI SecureBoot enabled. SecureBoot requires SMM, which is currently disabled.";
        ["/spec/domain/firmware/bootloader" => {"efi": {"secureBoot": true}}, "/spec/domain/features" => {"smm": {"enabled": false}}] => "spec.domain", "SecureBoot requires SMM";
        ["/spec/domain/firmware/kernelBoot" => {"kernelArgs": "quiet"}] => "spec.domain.firmware.kernelBoot.kernelArgs", "kernel arguments cannot be provided without an external kernel";
        ["/spec/domain/firmware/kernelBoot" => {"container": {"image": "", "kernelPath": "/vmlinuz"}}] => "spec.domain.firmware.kernelBoot.container.image", "spec.domain.firmware.kernelBoot.container must be defined with an image";
        ["/spec/domain/firmware/kernelBoot" => {"container": {"image": "a"}}] => "spec.domain.firmware.kernelBoot.container", "spec.domain.firmware.kernelBoot.container must be defined with at least one of the following: kernelPath, initrdPath";
        ["/spec/domain/firmware/kernelBoot" => {"container": {"image": "a", "kernelPath": "vmlinuz"}}] => "spec.domain.firmware.kernelBoot.container.kernelPath", "spec.domain.firmware.kernelBoot.container.kernelPath must be an absolute path to a file without relative components";
        ["/spec/domain/firmware/kernelBoot" => {"container": {"image": "a", "initrdPath": "/"}}] => "spec.domain.firmware.kernelBoot.container.initrdPath", "spec.domain.firmware.kernelBoot.container.initrdPath must not point to root";
        ["/spec/domain/firmware/kernelBoot" => {"container": {"image": "a", "initrdPath": "/initrd"}}] => "spec.domain.firmware.kernelBoot.container.initrdPath", "is not supported without kernelPath";
        ["/spec/domain/firmware/acpi" => {}] => "spec.domain.firmware.acpi", "ACPI was set but no SLIC nor MSDM volume reference was set";
        ["/spec/domain/firmware/acpi" => {"slicNameRef": "root"}] => "spec.domain.firmware.acpi.slicNameRef", "spec.domain.firmware.acpi refers to Volume of unsupported type.";
        ["/spec/domain/firmware/acpi" => {"msdmNameRef": "none"}] => "spec.domain.firmware.acpi.msdmNameRef", "spec.domain.firmware.acpi does not have a matching Volume.";
        ["/spec/domain/firmware/uuid" => "5d307ca9"] => "spec.domain.firmware.uuid", "is not a UUID";
        ["/spec/domain/firmware/serial" => "a\u{e9}"] => "spec.domain.firmware.serial", "printable ASCII";
    ]);
}

#[test]
fn valid_firmware_is_accepted() {
    for (pointer, value) in [
        ("/spec/domain/firmware/bootloader", json!({"efi": {"secureBoot": false, "persistent": true}})),
        (
            "/spec/domain/firmware/kernelBoot",
            json!({"container": {"image": "a", "kernelPath": "/vmlinuz"}, "kernelArgs": "quiet"}),
        ),
        ("/spec/domain/devices/tpm", json!({"persistent": true})),
        ("/spec/domain/firmware/uuid", json!("5d307ca9b3ef428c886106e72d69f223")),
    ] {
        assert_eq!(causes_of(&with(right(), pointer, value)), []);
    }
    let smm = with(right(), "/spec/domain/features", json!({"smm": {}}));
    assert_eq!(causes_of(&with(smm, "/spec/domain/firmware/bootloader", json!({"efi": {}}))), []);
}

#[test]
fn hyperv_rules() {
    let field = "spec.domain.features.hyperv";
    let on = json!({"enabled": true});
    let off = json!({"enabled": false});
    check(rows![
        ["/spec/domain/features" => {"hyperv": {"synic": on, "vpindex": off}}] => "spec.domain.features.hyperv.synic", "'spec.domain.features.hyperv.synic' requires 'spec.domain.features.hyperv.vpindex', which was disabled.";
        ["/spec/domain/features" => {"hyperv": {"synictimer": on, "vpindex": off}}] => "spec.domain.features.hyperv.synic", "requires 'spec.domain.features.hyperv.vpindex'";
        ["/spec/domain/features" => {"hyperv": {"synictimer": {}, "synic": off}}] => "spec.domain.features.hyperv.synictimer", "requires 'spec.domain.features.hyperv.synic'";
        ["/spec/domain/features" => {"hyperv": {"tlbflush": on, "vpindex": off}}] => "spec.domain.features.hyperv.tlbflush", "which was disabled.";
        ["/spec/domain/features" => {"hyperv": {"ipi": on, "vpindex": off}}] => "spec.domain.features.hyperv.ipi", "which was disabled.";
        ["/spec/domain/features" => {"hyperv": {"evmcs": on, "vapic": off}}] => "spec.domain.features.hyperv.evmcs", "which was disabled.";
        ["/spec/domain/features" => {"hyperv": {}, "hypervPassthrough": {}}] => field, "Cannot explicitly set hyperV features if HypervPassthrough is being used.";
    ]);
    let every = json!({"evmcs": {}, "frequencies": {}, "ipi": {}, "reenlightenment": {}, "relaxed": {}, "reset": {}, "runtime": {},
        "spinlocks": {"spinlocks": 8191}, "synic": {}, "synictimer": {"direct": {}}, "tlbflush": {"direct": {}, "extended": {}},
        "vapic": {}, "vendorid": {"vendorid": "a"}, "vpindex": {}});
    let kvm = json!({"hypervPassthrough": {}, "apic": {"endOfInterrupt": true}, "kvm": {"hidden": true}, "pvspinlock": {}});
    accepts(&[
        &[("/spec/domain/features", json!({"hyperv": {"synictimer": on}}))],
        &[("/spec/domain/features", json!({"hyperv": every}))],
        &[("/spec/domain/features", kvm)],
    ]);
}
