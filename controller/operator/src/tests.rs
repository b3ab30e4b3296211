use super::objects::PRIORITY_CLASS;
use super::*;
use barevirt_api::instancetype::VirtualMachineClusterInstancetype;
use barevirt_api::preference::VirtualMachineClusterPreference;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    ValidatingWebhookConfiguration,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Namespace, Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

fn objects() -> Vec<Value> {
    strategy(&Images::default())
}

fn everything() -> Vec<Value> {
    [manifest(&Images::default()), objects()].concat()
}

fn of_kind(kind: &str) -> Vec<Value> {
    objects().into_iter().filter(|object| object["kind"] == kind).collect()
}

fn one(kind: &str, name: &str) -> Value {
    let mut found: Vec<_> =
        of_kind(kind).into_iter().filter(|object| object["metadata"]["name"] == name).collect();
    assert_eq!(found.len(), 1, "{kind} {name}");
    found.remove(0)
}

fn reads_and_writes_the_same<K: DeserializeOwned + Serialize>(object: &Value) {
    let typed: K = serde_json::from_value(object.clone())
        .unwrap_or_else(|error| panic!("{} {}: {error}", object["kind"], object["metadata"]["name"]));
    let again = serde_json::to_value(&typed).unwrap();
    assert_eq!(&without_empty(again), &without_empty(object.clone()));
}

/// Types write an empty list where nothing was given; the comparison ignores it.
fn without_empty(value: Value) -> Value {
    match value {
        Value::Object(members) => Value::Object(
            members
                .into_iter()
                .map(|(name, member)| (name, without_empty(member)))
                .filter(|(_, member)| !member.is_null() && *member != json!([]) && *member != json!({}))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(without_empty).collect()),
        other => other,
    }
}

/// A role's rule on one line.
pub(crate) fn rule_line(rule: &Value) -> String {
    let words = |key: &str| {
        let words: Vec<&str> = rule[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        words.join(",")
    };
    let names = words("resourceNames");
    let named = if names.is_empty() { String::new() } else { format!(" named {names}") };
    format!("{}/{}{named}: {}", words("apiGroups"), words("resources"), words("verbs"))
}

#[test]
fn every_field_is_one_of_its_kind() {
    for object in everything() {
        match object["kind"].as_str().unwrap() {
            "Namespace" => reads_and_writes_the_same::<Namespace>(&object),
            "PriorityClass" => reads_and_writes_the_same::<PriorityClass>(&object),
            "CustomResourceDefinition" => reads_and_writes_the_same::<CustomResourceDefinition>(&object),
            "ServiceAccount" => reads_and_writes_the_same::<ServiceAccount>(&object),
            "ClusterRole" => reads_and_writes_the_same::<ClusterRole>(&object),
            "ClusterRoleBinding" => reads_and_writes_the_same::<ClusterRoleBinding>(&object),
            "Role" => reads_and_writes_the_same::<Role>(&object),
            "RoleBinding" => reads_and_writes_the_same::<RoleBinding>(&object),
            "ValidatingAdmissionPolicy" => reads_and_writes_the_same::<ValidatingAdmissionPolicy>(&object),
            "ValidatingAdmissionPolicyBinding" => {
                reads_and_writes_the_same::<ValidatingAdmissionPolicyBinding>(&object);
            }
            "Deployment" => reads_and_writes_the_same::<Deployment>(&object),
            "DaemonSet" => reads_and_writes_the_same::<DaemonSet>(&object),
            "Service" => reads_and_writes_the_same::<Service>(&object),
            "NetworkPolicy" => reads_and_writes_the_same::<NetworkPolicy>(&object),
            "PodDisruptionBudget" => reads_and_writes_the_same::<PodDisruptionBudget>(&object),
            "MutatingWebhookConfiguration" => {
                reads_and_writes_the_same::<MutatingWebhookConfiguration>(&object);
            }
            "ValidatingWebhookConfiguration" => {
                reads_and_writes_the_same::<ValidatingWebhookConfiguration>(&object);
            }
            "APIService" => reads_and_writes_the_same::<APIService>(&object),
            "VirtualMachineClusterInstancetype" => {
                reads_and_writes_the_same::<VirtualMachineClusterInstancetype>(&object);
            }
            "VirtualMachineClusterPreference" => {
                reads_and_writes_the_same::<VirtualMachineClusterPreference>(&object);
            }
            other => panic!("{other} is not looked at"),
        }
    }
}

#[test]
fn no_object_comes_twice() {
    let mut seen = BTreeSet::new();
    for object in everything() {
        let identity =
            format!("{} {}/{}", object["kind"], object["metadata"]["namespace"], object["metadata"]["name"]);
        assert!(seen.insert(identity.clone()), "{identity}");
    }
}

#[test]
fn referenced_objects_are_installed_first() {
    let objects = everything();
    let place = |kind: &str, name: &str| {
        objects
            .iter()
            .position(|object| object["kind"] == kind && object["metadata"]["name"] == name)
            .unwrap()
    };
    assert!(place("Namespace", "kubevirt") < place("ServiceAccount", "kubevirt-handler"));
    assert!(place("ServiceAccount", "kubevirt-handler") < place("DaemonSet", "virt-handler"));
    assert!(place("PriorityClass", PRIORITY_CLASS) < place("Deployment", "virt-api"));
    assert!(place("Service", "virt-api") < place("ValidatingWebhookConfiguration", "virt-api-validator"));
}

/// The rights of each component. A change means that a stolen token is worth more or less. Roles for users have their own
/// table (`user_roles`).
#[test]
fn roles() {
    let mut roles = BTreeMap::new();
    for kind in ["ClusterRole", "Role"] {
        for role in of_kind(kind) {
            let name = role["metadata"]["name"].as_str().unwrap();
            if name.contains(':') {
                continue;
            }
            let rules: Vec<String> = role["rules"].as_array().unwrap().iter().map(rule_line).collect();
            roles.insert(format!("{kind} {name}"), rules);
        }
    }
    let text: String =
        roles.into_iter().map(|(role, rules)| format!("{role}\n  {}\n", rules.join("\n  "))).collect();
    insta::assert_snapshot!("roles", text);
}

#[test]
fn no_role_has_wildcards() {
    for kind in ["ClusterRole", "Role"] {
        for role in of_kind(kind) {
            assert!(!role["rules"].to_string().contains('*'), "{}", role["metadata"]["name"]);
        }
    }
}

#[test]
fn the_handler_reads_no_secret_and_no_config_map() {
    let rules = one("ClusterRole", "kubevirt-handler")["rules"].to_string();
    assert!(!rules.contains("secrets") && !rules.contains("configmaps"), "{rules}");
    assert!(of_kind("Role").iter().all(|role| role["metadata"]["name"] != "kubevirt-handler"));
}

#[test]
fn secrets_are_granted_by_name_and_in_one_namespace_only() {
    for role in of_kind("ClusterRole") {
        assert!(!role["rules"].to_string().contains("\"secrets\""), "{}", role["metadata"]["name"]);
    }
    for role in of_kind("Role") {
        for rule in role["rules"].as_array().unwrap() {
            if rule["resources"].to_string().contains("secrets") {
                assert!(rule["resourceNames"].is_array());
            }
        }
    }
}

#[test]
fn only_the_handler_is_privileged() {
    for (kind, name) in [("Deployment", "virt-controller"), ("Deployment", "virt-api")] {
        let spec = one(kind, name)["spec"]["template"]["spec"].clone();
        let context = &spec["containers"][0]["securityContext"];
        assert_eq!(context["runAsNonRoot"], true);
        assert_eq!(context["capabilities"]["drop"], json!(["ALL"]));
        assert_eq!(context["seccompProfile"]["type"], "RuntimeDefault");
        assert!(spec.get("hostPID").is_none());
        assert!(!spec["volumes"].to_string().contains("hostPath"));
    }
    let spec = one("DaemonSet", "virt-handler")["spec"]["template"]["spec"].clone();
    assert_eq!(spec["hostPID"], true);
    assert_eq!(spec["containers"][0]["securityContext"]["privileged"], true);
    // It has nothing that it can do without.
    for container in [&spec["containers"][0], &spec["initContainers"][0]] {
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        let limits = &container["resources"]["limits"];
        assert!(limits["memory"].is_string() && limits["cpu"].is_string(), "{limits}");
    }
}

#[test]
fn selectors_find_their_pods() {
    for kind in ["Deployment", "DaemonSet"] {
        for workload in of_kind(kind) {
            let labels = &workload["spec"]["template"]["metadata"]["labels"];
            for (label, value) in workload["spec"]["selector"]["matchLabels"].as_object().unwrap() {
                assert_eq!(&labels[label], value);
            }
            for mount in workload["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
                .as_array()
                .into_iter()
                .flatten()
            {
                let volumes = workload["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
                assert!(volumes.iter().any(|volume| volume["name"] == mount["name"]), "{mount}");
            }
        }
    }
}

#[test]
fn webhooks_name_the_deciding_service_and_fail_closed() {
    for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
        for configuration in of_kind(kind) {
            for webhook in configuration["webhooks"].as_array().unwrap() {
                assert_eq!(webhook["failurePolicy"], "Fail");
                assert_eq!(webhook["timeoutSeconds"], 10);
                // virt-api must not decide about the object that can repair it.
                let own = configuration["metadata"]["name"] == "virt-operator-validator";
                let asked = if own { "kubevirt-operator-webhook" } else { "virt-api" };
                assert_eq!(webhook["clientConfig"]["service"]["name"], asked);
                assert!(webhook["clientConfig"].get("caBundle").is_none(), "the operator writes it");
            }
        }
    }
}

/// Requests that no rule concerns do not wait for virt-api.
#[test]
fn webhooks_ask_only_where_they_must() {
    let conditions: BTreeMap<String, String> = of_kind("ValidatingWebhookConfiguration")
        .iter()
        .flat_map(|configuration| configuration["webhooks"].as_array().unwrap().clone())
        .filter_map(|webhook| {
            let condition = webhook["matchConditions"][0]["expression"].as_str()?.to_owned();
            Some((webhook["name"].as_str().unwrap().to_owned(), condition))
        })
        .collect();
    let of = |name: &str| conditions[&format!("{name}.kubevirt.io")].clone();
    assert_eq!(conditions.len(), 3);
    assert_eq!(
        of("virt-launcher-eviction-interceptor"),
        "object.metadata.name.startsWith(\"virt-launcher\") || object.metadata.name.startsWith(\"hp-volume-\")"
    );
    for name in ["kubevirt-crd-status-validator", "kubevirt-update-validator"] {
        let condition = of(name);
        assert!(condition.starts_with("!(request.userInfo.username in ["), "{condition}");
        for account in ["apiserver", "controller", "handler", "operator"] {
            assert!(condition.contains(&format!("'system:serviceaccount:kubevirt:kubevirt-{account}'")));
        }
    }
}

#[test]
fn image_names_follow_registry_and_tag() {
    let mut images = Images {
        registry: "r.example:5000/x".into(),
        tag: "v1".into(),
        pull_policy: "Always".into(),
        ..Images::default()
    };
    let text = yaml::print(&[strategy(&images), manifest(&images)].concat()).unwrap();
    for name in INSTALLED.into_iter().chain(["virt-operator"]) {
        assert!(text.contains(&format!("r.example:5000/x/{name}:v1")), "{name}");
    }
    assert!(!text.contains("localhost/") && !text.contains(":devel"));
    assert!(text.contains("imagePullPolicy: Always"));
    // Images that are named by digest have no tag.
    let names = INSTALLED.iter().chain(["virt-operator"].iter());
    let digest = format!("sha256:{}", "0".repeat(64));
    for name in names {
        images.pin(name, &format!("r.example:5000/x/{name}@{digest}")).unwrap();
    }
    let text = yaml::print(&[strategy(&images), manifest(&images)].concat()).unwrap();
    let named: Vec<&str> = text.lines().filter(|line| line.contains("r.example:5000")).collect();
    // Four components, launcher, passt, importer and operator, and the operator's variables for all of them.
    assert_eq!(named.len(), 15, "{named:?}");
    assert!(named.iter().all(|line| line.contains(&digest)), "{named:?}");
    assert!(text.contains("name: KUBEVIRT_VERSION\n          value: v1\n"));
}

#[test]
fn the_yaml_reads_as_what_was_printed() {
    let objects = objects();
    let text = yaml::print(&objects).unwrap();
    let documents: Vec<&str> = text.split("\n---\n").skip(1).collect();
    assert_eq!(documents.len(), objects.len());
    for (document, object) in documents.iter().zip(&objects) {
        let read: Value = serde_saphyr::from_str(document).unwrap();
        assert_eq!(&read, object);
    }
}

#[test]
fn the_committed_manifests_are_these() {
    let images = Images::default();
    let mut files = vec![
        ("barevirt-operator.yaml".to_owned(), yaml::print(&manifest(&images)).unwrap()),
        ("barevirt-cr.yaml".to_owned(), yaml::print(&[kubevirt()]).unwrap()),
        ("cloud-images.yaml".to_owned(), yaml::print(&catalogue()).unwrap()),
    ];
    let chart = chart::files(chart::DEVEL, &images).unwrap();
    files.extend(chart.into_iter().map(|(path, text)| (format!("chart/{path}"), text)));
    for (name, text) in files {
        let file = format!("{}/../../manifests/{name}", env!("CARGO_MANIFEST_DIR"));
        let committed = std::fs::read_to_string(file).unwrap_or_default();
        assert!(committed == text, "manifests/{name} is not what the sources say: run `make manifests`");
    }
}

/// The installed objects, except definitions, which have golden files beside their types.
#[test]
fn installed_objects() {
    let objects: Vec<Value> =
        objects().into_iter().filter(|object| object["kind"] != "CustomResourceDefinition").collect();
    insta::assert_snapshot!("installed", yaml::print(&objects).unwrap());
}

#[test]
fn the_kubevirt_object_asks_for_what_can_be_had() {
    use barevirt_api::v1::KubeVirt;
    let read: KubeVirt = serde_json::from_value(kubevirt()).unwrap();
    assert_eq!(serde_json::to_value(&read.spec).unwrap(), kubevirt()["spec"]);
}

/// Admission accepts each example with its defaults.
#[test]
fn examples_are_valid() {
    use barevirt_api::v1::{VirtualMachine, VirtualMachineInstance};
    use barevirt_api::{defaults, validate};
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            // Folders contain examples of other kinds, which tests of virt-api cover.
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let value: Value = serde_saphyr::from_str(&text).unwrap();
        let causes = match value["kind"].as_str().unwrap() {
            "VirtualMachine" => {
                // With the instance type and the preference that it names, if any.
                let vm: VirtualMachine = serde_json::from_value(value).unwrap();
                crate::instancetypes::tests::causes(vm)
            }
            "VirtualMachineInstancetype" => {
                let object: barevirt_api::instancetype::VirtualMachineInstancetype =
                    serde_json::from_value(value).unwrap();
                validate::kinds::instancetype::validate(&object.spec)
            }
            "VirtualMachineInstance" => {
                let mut vmi: VirtualMachineInstance = serde_json::from_value(value).unwrap();
                defaults::vmi(&mut vmi);
                validate::vmi_create(&vmi, validate::Requester::User, &barevirt_api::gates::Gates::default())
            }
            other => panic!("{other} in {}", path.display()),
        };
        assert!(causes.is_empty(), "{}: {causes:?}", path.display());
        count += 1;
    }
    assert!(count >= 4);
}
