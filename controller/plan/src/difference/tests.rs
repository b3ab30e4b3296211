use super::*;
use crate::revision;
use barevirt_api::settings::Settings;

fn vm(generation: i64, change: Value) -> VirtualMachine {
    let mut vm = json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "m1", "generation": generation},
        "spec": {"runStrategy": "Always", "template": {"metadata": {"labels": {"a": "b"}}, "spec": {
            "architecture": "amd64",
            "domain": {"devices": {}, "cpu": {"sockets": 1, "cores": 1}, "memory": {"guest": "1Gi"}}}}},
    });
    merge::apply(&mut vm, &change);
    serde_json::from_value(vm).unwrap()
}

/// The comparison of a machine with what it was when its instance was started.
fn comparison(then: &VirtualMachine, now: &VirtualMachine, vmi: &VirtualMachineInstance) -> Comparison {
    Comparison::of(now, &revision::of(then), vmi, &Follows::of(&Settings::default())).unwrap()
}

/// Each changed field with the word for when it takes effect.
fn words_of(change: Value) -> Vec<(String, &'static str)> {
    let (then, now) = (vm(1, json!({})), vm(2, change));
    words(&then, &now, &now.spec.template.spec, |comparison| comparison)
}

fn words(
    then: &VirtualMachine,
    now: &VirtualMachine,
    wanted: &VirtualMachineInstanceSpec,
    complete: impl FnOnce(Comparison) -> Comparison,
) -> Vec<(String, &'static str)> {
    let mut instance = json!({"metadata": {"name": "web"}, "spec": then.spec.template.spec,
        "status": {"phase": "Running", "memory": {"guestAtBoot": "1Gi", "guestCurrent": "1Gi"},
            "currentCPUTopology": {"sockets": 1},
            "conditions": [{"type": "LiveMigratable", "status": "True"}]}});
    instance["spec"]["domain"]["cpu"]["maxSockets"] = json!(4);
    instance["spec"]["domain"]["memory"]["maxGuest"] = json!("4Gi");
    let vmi: VirtualMachineInstance = serde_json::from_value(instance).unwrap();
    let comparison = complete(comparison(then, now, &vmi));
    let differences = of(now, wanted, &vmi, comparison, &Follows::of(&Settings::default()));
    let word = |when: When| match when {
        When::InPlace => "in place",
        When::Migration => "migration",
        When::Waits => "waits",
        When::Restart(why) if why == TOGETHER => "restart together",
        When::Restart(why) if why == NOT_LIVE => "restart",
        When::Restart(_) => "restart, refused",
        When::NextStart => "next start",
    };
    differences.into_iter().map(|(change, when)| (change.path, word(when))).collect()
}

#[test]
fn another_claim_comes_with_a_migration_where_the_strategy_says_so() {
    let on = |strategy: &str, claim: &str| {
        let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]);
        vm(
            2,
            json!({"spec": {"updateVolumesStrategy": strategy, "template": {"spec": {"volumes": volumes}}}}),
        )
    };
    let then = on("Migration", "a");
    let vmi =
        json!({"metadata": {"name": "web"}, "spec": then.spec.template.spec, "status": {"phase": "Running"}});
    let vmi: VirtualMachineInstance = serde_json::from_value(vmi).unwrap();
    let differences_of = |now: VirtualMachine| {
        let wanted = now.spec.template.spec.clone();
        let follows = Follows::of(&Settings::default());
        of(&now, &wanted, &vmi, comparison(&then, &now, &vmi), &follows)
    };
    let [(change, When::Migration)] = &differences_of(on("Migration", "b"))[..] else { panic!() };
    assert_eq!((&*change.path, &change.to), ("spec.template.spec.volumes[data]", &json!("b")));
    assert!(matches!(&differences_of(on("Replacement", "b"))[..], [(_, When::Restart(_))]));
    assert!(differences_of(on("Migration", "a")).is_empty());
}

fn domain(change: Value) -> Value {
    json!({"spec": {"template": {"spec": {"domain": change}}}})
}

#[test]
fn live_changes_apply_in_place_and_others_need_a_restart() {
    let of = |path: &str, word| vec![(format!("spec.template.{path}"), word)];
    assert_eq!(words_of(json!({})), []);
    assert_eq!(words_of(json!({"spec": {"runStrategy": "Manual"}})), []);
    assert_eq!(words_of(domain(json!({"cpu": {"sockets": 2}}))), of("spec.domain.cpu.sockets", "in place"));
    assert_eq!(
        words_of(domain(json!({"memory": {"guest": "2Gi"}}))),
        of("spec.domain.memory.guest", "in place")
    );
    assert_eq!(words_of(domain(json!({"memory": {"guest": "1024Mi"}}))), []);
    assert_eq!(
        words_of(domain(json!({"memory": {"guest": "8Gi"}}))),
        of("spec.domain.memory.guest", "restart, refused")
    );
    assert_eq!(words_of(domain(json!({"cpu": {"cores": 2}}))), of("spec.domain.cpu.cores", "restart"));
    let labels = json!({"spec": {"template": {"metadata": {"labels": {"a": "c"}}}}});
    assert_eq!(words_of(labels), of("metadata.labels.a", "next start"));
}

#[test]
fn another_instance_type_is_reported_as_its_changed_fields() {
    let named = |name: &str| json!({"spec": {"instancetype": {"name": name}}});
    let (then, now) = (vm(1, named("small")), vm(2, named("big")));
    let template = |change: Value| vm(2, domain(change)).spec.template.spec;
    let told = |wanted: VirtualMachineInstanceSpec| {
        let templates = [template(json!({})), wanted.clone()];
        words(&then, &now, &wanted, |comparison| comparison.applied(templates))
    };
    let of = |path: &str, word| (format!("spec.{path}"), word);
    assert_eq!(told(template(json!({}))), []);
    assert_eq!(
        told(template(json!({"cpu": {"sockets": 2}, "memory": {"guest": "2Gi"}}))),
        [
            of("template.spec.domain.cpu.sockets", "in place"),
            of("template.spec.domain.memory.guest", "in place")
        ]
    );
    assert_eq!(
        told(template(json!({"cpu": {"cores": 2}}))),
        [of("template.spec.domain.cpu.cores", "restart")]
    );
    // The contents of the former one are not known.
    let by_name = words(&then, &now, &template(json!({})), |comparison| comparison);
    assert_eq!(by_name, [of("instancetype.name", "restart")]);
}

#[test]
fn a_volume_comes_in_place_whatever_else_takes_a_restart() {
    let plugged = |bus: &str| {
        let volumes = json!([{"name": "a", "dataVolume": {"name": "a", "hotpluggable": true}}]);
        let disks = json!([{"name": "a", "disk": {"bus": bus}}]);
        json!({"spec": {"template": {"spec": {"volumes": volumes, "domain": {"devices": {"disks": disks}}}}}})
    };
    let of = |word: &'static str| {
        ["volumes[a]", "domain.devices.disks[a]"]
            .map(|at| (format!("spec.template.spec.{at}"), word))
            .to_vec()
    };
    assert_eq!(words_of(plugged("virtio")), of("in place"));
    assert_eq!(words_of(plugged("sata")), of("restart, refused"));
    let mut more = plugged("scsi");
    more["spec"]["template"]["spec"]["domain"]["cpu"] = json!({"cores": 2});
    let cores = ("spec.template.spec.domain.cpu.cores".to_owned(), "restart");
    assert_eq!(words_of(more), [vec![cores], of("in place")].concat());
}

#[test]
fn a_card_comes_in_place_and_one_of_the_node_with_a_migration() {
    let card = |binding: &str| {
        let mut interface = json!({"name": "fast"});
        interface[binding] = json!({});
        let networks = json!([{"name": "fast", "multus": {"networkName": "a"}}]);
        let domain = json!({"devices": {"interfaces": [interface]}});
        json!({"spec": {"template": {"spec": {"networks": networks, "domain": domain}}}})
    };
    let of = |word: &'static str| {
        ["networks[fast]", "domain.devices.interfaces[fast]"]
            .map(|at| (format!("spec.template.spec.{at}"), word))
            .to_vec()
    };
    assert_eq!(words_of(card("bridge")), of("in place"));
    assert_eq!(words_of(card("sriov")), of("migration"));
}

#[test]
fn the_refused_half_of_a_change_is_marked() {
    let both = words_of(domain(json!({"cpu": {"sockets": 2}, "memory": {"guest": "8Gi"}})));
    assert_eq!(both.iter().map(|(_, word)| *word).collect::<Vec<_>>(), ["in place", "restart, refused"]);
    let blocked = words_of(domain(json!({"cpu": {"sockets": 2, "cores": 2}})));
    assert_eq!(blocked.iter().map(|(_, word)| *word).collect::<Vec<_>>(), ["restart", "restart together"]);
}

#[test]
fn the_machines_own_fields_are_followed_at_once() {
    let changes = of_machine(&vm(1, json!({})), &vm(2, json!({"spec": {"runStrategy": "Manual"}})));
    assert_eq!(changes.len(), 1);
    assert_eq!(changes[0].path, "spec.runStrategy");
}
