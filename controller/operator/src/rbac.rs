//! Rights of the components: only what they use. A golden file lists the rules, docs/rbac.md explains each of them. A watch
//! needs `list` and `watch`; `get` is granted only where single objects are read.

use crate::certificates::FORMER_SECRETS;
use crate::objects::{metadata, namespaced};
use barevirt_api::cdi::{
    CDI_DEFINITION, CLONE_SOURCE_DEFINITION, CONFIG_DEFINITION, DATA_SOURCE_DEFINITION,
    DATA_VOLUME_DEFINITION, IMPORT_CRON_DEFINITION, IMPORT_SOURCE_DEFINITION, STORAGE_PROFILE_DEFINITION,
    UPLOAD_SOURCE_DEFINITION,
};
use barevirt_api::names::{
    CA_CONFIG_MAP, COPIES_BINDING, COPIES_POLICY, INSECURE_REGISTRIES_CONFIG_MAP, INSTALL_NAMESPACE,
    SERVICE_ACCOUNT_API as API, SERVICE_ACCOUNT_CONTROLLER as CONTROLLER, SERVICE_ACCOUNT_HANDLER as HANDLER,
    VM_LABELS_CONFIG_MAP,
};
use serde_json::{Value, json};

/// Secrets that the operator makes: the authority and what it signs; and those of former versions, which it removes.
pub(crate) const SECRETS: [&str; 7] = [
    "kubevirt-ca",
    "kubevirt-virt-api-certs",
    "kubevirt-controller-certs",
    "kubevirt-operator-certs",
    "kubevirt-virt-handler-certs",
    FORMER_SECRETS[0],
    FORMER_SECRETS[1],
];
pub(crate) fn objects() -> Vec<Value> {
    let mut objects = Vec::new();
    for (account, component, cluster, local) in [
        (API, "virt-api", api_cluster_rules(), api_local_rules()),
        (CONTROLLER, "virt-controller", controller_cluster_rules(), controller_local_rules()),
        (HANDLER, "virt-handler", handler_cluster_rules(), handler_local_rules()),
    ] {
        objects.push(json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": namespaced(account, component),
        }));
        objects.push(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": metadata(account, component), "rules": cluster,
        }));
        objects.push(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": metadata(account, component),
            "roleRef": role_ref("ClusterRole", account), "subjects": subjects(account),
        }));
        let Some(local) = local else { continue };
        objects.push(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": namespaced(account, component), "rules": local,
        }));
        objects.push(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": namespaced(account, component),
            "roleRef": role_ref("Role", account), "subjects": subjects(account),
        }));
    }
    // A config map in kube-system has the aggregator's identity.
    let mut reader = metadata("kubevirt-apiserver-auth-reader", "virt-api");
    reader["namespace"] = json!("kube-system");
    objects.push(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": reader,
        "roleRef": role_ref("Role", "extension-apiserver-authentication-reader"), "subjects": subjects(API),
    }));
    objects
}

pub(crate) fn role_ref(kind: &str, name: &str) -> Value {
    json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name})
}

pub(crate) fn subjects(account: &str) -> Value {
    json!([{"kind": "ServiceAccount", "name": account, "namespace": INSTALL_NAMESPACE}])
}

pub(crate) fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
}

pub(crate) fn named(group: &str, resources: &[&str], names: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "resourceNames": names, "verbs": verbs})
}

/// API group of requests for certificates.
pub(crate) const CERTIFICATES: &str = "certificates.k8s.io";

/// Objects that machines name: instance types and preferences, or a machine's copies of them.
const NAMED: [&str; 4] = [
    "virtualmachineinstancetypes",
    "virtualmachineclusterinstancetypes",
    "virtualmachinepreferences",
    "virtualmachineclusterpreferences",
];

/// CDI's populators.
pub(crate) const SOURCES: [&str; 3] = ["volumeimportsources", "volumeclonesources", "volumeuploadsources"];

/// Commands change machines and instances; virt-api asks the API server whether the user may give them.
fn api_cluster_rules() -> Vec<Value> {
    vec![
        rule("kubevirt.io", &["virtualmachines", "virtualmachineinstances"], &["get", "patch"]),
        rule("kubevirt.io", &["virtualmachines/status"], &["patch"]),
        rule("kubevirt.io", &["kubevirts"], &["list", "watch"]),
        // Admission: the instance of a launcher or attachment pod that is evicted, and other uses of a new object's source
        // or target.
        rule("", &["pods"], &["get"]),
        // The object graph of a machine: its launcher, and the claim with its state.
        rule("", &["pods", "persistentvolumeclaims"], &["list"]),
        // Admission: the labels of a volume.
        rule("", &["persistentvolumeclaims"], &["get"]),
        rule("cdi.kubevirt.io", &["datavolumes", "datasources"], &["get"]),
        rule("snapshot.storage.k8s.io", &["volumesnapshots"], &["get"]),
        // Whether a guest has to leave its node because of a taint.
        rule("", &["nodes"], &["get"]),
        // Also for the `migrate` subresource.
        rule("kubevirt.io", &["virtualmachineinstancemigrations"], &["list", "create"]),
        rule("snapshot.kubevirt.io", &["virtualmachinerestores"], &["list"]),
        rule("backup.kubevirt.io", &["virtualmachinebackups"], &["list"]),
        rule("instancetype.kubevirt.io", &NAMED, &["get"]),
        rule("apps", &["controllerrevisions"], &["get"]),
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
        // Records QEMU commands that the guest may notice, with their user.
        rule("events.k8s.io", &["events"], &["create", "patch"]),
    ]
}

/// The handlers' addresses.
fn api_local_rules() -> Option<Vec<Value>> {
    Some(vec![rule("", &["pods"], &["list"])])
}

fn controller_cluster_rules() -> Vec<Value> {
    vec![
        rule("kubevirt.io", &["kubevirts"], &["list", "watch"]),
        // A pool makes and deletes machines.
        rule("kubevirt.io", &["virtualmachines"], &["get", "list", "watch", "create", "patch", "delete"]),
        rule("kubevirt.io", &["virtualmachines/status"], &["patch"]),
        rule(
            "kubevirt.io",
            &["virtualmachineinstances"],
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        rule("kubevirt.io", &["virtualmachineinstancereplicasets"], &["get", "list", "watch"]),
        rule("kubevirt.io", &["virtualmachineinstancereplicasets/status"], &["patch"]),
        // Evictions and updates create migrations; old ones are deleted.
        rule(
            "kubevirt.io",
            &["virtualmachineinstancemigrations"],
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        rule("kubevirt.io", &["virtualmachineinstancemigrations/status"], &["patch"]),
        rule("migrations.kubevirt.io", &["migrationpolicies"], &["list"]),
        // The pool's finalizer, while state of its machines is kept.
        rule("pool.kubevirt.io", &["virtualmachinepools"], &["list", "watch", "patch"]),
        rule("pool.kubevirt.io", &["virtualmachinepools/status"], &["patch"]),
        // Owner references that block the owner's deletion, where the cluster checks them.
        rule(
            "kubevirt.io",
            &[
                "virtualmachines/finalizers",
                "virtualmachineinstances/finalizers",
                "virtualmachineinstancereplicasets/finalizers",
            ],
            &["update"],
        ),
        rule("pool.kubevirt.io", &["virtualmachinepools/finalizers"], &["update"]),
        // The launcher's pod owns the pods that bring disks to its guest.
        rule("", &["pods/finalizers"], &["update"]),
        // Those of known vendors are named in metrics.
        rule("instancetype.kubevirt.io", &NAMED, &["get", "list", "watch"]),
        rule("apps", &["controllerrevisions"], &["get", "list", "create", "delete"]),
        rule("", &["pods"], &["get", "list", "watch", "create", "patch", "delete"]),
        // The claim of an instance with UEFI variables or TPM state, and its class; a pool changes the owners of its
        // machines' claims. Sizes of machines' disks, for metrics.
        rule("", &["persistentvolumeclaims"], &["get", "list", "watch", "create", "patch", "delete"]),
        // Nodes that reach volumes which are plugged in once the guest runs. A volume that was filled for a claim with a
        // populator is given to it: its `claimRef` changes. A DataVolume may ask for the volume that names its claim.
        rule("", &["persistentvolumes"], &["get", "list", "patch"]),
        // Whether an instance's networks of Multus exist, and which node resources come with them.
        rule("k8s.cni.cncf.io", &["network-attachment-definitions"], &["get"]),
        // Whether the claim of a disk is filled; DataVolumes of templates are made after a check of the permission to copy,
        // since CDI trusts us.
        rule("cdi.kubevirt.io", &["datavolumes"], &["get", "list", "watch", "create", "patch", "delete"]),
        rule("cdi.kubevirt.io", &["datavolumes/source"], &["create"]),
        // Made for DataImportCrons, which also delete former imports.
        rule("cdi.kubevirt.io", &["datasources"], &["get", "list", "watch", "create", "patch"]),
        rule("cdi.kubevirt.io", &["datasources/status"], &["patch"]),
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
        // Filled by us where there is no CDI; the owner of their definition shows whether that is so.
        rule("cdi.kubevirt.io", &["datavolumes/status"], &["patch"]),
        rule("cdi.kubevirt.io", &["datavolumes/finalizers"], &["update"]),
        rule("cdi.kubevirt.io", &["dataimportcrons"], &["get", "list", "watch", "patch"]),
        rule("cdi.kubevirt.io", &["dataimportcrons/status"], &["patch"]),
        rule("cdi.kubevirt.io", &["dataimportcrons/finalizers"], &["update"]),
        // Claims that name them are filled.
        rule("cdi.kubevirt.io", &SOURCES, &["get", "list", "watch"]),
        named(
            "apiextensions.k8s.io",
            &["customresourcedefinitions"],
            &[
                DATA_VOLUME_DEFINITION,
                DATA_SOURCE_DEFINITION,
                IMPORT_CRON_DEFINITION,
                STORAGE_PROFILE_DEFINITION,
                CONFIG_DEFINITION,
                CDI_DEFINITION,
            ],
            &["get", "list", "watch"],
        ),
        named(
            "apiextensions.k8s.io",
            &["customresourcedefinitions"],
            &[IMPORT_SOURCE_DEFINITION, CLONE_SOURCE_DEFINITION, UPLOAD_SOURCE_DEFINITION],
            &["get"],
        ),
        // Since when admission checks copies of claims of other namespaces.
        named("admissionregistration.k8s.io", &["validatingadmissionpolicies"], &[COPIES_POLICY], &["get"]),
        named(
            "admissionregistration.k8s.io",
            &["validatingadmissionpolicybindings"],
            &[COPIES_BINDING],
            &["get"],
        ),
        rule("storage.k8s.io", &["storageclasses"], &["get", "list", "watch"]),
        // Defaults for claims of a storage class.
        rule("cdi.kubevirt.io", &["storageprofiles"], &["get", "list", "watch", "create", "delete"]),
        rule("cdi.kubevirt.io", &["storageprofiles/status"], &["patch"]),
        // Settings of imports; their status is no subresource.
        rule("cdi.kubevirt.io", &["cdiconfigs"], &["get", "list", "watch", "create", "patch"]),
        // Evicts instances with an outdated launcher, where the KubeVirt object says so.
        rule("", &["pods/eviction"], &["create"]),
        // Resizes running guests.
        rule("", &["pods/resize"], &["patch"]),
        // Marks a node whose handler is silent as unschedulable.
        rule("", &["nodes"], &["get", "list", "watch", "patch"]),
        // Whether launchers of a namespace get limits.
        rule("", &["namespaces"], &["get"]),
        rule("", &["resourcequotas"], &["list"]),
        rule("events.k8s.io", &["events"], &["create", "patch"]),
    ]
}

/// The lease, the number of outdated launchers, and metrics.
fn controller_local_rules() -> Option<Vec<Value>> {
    Some(vec![
        rule("kubevirt.io", &["kubevirts/status"], &["patch"]),
        named("coordination.k8s.io", &["leases"], &["virt-controller"], &["get", "update"]),
        // RBAC cannot restrict `create` by name.
        rule("coordination.k8s.io", &["leases"], &["create"]),
        // Labels of machines that become metrics.
        named("", &["configmaps"], &[VM_LABELS_CONFIG_MAP], &["list", "watch"]),
        // Registries without TLS.
        named("", &["configmaps"], &[INSECURE_REGISTRIES_CONFIG_MAP], &["get"]),
        // Authorities that the pods of uploads trust.
        named("", &["configmaps"], &[CA_CONFIG_MAP], &["get"]),
    ])
}

/// No secrets and no config maps: the kubelet mounts what an instance uses. A policy restricts each handler to its own node.
fn handler_cluster_rules() -> Vec<Value> {
    vec![
        rule("kubevirt.io", &["virtualmachineinstances"], &["list", "watch", "patch"]),
        rule("kubevirt.io", &["kubevirts"], &["list", "watch"]),
        rule("", &["pods"], &["list", "watch"]),
        // Its own node: heartbeat, and labels of its capabilities.
        rule("", &["nodes"], &["get", "patch"]),
        // Its own certificate: the name is not known before the request is made, and requests contain no secrets.
        rule(CERTIFICATES, &["certificatesigningrequests"], &["create", "get"]),
        rule("events.k8s.io", &["events"], &["create", "patch"]),
    ]
}

fn handler_local_rules() -> Option<Vec<Value>> {
    None
}
