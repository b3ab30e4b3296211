use super::*;
use crate::explain::arguments::Section;
use crate::explain::manifests::Manifests;
use crate::explain::print;

fn context() -> ExplainContext {
    let config = Config {
        launcher_image: "virt-launcher".to_owned(),
        image_pull_policy: None,
        settings: Settings { use_emulation: true, ..Settings::default() },
    };
    ExplainContext { config, namespace: None, now: Timestamp::UNIX_EPOCH }
}

fn explained(text: &str) -> Explained {
    let mut manifests = Manifests::default();
    manifests.add(text).unwrap();
    explain(&manifests.subjects[0], &context(), |vm| manifests.lookups(vm))
}

const VM: &str = r##"
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: web, namespace: shop}
spec:
  runStrategy: Always
  instancetype: {name: small, kind: VirtualMachineInstancetype}
  template:
    spec:
      domain:
        devices:
          disks: [{name: root, disk: {bus: virtio}}, {name: seed, disk: {bus: virtio}}]
      volumes:
      - {name: root, containerDisk: {image: "registry/guest:1"}}
      - {name: seed, cloudInitNoCloud: {userData: "#cloud-config\npassword: hunter2\n"}}
"##;

const SMALL: &str = "
---
apiVersion: instancetype.kubevirt.io/v1beta1
kind: VirtualMachineInstancetype
metadata: {name: small, namespace: shop}
spec: {cpu: {guest: 2}, memory: {guest: 256Mi}}
";

#[test]
fn a_hotpluggable_volume_is_listed_as_an_assumption() {
    let claim =
        "volumes:\n      - {name: data, persistentVolumeClaim: {claimName: data, hotpluggable: true}}\n";
    let disk = "disks: [{name: data, disk: {bus: scsi}}, ";
    let explained =
        explained(&format!("{}{SMALL}", VM.replace("volumes:\n", claim).replace("disks: [", disk)));
    assert_eq!(explained.causes, []);
    let outcome = explained.outcome.as_ref().unwrap();
    assert!(outcome.command_line.iter().all(|part| part.what != "disk data"));
    assert!(outcome.assumptions.iter().any(|told| told.starts_with("hotpluggable volumes")));
}

#[test]
fn an_unknown_field_is_a_warning_where_the_api_server_stores_it() {
    let text = VM.replace("  template:\n", "  template:\n    metadata: {app: web}\n");
    let explained = explained(&format!("{text}{SMALL}"));
    assert_eq!(explained.causes, []);
    assert_eq!(explained.warnings, ["unknown field spec.template.metadata.app: it has no effect"]);
    let stored = |field: &str| is_kept(&Cause::invalid(&Path::new(field), "unknown"));
    assert!(stored("spec.dataVolumeTemplates[10].metadata.app"));
    assert!(!stored("spec.dataVolumeTemplates[10].spec.metadata.app"));
    assert!(!stored("spec.template.spec.app"));
    assert!(!stored("metadata.app"));
}

#[test]
fn a_machine_whose_name_is_generated_has_that_of_an_example() {
    let explained = explained(&format!("{}{SMALL}", VM.replace("{name: web,", "{generateName: web-,")));
    assert_eq!(explained.causes, []);
    assert_eq!(explained.name, "web-xxxxx");
    assert!(explained.outcome.unwrap().assumptions.contains(&EXAMPLE_NAME));
    let plain = self::explained(&format!("{VM}{SMALL}"));
    assert!(!plain.outcome.unwrap().assumptions.contains(&EXAMPLE_NAME));
}

#[test]
fn a_clock_of_another_zone_is_that_of_the_start() {
    let clock = "domain:\n        clock: {timezone: Europe/Berlin}\n";
    let explained = explained(&format!("{}{SMALL}", VM.replace("domain:\n", clock)));
    assert_eq!(explained.causes, []);
    let outcome = explained.outcome.as_ref().unwrap();
    assert!(
        outcome
            .command_line
            .iter()
            .any(|part| part.arguments.iter().any(|word| word.contains("base=<start>")))
    );
    assert!(outcome.assumptions.iter().any(|told| told.contains("time of the start")));
}

#[test]
fn templates_of_data_volumes_are_explained() {
    let template = "  dataVolumeTemplates:\n  - metadata: {name: disk}\n    spec: {source: {blank: {}}, storage: {}}\n  template:\n";
    let text = VM
        .replace("  template:\n", template)
        .replace("containerDisk: {image: \"registry/guest:1\"}", "dataVolume: {name: disk}");
    let explained = explained(&format!("{text}{SMALL}"));
    assert_eq!(explained.causes, []);
    let outcome = explained.outcome.as_ref().unwrap();
    assert!(outcome.assumptions.contains(&DATA_VOLUMES_FIRST));
    let plain = self::explained(&format!("{VM}{SMALL}"));
    assert!(!plain.outcome.unwrap().assumptions.contains(&DATA_VOLUMES_FIRST));
}

#[test]
fn a_machine_with_its_instance_type() {
    let explained = explained(&format!("{VM}{SMALL}"));
    assert_eq!(explained.causes, []);
    let outcome = explained.outcome.as_ref().unwrap();
    assert_eq!((outcome.resources.cpus, outcome.resources.guest_memory), (2, 256 << 20));
    let from = |path: &str| {
        let marked = outcome.filled_in.iter().find(|mark| mark.path == path);
        marked.map_or("the manifest", |mark| mark.origin.word())
    };
    assert_eq!(from("spec.domain.memory"), "instance type or preference");
    assert_eq!(from("spec.architecture"), "default");
    assert_eq!(from("spec.domain.devices.disks[0].disk.bus"), "the manifest");
    // Every argument of the command line comes from the launcher's code.
    let disk = outcome.command_line.iter().find(|part| part.what == "disk root").unwrap();
    assert_eq!(disk.fields, ["spec.domain.devices.disks[0]"]);
    assert!(disk.arguments.iter().any(|word| word.contains("virtio-blk-pci")), "{:?}", disk.arguments);
    let smp = outcome.command_line.iter().find(|part| part.what == "CPU").unwrap();
    assert!(smp.arguments.iter().any(|word| word.starts_with("cpus=2,")), "{:?}", smp.arguments);
    // The parts add up to the pod's overhead.
    let sum: u64 = outcome.resources.overhead_parts.iter().map(|part| part.bytes).sum();
    assert!(outcome.resources.overhead >= sum && outcome.resources.overhead - sum < 1 << 20);
    let text = print::text(&explained, &[]);
    for expected in [
        "VirtualMachine shop/web\n",
        "memory:  # instance type or preference\n",
        "Launcher pod:\n",
        "disk root  <- spec.domain.devices.disks[0]\n",
        "Memory and CPUs:\n  guest memory",
        "emulation",
    ] {
        assert!(text.contains(expected), "{expected:?} in\n{text}");
    }
    let json = serde_json::to_string(&explained).unwrap();
    for said in [&text, &json] {
        assert!(!said.contains("hunter2") && said.contains("<redacted: 32 bytes>"), "{said}");
    }
    let only = print::text(&explained, &[Section::Qemu]);
    assert!(only.contains("-blockdev") && !only.contains("Launcher pod"), "{only}");
}

#[test]
fn a_disk_of_an_object_is_mounted_and_shown() {
    let source = "serviceAccount: {serviceAccountName: robot}";
    let text = VM.replace(r##"cloudInitNoCloud: {userData: "#cloud-config\npassword: hunter2\n"}"##, source);
    assert!(text.contains(source));
    let explained = explained(&format!("{text}{SMALL}"));
    assert_eq!(explained.causes, []);
    let outcome = explained.outcome.as_ref().unwrap();
    let disk = outcome.command_line.iter().find(|part| part.what == "disk seed").unwrap();
    let image = "/var/run/kubevirt-private/service-account-disk/service-account.iso";
    assert!(disk.arguments.iter().any(|word| word.contains(image)), "{:?}", disk.arguments);
    let pod = print::text(&explained, &[Section::Pod]);
    assert!(pod.contains("serviceAccountName: robot"), "{pod}");
    assert!(pod.contains("mountPath: /var/run/kubevirt-private/service-account/seed"), "{pod}");
}

#[test]
fn every_cause_at_once_with_its_field() {
    let wrong = VM
        .replace("{bus: virtio}}, {name: seed", "{bus: floppy}}, {name: lost")
        .replace("runStrategy: Always", "runStrategy: Sometimes\n  runing: true");
    let fields =
        |text: &str| -> Vec<String> { explained(text).causes.into_iter().map(|cause| cause.field).collect() };
    let told = fields(&format!("{wrong}{SMALL}"));
    for field in ["spec.runing", "spec.runStrategy", "spec.template.spec.domain.devices.disks[1].name"] {
        assert!(told.iter().any(|told| told == field), "{field}: {told:?}");
    }
    // An instance type that is in no file is a cause, and is not ignored.
    assert_eq!(fields(VM), ["spec.instancetype"]);
    let shapeless = "{apiVersion: kubevirt.io/v1, kind: VirtualMachine, metadata: {name: a}, spec: {}}";
    assert_eq!(fields(shapeless), ["spec.template"]);
}

#[test]
fn all_examples_are_explained() {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
    let mut seen = 0;
    for file in std::fs::read_dir(examples).unwrap().map(|entry| entry.unwrap().path()) {
        if file.extension().is_none_or(|ending| ending != "yaml") {
            continue;
        }
        let mut manifests = Manifests::default();
        manifests.add(&std::fs::read_to_string(&file).unwrap()).unwrap();
        for subject in &manifests.subjects {
            for use_emulation in [true, false] {
                let mut context = context();
                context.config.settings.use_emulation = use_emulation;
                let explained = explain(subject, &context, |vm| manifests.lookups(vm));
                // One example names an instance type and a preference that exist only in a cluster.
                let causes =
                    explained.causes.iter().filter(|cause| !cause.message.contains("not in these files"));
                assert_eq!(causes.count(), 0, "{}: {:?}", file.display(), explained.causes);
                seen += 1;
            }
        }
    }
    assert!(seen >= 8, "{seen}");
}
