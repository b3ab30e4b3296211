//! KubeVirt's annotations and labels that say which installation an object, or a component's pod, is of.
//!
//! | what | objects | pods of components | its value |
//! |---|---|---|---|
//! | `kubevirt.io/install-strategy-identifier` | yes | yes | the status' deployment ID |
//! | `kubevirt.io/install-strategy-version`, `-registry` | yes | yes | tag and registry of the images |
//! | label `app.kubernetes.io/managed-by` | yes | yes | `virt-operator` |
//! | `kubevirt.io/generation` | yes | no | generation of the `KubeVirt` object |
//!
//! The identifier changes with the version, the images or how they are pulled, so pods are replaced only then. KubeVirt
//! writes all objects again for each generation. Here an object has the generation that its contents were last written for:
//! a change that concerns no object causes no write.

use super::kind::Kind;
use super::target::Deployment;
use super::{GENERATION_ANNOTATION, MANAGED_BY_LABEL, NAME};
use serde_json::{Value, json};
use std::borrow::Cow;

/// Identifier of the installation.
const IDENTIFIER_ANNOTATION: &str = "kubevirt.io/install-strategy-identifier";
/// Tag of its images.
const VERSION_ANNOTATION: &str = "kubevirt.io/install-strategy-version";
/// Registry of its images.
const REGISTRY_ANNOTATION: &str = "kubevirt.io/install-strategy-registry";

/// Marks an object, and the pods that it makes, as parts of that installation.
pub(super) fn identify(kind: Kind, object: &mut Value, deployment: &Deployment) {
    object["metadata"]["labels"][MANAGED_BY_LABEL] = json!(NAME);
    annotate(&mut object["metadata"]["annotations"], deployment);
    if kind.has_pods() {
        let pods = &mut object["spec"]["template"]["metadata"];
        pods["labels"][MANAGED_BY_LABEL] = json!(NAME);
        annotate(&mut pods["annotations"], deployment);
    }
}

fn annotate(annotations: &mut Value, deployment: &Deployment) {
    for (annotation, text) in [
        (IDENTIFIER_ANNOTATION, &deployment.id),
        (VERSION_ANNOTATION, &deployment.version),
        (REGISTRY_ANNOTATION, &deployment.registry),
    ] {
        annotations[annotation] = json!(text);
    }
}

/// The contents as they are written for that generation; unchanged where it is not known.
pub(super) fn for_generation<'a>(body: &'a Value, generation: Option<&str>) -> Cow<'a, Value> {
    let Some(generation) = generation else { return Cow::Borrowed(body) };
    let mut body = body.clone();
    body["metadata"]["annotations"][GENERATION_ANNOTATION] = json!(generation);
    Cow::Owned(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment() -> Deployment {
        Deployment {
            id: "a1".into(),
            config: "{}".into(),
            version: "v1".into(),
            registry: "r.example/x".into(),
        }
    }

    fn marks() -> Value {
        json!({IDENTIFIER_ANNOTATION: "a1", VERSION_ANNOTATION: "v1", REGISTRY_ANNOTATION: "r.example/x"})
    }

    #[test]
    fn pods_of_components_say_which_installation_they_are_of_and_other_templates_are_left_alone() {
        let template =
            || json!({"spec": {"template": {"metadata": {"labels": {"kubevirt.io": "virt-api"}}}}});
        let mut api = template();
        identify(Kind::Deployment, &mut api, &deployment());
        assert_eq!(api["metadata"], json!({"labels": {MANAGED_BY_LABEL: NAME}, "annotations": marks()}));
        let pods = &api["spec"]["template"]["metadata"];
        assert_eq!(pods["labels"], json!({"kubevirt.io": "virt-api", MANAGED_BY_LABEL: NAME}));
        assert_eq!(pods["annotations"], marks());
        // A pod has no generation: each change of it would replace the pod.
        assert!(!api.to_string().contains(GENERATION_ANNOTATION));

        let mut other = template();
        identify(Kind::CustomResourceDefinition, &mut other, &deployment());
        assert_eq!(other["spec"], template()["spec"]);
        assert_eq!(other["metadata"]["annotations"], marks());
    }

    #[test]
    fn a_generation_is_added_to_what_is_written_and_to_nothing_else() {
        let body = json!({"metadata": {"annotations": {"a": "b"}}, "spec": {"template": {}}});
        let written = for_generation(&body, Some("7"));
        assert_eq!(written["metadata"]["annotations"], json!({"a": "b", GENERATION_ANNOTATION: "7"}));
        assert_eq!(written["spec"], body["spec"]);
        assert_eq!(*for_generation(&body, None), body);
    }
}
