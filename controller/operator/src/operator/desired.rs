//! The objects that should be in the cluster, each with its stage and a hash of its contents.

use super::kind::{Identity, Kind};
use super::target::{Deployment, Product, Refused, Target, hash};
use super::wanted::{Form, Stage, Wanted};
use super::{APPLIED_ANNOTATION, IMAGES_ANNOTATION, canary, customize, identify, placement, rule_of_copies};
use crate::images::Reference;
use crate::monitoring::{self, Monitor};
use crate::user_roles::AGGREGATE_TO;
use crate::workloads::unprivileged;
use crate::{strategy, webhooks};
use barevirt_api::networks::{MIGRATION_LINK, NETWORKS_ANNOTATION};
use barevirt_api::webhooks::Configuration;
use barevirt_component::certificates::Seal;
use k8s_openapi::ByteString;
use serde_json::{Value, json};

/// Inputs of an installation beside its target.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Inputs {
    /// The authorities by which our servers are recognised, PEM.
    pub authorities: String,
    /// The seal by which virt-api recognises the API server; `None` before it has a certificate.
    pub seal: Option<Seal>,
    /// The monitoring stack, if there is one.
    pub monitor: Option<Monitor>,
    /// What objects and pods name as the installation that they are of.
    pub deployment: Deployment,
    /// Whether CDI serves DataVolumes.
    pub cdi: bool,
}

/// Value of the label `app.kubernetes.io/component`, unless the product has another one.
const COMPONENT: &str = "kubevirt";

/// All objects for that target.
pub fn objects(target: &Target, inputs: &Inputs) -> Result<Vec<Wanted>, Vec<Refused>> {
    let authorities = &inputs.authorities;
    let mut objects: Vec<(Identity, Value)> = strategy(&target.images)
        .into_iter()
        .chain(inputs.monitor.iter().flat_map(monitoring::objects))
        .filter_map(|object| Some((Identity::of(&object)?, object)))
        .filter(|(identity, _)| is_wanted(identity, target))
        .filter(|(identity, _)| !inputs.cdi || !rule_of_copies::is_part(identity))
        .collect();
    for (identity, object) in &mut objects {
        match identity.kind {
            Kind::Deployment => {
                object["spec"]["replicas"] = json!(target.replicas);
                place(object, target.infra.as_ref());
                pull(object, target);
            }
            Kind::DaemonSet => {
                place(object, target.workloads.as_ref());
                hold_images(object, target);
                join_migrations(object, target);
                pull(object, target);
            }
            Kind::MutatingWebhookConfiguration | Kind::ValidatingWebhookConfiguration => {
                if identity.name == Configuration::Validator.name()
                    && let Some(webhooks) = object["webhooks"].as_array_mut()
                {
                    webhooks.extend(inputs.seal.as_ref().and_then(webhooks::evacuation));
                }
                for webhook in object["webhooks"].as_array_mut().into_iter().flatten() {
                    webhook["clientConfig"]["caBundle"] = bundle(authorities);
                }
            }
            Kind::ApiService => object["spec"]["caBundle"] = bundle(authorities),
            Kind::ClusterRole if !target.aggregate_roles => keep_apart(object),
            // One pod of each may be away.
            Kind::PodDisruptionBudget => {
                object["spec"]["minAvailable"] = json!(target.replicas.saturating_sub(1));
            }
            Kind::CustomResourceDefinition
            | Kind::ServiceAccount
            | Kind::ClusterRole
            | Kind::ClusterRoleBinding
            | Kind::Role
            | Kind::RoleBinding
            | Kind::ValidatingAdmissionPolicy
            | Kind::ValidatingAdmissionPolicyBinding
            | Kind::Service
            | Kind::NetworkPolicy
            | Kind::ClusterInstancetype
            | Kind::ClusterPreference
            | Kind::ServiceMonitor
            | Kind::PrometheusRule => {}
        }
        name_product(object, &target.product);
    }
    customize::apply(&mut objects, &target.customize)?;
    let finished = |(identity, body)| finished(identity, body, &inputs.deployment);
    Ok(objects.into_iter().map(finished).collect())
}

fn is_wanted(identity: &Identity, target: &Target) -> bool {
    match identity.kind {
        // With one replica, a budget that keeps one pod would block every drain.
        Kind::PodDisruptionBudget => target.replicas > 1,
        Kind::ClusterInstancetype | Kind::ClusterPreference => target.instancetypes,
        Kind::CustomResourceDefinition
        | Kind::ServiceAccount
        | Kind::ClusterRole
        | Kind::ClusterRoleBinding
        | Kind::Role
        | Kind::RoleBinding
        | Kind::ValidatingAdmissionPolicy
        | Kind::ValidatingAdmissionPolicyBinding
        | Kind::Service
        | Kind::NetworkPolicy
        | Kind::Deployment
        | Kind::DaemonSet
        | Kind::MutatingWebhookConfiguration
        | Kind::ValidatingWebhookConfiguration
        | Kind::ApiService
        | Kind::ServiceMonitor
        | Kind::PrometheusRule => true,
    }
}

/// The roles of Kubernetes take in only roles whose label is `true`. As in KubeVirt, the label stays.
fn keep_apart(role: &mut Value) {
    let labels = role.pointer_mut("/metadata/labels").and_then(Value::as_object_mut);
    for (name, value) in labels.into_iter().flatten() {
        if name.starts_with(AGGREGATE_TO) {
            *value = json!("false");
        }
    }
}

fn bundle(authorities: &str) -> Value {
    json!(ByteString(authorities.as_bytes().to_vec()))
}

fn place(workload: &mut Value, placement: Option<&barevirt_api::v1::NodePlacement>) {
    if let Some(placement) = placement {
        placement::place(&mut workload["spec"]["template"]["spec"], placement);
    }
}

/// If the images of launcher pods need credentials, virt-handler's pod pulls them with its own and keeps them on the node:
/// so namespaces of machines need no copies of the secrets, which any user there could use.
fn hold_images(handler: &mut Value, target: &Target) {
    if target.pull_secrets.is_empty() {
        return;
    }
    let containers = &mut handler["spec"]["template"]["spec"]["containers"];
    if let Some(containers) = containers.as_array_mut() {
        containers.extend(["virt-launcher", "virt-passt"].map(|image| {
            json!({
                "name": format!("{image}-image-holder"),
                "image": target.images.reference(image),
                "imagePullPolicy": target.images.pull_policy,
                "command": ["/usr/bin/virt-launcher", "hold"],
                "resources": {"requests": {"cpu": "1m", "memory": "4Mi"}, "limits": {"memory": "20Mi"}},
                "securityContext": unprivileged(),
            })
        }));
    }
}

/// Attaches handlers, and no other component, to the network for migrations. The link has the same name in each pod.
fn join_migrations(handler: &mut Value, target: &Target) {
    if let Some(network) = &target.migration_network {
        let annotations = &mut handler["spec"]["template"]["metadata"]["annotations"];
        annotations[NETWORKS_ANNOTATION] = json!(format!("{network}@{MIGRATION_LINK}"));
    }
}

/// Adds pull secrets, and the digests of the images.
fn pull(workload: &mut Value, target: &Target) {
    let template = &mut workload["spec"]["template"];
    if !target.pull_secrets.is_empty() {
        let secrets: Vec<Value> = target.pull_secrets.iter().map(|name| json!({"name": name})).collect();
        template["spec"]["imagePullSecrets"] = json!(secrets);
    }
    let mut builds: Vec<String> = ["initContainers", "containers"]
        .iter()
        .filter_map(|list| template["spec"][*list].as_array())
        .flatten()
        .filter_map(|container| container["image"].as_str())
        .filter_map(|image| Some(format!("{image}@{}", target.digests.get(image_name(image))?)))
        .collect();
    builds.sort();
    builds.dedup();
    if !builds.is_empty() {
        template["metadata"]["annotations"][IMAGES_ANNOTATION] = json!(builds.join(" "));
    }
}

/// The last part of a reference, without its tag or digest.
fn image_name(reference: &str) -> &str {
    Reference::read(reference).map_or("", |reference| reference.name)
}

fn name_product(object: &mut Value, product: &Product) {
    let component = product.component.as_deref().unwrap_or(COMPONENT);
    for (label, value) in [
        ("app.kubernetes.io/part-of", product.name.as_deref()),
        ("app.kubernetes.io/version", product.version.as_deref()),
        ("app.kubernetes.io/component", Some(component)),
    ] {
        let Some(value) = value else { continue };
        object["metadata"]["labels"][label] = json!(value);
        if object["spec"]["template"]["spec"]["containers"].is_array() {
            object["spec"]["template"]["metadata"]["labels"][label] = json!(value);
        }
    }
}

/// The completed object.
fn finished(identity: Identity, mut body: Value, deployment: &Deployment) -> Wanted {
    // A patch of the user's cannot take this away.
    identify::identify(identity.kind, &mut body, deployment);
    let canary = canary::form(identity.kind, &body).map(marked);
    let Form { hash, body } = marked(body);
    Wanted { stage: Stage::of(&identity), identity, hash, body, canary }
}

/// Marks contents as applied by us.
fn marked(mut body: Value) -> Form {
    let hash = hash(&body.to_string());
    body["metadata"]["annotations"][APPLIED_ANNOTATION] = json!(hash);
    Form { hash, body }
}

#[cfg(test)]
mod tests {
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
        let names: Vec<String> =
            all[plain.len()..].iter().map(|wanted| wanted.identity.to_string()).collect();
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
        assert_eq!(
            label(json!({"configuration": {"roleAggregationStrategy": "AggregateToDefault"}})),
            "true"
        );
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
        assert_eq!(
            (&marks["failurePolicy"], &marks["sideEffects"]),
            (&json!("Ignore"), &json!("NoneOnDryRun"))
        );
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
        let found =
            objects.iter().find(|wanted| wanted.identity.kind == kind && wanted.identity.name == name);
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
        let containers =
            &body(&plain, Kind::DaemonSet, "virt-handler")["spec"]["template"]["spec"]["containers"];
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
            plain
                .iter()
                .all(|one| one.body["metadata"]["labels"]["app.kubernetes.io/component"] == "kubevirt")
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
        let patch = r#"{"metadata": {"annotations": null}, "spec": {"template": {"metadata": {"annotations": null}}}}"#;
        let spec: KubeVirtSpec = serde_json::from_value(json!({"customizeComponents": {"patches": [
            {"resourceType": "Deployment", "resourceName": "*", "type": "merge", "patch": patch},
        ]}}))
        .unwrap();
        let target = Target::of(&spec, &own()).unwrap();
        let inputs = Inputs { deployment: target.deployment(&own()), ..inputs() };
        let all = objects(&target, &inputs).unwrap();
        let id = &inputs.deployment.id;
        let named =
            |metadata: &Value| metadata["annotations"]["kubevirt.io/install-strategy-identifier"] == *id;
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
}
