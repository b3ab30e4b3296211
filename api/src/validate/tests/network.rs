use super::*;
use crate::networks::{BRIDGE_SERVED, LINK_STATE_SERVED, SEVERAL_CARDS_SERVED};

#[test]
fn network_rules() {
    let interface = "spec.domain.devices.interfaces[0]";
    check(rows![
        ["/spec/domain/devices/interfaces/0/masquerade" => null] => interface, "must have exactly one binding method";
        ["/spec/domain/devices/interfaces/0/bridge" => {}] => interface, "logical default interface must have exactly one binding method or binding plugin";
        ["/spec/domain/devices/interfaces/0/slirp" => {}] => "spec.domain.devices.interfaces[0].slirp", "Slirp interface support has been discontinued since v1.3";
        ["/spec/domain/devices/interfaces/0/passt" => {}] => "spec.domain.devices.interfaces[0].passt", "Passt network binding has been discontinued since v1.3";
        ["/spec/domain/devices/interfaces/0/macvtap" => {}] => "spec.domain.devices.interfaces[0].macvtap", "Macvtap network binding has been discontinued since v1.3";
        ["/spec/networks/0" => {"name": "default", "multus": {"networkName": "a"}}] => "spec.domain.devices.interfaces[0].name", "Masquerade interface only implemented with pod network";
        ["/spec/networks/0" => {"name": "default", "multus": {"networkName": "a"}}, "/spec/domain/devices/interfaces/0/masquerade" => null, "/spec/domain/devices/interfaces/0/dhcpOptions" => null, "/spec/domain/devices/interfaces/0/passtBinding" => {}]
            => "spec.domain.devices.interfaces[0].name", "PasstBinding interface only implemented with pod network";
        ["/spec/domain/devices/interfaces/0/pciAddress" => "81:01.0"] => "spec.domain.devices.interfaces[0].pciAddress", "interface spec.domain.devices.interfaces[0].name has malformed PCI address (81:01.0).";
        ["/spec/domain/devices/interfaces/0/acpiIndex" => 16384] => "spec.domain.devices.interfaces[0].acpiIndex", "must be between 1 and 16383";
        ["/spec/domain/devices/interfaces/0/macAddress" => "02:11:22:33:44:55:66:77"] => "spec.domain.devices.interfaces[0].macAddress", "interface spec.domain.devices.interfaces[0].name has too long MAC address (02:11:22:33:44:55:66:77).";
        ["/spec/domain/devices/interfaces/0/state" => "sideways"] => "spec.domain.devices.interfaces[0].state", "logical default interface state value is unsupported: sideways";
        ["/spec/domain/devices/interfaces/0/state" => "absent"]
            => "spec.domain.devices.interfaces[0].state", "\"default\" interface's state \"absent\" is supported only for bridge binding",
               "spec.domain.devices.interfaces[0].state", "\"default\" interface's state \"absent\" is not supported on default networks";
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
fn network_source_rules() {
    let more = json!({"name": "b", "bridge": {}});
    let networks = "spec.networks";
    check(rows![
        ["/spec/networks/0/multus" => {"networkName": "a"}] => "spec.networks[0]", "should have only one network type";
        ["/spec/networks/-" => {"name": "b", "multus": {"networkName": ""}}, "/spec/domain/devices/interfaces/-" => more] => "spec.networks[1].multus.networkName", "CNI delegating plugin must have a networkName";
        ["/spec/networks/-" => {"name": "b", "multus": {"networkName": "a", "default": true}}, "/spec/domain/devices/interfaces/-" => more] => networks, "Pod network cannot be defined when Multus default network is defined";
        ["/spec/networks" => [{"name": "default", "multus": {"networkName": "a", "default": true}}, {"name": "b", "multus": {"networkName": "b", "default": true}}],
         "/spec/domain/devices/interfaces" => [{"name": "default", "bridge": {}}, more]] => networks, "Multus CNI should only have one default network";
        ["/spec/networks/0/pod" => {"vmNetworkCIDR": "10.0.2.0/31", "vmIPv6NetworkCIDR": "10.0.2.0/24"}]
            => "spec.networks[0].pod.vmNetworkCIDR", "/30 is the longest prefix",
               "spec.networks[0].pod.vmIPv6NetworkCIDR", "is not a range of IPv6 addresses";
        ["/spec/networks/-" => {"name": "b", "pod": {}}, "/spec/domain/devices/interfaces/-" => more] => "spec.interfaces", "more than one interface is connected to a pod network in spec.interfaces";
    ]);
    check(rows![
        ["/spec/domain/devices/interfaces/0/acpiIndex" => 7, "/spec/networks/-" => {"name": "b", "multus": {"networkName": "a"}}, "/spec/domain/devices/interfaces/-" => {"name": "b", "bridge": {}, "acpiIndex": 7}]
            => "spec.domain.devices.interfaces[1].acpiIndex", "another interface has the acpiIndex 7";
    ]);
}

/// The valid instance with the bridge binding, and with further members of its interface and network.
fn bridged(more: &Value, network: Value) -> Value {
    let mut interface = json!({"name": "default", "bridge": {}});
    interface.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let object = with(right(), "/spec/domain/devices/interfaces/0", interface);
    with(object, "/spec/networks/0", network)
}

/// The valid instance with a second card.
fn second(interface: Value, multus: Value) -> Value {
    let object = with(right(), "/spec/networks/-", json!({"name": "b", "multus": multus}));
    with(object, "/spec/domain/devices/interfaces/-", interface)
}

#[test]
fn cards_are_taken_as_soon_as_they_are_carried_out() {
    let pod = || json!({"name": "default", "pod": {}});
    let own = || json!({"name": "default", "multus": {"networkName": "net/a", "default": true}});
    let plain = || json!({"name": "b", "bridge": {}});
    let named = || json!({"networkName": "a"});
    let first = "spec.domain.devices.interfaces[0]";
    let other = "spec.domain.devices.interfaces[1]";
    for (object, refused) in [
        (bridged(&json!({}), pod()), vec![(BRIDGE_SERVED, format!("{first}.bridge"))]),
        // Only the masquerade binding gives the guest its own address in the pod.
        (
            bridged(&json!({"macAddress": "02:00:00:00:00:00"}), pod()),
            vec![(BRIDGE_SERVED, format!("{first}.bridge"))],
        ),
        (
            bridged(&json!({}), own()),
            vec![
                (SEVERAL_CARDS_SERVED, "spec.networks[0].multus".to_owned()),
                (BRIDGE_SERVED, format!("{first}.bridge")),
            ],
        ),
        (
            second(plain(), named()),
            vec![
                (SEVERAL_CARDS_SERVED, "spec.networks[1].multus".to_owned()),
                (SEVERAL_CARDS_SERVED, format!("{other}.bridge")),
            ],
        ),
        (
            second(json!({"name": "b", "bridge": {}, "state": "absent"}), named()),
            vec![
                (SEVERAL_CARDS_SERVED, "spec.networks[1].multus".to_owned()),
                (SEVERAL_CARDS_SERVED, format!("{other}.bridge")),
                (LINK_STATE_SERVED, format!("{other}.state")),
            ],
        ),
        (
            with(right(), "/spec/domain/devices/interfaces/0/state", json!("down")),
            vec![(LINK_STATE_SERVED, format!("{first}.state"))],
        ),
    ] {
        let causes = causes_of(&object);
        let fields: Vec<&String> = causes.iter().map(|cause| &cause.field).collect();
        let expected: Vec<&String> =
            refused.iter().filter(|(served, _)| !served).map(|(_, field)| field).collect();
        assert_eq!(fields, expected, "{causes:#?}");
        assert!(causes.iter().all(is_refusal), "{causes:#?}");
    }
}

#[test]
fn an_acpi_index_of_zero_is_none() {
    let mut both =
        second(json!({"name": "b", "bridge": {}, "acpiIndex": 0}), json!({"networkName": "net/a"}));
    assert_eq!(causes_of(&both), []);
    both["spec"]["domain"]["devices"]["interfaces"][0]["acpiIndex"] = json!(0);
    assert_eq!(causes_of(&both), []);
}

#[test]
fn a_card_of_the_node_is_on_a_network_beside_the_first() {
    let sriov = |more: Value, multus: Value| {
        let mut card = json!({"name": "b", "sriov": {}});
        card.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let causes = causes_of(&second(card, multus)).into_iter();
        causes.map(|cause| format!("{}: {}", cause.field, cause.message)).collect::<Vec<_>>()
    };
    let named = || json!({"networkName": "net/a"});
    let card = "spec.domain.devices.interfaces[1]";
    let accepted = json!({"macAddress": "02:11:22:33:44:66", "bootOrder": 9, "acpiIndex": 7, "pciAddress": "0000:05:00.0"});
    assert_eq!(sriov(accepted, named()), [""; 0]);
    // These have a warning.
    for without_effect in [
        json!({"model": "rtl8139", "pciAddress": "0000:05:00.0"}),
        json!({"dhcpOptions": {"bootFileName": "a"}}),
        json!({"tag": "red"}),
    ] {
        assert_eq!(sriov(without_effect, named()), [""; 0]);
    }
    assert_eq!(sriov(json!({"state": "absent"}), named()), [""; 0]);
    for (more, refused) in [
        (
            json!({"state": "down"}),
            format!(r#"{card}.state: "b" interface's state "down" is not supported for SR-IOV NICs"#),
        ),
        (
            json!({"state": "up"}),
            format!(r#"{card}.state: "b" interface's state "up" is not supported for SR-IOV NICs"#),
        ),
        (
            json!({"bridge": {}}),
            format!("{card}: logical b interface must have exactly one binding method or binding plugin"),
        ),
    ] {
        assert_eq!(sriov(more, named()), [refused]);
    }
    let replacing = json!([{"name": "default", "multus": {"networkName": "a", "default": true}}]);
    let alone = json!([{"name": "default", "sriov": {}}]);
    let object = with(right(), "/spec/domain/devices/interfaces", alone);
    let first = |object: &Value| causes_of(object)[0].to_string();
    assert_eq!(
        first(&object),
        "spec.domain.devices.interfaces[0].name: SR-IOV interface only implemented with Multus network"
    );
    let field = "spec.networks[0].multus.default";
    let refused = format!("{field} with sriov is not supported yet");
    assert_eq!(first(&with(object, "/spec/networks", replacing)), refused);
}

#[test]
fn passt_is_for_the_pod_network_and_leaves_the_addresses_of_it() {
    let interface = "/spec/domain/devices/interfaces/0";
    let passt = |more: &[(&str, Value)]| {
        let mut object = with(right(), &format!("{interface}/masquerade"), Value::Null);
        object = with(object, &format!("{interface}/dhcpOptions"), Value::Null);
        object = with(object, &format!("{interface}/passtBinding"), json!({}));
        for (pointer, value) in more {
            object = with(object, pointer, value.clone());
        }
        let causes = causes_with(&object, &Gates::all()).into_iter();
        causes.map(|cause| format!("{}: {}", cause.field, cause.message)).collect::<Vec<_>>()
    };
    assert_eq!(passt(&[]), [""; 0]);
    let options = format!("{interface}/dhcpOptions");
    let refused = passt(&[
        (&options, json!({"tftpServerName": "t"})),
        ("/spec/networks/0/pod", json!({"vmNetworkCIDR": "10.1.0.0/24", "vmIPv6NetworkCIDR": ""})),
    ]);
    let field = "spec.domain.devices.interfaces[0].dhcpOptions";
    let range = "spec.networks[0].pod.vmNetworkCIDR";
    let expected =
        [field, range].map(|field| format!("{field}: {field} with passtBinding is not supported yet"));
    assert_eq!(refused, expected);
}

#[test]
fn a_binding_plugin_is_named() {
    let with_plugin = |name: &str| {
        let object = with(right(), "/spec/domain/devices/interfaces/0/masquerade", Value::Null);
        let object = with(object, "/spec/domain/devices/interfaces/0/binding", json!({"name": name}));
        causes_with(&object, &Gates::all()).into_iter().map(|cause| cause.field).collect::<Vec<_>>()
    };
    assert_eq!(with_plugin("mine"), [""; 0]);
    assert_eq!(with_plugin(""), ["spec.domain.devices.interfaces[0].binding.name"]);
}

#[test]
fn no_two_cards_have_one_address_and_there_is_room_for_all() {
    let mac = |text: &str| json!({"name": "b", "bridge": {}, "macAddress": text});
    let rules = |object: &Value| {
        let causes = causes_of(object);
        rules_of(&causes).into_iter().map(|cause| cause.to_string()).collect::<Vec<_>>()
    };
    let named = || json!({"networkName": "a"});
    assert_eq!(rules(&second(mac("02:11:22:33:44:56"), named())), [""; 0]);
    assert_eq!(
        rules(&second(mac("02-11-22-33-44-55"), named())),
        [
            "spec.domain.devices.interfaces[1].macAddress: another interface has the MAC address 02-11-22-33-44-55"
        ]
    );
    let mut many = right();
    for number in 0..170 {
        let name = format!("b{number}");
        many = with(many, "/spec/networks/-", json!({"name": name, "multus": {"networkName": "a"}}));
        many = with(many, "/spec/domain/devices/interfaces/-", json!({"name": name, "bridge": {}}));
    }
    let found = rules(&many);
    assert_eq!(found.len(), 1);
    assert!(
        found[0].starts_with("spec.domain.devices.interfaces: ") && found[0].contains("170"),
        "{found:?}"
    );
}

#[test]
fn definitions_are_named_as_objects_are() {
    for wrong in ["a/b/c", "/a", "a/", "../a", "A", "a_b", "a b", "net/..", "net/a?b"] {
        let causes = causes_of(&second(json!({"name": "b", "bridge": {}}), json!({"networkName": wrong})));
        let rules = rules_of(&causes);
        assert_eq!(rules.len(), 1, "{wrong}: {causes:?}");
        assert_eq!(rules[0].field, "spec.networks[1].multus.networkName");
    }
}

#[test]
fn bridge_on_the_pod_network_may_be_forbidden() {
    let gates = Gates::default().with_bridge_on_pod_network(false);
    check_with(
        &gates,
        rows![
            ["/spec/domain/devices/interfaces/0/masquerade" => null, "/spec/domain/devices/interfaces/0/bridge" => {}] => "spec.domain.devices.interfaces[0].name", "Bridge on pod network configuration is not enabled under kubevirt-config";
        ],
    );
}

#[test]
fn port_range_rules() {
    let tcp = |start: i32, end: i32| json!({"protocol": "TCP", "start": start, "end": end});
    let (one, ranges) =
        ("spec.domain.devices.interfaces[0].portRanges[0]", "spec.domain.devices.interfaces[0].portRanges");
    let field = |member: &str| -> &'static str { Box::leak(format!("{one}.{member}").into_boxed_str()) };
    let many: Vec<Value> = (1..=11).map(|n| tcp(n * 10, n * 10)).collect();
    let (below, beyond, backward, low, high) = (tcp(0, 5), tcp(5, 65536), tcp(9, 5), tcp(5, 9), tcp(9, 12));
    let interface = "/spec/domain/devices/interfaces/0";
    let with_ranges = |value: Value| {
        let object = with(right(), &format!("{interface}/ports"), json!([]));
        let causes = causes_with(&with(object, &format!("{interface}/portRanges"), value), &Gates::all());
        rules_of(&causes)
            .into_iter()
            .map(|cause| (cause.field.clone(), cause.message.clone()))
            .collect::<Vec<_>>()
    };
    for (value, field, message) in [
        (
            json!([{"protocol": "SCTP", "start": 1, "end": 2}]),
            field("protocol"),
            "Unknown protocol, only TCP or UDP allowed",
        ),
        (json!([below]), field("start"), "Start must be a valid port number, 0 < x < 65536"),
        (json!([beyond]), field("end"), "End must be a valid port number, 0 < x < 65536"),
        (json!([backward]), field("start"), "Start must be less than or equal to end"),
        (json!(many), ranges, "No more than 10 portRanges are allowed"),
        (json!([high, low]), ranges, "TCP portRanges [5-9] and [9-12] overlap"),
    ] {
        assert_eq!(with_ranges(value), [(field.to_owned(), message.to_owned())]);
    }
    assert_eq!(with_ranges(json!([low, {"protocol": "UDP", "start": 5, "end": 9}])), []);
    check_with(
        &Gates::all(),
        rows![
            ["/spec/domain/devices/interfaces/0/portRanges" => [low]] => "spec.domain.devices.interfaces[0].name", "Cannot define both ports and portRanges on interface";
            ["/spec/domain/devices/interfaces/0/ports" => [], "/spec/domain/devices/interfaces/0/portRanges" => [low], "/spec/domain/devices/interfaces/0/masquerade" => null, "/spec/domain/devices/interfaces/0/bridge" => {}]
                => "spec.domain.devices.interfaces[0].name", "portRanges are only supported on masquerade interfaces";
            ["/spec/domain/devices/interfaces/0" => {"name": "default", "bridge": {}, "portRanges": [high]}, "/spec/networks/0" => {"name": "default", "multus": {"networkName": "a"}}]
                => "spec.domain.devices.interfaces[0].name", "portRanges are only supported on masquerade interfaces";
        ],
    );
}

#[test]
fn a_long_name_of_an_interface_has_its_own_message() {
    let named = |length: usize| {
        let name = json!("n".repeat(length));
        let object = with(right(), "/spec/networks/0/name", name.clone());
        let causes = causes_of(&with(object, "/spec/domain/devices/interfaces/0/name", name));
        causes.into_iter().map(|cause| cause.to_string()).collect::<Vec<_>>()
    };
    let field = "spec.domain.devices.interfaces[0].name";
    assert_eq!(named(63), [""; 0]);
    assert_eq!(named(64), [format!("{field} is longer than 63 characters")]);
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
    let twice = with(with(twice, "/bootOrder", Value::Null), "/macAddress", Value::Null);
    let twice = with(twice, "/ports", json!([]));
    assert_eq!(
        fields(with(right(), "/spec/domain/devices/interfaces/-", twice)),
        ["spec.domain.devices.interfaces[1].name"]
    );
}

#[test]
fn ports_of_a_meshs_sidecar_are_not_the_guests() {
    let guest = |annotation: &str, protocol: &str| {
        let annotations = json!({"sidecar.istio.io/inject": annotation});
        let object = with(right(), "/metadata/annotations", annotations);
        let port = json!({"name": "health", "port": 15021, "protocol": protocol});
        with(object, "/spec/domain/devices/interfaces/0/ports", json!([{"name": "web", "port": 80}, port]))
    };
    let refused = |annotation: &str, protocol: &str| {
        let object = guest(annotation, protocol);
        let template =
            json!({"metadata": {"annotations": object["metadata"]["annotations"]}, "spec": object["spec"]});
        let vm = machine(json!({"runStrategy": "Halted", "template": template}));
        let of_the_sidecar = |causes: Vec<Cause>| {
            let messages = causes.into_iter().map(|cause| cause.message);
            let messages = messages.filter(|message| message.contains("sidecar"));
            let in_instance = |message: String| {
                message.replace("virtualMachineTemplate.spec.", "").replace("spec.template.", "")
            };
            messages.map(in_instance).collect::<Vec<_>>()
        };
        let of_machine = vm_spec(&Path::new("spec"), &vm.spec, Requester::User, &Gates::default());
        let selector = json!({"matchLabels": {"app": "a"}});
        let set = json!({"metadata": {}, "spec": {"selector": selector, "template": template}});
        let set = serde_json::from_value(set).unwrap();
        let of_set = kinds::replica_set::create(&set, Requester::User, &Gates::default());
        let machines = json!({"spec": {"runStrategy": "Halted", "template": template}});
        let pool =
            json!({"metadata": {}, "spec": {"selector": selector, "virtualMachineTemplate": machines}});
        let pool = serde_json::from_value(pool).unwrap();
        let of_pool = kinds::pool::create(&pool, Requester::User, &Gates::default());
        let mut vmi = instance(object);
        defaults::vmi(&mut vmi);
        let of_instance = of_the_sidecar(vmi_create(&vmi, Requester::User, &Gates::default()));
        for (kind, causes) in [("machine", of_machine), ("replica set", of_set), ("pool", of_pool)] {
            assert_eq!(of_the_sidecar(causes), of_instance, "{kind}");
        }
        of_instance
    };
    let field = "spec.domain.devices.interfaces[0].ports[1].port";
    let message = format!("{field} 15021 belongs to the sidecar of the mesh in the pod");
    assert_eq!(refused("True", "TCP"), [message.as_str()]);
    assert_eq!([refused("true", "UDP"), refused("false", "TCP")], [Vec::<String>::new(), Vec::new()]);
    // passt listens in the pod, as the sidecar does.
    let behind_passt =
        with(guest("true", "TCP"), "/spec/domain/devices/interfaces/0/masquerade", Value::Null);
    let behind_passt = with(behind_passt, "/spec/domain/devices/interfaces/0/passtBinding", json!({}));
    let causes = vmi_create(&instance(behind_passt), Requester::User, &Gates::default());
    assert!(causes.iter().any(|cause| cause.message == message), "{causes:?}");
}
