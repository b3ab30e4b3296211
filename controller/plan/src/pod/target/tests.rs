use super::*;
use crate::config::Config;
use barevirt_api::settings::Settings;
use serde_json::{Value, json};

fn valid(spec: &Value, status: &Value) -> ValidVmi {
    let mut spec = spec.clone();
    spec["domain"]["memory"] = json!({"guest": "64Mi"});
    if spec["domain"]["devices"].is_null() {
        spec["domain"]["devices"] = json!({});
    }
    let vmi = json!({"metadata": {"name": "web", "namespace": "ns", "uid": "u1",
        "labels": {"kubevirt.io/nodeName": "a", "kubevirt.io/outdatedLauncherImage": "", "app": "shop"}},
        "spec": spec, "status": status});
    ValidVmi::new(serde_json::from_value(vmi).unwrap()).unwrap_or_else(|causes| panic!("{causes:?}"))
}

fn target(vmi: &ValidVmi, source: Value, labels: &[(&str, &str)], added: Value) -> Value {
    target_with(vmi, source, labels, added, false)
}

fn target_with(
    vmi: &ValidVmi,
    source: Value,
    labels: &[(&str, &str)],
    added: Value,
    post_copy: bool,
) -> Value {
    let config = Config {
        launcher_image: "launcher".to_owned(),
        image_pull_policy: None,
        settings: Settings::default(),
    };
    let mut pod = super::super::build(vmi, &config);
    let migration = serde_json::from_value(json!({
        "metadata": {"name": "move", "namespace": "ns", "uid": "m1"},
        "spec": {"vmiName": "web", "addedNodeSelector": added},
    }))
    .unwrap();
    let source: Pod = serde_json::from_value(source).unwrap();
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let target = Target {
        migration: &migration,
        source: &source,
        node_labels: &labels,
        kernel: "b1",
        same_selinux_level: true,
        post_copy,
    };
    make(&mut pod, vmi, &target);
    serde_json::to_value(pod).unwrap()
}

#[test]
fn it_is_the_launcher_elsewhere() {
    let affinity = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"labelSelector": {"matchLabels": {"app": "shop"}}, "topologyKey": "zone"}]}});
    let spec = json!({"domain": {}, "affinity": affinity, "nodeSelector": {"disk": "fast"}});
    let vmi = valid(&spec, &json!({"selinuxContext": "system_u:object_r:container_file_t:s0:c1,c2"}));
    let pod = target(&vmi, json!({}), &[], json!({"disk": "slow", "rack": "7"}));
    assert_eq!(pod["metadata"]["name"], json!(target_name("web", "m1")));
    assert_ne!(target_name("web", "m1"), name("web", "u1"));
    let labels = &pod["metadata"]["labels"];
    assert_eq!((&labels[MIGRATION_JOB_LABEL], &labels[CREATED_BY_LABEL]), (&json!("m1"), &json!("u1")));
    assert_eq!(labels["app"], "shop");
    assert_eq!(labels.get("kubevirt.io/nodeName").or(labels.get("kubevirt.io/outdatedLauncherImage")), None);
    assert_eq!(pod["metadata"]["annotations"][JOB_NAME_ANNOTATION], "move");
    let terms = &pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    assert_eq!(terms.as_array().unwrap().len(), 2);
    // The pods that attach its volumes are not excluded.
    let launchers = json!({APP_LABEL: APP_LAUNCHER, CREATED_BY_LABEL: "u1"});
    assert_eq!(terms[1]["labelSelector"]["matchLabels"], launchers);
    assert_eq!(terms[1]["topologyKey"], HOSTNAME);
    // The instance's own requirement comes first.
    let selector = &pod["spec"]["nodeSelector"];
    assert_eq!((&selector["disk"], &selector["rack"]), (&json!("fast"), &json!("7")));
    assert_eq!(pod["spec"]["securityContext"]["seLinuxOptions"]["level"], "s0:c1,c2");
    // The pods that attach its volumes learn from it which kernel the source has.
    let pod: Pod = serde_json::from_value(pod).unwrap();
    assert_eq!(source_kernel(&pod), Some(["--source-kernel".to_owned(), "b1".to_owned()]));
}

#[test]
fn only_a_target_that_may_use_post_copy_gets_userfaultfd() {
    let vmi = valid(&json!({"domain": {}}), &Value::Null);
    let asks = |post_copy: bool| {
        let pod = target_with(&vmi, json!({}), &[], json!({}), post_copy);
        let resources = &pod["spec"]["containers"][0]["resources"];
        ["limits", "requests"].map(|list| resources[list][USERFAULTFD_RESOURCE].clone())
    };
    assert_eq!(asks(false), [Value::Null, Value::Null]);
    assert_eq!(asks(true), [json!("1"), json!("1")]);
}

#[test]
fn the_target_runs_on_a_node_with_the_guests_processor() {
    let node = [
        ("host-model-cpu.node.kubevirt.io/Skylake", "true"),
        ("host-model-required-features.node.kubevirt.io/vmx", "true"),
        ("cpu-vendor.node.kubevirt.io/Intel", "true"),
    ];
    let selector = |model: &str, source: Value, node: &[(&str, &str)]| {
        let vmi = valid(&json!({"domain": {"cpu": {"model": model}}}), &Value::Null);
        let pod = target(&vmi, source, node, json!({}));
        let selector = pod["spec"]["nodeSelector"].as_object().unwrap().clone();
        let of_cpu = selector.into_iter().map(|(label, _)| label).filter(|label| label.starts_with("cpu-"));
        of_cpu.collect::<Vec<_>>()
    };
    let from_node = [
        "cpu-feature.node.kubevirt.io/vmx",
        "cpu-model-migration.node.kubevirt.io/Skylake",
        "cpu-vendor.node.kubevirt.io/Intel",
    ];
    for model in OF_THE_HOST {
        assert_eq!(selector(model, json!({}), &node), from_node);
        assert!(selector(model, json!({}), &[]).is_empty());
    }
    // The guest came from an older node, and can go back there.
    let source = json!({"spec": {"containers": [], "nodeSelector": {
        "cpu-model-migration.node.kubevirt.io/Haswell": "true"}}});
    let older = ["cpu-model-migration.node.kubevirt.io/Haswell", "cpu-vendor.node.kubevirt.io/Intel"];
    assert_eq!(selector("host-model", source, &node), older);
    let named = ["cpu-model.node.kubevirt.io/Nehalem", "cpu-vendor.node.kubevirt.io/Intel"];
    assert_eq!(selector("Nehalem", json!({}), &node), named);
}

#[test]
fn passt_is_that_of_this_version() {
    let interfaces = json!([{"name": "default", "passtBinding": {}}]);
    let spec = json!({"domain": {"devices": {"interfaces": interfaces}},
        "networks": [{"name": "default", "pod": {}}]});
    let image = format!("registry:5000/virt-passt@sha256:{}", "a".repeat(64));
    let status = json!({"name": "passt", "image": "", "imageID": image, "ready": true, "restartCount": 0});
    let source = json!({"status": {"containerStatuses": [status]}});
    let pod = target(&valid(&spec, &Value::Null), source, &[], json!({}));
    let passt = pod["spec"]["containers"].as_array().unwrap().last().cloned().unwrap();
    assert_eq!((&passt["name"], passt.get("image")), (&json!("passt"), None));
}

#[test]
fn container_disks_are_the_very_images_of_the_source() {
    let spec = json!({"domain": {"devices": {"disks": [{"name": "root", "disk": {}}]}},
        "volumes": [{"name": "root", "containerDisk": {"image": "registry:5000/os/image:latest"}}]});
    let vmi = valid(&spec, &Value::Null);
    let digest = format!("sha256:{}", "a".repeat(64));
    let source = |id: &str| {
        json!({"status": {"containerStatuses": [{"name": "volumeroot", "image": "i", "imageID": id,
            "ready": true, "restartCount": 0}]}})
    };
    let image = |id: &str| {
        let pod = target(&vmi, source(id), &[], json!({}));
        let containers = pod["spec"]["containers"].as_array().unwrap().clone();
        let disk = containers.into_iter().find(|container| container["name"] == "volumeroot").unwrap();
        disk["image"].as_str().unwrap().to_owned()
    };
    let pinned = format!("registry:5000/os/image@{digest}");
    assert_eq!(image(&format!("registry:5000/os/image@{digest}")), pinned);
    assert_eq!(image(&format!("docker-pullable://registry:5000/os/image@{digest}")), pinned);
    for unknown in [digest.as_str(), "", "something@else"] {
        assert_eq!(image(unknown), "registry:5000/os/image:latest");
    }
}

#[test]
fn the_launcher_is_where_the_latest_migration_left_the_guest() {
    let launcher = |state: Value| {
        let vmi = json!({"metadata": {"name": "web", "uid": "u1"}, "spec": {"domain": {"devices": {}}},
            "status": {"migrationState": state}});
        launcher_name(&serde_json::from_value(vmi).unwrap())
    };
    let state = |more: Value| {
        let mut state = json!({"sourcePod": "old", "targetPod": "new"});
        crate::merge::apply(&mut state, &more);
        state
    };
    assert_eq!(launcher(Value::Null), name("web", "u1"));
    assert_eq!(launcher(json!({"migrationUid": "m1"})), name("web", "u1"));
    assert_eq!(launcher(state(json!({}))), "old");
    assert_eq!(launcher(state(json!({"completed": true, "failed": true}))), "old");
    assert_eq!(launcher(state(json!({"failed": true}))), "old");
    assert_eq!(launcher(state(json!({"completed": true}))), "new");
}

#[test]
fn the_target_runs_on_a_node_with_the_guests_machine_type() {
    let selector = |status: Value| {
        let vmi = valid(&json!({"domain": {"machine": {"type": "q35"}}}), &status);
        let pod = target(&vmi, json!({}), &[], json!({}));
        let types = pod["spec"]["nodeSelector"].as_object().unwrap().keys().cloned();
        types
            .filter_map(|label| label.strip_prefix(MACHINE_TYPE_LABEL).map(str::to_owned))
            .collect::<Vec<_>>()
    };
    assert_eq!(selector(json!({"machine": {"type": "pc-q35-10.0"}})), ["pc-q35-10.0", "q35"]);
    assert_eq!(selector(json!({})), ["q35"]);
}

/// Handlers write the status: none may have a pod of another node open the files of all others.
#[test]
fn it_gets_the_level_of_one_container_alone() {
    let level = |context: &str| {
        let vmi = valid(&json!({"domain": {}}), &json!({"selinuxContext": context}));
        target(&vmi, json!({}), &[], json!({}))["spec"]["securityContext"]["seLinuxOptions"]["level"].clone()
    };
    assert_eq!(level("system_u:object_r:container_file_t:s0:c1,c2"), "s0:c1,c2");
    for other in ["none", "", "s0", "s0:c1", "s0:c1,c1", "s0:c1.c9", "s0:c1,c2,c3", "s0-s0:c0.c1023"] {
        let context = if other == "none" { other.to_owned() } else { format!("a:b:c:{other}") };
        assert_eq!(level(&context), Value::Null, "{context}");
    }
}
