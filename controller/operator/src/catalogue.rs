//! Images of common distributions for machines: a DataImportCron for each, whose DataSource refers to the newest one. Users
//! apply them (`manifests/cloud-images.yaml`); none is installed by default.
//!
//! The images are container disks that KubeVirt's project publishes, and one from the distribution's own web server. The
//! labels of each name the instance type and preference that a machine of it gets (`inferFromVolume`).

use serde_json::{Value, json};

/// Namespace of the images: that of KubeVirt's common templates.
const NAMESPACE: &str = "kubevirt-os-images";
/// Role of users who may copy them: all authenticated users, as with the common templates.
const READERS: &str = "os-images.kubevirt.io:view";
const REGISTRY: &str = "docker://quay.io/containerdisks";
const ALPINE: &str = "https://dl-cdn.alpinelinux.org/alpine/v3.22/releases/cloud/nocloud_alpine-3.22.2-x86_64-bios-cloudinit-r0.qcow2";

/// The location of an image.
enum At {
    /// `name:tag` in the registry.
    Disk(&'static str),
    /// A web address.
    Web(&'static str),
}

/// An image.
struct Image {
    /// Name of its DataSource and its DataImportCron.
    name: &'static str,
    at: At,
    preference: &'static str,
    instancetype: &'static str,
    /// Size of the disk.
    size: &'static str,
}

const IMAGES: [Image; 9] = [
    disk("alpine", At::Web(ALPINE), "alpine", "u1.nano", "1Gi"),
    disk("centos-stream9", At::Disk("centos-stream:9"), "centos.stream9", "u1.medium", "30Gi"),
    disk("centos-stream10", At::Disk("centos-stream:10"), "centos.stream10", "u1.medium", "30Gi"),
    disk("debian12", At::Disk("debian:12"), "debian", "u1.medium", "10Gi"),
    disk("debian13", At::Disk("debian:13"), "debian", "u1.medium", "10Gi"),
    disk("fedora", At::Disk("fedora:latest"), "fedora", "u1.medium", "30Gi"),
    disk("opensuse-leap", At::Disk("opensuse-leap:15.6"), "opensuse.leap", "u1.medium", "30Gi"),
    disk(
        "opensuse-tumbleweed",
        At::Disk("opensuse-tumbleweed:1.0.0"),
        "opensuse.tumbleweed",
        "u1.medium",
        "30Gi",
    ),
    disk("ubuntu2404", At::Disk("ubuntu:24.04"), "ubuntu", "u1.medium", "30Gi"),
];

const fn disk(
    name: &'static str,
    at: At,
    preference: &'static str,
    instancetype: &'static str,
    size: &'static str,
) -> Image {
    Image { name, at, preference, instancetype, size }
}

/// All objects, in the order in which they can be applied.
pub fn catalogue() -> Vec<Value> {
    let place = |name: &str| json!({ "name": name, "namespace": NAMESPACE });
    let mut objects = vec![
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": place(READERS),
            "rules": [
                {
                    "apiGroups": ["cdi.kubevirt.io"],
                    "resources": ["datasources", "dataimportcrons", "datavolumes"], "verbs": ["get", "list", "watch"],
                },
                { "apiGroups": ["cdi.kubevirt.io"], "resources": ["datavolumes/source"], "verbs": ["create"] },
                {
                    "apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get", "list", "watch"],
                },
            ],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": place(READERS),
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": READERS },
            "subjects": [{
                "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated",
            }],
        }),
    ];
    objects.extend(IMAGES.iter().enumerate().map(|(at, image)| cron(image, at)));
    objects
}

fn cron(image: &Image, at: usize) -> Value {
    let source = match image.at {
        At::Disk(disk) => json!({ "registry": { "url": format!("{REGISTRY}/{disk}") } }),
        At::Web(url) => json!({ "http": { "url": url } }),
    };
    json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataImportCron",
        "metadata": {
            "name": image.name, "namespace": NAMESPACE,
            "labels": {
                "instancetype.kubevirt.io/default-instancetype": image.instancetype,
                "instancetype.kubevirt.io/default-preference": image.preference,
            },
        },
        "spec": {
            "managedDataSource": image.name,
            // At different times, so that not all imports run at once.
            "schedule": format!("{} 2/12 * * *", at * 6),
            "importsToKeep": 2,
            "template": { "spec": {
                "source": source, "storage": { "resources": { "requests": { "storage": image.size } } },
            } },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instancetypes::tests::causes;
    use barevirt_api::cdi::DataImportCron;

    #[test]
    fn a_machine_of_each_image_has_what_is_installed() {
        for image in &IMAGES {
            let machine = json!({
                "metadata": { "name": "vm", "namespace": "ns" },
                "spec": {
                    "runStrategy": "Always",
                    "instancetype": { "name": image.instancetype }, "preference": { "name": image.preference },
                    "template": { "spec": {
                        "domain": { "devices": {} },
                        "volumes": [{ "name": "root", "dataVolume": { "name": "root" } }],
                    } },
                },
            });
            let causes = causes(serde_json::from_value(machine).unwrap());
            assert!(causes.is_empty(), "{}: {causes:?}", image.name);
        }
    }

    #[test]
    fn each_image_has_its_own_data_import_cron() {
        let crons: Vec<DataImportCron> = catalogue()
            .into_iter()
            .filter(|object| object["kind"] == "DataImportCron")
            .map(|cron| serde_json::from_value(cron).unwrap())
            .collect();
        let names: std::collections::BTreeSet<_> =
            crons.iter().map(|cron| cron.spec.managed_data_source.clone()).collect();
        assert_eq!(names.len(), IMAGES.len());
        let times: std::collections::BTreeSet<_> =
            crons.iter().map(|cron| cron.spec.schedule.clone()).collect();
        assert_eq!(times.len(), IMAGES.len(), "not all at once");
        for word in ["alpine", "centos", "debian", "fedora", "opensuse", "ubuntu"] {
            assert!(names.iter().any(|name| name.starts_with(word)), "{word}");
        }
    }
}
