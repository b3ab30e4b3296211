//! What is installed: the objects of a release's manifests. Pure except for reading the files.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

/// The manifests that this program was built with, in a release: those of virt-operator and of the `KubeVirt` object.
const EMBEDDED: Option<[&str; 2]> = include!(concat!(env!("OUT_DIR"), "/manifests.rs"));
/// Names of these files in a release.
const FILES: [&str; 2] = ["barevirt-operator.yaml", "barevirt-cr.yaml"];
/// Name of the operator's deployment.
const OPERATOR: &str = "virt-operator";
/// Largest file, in bytes.
const LARGEST: u64 = 8 << 20;
/// Kinds that a manifest may contain: API, kind, plural, and whether they are namespaced.
const KINDS: [(&str, &str, &str, bool); 14] = [
    ("v1", "Namespace", "namespaces", false),
    ("v1", "ServiceAccount", "serviceaccounts", true),
    ("v1", "Service", "services", true),
    ("v1", "ConfigMap", "configmaps", true),
    ("v1", "Secret", "secrets", true),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", false),
    ("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", false),
    ("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", false),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings", false),
    ("rbac.authorization.k8s.io/v1", "Role", "roles", true),
    ("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings", true),
    ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", true),
    ("apps/v1", "Deployment", "deployments", true),
    ("kubevirt.io/v1", "KubeVirt", "kubevirts", true),
];

/// Where an object is in the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// Path of its list, to which it is posted.
    pub(super) list: String,
    /// Its own path.
    pub(super) object: String,
}

/// An object of the manifest.
#[derive(Debug, Clone)]
pub(super) struct Object {
    pub(super) value: Value,
    pub(super) place: Place,
}

impl Object {
    fn new(value: Value) -> anyhow::Result<Self> {
        let place = place(&value)?;
        Ok(Self { value, place })
    }

    pub(super) fn is(&self, kind: &str) -> bool {
        self.value["kind"] == kind
    }

    /// Kind, namespace and name, for people.
    pub(super) fn name(&self) -> String {
        let text = |at: &str| self.value.pointer(at).and_then(Value::as_str).unwrap_or_default();
        match text("/metadata/namespace") {
            "" => format!("{} {}", text("/kind"), text("/metadata/name")),
            namespace => format!("{} {namespace}/{}", text("/kind"), text("/metadata/name")),
        }
    }
}

fn place(object: &Value) -> anyhow::Result<Place> {
    let text = |at: &str| object.pointer(at).and_then(Value::as_str).unwrap_or_default();
    let (api, kind, name) = (text("/apiVersion"), text("/kind"), text("/metadata/name"));
    let known = KINDS.iter().find(|known| (known.0, known.1) == (api, kind));
    let Some((_, _, plural, in_namespace)) = known else {
        bail!("{kind:?} of {api:?} is not a kind of an installation");
    };
    let namespace = text("/metadata/namespace");
    for part in [name, if *in_namespace { namespace } else { "some" }] {
        let is_name = !part.is_empty()
            && part.chars().all(|letter| {
                letter.is_ascii_lowercase() || letter.is_ascii_digit() || ".:-".contains(letter)
            });
        ensure!(is_name, "{kind} {namespace:?} {name:?} has no valid name");
    }
    let group = if api.contains('/') { format!("/apis/{api}") } else { format!("/api/{api}") };
    let list = match in_namespace {
        true => format!("{group}/namespaces/{namespace}/{plural}"),
        false => format!("{group}/{plural}"),
    };
    Ok(Place { object: format!("{list}/{name}"), list })
}

/// A release's objects.
#[derive(Debug)]
pub(super) struct Bundle {
    /// In the order in which they are made: everything that virt-operator's deployment needs, and the
    /// deployment.
    pub(super) objects: Vec<Object>,
    /// What virt-operator is to install, if the files say it.
    pub(super) kubevirt: Option<Object>,
    /// Version that virt-operator installs, such as `v0.1.0`.
    pub(super) version: String,
}

impl Bundle {
    /// From files and folders; from this program if none are named.
    pub(super) fn load(from: &[PathBuf]) -> anyhow::Result<Self> {
        if from.is_empty() {
            let Some(texts) = EMBEDDED else {
                bail!(
                    "this virtctl is not from a release and has no manifests: name those of a release, --from FILE or --from FOLDER"
                );
            };
            return Self::of_texts(&texts);
        }
        let mut texts = Vec::new();
        for path in from {
            match path.is_dir() {
                true => {
                    texts.push(text(&path.join(FILES[0]))?);
                    let kubevirt = path.join(FILES[1]);
                    if kubevirt.exists() {
                        texts.push(text(&kubevirt)?);
                    }
                }
                false => texts.push(text(path)?),
            }
        }
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        Self::of_texts(&texts)
    }

    /// From the text of manifests.
    pub(super) fn of_texts(texts: &[&str]) -> anyhow::Result<Self> {
        let mut objects = Vec::new();
        for text in texts {
            let documents: Vec<Value> =
                serde_saphyr::from_multiple(text).context("the manifest is not YAML")?;
            for document in documents.into_iter().filter(|document| !document.is_null()) {
                objects.push(Object::new(document).context("the manifest")?);
            }
        }
        let (mut kubevirts, objects): (Vec<Object>, Vec<Object>) =
            objects.into_iter().partition(|object| object.is("KubeVirt"));
        ensure!(
            kubevirts.len() < 2,
            "the manifest has {} KubeVirt objects; there can be only one",
            kubevirts.len()
        );
        let operator = objects
            .iter()
            .find(|object| object.is("Deployment") && object.value["metadata"]["name"] == OPERATOR);
        let operator =
            operator.context("the manifest has no deployment of virt-operator: name that of a release")?;
        let version = version(&operator.value)
            .with_context(|| format!("{} names its image without a version", operator.name()))?;
        Ok(Self { version, kubevirt: kubevirts.pop(), objects })
    }
}

fn text(path: &Path) -> anyhow::Result<String> {
    let told = || format!("read {}", path.display());
    let size = std::fs::metadata(path).with_context(told)?.len();
    ensure!(size <= LARGEST, "{} has more than {LARGEST} bytes", path.display());
    std::fs::read_to_string(path).with_context(told)
}

/// The version that virt-operator installs: the tag of its image, or a variable if the image has a digest.
pub(super) fn version(deployment: &Value) -> Option<String> {
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let variables = container["env"].as_array().into_iter().flatten();
    let variable = |name: &str| {
        let mut variables = variables.clone();
        variables.find(|variable| variable["name"] == name)?["value"].as_str().map(str::to_owned)
    };
    if let Some(version) = variable("KUBEVIRT_VERSION") {
        return Some(version);
    }
    let image = variable("VIRT_OPERATOR_IMAGE").or_else(|| container["image"].as_str().map(str::to_owned))?;
    let last = image.rsplit('/').next().unwrap_or_default();
    match last.split_once('@') {
        Some(_) => None,
        None => last.split_once(':').map(|(_, tag)| tag.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const OURS: [&str; 2] = [
        include_str!("../../../manifests/barevirt-operator.yaml"),
        include_str!("../../../manifests/barevirt-cr.yaml"),
    ];

    #[test]
    fn the_repository_s_manifests_are_understood_whole() {
        let bundle = Bundle::of_texts(&OURS).unwrap();
        assert_eq!(bundle.version, "devel");
        let kinds: Vec<&str> =
            bundle.objects.iter().map(|object| object.value["kind"].as_str().unwrap()).collect();
        assert_eq!(
            (kinds[0], kinds[1], *kinds.last().unwrap()),
            ("Namespace", "CustomResourceDefinition", "Deployment")
        );
        let kubevirt = bundle.kubevirt.unwrap();
        assert_eq!(kubevirt.place.object, "/apis/kubevirt.io/v1/namespaces/kubevirt/kubevirts/kubevirt");
        assert_eq!(kubevirt.name(), "KubeVirt kubevirt/kubevirt");
        let paths: std::collections::BTreeSet<&str> =
            bundle.objects.iter().map(|object| object.place.object.as_str()).collect();
        assert_eq!(paths.len(), bundle.objects.len());
        assert!(paths.contains("/apis/rbac.authorization.k8s.io/v1/clusterroles/kubevirt.io:operator"));
        assert!(paths.contains("/api/v1/namespaces/kubevirt"));
    }

    #[test]
    fn a_folder_has_both_files_or_the_first() {
        let folder = tempfile::tempdir().unwrap();
        assert!(
            Bundle::load(&[folder.path().to_owned()])
                .unwrap_err()
                .to_string()
                .contains("barevirt-operator.yaml")
        );
        std::fs::write(folder.path().join(FILES[0]), OURS[0]).unwrap();
        assert!(Bundle::load(&[folder.path().to_owned()]).unwrap().kubevirt.is_none());
        std::fs::write(folder.path().join(FILES[1]), OURS[1]).unwrap();
        assert!(Bundle::load(&[folder.path().to_owned()]).unwrap().kubevirt.is_some());
    }

    #[test]
    fn manifests_without_an_installation_are_refused() {
        let refused = |text: &str| format!("{:#}", Bundle::of_texts(&[text]).unwrap_err());
        assert!(refused("a: [").contains("not YAML"));
        assert!(refused("{}").contains("not a kind"));
        assert!(refused("{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: b}}").contains("Pod"));
        assert!(
            refused("{apiVersion: v1, kind: Namespace, metadata: {name: kubevirt}}")
                .contains("virt-operator")
        );
        let stranger = "{apiVersion: v1, kind: Secret, metadata: {name: '../../nodes/a', namespace: b}}";
        assert!(refused(stranger).contains("no valid name"));
        assert!(refused(&OURS.concat().replace("kind: Deployment", "kind: Service")).contains("not a kind"));
        assert!(
            Bundle::of_texts(&[OURS[0], OURS[1], OURS[1]]).unwrap_err().to_string().contains("2 KubeVirt")
        );
    }

    #[test]
    fn the_version_is_the_images_tag_or_the_operators_variable() {
        let of = |image: &str, variables: &[(&str, &str)]| {
            let env: Vec<Value> =
                variables.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
            let container = json!({"image": image, "env": env});
            version(&json!({"spec": {"template": {"spec": {"containers": [container]}}}}))
        };
        assert_eq!(of("r:5000/a/virt-operator:v1.2.0", &[]).as_deref(), Some("v1.2.0"));
        assert_eq!(of("r:5000/a/virt-operator@sha256:00", &[]), None);
        assert_eq!(of("r:5000/a/virt-operator", &[]), None);
        let told = [("KUBEVIRT_VERSION", "v1.3.0"), ("VIRT_OPERATOR_IMAGE", "r/virt-operator@sha256:00")];
        assert_eq!(of("r/virt-operator@sha256:00", &told).as_deref(), Some("v1.3.0"));
    }
}
