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
mod tests;
