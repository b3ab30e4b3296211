use super::super::target::Own;
use super::super::{MANAGED_BY_LABEL, NAME};
use super::*;
use crate::{INSTALLED, Images};
use barevirt_api::v1::KubeVirtSpec;

fn own() -> Own {
    Own {
        namespace: "kubevirt".into(),
        images: Images::default(),
        digests: [("virt-api", "sha256:a"), ("virt-handler", "sha256:h")]
            .map(|(name, digest)| (name.to_owned(), digest.to_owned()))
            .into(),
        version: "v0".into(),
        architecture: "amd64".into(),
        runbooks: "https://r.example/%s".into(),
    }
}

fn of(spec: Value) -> Vec<Wanted> {
    let spec: KubeVirtSpec = serde_json::from_value(spec).unwrap();
    objects(&Target::of(&spec, &own()).unwrap(), &inputs()).unwrap()
}

fn inputs() -> Inputs {
    Inputs { authorities: "PEM".into(), ..Inputs::default() }
}

#[test]
fn monitoring_objects_are_installed_last() {
    let monitor = Monitor {
        account: "prometheus-k8s".into(),
        namespace: "monitoring".into(),
        objects_in: Some("elsewhere".into()),
        runbooks: "https://r.example/%s".into(),
    };
    let target = Target::of(&KubeVirtSpec::default(), &own()).unwrap();
    let inputs = Inputs { monitor: Some(monitor), ..inputs() };
    let all = objects(&target, &inputs).unwrap();
    let plain = of(json!({}));
    let names: Vec<String> = all[plain.len()..].iter().map(|wanted| wanted.identity.to_string()).collect();
    assert_eq!(
        names,
        [
            "Role kubevirt/kubevirt-monitoring",
            "RoleBinding kubevirt/kubevirt-monitoring",
            "ServiceMonitor elsewhere/prometheus-kubevirt-rules",
            "PrometheusRule kubevirt/prometheus-kubevirt-rules",
        ]
    );
    assert!(all.iter().rev().take(2).all(|wanted| wanted.stage == Stage::Monitoring));
}

#[test]
fn roles_of_kubernetes_take_ours_in_unless_an_administrator_binds_them() {
    let label = |spec: Value| {
        let role = body(&of(spec), Kind::ClusterRole, "kubevirt.io:admin");
        role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-admin"].clone()
    };
    assert_eq!(label(json!({})), "true");
    assert_eq!(label(json!({"configuration": {"roleAggregationStrategy": "Manual"}})), "false");
    assert_eq!(label(json!({"configuration": {"roleAggregationStrategy": "AggregateToDefault"}})), "true");
}

#[test]
fn one_pod_of_a_component_may_be_away() {
    for (replicas, least) in [(2, 1), (3, 2), (5, 4)] {
        let spec = json!({"infra": {"replicas": replicas}});
        let budget = body(&of(spec), Kind::PodDisruptionBudget, "virt-api-pdb");
        assert_eq!(budget["spec"]["minAvailable"], least);
    }
}

/// One webhook decides and fails closed; the other marks the instance, at a secret path.
#[test]
fn an_eviction_is_asked_about_twice() {
    let made = barevirt_component::tls::self_made("virt-api").unwrap();
    let inputs = Inputs { seal: Some(made.seal().clone()), ..inputs() };
    let target = Target::of(&KubeVirtSpec::default(), &own()).unwrap();
    let all = objects(&target, &inputs).unwrap();
    let validator = body(&all, Kind::ValidatingWebhookConfiguration, "virt-api-validator");
    let of_evictions: Vec<&Value> = validator["webhooks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|webhook| webhook["rules"][0]["resources"] == json!(["pods/eviction"]))
        .collect();
    let [decides, marks] = of_evictions[..] else { panic!("{of_evictions:?}") };
    assert_eq!((&decides["failurePolicy"], &decides["sideEffects"]), (&json!("Fail"), &json!("None")));
    assert_eq!((&marks["failurePolicy"], &marks["sideEffects"]), (&json!("Ignore"), &json!("NoneOnDryRun")));
    assert_eq!(marks["matchConditions"], decides["matchConditions"]);
    assert_eq!(marks["clientConfig"]["caBundle"], decides["clientConfig"]["caBundle"]);
    let path = marks["clientConfig"]["service"]["path"].as_str().unwrap();
    assert_eq!(path, format!("/pod-eviction-evacuate/{}", made.seal().as_str()));
}

/// Only launchers with directories from webhooks wait for virt-api, which sees them in the form that is stored.
#[test]
fn the_launcher_webhook_runs_after_other_webhooks() {
    let mutator = body(&of(json!({})), Kind::MutatingWebhookConfiguration, "virt-api-mutator");
    let webhooks = mutator["webhooks"].as_array().unwrap();
    let of_pods: Vec<&Value> =
        webhooks.iter().filter(|webhook| webhook["rules"][0]["resources"] == json!(["pods"])).collect();
    let [webhook] = of_pods[..] else { panic!("{of_pods:?}") };
    assert_eq!(webhook["reinvocationPolicy"], "IfNeeded");
    assert_eq!(webhook["rules"][0]["operations"], json!(["CREATE"]));
    assert_eq!(
        webhook["objectSelector"],
        json!({
            "matchLabels": {"kubevirt.io": "virt-launcher"},
            "matchExpressions": [{"key": "barevirt.dev/container-paths", "operator": "Exists"}],
        })
    );
    let mut others = webhooks.iter().filter(|other| other["rules"][0]["resources"] != json!(["pods"]));
    assert!(others.all(|other| other.get("objectSelector").is_none()));
}

/// Monitoring selects all of them by one label, at one port.
#[test]
fn every_component_has_a_port_for_metrics() {
    for (kind, name) in [
        (Kind::Deployment, "virt-api"),
        (Kind::Deployment, "virt-controller"),
        (Kind::DaemonSet, "virt-handler"),
    ] {
        let template = body(&of(json!({})), kind, name)["spec"]["template"].clone();
        assert_eq!(template["metadata"]["labels"][monitoring::METRICS_LABEL], "true", "{name}");
        let ports = template["spec"]["containers"][0]["ports"].as_array().unwrap().clone();
        assert!(ports.iter().any(|port| port["containerPort"] == 8443), "{name}: {ports:?}");
    }
}

fn body(objects: &[Wanted], kind: Kind, name: &str) -> Value {
    let found = objects.iter().find(|wanted| wanted.identity.kind == kind && wanted.identity.name == name);
    found.unwrap_or_else(|| panic!("{kind:?} {name}")).body.clone()
}

#[test]
fn every_object_of_the_strategy_is_of_a_known_kind() {
    for object in strategy(&Images::default()) {
        let identity = Identity::of(&object);
        let identity = identity.unwrap_or_else(|| panic!("{} {}", object["apiVersion"], object["kind"]));
        assert_eq!(identity.kind.is_namespaced(), identity.namespace.is_some(), "{identity}");
    }
}

#[test]
fn all_are_marked_as_ours() {
    for wanted in of(json!({})) {
        assert_eq!(wanted.body["metadata"]["labels"][MANAGED_BY_LABEL], NAME, "{}", wanted.identity);
        assert_eq!(wanted.body["metadata"]["annotations"][APPLIED_ANNOTATION], wanted.hash);
    }
}

#[test]
fn hashes_follow_contents() {
    let (before, again, after) = (of(json!({})), of(json!({})), of(json!({"infra": {"replicas": 3}})));
    assert_eq!(before, again);
    let changed: Vec<String> = before
        .iter()
        .zip(&after)
        .filter(|(before, after)| before.hash != after.hash)
        .map(|(before, _)| before.identity.to_string())
        .collect();
    let expected = [
        "Deployment kubevirt/virt-controller",
        "PodDisruptionBudget kubevirt/virt-controller-pdb",
        "Deployment kubevirt/virt-api",
        "PodDisruptionBudget kubevirt/virt-api-pdb",
    ];
    assert_eq!(changed, expected);
}

#[test]
fn images_follow_tag_registry_policy_and_secrets() {
    let objects = of(json!({
        "imageTag": "v9", "imageRegistry": "r.example:5000/x", "imagePullPolicy": "Always",
        "imagePullSecrets": [{"name": "mine"}],
    }));
    for (kind, name) in [
        (Kind::Deployment, "virt-api"),
        (Kind::Deployment, "virt-controller"),
        (Kind::DaemonSet, "virt-handler"),
    ] {
        let template = body(&objects, kind, name)["spec"]["template"].clone();
        assert_eq!(template["spec"]["containers"][0]["image"], format!("r.example:5000/x/{name}:v9"));
        assert_eq!(template["spec"]["containers"][0]["imagePullPolicy"], "Always");
        assert_eq!(template["spec"]["imagePullSecrets"], json!([{"name": "mine"}]));
        // The digests are those of the operator's own version.
        assert!(template["metadata"]["annotations"].get(IMAGES_ANNOTATION).is_none());
    }
    let handler = body(&objects, Kind::DaemonSet, "virt-handler");
    let holder = &handler["spec"]["template"]["spec"]["containers"][1];
    assert_eq!(holder["image"], "r.example:5000/x/virt-launcher:v9");
    assert_eq!(holder["imagePullPolicy"], "Always");
    let plain = of(json!({}));
    let containers = &body(&plain, Kind::DaemonSet, "virt-handler")["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers.as_array().map(Vec::len), Some(1));
}

#[test]
fn pods_name_the_build_they_are_made_of() {
    let template = body(&of(json!({})), Kind::Deployment, "virt-api")["spec"]["template"].clone();
    let build = "localhost/barevirt/virt-api:devel@sha256:a";
    assert_eq!(template["metadata"]["annotations"][IMAGES_ANNOTATION], build);
}

#[test]
fn infra_is_for_deployments_and_workloads_for_the_handler() {
    let objects = of(json!({
        "infra": {"replicas": 1, "nodePlacement": {"nodeSelector": {"a": "b"}}},
        "workloads": {"nodePlacement": {"nodeSelector": {"c": "d"}}},
    }));
    let api = body(&objects, Kind::Deployment, "virt-api");
    assert_eq!(api["spec"]["replicas"], 1);
    assert_eq!(api["spec"]["template"]["spec"]["nodeSelector"]["a"], "b");
    let handler = body(&objects, Kind::DaemonSet, "virt-handler");
    let selector = &handler["spec"]["template"]["spec"]["nodeSelector"];
    assert_eq!((selector.get("a"), &selector["c"]), (None, &json!("d")));
    assert!(objects.iter().all(|wanted| wanted.identity.kind != Kind::PodDisruptionBudget));
}

/// Nothing else changes: no port is opened, and no launcher is attached to that network.
#[test]
fn only_handlers_join_the_network_of_migrations_and_another_network_replaces_their_pods() {
    let with = |network: Value| of(json!({"configuration": {"migrations": {"network": network}}}));
    let annotation = |objects: &[Wanted]| {
        let handler = body(objects, Kind::DaemonSet, "virt-handler");
        handler["spec"]["template"]["metadata"]["annotations"][NETWORKS_ANNOTATION].clone()
    };
    let plain = of(json!({}));
    assert_eq!((annotation(&plain), annotation(&with(json!("")))), (Value::Null, Value::Null));
    let (one, other) = (with(json!("migrations")), with(json!("net/other")));
    assert_eq!(annotation(&one), "migrations@migration0");
    assert_eq!(annotation(&other), "net/other@migration0");
    for (before, after) in [(&plain, &one), (&one, &other), (&other, &plain)] {
        let changed: Vec<String> = before
            .iter()
            .zip(after)
            .filter(|(before, after)| before.hash != after.hash)
            .map(|(before, _)| before.identity.to_string())
            .collect();
        assert_eq!(changed, ["DaemonSet kubevirt/virt-handler"]);
    }
    // One node comes first: if the network is not defined, the other nodes keep their handlers.
    let canary = one.iter().find_map(|wanted| wanted.canary.as_ref()).unwrap();
    assert_eq!(
        canary.body["spec"]["template"]["metadata"]["annotations"][NETWORKS_ANNOTATION],
        "migrations@migration0"
    );
}

#[test]
fn callers_of_virt_api_get_the_certificate_bundle() {
    let objects = of(json!({}));
    let mut seen = 0;
    for wanted in objects.iter().filter(|wanted| wanted.stage == Stage::Admission) {
        let count = wanted.body["webhooks"].as_array().map_or(1, Vec::len);
        assert_eq!(wanted.body.to_string().matches("\"caBundle\":\"UEVN\"").count(), count);
        seen += 1;
    }
    assert!(seen >= 4);
}

#[test]
fn a_product_has_its_labels() {
    let objects = of(json!({"productName": "P", "productVersion": "1.2", "productComponent": "virt"}));
    let api = body(&objects, Kind::Deployment, "virt-api");
    for labels in [&api["metadata"]["labels"], &api["spec"]["template"]["metadata"]["labels"]] {
        assert_eq!(labels["app.kubernetes.io/part-of"], "P");
        assert_eq!(labels["app.kubernetes.io/version"], "1.2");
        assert_eq!(labels["app.kubernetes.io/component"], "virt");
    }
    let plain = of(json!({}));
    let api = body(&plain, Kind::Deployment, "virt-api");
    assert_eq!(api["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"], "kubevirt");
    assert!(
        plain.iter().all(|one| one.body["metadata"]["labels"]["app.kubernetes.io/component"] == "kubevirt")
    );
}

/// CDI permits copies that the policy refuses, for example by groups of service accounts.
#[test]
fn the_rule_for_copies_is_installed_only_without_cdi() {
    let target = Target::of(&KubeVirtSpec::default(), &own()).unwrap();
    let names = |cdi: bool| -> Vec<String> {
        let all = objects(&target, &Inputs { cdi, ..inputs() }).unwrap();
        all.iter().map(|wanted| wanted.identity.to_string()).collect()
    };
    let (without, with) = (names(false), names(true));
    let gone: Vec<&String> = without.iter().filter(|name| !with.contains(name)).collect();
    assert_eq!(
        gone,
        [
            "ValidatingAdmissionPolicy kubevirt-datavolume-sources-policy",
            "ValidatingAdmissionPolicyBinding kubevirt-datavolume-sources-binding",
        ]
    );
    assert_eq!(without.len(), with.len() + 2);
}

/// Tools find out by it which pods are new.
#[test]
fn every_object_names_the_installation_whatever_a_patch_takes_away() {
    let patch =
        r#"{"metadata": {"annotations": null}, "spec": {"template": {"metadata": {"annotations": null}}}}"#;
    let spec: KubeVirtSpec = serde_json::from_value(json!({"customizeComponents": {"patches": [
        {"resourceType": "Deployment", "resourceName": "*", "type": "merge", "patch": patch},
    ]}}))
    .unwrap();
    let target = Target::of(&spec, &own()).unwrap();
    let inputs = Inputs { deployment: target.deployment(&own()), ..inputs() };
    let all = objects(&target, &inputs).unwrap();
    let id = &inputs.deployment.id;
    let named = |metadata: &Value| metadata["annotations"]["kubevirt.io/install-strategy-identifier"] == *id;
    assert!(all.iter().all(|one| named(&one.body["metadata"])));
    let pods = all.iter().filter(|one| one.identity.kind.has_pods());
    assert_eq!(pods.filter(|one| named(&one.body["spec"]["template"]["metadata"])).count(), 3);
    let canary = all.iter().find_map(|one| one.canary.as_ref()).unwrap();
    assert!(named(&canary.body["spec"]["template"]["metadata"]));
}

#[test]
fn unsupported_installation_settings_are_named() {
    for (spec, field) in [
        (json!({"infra": {"replicas": 0}}), "spec.infra.replicas"),
        (json!({"imagePullPolicy": "Sometimes"}), "spec.imagePullPolicy"),
        (json!({"productName": "a b"}), "spec.productName"),
        (json!({"imageTag": DIGEST}), "spec.imageTag"),
        (json!({"imageTag": "-v1"}), "spec.imageTag"),
        (json!({"imageRegistry": "r.example/x/"}), "spec.imageRegistry"),
        (json!({"imageRegistry": "r.example/x@sha256"}), "spec.imageRegistry"),
    ] {
        let spec: KubeVirtSpec = serde_json::from_value(spec).unwrap();
        assert_eq!(Target::of(&spec, &own()).unwrap_err()[0].field, field);
    }
}

const DIGEST: &str = "sha256:0123456789012345678901234567890123456789012345678901234567890123";

#[test]
fn images_by_digest_are_what_runs_unless_a_tag_is_asked_for() {
    let mut own = own();
    let reference = |name: &str| format!("r.example/x/{name}@{DIGEST}");
    own.images = Images::beside(&reference("virt-operator"), "v1.2.0", "Always").unwrap();
    for name in INSTALLED {
        own.images.pin(name, &reference(name)).unwrap();
    }
    let made = |spec: Value| {
        let spec: KubeVirtSpec = serde_json::from_value(spec).unwrap();
        let target = Target::of(&spec, &own).unwrap();
        let all = objects(&target, &inputs()).unwrap();
        let controller = body(&all, Kind::Deployment, "virt-controller")["spec"]["template"].clone();
        let container = &controller["spec"]["containers"][0];
        (container["image"].clone(), container["args"][0].clone(), target.deployment(&own))
    };
    let (image, launcher, deployment) = made(json!({}));
    assert_eq!(image, reference("virt-controller"));
    assert_eq!(launcher, format!("--launcher-image={}", reference("virt-launcher")));
    assert_eq!((deployment.version.as_str(), deployment.registry.as_str()), ("v1.2.0", "r.example/x"));
    assert!(deployment.config.contains(DIGEST), "{}", deployment.config);
    let (image, _, mirrored) = made(json!({"imageRegistry": "mirror.example"}));
    assert_eq!(image, format!("mirror.example/virt-controller@{DIGEST}"));
    assert_eq!(mirrored.version, "v1.2.0");
    let (image, launcher, tagged) = made(json!({"imageTag": "v1.3.0"}));
    assert_eq!(image, "r.example/x/virt-controller:v1.3.0");
    assert_eq!(launcher, "--launcher-image=r.example/x/virt-launcher:v1.3.0");
    assert_eq!(tagged.version, "v1.3.0");
    assert!(!tagged.config.contains(DIGEST), "{}", tagged.config);
}

#[test]
fn another_build_is_another_deployment() {
    let target = |own: &Own| Target::of(&KubeVirtSpec::default(), own).unwrap().deployment(own);
    let mut other = own();
    other.digests.insert("virt-api".into(), "sha256:b".into());
    assert_ne!(target(&own()).id, target(&other).id);
    assert_eq!(target(&own()), target(&own()));
}
