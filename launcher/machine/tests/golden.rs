//! Exact command lines for manifests. `INSTA_UPDATE=always cargo test -p barevirt-machine` writes them again;
//! guests will see every difference.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test fails by panicking, helpers of tests too.

mod common;

use barevirt_api::masquerade::IPV4;
use barevirt_machine::*;
use common::{facts, host_cpu, manifest};

/// One option per line, so that differences are easy to read.
fn lines(argv: &[String]) -> String {
    let mut text = String::new();
    for word in argv {
        text.push_str(if word.starts_with('-') { "\n" } else { " " });
        text.push_str(word);
    }
    text.trim_start().to_owned()
}

fn command_line(name: &str) -> String {
    let vmi = manifest(name);
    lines(&argv(&plan(&vmi, &facts(&vmi)).unwrap()))
}

#[test]
fn tiny() {
    insta::assert_snapshot!(command_line("tiny"));
}

#[test]
fn addresses() {
    insta::assert_snapshot!(command_line("addresses"));
}

#[test]
fn root_complex() {
    insta::assert_snapshot!(command_line("root-complex"));
}

#[test]
fn older() {
    insta::assert_snapshot!(command_line("older"));
}

#[test]
fn grows() {
    insta::assert_snapshot!(command_line("grows"));
}

#[test]
fn cloud_init() {
    insta::assert_snapshot!(command_line("cloud-init"));
}

#[test]
fn everything() {
    insta::assert_snapshot!(command_line("everything"));
}

#[test]
fn features() {
    insta::assert_snapshot!(command_line("features"));
}

#[test]
fn features_with_kvm() {
    let vmi = manifest("features");
    let accelerator = Accelerator::Kvm { device: Some(9) };
    let host_cpu = CpuQuestion::of(&vmi, &accelerator).map(|question| host_cpu(&question));
    let facts = Facts { accelerator, host_cpu, ..facts(&vmi) };
    insta::assert_snapshot!(lines(&argv(&plan(&vmi, &facts).unwrap())));
}

#[test]
fn enlightenments_without_kvm_are_left_out_by_name() {
    let vmi = manifest("features");
    insta::assert_snapshot!(plan(&vmi, &facts(&vmi)).unwrap().left_out.join("\n"));
}

#[test]
fn devices() {
    insta::assert_snapshot!(command_line("devices"));
}

#[test]
fn vsock_and_devices_of_the_node() {
    let vmi = common::valid(serde_saphyr::from_str(include_str!("manifests/host-devices.yaml")).unwrap());
    insta::assert_snapshot!(lines(&argv(&plan(&vmi, &facts(&vmi)).unwrap())));
}

#[test]
fn sriov() {
    let vmi = common::valid(serde_saphyr::from_str(include_str!("manifests/sriov.yaml")).unwrap());
    let machine = plan(&vmi, &facts(&vmi)).unwrap();
    insta::assert_snapshot!(lines(&argv(&machine)));
    let without = Facts { host_devices: Vec::new(), ..facts(&vmi) };
    assert_eq!(plan(&vmi, &without).unwrap_err().field(), "spec.domain.devices.interfaces[0]");
}

/// A guest that moves gives its cards back, and gets those of the other node at the same places.
#[test]
fn sriov_cards_that_go_and_come() {
    let vmi = common::valid(serde_saphyr::from_str(include_str!("manifests/sriov.yaml")).unwrap());
    let machine = plan(&vmi, &facts(&vmi)).unwrap();
    let steps = attach_host_cards(&machine.host_devices).into_iter().map(|card| card.step);
    let steps: Vec<_> = steps.collect();
    let line = |command: &Command| format!("{} {}", command.execute, command.arguments);
    let text = steps.iter().flat_map(|step| [line(&step.inverse), line(&step.forward)]);
    insta::assert_snapshot!(text.collect::<Vec<_>>().join("\n"));
    let started: Vec<serde_json::Value> =
        argv(&machine).iter().filter_map(|argument| serde_json::from_str(argument).ok()).collect();
    for step in &steps {
        assert!(started.contains(&step.forward.arguments), "it starts at another place: {:?}", step.forward);
    }
}

/// A guest that had no card gets one where it moves to: its machine has the same devices, and the card comes to a free port.
#[test]
fn an_sriov_card_that_comes_with_a_move() {
    let all = common::valid(serde_saphyr::from_str(include_str!("manifests/sriov.yaml")).unwrap());
    let with = |names: &[&str]| {
        let mut vmi = all.vmi().clone();
        vmi.spec.domain.devices.interfaces.retain(|card| names.contains(&card.name.as_str()));
        vmi.spec.networks.retain(|network| names.contains(&network.name.as_str()));
        common::valid(vmi)
    };
    let (before, after) = (with(&["default"]), with(&["default", "fast"]));
    let source = plan(&before, &facts(&before)).unwrap();
    let layout = Layout::saved(&source.layout.to_saved()).unwrap().for_arrival();
    let mut target = plan(&after, &Facts { layout: Some(layout), ..facts(&after) }).unwrap();
    let cards = attach_host_cards(&target.host_devices);
    target.host_devices.clear();
    assert_eq!(argv(&target), argv(&source));
    let [card] = &cards[..] else { panic!("{cards:?}") };
    let Command { execute, arguments } = &card.step.forward;
    insta::assert_snapshot!(format!("{}: {execute} {arguments}", card.name));
}

#[test]
fn options_of_cards_name_their_interfaces() {
    let vmi = common::valid(serde_saphyr::from_str(include_str!("manifests/sriov.yaml")).unwrap());
    let parts = parts(&plan(&vmi, &facts(&vmi)).unwrap());
    let of = |text: &str| {
        let has = |part: &&Part| part.arguments.iter().any(|argument| argument.contains(text));
        parts.iter().find(has).map(|part| part.fields.clone()).unwrap_or_default()
    };
    for (text, index) in [("nic-default", 1), ("nic-fast", 0), ("nic-integrated", 3)] {
        assert_eq!(of(text), [format!("spec.domain.devices.interfaces[{index}]")], "{text}");
    }
}

#[test]
fn filesystems() {
    let vmi = common::valid(serde_saphyr::from_str(include_str!("manifests/filesystems.yaml")).unwrap());
    let machine = plan(&vmi, &facts(&vmi)).unwrap();
    insta::assert_snapshot!(lines(&argv(&machine)));
    let unprepared = Facts { filesystems: Vec::new(), ..facts(&vmi) };
    let error = plan(&vmi, &unprepared).unwrap_err();
    assert_eq!(error.field(), "spec.domain.devices.filesystems[0]");
}

#[test]
fn memory_is_touched_at_the_start_where_its_pod_may_use_no_more_than_it_asks_for() {
    let mut vmi: barevirt_api::v1::VirtualMachineInstance =
        serde_saphyr::from_str(include_str!("manifests/filesystems.yaml")).unwrap();
    let all = serde_json::json!({"cpu": "1", "memory": "256Mi"});
    vmi.spec.domain.resources =
        Some(serde_json::from_value(serde_json::json!({"requests": all, "limits": all})).unwrap());
    let vmi = common::valid(vmi);
    let arguments = lines(&argv(&plan(&vmi, &facts(&vmi)).unwrap()));
    assert!(arguments.contains("\"prealloc\":true"), "{arguments}");
    assert!(arguments.contains("\"free-page-reporting\":false"), "{arguments}");
}

#[test]
fn many_sata() {
    insta::assert_snapshot!(command_line("many-sata"));
}

#[test]
fn passt() {
    insta::assert_snapshot!(command_line("passt"));
}

#[test]
fn tiny_with_kvm_and_user_networking() {
    let vmi = manifest("tiny");
    let mut facts = facts(&vmi);
    facts.accelerator = Accelerator::Kvm { device: Some(9) };
    facts.machine_type = Some("pc-q35-10.0".to_owned());
    facts.interfaces[0].mtu = None;
    facts.interfaces[0].backend = NetBackend::User {
        ipv4: IPV4,
        forwards: vec![HostForward {
            protocol: "tcp".into(),
            host_address: "127.0.0.1".into(),
            host_port: 2222,
            guest_port: 22,
        }],
    };
    insta::assert_snapshot!(lines(&argv(&plan(&vmi, &facts).unwrap())));
}
