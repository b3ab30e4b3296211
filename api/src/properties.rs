//! Properties that hold for any input: what users send is decoded, filled in and judged without a panic.

use crate::defaults;
use crate::gates::Gates;
use crate::settings::Settings;
use crate::sizing;
use crate::v1::{VirtualMachine, VirtualMachineInstance};
use crate::valid::ValidVmi;
use crate::validate::{self, Requester};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// A value near what a field expects, or far from it.
fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => prop::sample::select(vec![
            json!("a"), json!("b"), json!("default"), json!("virtio"), json!("sata"), json!("scsi"), json!("64Mi"), json!("1"),
            json!("100m"), json!("-1"), json!("0"), json!("99Ei"), json!("q35"), json!("amd64"), json!("None"),
            json!("TCP"), json!("02:00:00:00:00:01"), json!(""), json!(1), json!(0), json!(-1), json!(224),
            json!(65535), json!(i64::MAX), json!(u32::MAX), json!(true), json!(false), json!({}), json!([]),
        ]),
        1 => any::<i64>().prop_map(|number| json!(number)),
        1 => "\\PC{0,20}".prop_map(|text| json!(text)),
        1 => "[-+]?[0-9.]{0,20}[a-zA-Z]{0,2}".prop_map(|text| json!(text)),
        1 => Just(Value::Null),
    ]
}

/// An object with some of these members.
fn object(members: &'static [&'static str], value: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    prop::collection::btree_map(prop::sample::select(members), value, 0..members.len().min(6))
        .prop_map(|map| {
            Value::Object(map.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Map<_, _>>())
        })
        .boxed()
}

fn list(of: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    prop::collection::vec(of, 0..4).prop_map(Value::Array).boxed()
}

/// Members each with a strategy of its own, present nine times in ten.
fn record(members: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    members
        .into_iter()
        .map(|(name, value)| prop::option::weighted(0.9, value).prop_map(move |value| (name, value)))
        .collect::<Vec<_>>()
        .prop_map(|members| {
            Value::Object(
                members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect(),
            )
        })
        .boxed()
}

fn spec() -> BoxedStrategy<Value> {
    let leaf = || leaf().boxed();
    let name = || prop::sample::select(vec![json!("a"), json!("b"), json!("default"), json!("c.d")]).boxed();
    let target = || object(&["bus", "readonly"], leaf());
    let resources = object(&["cpu", "memory", "hugepages-2Mi", "x"], leaf());
    let disk = record(vec![("name", name()), ("disk", target()), ("more", leaf())]);
    let cdrom =
        record(vec![("name", name()), ("cdrom", target()), ("bootOrder", leaf()), ("serial", leaf())]);
    let port = record(vec![("port", leaf()), ("name", leaf()), ("protocol", leaf())]);
    let interface = record(vec![
        ("name", name()),
        ("masquerade", Just(json!({})).boxed()),
        ("ports", list(port)),
        ("macAddress", leaf()),
    ]);
    let devices = record(vec![
        ("disks", prop_oneof![list(disk), list(cdrom)].boxed()),
        ("interfaces", list(interface)),
        ("autoattachGraphicsDevice", any::<bool>().prop_map(|on| json!(on)).boxed()),
    ]);
    let domain = record(vec![
        ("devices", devices),
        ("memory", object(&["guest"], leaf())),
        ("cpu", object(&["sockets", "cores", "threads", "maxSockets", "model"], leaf())),
        ("resources", record(vec![("requests", resources.clone()), ("limits", resources)])),
        ("machine", object(&["type"], leaf())),
        ("firmware", object(&["uuid", "serial"], leaf())),
    ]);
    let source = prop_oneof![
        object(&["containerDisk"], object(&["image", "path", "imagePullPolicy"], leaf())),
        object(&["cloudInitNoCloud"], object(&["userData", "userDataBase64", "networkData"], leaf())),
        object(&["emptyDisk"], object(&["capacity"], leaf())),
    ];
    let volume = (name(), source).prop_map(|(name, mut source)| {
        source["name"] = name;
        source
    });
    record(vec![
        ("domain", domain),
        ("volumes", list(volume.boxed())),
        ("networks", list(record(vec![("name", name()), ("pod", Just(json!({})).boxed())]))),
        ("hostname", leaf()),
        ("terminationGracePeriodSeconds", leaf()),
        ("dnsConfig", object(&["nameservers", "searches"], list(leaf()))),
    ])
}

/// Decodes as admission does, and goes all the way.
fn judge(vmi: &Value) {
    let Ok(mut instance) = serde_json::from_value::<VirtualMachineInstance>(vmi.clone()) else { return };
    defaults::vmi(&mut instance);
    let once = instance.clone();
    defaults::vmi(&mut instance);
    assert_eq!(once, instance, "defaulting twice differs from once");
    let causes = validate::vmi_create(&instance, Requester::User, &Gates::default());
    for cause in &causes {
        assert!(!cause.message.is_empty() && cause.message.len() < 2000);
    }
    let written = serde_json::to_value(&instance).unwrap();
    let read: VirtualMachineInstance = serde_json::from_value(written).unwrap();
    assert_eq!(read, instance, "what is written reads the same");
    match ValidVmi::new(instance.clone()) {
        Ok(valid) => {
            assert!(causes.is_empty());
            assert_eq!(valid.vmi(), &instance, "a defaulted valid object stays as it is");
            let resources =
                sizing::pod_resources(&valid, &Settings { use_emulation: true, ..Settings::default() });
            let memory = &resources.requests.as_ref().unwrap()["memory"];
            assert!(crate::quantity::bytes(memory).unwrap() > 0);
            assert_eq!(valid.disks().len(), valid.volumes().len());
        }
        Err(_) if instance.metadata.name.as_deref().is_none_or(str::is_empty) => {}
        Err(_) => assert!(!causes.is_empty(), "refused without a cause"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_specification_is_judged(spec in spec()) {
        judge(&json!({"metadata": {"name": "vm", "namespace": "ns"}, "spec": spec}));
        let machine = json!({"metadata": {"name": "vm"}, "spec": {"running": true, "template": {"spec": spec}}});
        if let Ok(mut machine) = serde_json::from_value::<VirtualMachine>(machine) {
            defaults::vm(&mut machine);
            validate::vm(&machine, Requester::User, &Gates::default());
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(value) = serde_json::from_slice::<Value>(&bytes) {
            judge(&value);
        }
    }

    /// A right manifest with one value replaced by anything.
    #[test]
    fn a_manifest_with_one_wrong_value_is_judged(which in any::<prop::sample::Index>(), value in leaf()) {
        let mut manifest = right();
        let mut pointers = Vec::new();
        collect(&manifest, String::new(), &mut pointers);
        let pointer = which.get(&pointers);
        *manifest.pointer_mut(pointer).unwrap() = value;
        judge(&manifest);
    }
}

#[test]
fn the_right_manifest_is_valid() {
    assert!(ValidVmi::new(serde_json::from_value(right()).unwrap()).is_ok());
    judge(&right());
}

fn collect(value: &Value, pointer: String, pointers: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                collect(member, format!("{pointer}/{name}"), pointers);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                collect(item, format!("{pointer}/{index}"), pointers);
            }
        }
        _ => {}
    }
    pointers.push(pointer);
}

fn right() -> Value {
    json!({
        "metadata": {"name": "vm", "namespace": "ns", "labels": {"a": "b"}},
        "spec": {
            "domain": {
                "cpu": {"sockets": 1, "cores": 2, "threads": 1, "maxSockets": 2, "model": "host-model"},
                "memory": {"guest": "64Mi"},
                "resources": {"requests": {"memory": "64Mi", "cpu": "1"}, "limits": {"memory": "1Gi", "cpu": "2"}},
                "machine": {"type": "q35"},
                "firmware": {"uuid": "5d307ca9-b3ef-428c-8861-06e72d69f223", "bootloader": {"bios": {"useSerial": true}}},
                "features": {"acpi": {"enabled": true}},
                "devices": {
                    "rng": {},
                    "disks": [
                        {"name": "a", "bootOrder": 1, "serial": "s", "cache": "none", "io": "native", "disk": {"bus": "virtio"}},
                        {"name": "b", "cdrom": {"bus": "sata", "readonly": true}},
                    ],
                    "interfaces": [{"name": "default", "model": "virtio", "masquerade": {}, "bootOrder": 2,
                        "macAddress": "02:11:22:33:44:55", "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
                        "dhcpOptions": {"bootFileName": "x", "ntpServers": ["10.0.0.1"],
                            "privateOptions": [{"option": 240, "value": "v"}]}}],
                },
            },
            "networks": [{"name": "default", "pod": {}}],
            "volumes": [
                {"name": "a", "containerDisk": {"image": "i", "path": "/disk/x", "imagePullPolicy": "Always"}},
                {"name": "b", "cloudInitNoCloud": {"userDataBase64": "eA==", "networkData": "n"}},
            ],
            "hostname": "h", "subdomain": "s.t", "terminationGracePeriodSeconds": 5,
            "dnsPolicy": "None", "dnsConfig": {"nameservers": ["10.0.0.1"], "searches": ["a.b"], "options": [{"name": "x"}]},
            "evictionStrategy": "None", "architecture": "amd64",
        },
    })
}
