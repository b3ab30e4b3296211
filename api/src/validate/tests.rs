//! One row for each rule: what is changed in a right manifest, and the one cause that follows.

use super::*;
use crate::defaults;
use crate::gates::Gates;
use crate::v1::VirtualMachine;
use serde_json::{Value, json};

/// A right instance with one of everything.
fn right() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm", "namespace": "default"},
        "spec": {
            "hostname": "vm", "terminationGracePeriodSeconds": 30,
            "domain": {
                "cpu": {"cores": 2, "model": "host-model"},
                "memory": {"guest": "128Mi"},
                "resources": {"requests": {"memory": "128Mi", "cpu": "1"}, "limits": {"memory": "256Mi", "cpu": "2"}},
                "machine": {"type": "q35"},
                "firmware": {"uuid": "5d307ca9-b3ef-428c-8861-06e72d69f223", "serial": "abc"},
                "devices": {
                    "disks": [
                        {"name": "root", "bootOrder": 1, "serial": "S1", "cache": "none", "io": "native",
                         "disk": {"bus": "virtio"}},
                        {"name": "seed", "cdrom": {"bus": "sata"}},
                        {"name": "scratch", "disk": {"bus": "scsi", "readonly": true}},
                    ],
                    "interfaces": [{
                        "name": "default", "model": "virtio", "masquerade": {}, "bootOrder": 2,
                        "macAddress": "02:11:22:33:44:55",
                        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
                        "dhcpOptions": {"bootFileName": "f", "tftpServerName": "t", "ntpServers": ["10.0.0.1"],
                                        "privateOptions": [{"option": 224, "value": "x"}]},
                    }],
                },
            },
            "networks": [{"name": "default", "pod": {}}],
            "volumes": [
                {"name": "root", "containerDisk": {"image": "localhost/guest:devel", "path": "/disk/a.qcow2"}},
                {"name": "seed", "cloudInitNoCloud": {"userData": "#!/bin/sh"}},
                {"name": "scratch", "emptyDisk": {"capacity": "1Gi"}},
            ],
        },
    })
}

/// The object with `value` at a JSON pointer; `Null` takes the member away.
fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, last) = pointer.rsplit_once('/').unwrap();
    let parent = object.pointer_mut(parent).unwrap_or_else(|| panic!("no {parent}"));
    match parent {
        Value::Array(list) => match last.parse::<usize>() {
            Ok(index) if index < list.len() => list[index] = value,
            _ => list.push(value),
        },
        Value::Object(members) if value.is_null() => {
            members.remove(last);
        }
        Value::Object(members) => {
            members.insert(last.to_owned(), value);
        }
        other => panic!("{other} has no members"),
    }
    object
}

fn causes_of(object: &Value) -> Vec<Cause> {
    let mut instance: VirtualMachineInstance = serde_json::from_value(object.clone()).unwrap();
    defaults::vmi(&mut instance);
    vmi(&instance, &Gates::default())
}

#[test]
fn nothing_is_wrong_with_the_right_one() {
    assert_eq!(causes_of(&right()), []);
}

/// Changes, the field of the one cause, and a part of its message.
type Row = (&'static [(&'static str, Value)], &'static str, &'static str);

fn check(rows: Vec<Row>) {
    for (changes, field, message) in rows {
        let object =
            changes.iter().fold(right(), |object, (pointer, value)| with(object, pointer, value.clone()));
        let causes = causes_of(&object);
        assert_eq!(causes.len(), 1, "{changes:?}: {causes:#?}");
        assert_eq!(causes[0].field, field, "{changes:?}: {causes:#?}");
        assert!(causes[0].message.contains(message), "{changes:?}: {causes:#?}");
    }
}

macro_rules! rows {
    ($([$($pointer:expr => $value:tt),* $(,)?] => $field:expr, $message:expr;)*) => {
        vec![$((
            Box::leak(vec![$(($pointer, json!($value))),*].into_boxed_slice()) as &'static [_], $field, $message,
        )),*]
    };
}

#[test]
fn pod_rules() {
    check(rows![
        ["/spec/hostname" => "Upper"] => "spec.hostname", "spec.hostname does not conform to the kubernetes DNS_LABEL rules : ";
        ["/spec/hostname" => "a.b"] => "spec.hostname", "DNS_LABEL";
        ["/spec/subdomain" => "-a"] => "spec.subdomain", "spec.subdomain does not conform to the kubernetes DNS_SUBDOMAIN rules : ";
        ["/spec/terminationGracePeriodSeconds" => (-1)] => "spec.terminationGracePeriodSeconds", "greater than or equal to 0";
        ["/spec/architecture" => "vax"] => "spec.architecture", "unsupported architecture: vax";
        ["/spec/architecture" => "arm64"] => "spec.architecture", "spec.architecture arm64 is not supported yet";
        ["/spec/evictionStrategy" => "LiveMigrate"] => "spec.evictionStrategy", "spec.evictionStrategy LiveMigrate is not supported yet";
        ["/spec/evictionStrategy" => "x"] => "spec.evictionStrategy", "spec.evictionStrategy is set with an unrecognized option: x";
        ["/spec/dnsPolicy" => "x"] => "spec.dnsPolicy", "DNSPolicy: x is not supported, valid values: [ClusterFirstWithHostNet ClusterFirst Default None]";
        ["/spec/dnsPolicy" => "None"] => "spec.dnsConfig", "must provide `dnsConfig` when `dnsPolicy` is None";
        ["/spec/dnsPolicy" => "None", "/spec/dnsConfig" => {}] => "spec.dnsConfig.nameservers", "must provide at least one DNS nameserver";
        ["/spec/dnsConfig" => {"nameservers": ["1.1.1.1", "1.1.1.2", "1.1.1.3", "::1"]}] => "spec.dnsConfig.nameservers", "must not have more than 3 nameservers";
        ["/spec/dnsConfig" => {"nameservers": ["x"]}] => "spec.dnsConfig.nameservers[0]", "must be valid IP address: x";
        ["/spec/dnsConfig" => {"searches": ["a", "b", "c", "d", "e", "f", "g"]}] => "spec.dnsConfig.searches", "must not have more than 6 search paths";
        ["/spec/dnsConfig" => {"searches": ["A_"]}] => "spec.dnsConfig.searches[0]", "is not DNS labels";
        ["/spec/dnsConfig" => {"options": [{"value": "x"}]}] => "spec.dnsConfig.options[0]", "Option.Name must not be empty";
    ]);
    let long = "a".repeat(60);
    check(vec![(
        Box::leak(
            vec![("/spec/dnsConfig", json!({"searches": [long, long, long, long, long]}))].into_boxed_slice(),
        ),
        "spec.dnsConfig.searches",
        "must not have more than 256 characters",
    )]);
}

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
        ["/spec/domain/resources/requests/hugepages-2Mi" => "128Mi"] => "spec.domain.resources.requests.hugepages-2Mi", "is not supported yet";
        ["/spec/domain/resources/limits/gpu" => "-1"] => "spec.domain.resources.limits.gpu", "must be greater than or equal to 0";
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
        ["/spec/domain/cpu/model" => "Nehalem,+vmx"] => "spec.domain.cpu.model", "has invalid value Nehalem,+vmx";
    ]);
}

#[test]
fn firmware_rules() {
    check(rows![
        ["/spec/domain/machine/type" => "pc-i440fx-9.0"] => "spec.domain.machine.type", "spec.domain.machine.type is not supported: pc-i440fx-9.0 (allowed values: [q35* pc-q35*])";
        ["/spec/domain/machine/type" => "q35,accel=tcg"] => "spec.domain.machine.type", "is not supported";
        ["/spec/domain/firmware/uuid" => "5d307ca9"] => "spec.domain.firmware.uuid", "is not a UUID";
        ["/spec/domain/firmware/serial" => "a\u{e9}"] => "spec.domain.firmware.serial", "printable ASCII";
    ]);
}

#[test]
fn disk_rules() {
    check(rows![
        ["/spec/domain/devices/disks/-" => {"name": "root", "disk": {}}] => "spec.domain.devices.disks[3].name", "spec.domain.devices.disks[3] and spec.domain.devices.disks[0] must not have the same Name.";
        ["/spec/domain/devices/disks/-" => {"name": "none", "disk": {}}] => "spec.domain.devices.disks[3].name", "spec.domain.devices.disks[3].Name 'none' not found.";
        ["/spec/domain/devices/disks/-" => {"name": "none", "cdrom": {}}] => "spec.domain.devices.disks[3].cdrom", "is not supported yet";
        ["/spec/domain/devices/disks/0/cdrom" => {"bus": "sata"}] => "spec.domain.devices.disks[0]", "spec.domain.devices.disks[0] can only have a single target type defined";
        ["/spec/domain/devices/disks/0/disk/bus" => "ide"] => "spec.domain.devices.disks[0].disk.bus", "IDE bus is not supported";
        ["/spec/domain/devices/disks/0/disk/bus" => "usb"] => "spec.domain.devices.disks[0].disk.bus", "usb is not supported yet";
        ["/spec/domain/devices/disks/0/disk/bus" => "nvme"] => "spec.domain.devices.disks[0].disk.bus", "spec.domain.devices.disks[0] is set with an unrecognized bus nvme, must be one of: [";
        ["/spec/domain/devices/disks/1/cdrom/bus" => "virtio"] => "spec.domain.devices.disks[1].cdrom.bus", "Bus type virtio is invalid for CD-ROM device";
        ["/spec/domain/devices/disks/2/disk/bus" => "sata"] => "spec.domain.devices.disks[2].disk.bus", "sata hard-disks do not support read-only.";
        ["/spec/domain/devices/disks/0/bootOrder" => 0] => "spec.domain.devices.disks[0].bootOrder", "spec.domain.devices.disks[0] must have a boot order > 0, if supplied";
        ["/spec/domain/devices/disks/1/bootOrder" => 1] => "spec.domain.devices.disks[1].bootOrder", "Boot order for spec.domain.devices.disks[1].bootOrder already set for a different device.";
        ["/spec/domain/devices/interfaces/0/bootOrder" => 1] => "spec.domain.devices.interfaces[0].bootOrder", "Boot order for spec.domain.devices.interfaces[0].bootOrder already set for a different device.";
        ["/spec/domain/devices/disks/0/serial" => "a b"] => "spec.domain.devices.disks[0].serial", "spec.domain.devices.disks[0] must be made up of the following characters [A-Za-z0-9_.+-], if specified";
        ["/spec/domain/devices/disks/0/cache" => "unsafe"] => "spec.domain.devices.disks[0].cache", "spec.domain.devices.disks[0].cache has invalid value unsafe";
        ["/spec/domain/devices/disks/0/io" => "io_uring"] => "spec.domain.devices.disks[0].io", "Supported modes are: native, threads.";
    ]);
    let long = "a".repeat(257);
    check(vec![(
        Box::leak(vec![("/spec/domain/devices/disks/0/serial", json!(long))].into_boxed_slice()),
        "spec.domain.devices.disks[0].serial",
        "spec.domain.devices.disks[0] must be less than or equal to 256 in length, if specified",
    )]);
}

#[test]
fn volume_rules() {
    let limit = "x".repeat(CLOUD_INIT_LIMIT + 1);
    check(rows![
        ["/spec/volumes/-" => {"name": "unused", "emptyDisk": {"capacity": "1Gi"}}] => "spec.volumes[3].name", "spec.volumes[3].name 'unused' not found";
        ["/spec/volumes/-" => {"name": "root", "emptyDisk": {"capacity": "1Gi"}}] => "spec.volumes[3].name", "spec.volumes[3] and spec.volumes[0] must not have the same Name.";
        ["/spec/volumes/0" => {"name": "root"}] => "spec.volumes[0]", "spec.volumes[0] must have exactly one source type set";
        ["/spec/volumes/0/emptyDisk" => {"capacity": "1Gi"}] => "spec.volumes[0]", "must have exactly one source type set";
        ["/spec/volumes/0/containerDisk/image" => ""] => "spec.volumes[0].containerDisk.image", "spec.volumes[0].containerDisk.image is a required field";
        ["/spec/volumes/0/containerDisk/image" => "a b"] => "spec.volumes[0].containerDisk.image", "is not an image reference";
        ["/spec/volumes/0/containerDisk/path" => "/"] => "spec.volumes[0].containerDisk", "spec.volumes[0].containerDisk must not point to root";
        ["/spec/volumes/0/containerDisk/path" => "../../etc/shadow"] => "spec.volumes[0].containerDisk", "spec.volumes[0].containerDisk must be an absolute path to a file without relative components";
        ["/spec/volumes/0/containerDisk/path" => "/disk/../etc/shadow"] => "spec.volumes[0].containerDisk", "without relative components";
        ["/spec/volumes/0/containerDisk/imagePullPolicy" => "Maybe"] => "spec.volumes[0].containerDisk.imagePullPolicy", "has invalid value Maybe";
        ["/spec/volumes/0/containerDisk/imagePullSecret" => "A B"] => "spec.volumes[0].containerDisk.imagePullSecret", "is not the name of a secret";
        ["/spec/volumes/1/cloudInitNoCloud" => {}] => "spec.volumes[1].cloudInitNoCloud", "spec.volumes[1].cloudInitNoCloud must have at least one userdatasource or one networkdatasource set.";
        ["/spec/volumes/1/cloudInitNoCloud/userDataBase64" => "eA=="] => "spec.volumes[1].cloudInitNoCloud", "spec.volumes[1].cloudInitNoCloud must have only one userdatasource set.";
        ["/spec/volumes/1/cloudInitNoCloud" => {"userDataBase64": "%%%"}] => "spec.volumes[1].cloudInitNoCloud.userDataBase64", "is not a valid base64 value.";
        ["/spec/volumes/1/cloudInitNoCloud" => {"networkDataBase64": "%%%"}] => "spec.volumes[1].cloudInitNoCloud.networkDataBase64", "is not a valid base64 value.";
        ["/spec/volumes/1/cloudInitNoCloud" => {"networkData": "a", "networkDataBase64": "eA=="}] => "spec.volumes[1].cloudInitNoCloud", "must have only one networkdata source set.";
        ["/spec/volumes/1/cloudInitNoCloud/userData" => limit] => "spec.volumes[1].cloudInitNoCloud", "spec.volumes[1].cloudInitNoCloud userdata exceeds 2048 byte limit. Should use UserDataSecretRef for larger data.";
        ["/spec/volumes/1/cloudInitNoCloud/networkData" => limit] => "spec.volumes[1].cloudInitNoCloud", "networkdata exceeds 2048 byte limit. Should use NetworkDataSecretRef for larger data.";
        ["/spec/volumes/1/cloudInitNoCloud" => {"secretRef": {"name": "A B"}}] => "spec.volumes[1].cloudInitNoCloud.secretRef", "is not the name of a secret";
        ["/spec/volumes/2/emptyDisk/capacity" => "0"] => "spec.volumes[2].emptyDisk.capacity", "must be greater than 0";
        ["/spec/volumes/2/emptyDisk/capacity" => "-1"] => "spec.volumes[2].emptyDisk.capacity", "must be greater than or equal to 0";
        ["/spec/volumes/2/emptyDisk/capacity" => "2Pi"] => "spec.volumes[2].emptyDisk.capacity", "is more than 1Pi";
        ["/spec/volumes/2/name" => "A", "/spec/domain/devices/disks/2/name" => "A"] => "spec.volumes[2].name", "lower case letters";
    ]);
}

#[test]
fn network_rules() {
    let interface = "spec.domain.devices.interfaces[0]";
    check(rows![
        ["/spec/domain/devices/interfaces/0/masquerade" => null] => interface, "must have exactly one binding method";
        ["/spec/domain/devices/interfaces/0/masquerade" => null, "/spec/domain/devices/interfaces/0/bridge" => {}] => "spec.domain.devices.interfaces[0].bridge", "spec.domain.devices.interfaces[0].bridge is not supported yet";
        ["/spec/domain/devices/interfaces/0/model" => "tulip"] => "spec.domain.devices.interfaces[0].model", "interface spec.domain.devices.interfaces[0].name uses model tulip that is not supported.";
        ["/spec/domain/devices/interfaces/0/macAddress" => "02:11"] => "spec.domain.devices.interfaces[0].macAddress", "interface spec.domain.devices.interfaces[0].name has malformed MAC address (02:11).";
        ["/spec/domain/devices/interfaces/0/macAddress" => "02-00-00-00-00-00"] => "spec.domain.devices.interfaces[0].macAddress", "The requested MAC address is reserved for the in-pod bridge. Please choose another one.";
        ["/spec/domain/devices/interfaces/0/macAddress" => "01:11:22:33:44:55"] => "spec.domain.devices.interfaces[0].macAddress", "not unicast";
        ["/spec/domain/devices/interfaces/0/ports/0/port" => 0] => "spec.domain.devices.interfaces[0].ports[0].port", "Port field is mandatory.";
        ["/spec/domain/devices/interfaces/0/ports/0/port" => 65536] => "spec.domain.devices.interfaces[0].ports[0].port", "Port field must be in range 0 < x < 65536.";
        ["/spec/domain/devices/interfaces/0/ports/0/protocol" => "SCTP"] => "spec.domain.devices.interfaces[0].ports[0].protocol", "Unknown protocol, only TCP or UDP allowed";
        ["/spec/domain/devices/interfaces/0/ports/0/name" => "No"] => "spec.domain.devices.interfaces[0].ports[0].name", "Invalid name of the port: No";
        ["/spec/domain/devices/interfaces/0/ports/-" => {"name": "http", "port": 81}] => "spec.domain.devices.interfaces[0].ports[1].name", "Duplicate name of the port: http";
        ["/spec/domain/devices/interfaces/0/dhcpOptions/ntpServers" => ["::1"]] => "spec.domain.devices.interfaces[0].dhcpOptions.ntpServers[0]", "NTP servers must be a list of valid IPv4 addresses.";
        ["/spec/domain/devices/interfaces/0/dhcpOptions/privateOptions" => [{"option": 223, "value": ""}]] => "spec.domain.devices.interfaces[0].dhcpOptions.privateOptions[0].option", "must be in range 224 to 254";
        ["/spec/domain/devices/interfaces/0/dhcpOptions/privateOptions/-" => {"option": 224, "value": ""}] => "spec.domain.devices.interfaces[0].dhcpOptions.privateOptions[1].option", "Found Duplicates";
        ["/spec/domain/devices/interfaces/0/dhcpOptions/bootFileName" => "a\nb"] => "spec.domain.devices.interfaces[0].dhcpOptions.bootFileName", "printable ASCII";
    ]);
}

#[test]
fn one_mistake_may_have_several_causes_and_all_are_named() {
    let fields = |object: Value| causes_of(&object).into_iter().map(|cause| cause.field).collect::<Vec<_>>();
    assert_eq!(
        fields(with(right(), "/spec/networks/0/name", json!("other"))),
        ["spec.networks[0].name", "spec.domain.devices.interfaces[0].name"]
    );
    assert_eq!(
        fields(with(right(), "/spec/networks/-", json!({"name": "default", "pod": {}}))),
        ["spec.networks[1].name", "spec.interfaces"]
    );
    assert_eq!(
        fields(with(right(), "/spec/networks/0", json!({"name": "default"}))),
        ["spec.networks[0]", "spec.domain.devices.interfaces[0].name"]
    );
    assert_eq!(
        fields(with(right(), "/spec/domain/devices/interfaces/0/name", json!("a b"))),
        [
            "spec.networks[0].name",
            "spec.domain.devices.interfaces[0].name",
            "spec.domain.devices.interfaces[0].name"
        ]
    );
    let twice = right()["spec"]["domain"]["devices"]["interfaces"][0].clone();
    let twice = with(with(twice, "/bootOrder", Value::Null), "/ports", json!([]));
    assert_eq!(
        fields(with(right(), "/spec/domain/devices/interfaces/-", twice)),
        ["spec.domain.devices.interfaces[1].name"]
    );
}

#[test]
fn too_many_devices() {
    let disks: Vec<Value> = (0..257).map(|n| json!({"name": format!("d{n}"), "disk": {}})).collect();
    let volumes: Vec<Value> =
        (0..257).map(|n| json!({"name": format!("d{n}"), "emptyDisk": {"capacity": "1Mi"}})).collect();
    let object =
        with(with(right(), "/spec/domain/devices/disks", json!(disks)), "/spec/volumes", json!(volumes));
    let messages: Vec<String> = causes_of(&object).into_iter().map(|cause| cause.message).collect();
    assert!(
        messages
            .contains(&"spec.domain.devices.disks list exceeds the 256 element limit in length".to_owned()),
        "{messages:?}"
    );
}

#[test]
fn more_devices_than_the_machine_has_room_for() {
    let many = |count: usize, bus: &str| {
        let disks: Vec<Value> =
            (0..count).map(|n| json!({"name": format!("d{n}"), "disk": {"bus": bus}})).collect();
        let volumes: Vec<Value> =
            (0..count).map(|n| json!({"name": format!("d{n}"), "emptyDisk": {"capacity": "1Mi"}})).collect();
        let object = with(right(), "/spec/domain/devices/disks", json!(disks));
        causes_of(&with(object, "/spec/volumes", json!(volumes)))
    };
    assert_eq!(many(24, "sata"), []);
    assert!(many(25, "sata")[0].message.contains("more than 24 sata drives are not supported yet"));
    assert_eq!(many(169, "virtio"), []);
    assert!(many(170, "virtio")[0].message.contains("more than 170 virtio disks and interfaces together"));
}

#[test]
fn messages_repeat_little_of_what_a_user_wrote() {
    let object = with(right(), "/spec/hostname", json!("\u{1b}[31m".repeat(1000)));
    let causes = causes_of(&object);
    assert!(causes[0].message.len() < 400);
    assert!(!causes[0].message.contains('\u{1b}'));
}

fn machine(spec: Value) -> VirtualMachine {
    serde_json::from_value(json!({"metadata": {"name": "vm", "namespace": "default"}, "spec": spec})).unwrap()
}

#[test]
fn machine_rules() {
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": right()["spec"]});
    let with_strategy = |more: Value| {
        let mut spec = json!({"template": template});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        vm(&machine(spec), Requester::User, &Gates::default())
    };
    for right in ["Always", "Halted", "Manual"] {
        assert_eq!(with_strategy(json!({"runStrategy": right})), []);
    }
    assert_eq!(with_strategy(json!({"running": false})), []);
    for (more, field, message) in [
        (
            json!({"running": true, "runStrategy": "Always"}),
            "spec.running",
            "Running and RunStrategy are mutually exclusive",
        ),
        (json!({}), "spec.running", "RunStrategy must be specified"),
        (json!({"runStrategy": "Sometimes"}), "spec.runStrategy", "Invalid RunStrategy (Sometimes)"),
        (json!({"runStrategy": "Once"}), "spec.runStrategy", "spec.runStrategy Once is not supported yet"),
        (json!({"runStrategy": "RerunOnFailure"}), "spec.runStrategy", "is not supported yet"),
    ] {
        let causes = with_strategy(more);
        assert_eq!(causes.len(), 1);
        assert_eq!(causes[0].field, field);
        assert!(causes[0].message.contains(message), "{causes:?}");
    }
}

#[test]
fn the_template_is_named_in_the_path_and_gets_defaults_first() {
    let spec = json!({
        "running": false,
        "template": {"spec": {
            "domain": {
                "devices": {"disks": [{"name": "a", "disk": {"bus": "virtio"}}, {"name": "a", "disk": {}}]},
                "resources": {"requests": {"memory": "64M"}}, "machine": {"type": ""},
            },
            "volumes": [{"name": "a", "containerDisk": {"image": "guest"}}],
        }},
    });
    let causes = vm(&machine(spec), Requester::User, &Gates::default());
    assert_eq!(causes.len(), 1, "{causes:?}");
    assert_eq!(causes[0].field, "spec.template.spec.domain.devices.disks[1].name");
}

#[test]
fn a_deprecated_field_is_a_warning() {
    assert_eq!(
        vm_warnings(&machine(json!({"running": true, "template": {"spec": {"domain": {"devices": {}}}}})))
            .len(),
        1
    );
    assert!(
        vm_warnings(&machine(
            json!({"runStrategy": "Always", "template": {"spec": {"domain": {"devices": {}}}}})
        ))
        .is_empty()
    );
}

#[test]
fn a_machine_that_is_being_deleted_may_change() {
    let mut broken = machine(json!({"template": {"spec": {"domain": {"devices": {}}}}}));
    assert!(!vm_update(&broken, &broken, Requester::User, &Gates::default()).is_empty());
    broken.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
    assert!(vm_update(&broken, &broken, Requester::User, &Gates::default()).is_empty());
}

fn instance(object: Value) -> VirtualMachineInstance {
    serde_json::from_value(object).unwrap()
}

#[test]
fn reserved_labels_are_for_components() {
    let labelled = instance(with(
        right(),
        "/metadata/labels",
        json!({"kubevirt.io/nodeName": "n", "kubevirt.io/vm": "x"}),
    ));
    let causes = vmi_create(&labelled, Requester::User, &Gates::default());
    assert_eq!(causes.len(), 1);
    assert_eq!(causes[0].field, "metadata.labels");
    assert!(
        causes[0]
            .message
            .contains("creation of the following reserved kubevirt.io/ labels on a VMI object is prohibited")
    );
    assert!(vmi_create(&labelled, Requester::Component, &Gates::default()).is_empty());
    let plain = instance(right());
    assert_eq!(vmi_update(&plain, &labelled, Requester::User).len(), 1);
    assert!(vmi_update(&plain, &labelled, Requester::Component).is_empty());
    let template = json!({"metadata": {"labels": {"kubevirt.io/nodeName": "n"}}, "spec": right()["spec"]});
    let causes =
        vm(&machine(json!({"running": true, "template": template})), Requester::User, &Gates::default());
    assert_eq!(causes[0].field, "spec.template.metadata.labels");
}

#[test]
fn a_specification_does_not_change() {
    let old = instance(right());
    let mut new = old.clone();
    assert!(vmi_update(&old, &new, Requester::User).is_empty());
    new.metadata.annotations = Some([("a".to_owned(), "b".to_owned())].into());
    assert!(vmi_update(&old, &new, Requester::User).is_empty());
    new.spec.hostname = Some("other".into());
    for requester in [Requester::User, Requester::Component] {
        let causes = vmi_update(&old, &new, requester);
        assert_eq!(causes[0].message, "update of VMI object is restricted");
        assert_eq!(causes[0].kind.reason(), "FieldValueNotSupported");
    }
}

#[test]
fn status_is_written_by_components_only() {
    let old = instance(with(right(), "/status", json!({"phase": "Running"})));
    let new = instance(with(right(), "/status", json!({"phase": "Failed"})));
    let phase = |requester| protected_status(&old, &new, requester).unwrap().phase.clone().unwrap();
    assert_eq!(phase(Requester::User), "Running");
    assert_eq!(phase(Requester::Component), "Failed");
}

#[test]
fn a_handler_changes_what_is_on_its_node() {
    let on = |node: &str| instance(with(right(), "/status", json!({"nodeName": node})));
    assert!(handler_update(&on("a"), &on("a"), Some("a")).is_empty());
    assert!(
        handler_update(&on("b"), &on("b"), Some("a"))[0]
            .message
            .contains("only allowed to modify VMIs it owns")
    );
    assert!(
        handler_update(&on("a"), &on("b"), Some("a"))[0].message.contains("not allowed to set target node")
    );
    assert!(handler_update(&on("a"), &on("a"), None)[0].message.contains("missing node name"));
    assert!(!handler_update(&instance(right()), &instance(right()), Some("a")).is_empty());
}

#[test]
fn a_cause_reads_well() {
    let field = Path::new("spec").child("volumes").index(2).child("name");
    assert_eq!(field.to_string(), "spec.volumes[2].name");
    assert_eq!(Cause::invalid(&field, "is wrong").to_string(), "spec.volumes[2].name: is wrong");
    assert_eq!(Cause::not_supported_yet(&field, "").to_string(), "spec.volumes[2].name is not supported yet");
}
