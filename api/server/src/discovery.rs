//! Discovery documents of this server: groups, resources, version.

use barevirt_api::monitor::Class;
use barevirt_api::release;
use serde_json::{Value, json};

use crate::endpoints::{ENDPOINTS, On};
use crate::route::{GROUP, VERSIONS};

/// `/apis`.
pub fn groups() -> Value {
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [group()] })
}

/// `/apis/subresources.kubevirt.io`.
pub fn group() -> Value {
    let version = |version: &str| json!({ "groupVersion": format!("{GROUP}/{version}"), "version": version });
    json!({
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": GROUP,
        "versions": VERSIONS.map(version),
        "preferredVersion": version(VERSIONS[0]),
    })
}

/// `/`: the paths below which this server answers.
pub fn paths() -> Value {
    let versions = VERSIONS.map(|version| format!("/apis/{GROUP}/{version}"));
    let mut paths = vec!["/apis".to_owned(), format!("/apis/{GROUP}")];
    paths.extend(versions);
    paths.extend(["/openapi/v2", "/openapi/v3"].map(str::to_owned));
    json!({ "paths": paths })
}

/// `/apis/subresources.kubevirt.io/VERSION`: the calls on objects, as KubeVirt announces them.
///
/// They have no kind of their own, because nothing can be listed or watched here, and the one call without an
/// object has no verbs, because `kubectl api-resources` shows resources that have verbs. KubeVirt does not
/// announce the objects themselves, but this server does. Without them, `kubectl auth can-i update
/// virtualmachines.subresources.kubevirt.io --subresource=start` knows no such resource and always answers
/// no. client-go drops resources without a kind, so they have a kind that no other resource has, and no
/// verbs. `kubectl get virtualmachines` still finds the custom resource, whose group comes first.
pub fn resources(version: &str) -> Value {
    let object = |name: &str, kind: &str| json!({ "name": name, "singularName": "", "namespaced": true, "kind": kind, "verbs": [] });
    let mut resources = vec![
        object("virtualmachines", "VirtualMachineCall"),
        object("virtualmachineinstances", "VirtualMachineInstanceCall"),
    ];
    for endpoint in ENDPOINTS {
        let verbs = match endpoint.on {
            On::Everyone | On::Cluster => continue,
            On::Namespace => json!([]),
            On::Machine | On::Instance => json!([endpoint.verb.word()]),
        };
        let resource = json!({
            "name": endpoint.title(), "singularName": "", "namespaced": true, "kind": "", "verbs": verbs,
        });
        // Two paths may share a subresource, and two methods may as well.
        match resources.iter_mut().find(|known| known["name"] == resource["name"]) {
            None => resources.push(resource),
            Some(known) if known["verbs"] == verbs => {}
            Some(known) => {
                if let (Some(known), Some(more)) = (known["verbs"].as_array_mut(), verbs.as_array()) {
                    known.extend(more.iter().cloned());
                }
            }
        }
    }
    // Resources for the rights to classes of QMP commands. They have no paths, but `kubectl create role`
    // looks for them here.
    for class in [Class::Harmless, Class::Disruptive] {
        resources.push(json!({
            "name": format!("virtualmachineinstances/{}", class.subresource()),
            "singularName": "", "namespaced": true, "kind": "", "verbs": ["create"],
        }));
    }
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": format!("{GROUP}/{version}"),
        "resources": resources,
    })
}

/// The platform of this build, in Kubernetes' terms.
const PLATFORM: &str = if cfg!(target_arch = "aarch64") { "linux/arm64" } else { "linux/amd64" };

/// `version`, in the form that KubeVirt's clients read.
pub fn version() -> Value {
    json!({
        "gitVersion": release::tag(),
        "gitCommit": release::COMMIT,
        "gitTreeState": "",
        "buildDate": release::DATE,
        "goVersion": "none (rust)",
        "compiler": "rustc",
        "platform": PLATFORM,
        // In addition to KubeVirt's fields: the version of KubeVirt that clients may assume.
        "kubevirtVersion": release::KUBEVIRT,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_name_both_versions() {
        let group = groups()["groups"][0].clone();
        assert_eq!(group["name"], GROUP);
        assert_eq!(group["preferredVersion"]["groupVersion"], "subresources.kubevirt.io/v1");
        assert_eq!(group["versions"][1]["groupVersion"], "subresources.kubevirt.io/v1alpha3");
    }

    #[test]
    fn no_resource_is_announced_twice_and_only_calls_have_verbs() {
        let list = resources("v1");
        let served: Vec<String> =
            barevirt_api::crd::all().into_iter().map(|crd| crd.spec.names.kind).collect();
        let mut names = std::collections::BTreeSet::new();
        for resource in list["resources"].as_array().unwrap() {
            let name = resource["name"].as_str().unwrap();
            assert!(names.insert(name), "{resource}");
            assert_eq!(resource["namespaced"], true);
            let is_call = name.contains('/');
            let verbs = resource["verbs"].as_array().unwrap().len();
            assert_eq!(
                verbs,
                usize::from(is_call) + usize::from(name == "virtualmachineinstances/qmp"),
                "{resource}"
            );
            // A kind of kubevirt.io would also be found here by clients that look up a kind without its
            // group.
            assert!(!served.contains(&resource["kind"].as_str().unwrap().to_owned()), "{resource}");
        }
        for name in [
            "virtualmachines",
            "virtualmachines/start",
            "virtualmachines/evacuate/cancel",
            "virtualmachines/portforward",
            "virtualmachineinstances/vnc/screenshot",
            "virtualmachineinstances/qmp",
            "virtualmachineinstances/qmp/disruptive",
            "expand-vm-spec",
        ] {
            assert!(names.contains(name), "{name}");
        }
    }

    #[test]
    fn the_version_has_all_that_virtctl_prints() {
        let version = version();
        for key in [
            "gitVersion",
            "gitCommit",
            "gitTreeState",
            "buildDate",
            "goVersion",
            "compiler",
            "platform",
            "kubevirtVersion",
        ] {
            assert!(version[key].is_string(), "{key}");
        }
    }
}
