//! What the components themselves may do: no more than what they do. A golden file holds the rules, docs/rbac.md says
//! what each is for. A watch asks for `list` and `watch`; `get` stands only where single objects are read.

use crate::certificates::FORMER_SECRETS;
use crate::objects::{metadata, namespaced};
use barevirt_api::cdi::{
    CDI_DEFINITION, DATA_SOURCE_DEFINITION, DATA_VOLUME_DEFINITION, IMPORT_CRON_DEFINITION,
    STORAGE_PROFILE_DEFINITION,
};
use barevirt_api::names::{
    CA_CONFIG_MAP, COPIES_BINDING, COPIES_POLICY, INSECURE_REGISTRIES_CONFIG_MAP, INSTALL_NAMESPACE,
    SERVICE_ACCOUNT_API as API, SERVICE_ACCOUNT_CONTROLLER as CONTROLLER, SERVICE_ACCOUNT_HANDLER as HANDLER,
    VM_LABELS_CONFIG_MAP,
};
use serde_json::{Value, json};

/// Secrets that the operator makes: the authority and what it signs; and those of former versions, which it takes away.
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
    // Who the aggregator is, is written in a config map of kube-system.
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

/// What machines name: instance types and preferences, or the copies of them that a machine keeps.
const NAMED: [&str; 4] = [
    "virtualmachineinstancetypes",
    "virtualmachineclusterinstancetypes",
    "virtualmachinepreferences",
    "virtualmachineclusterpreferences",
];

/// Commands change machines and instances; who may give them is asked of the API server.
fn api_cluster_rules() -> Vec<Value> {
    vec![
        rule("kubevirt.io", &["virtualmachines", "virtualmachineinstances"], &["get", "patch"]),
        rule("kubevirt.io", &["virtualmachines/status"], &["patch"]),
        rule("kubevirt.io", &["kubevirts"], &["list", "watch"]),
        // Admission: whose launcher a pod is that somebody evicts, and what else a new object's source or target is in.
        rule("", &["pods"], &["get"]),
        // The graph of a machine's objects: its launcher, and the claim with its state.
        rule("", &["pods", "persistentvolumeclaims"], &["list"]),
        // Admission: what the labels of a volume name.
        rule("", &["persistentvolumeclaims"], &["get"]),
        rule("cdi.kubevirt.io", &["datavolumes", "datasources"], &["get"]),
        rule("snapshot.storage.k8s.io", &["volumesnapshots"], &["get"]),
        // Whether a guest is to leave its node for its taint.
        rule("", &["nodes"], &["get"]),
        // Also what the call `migrate` makes.
        rule("kubevirt.io", &["virtualmachineinstancemigrations"], &["list", "create"]),
        rule("snapshot.kubevirt.io", &["virtualmachinerestores"], &["list"]),
        rule("backup.kubevirt.io", &["virtualmachinebackups"], &["list"]),
        rule("instancetype.kubevirt.io", &NAMED, &["get"]),
        rule("apps", &["controllerrevisions"], &["get"]),
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
        // Who gave QEMU which command, where the guest may notice.
        rule("events.k8s.io", &["events"], &["create", "patch"]),
    ]
}

/// Where the handlers are.
fn api_local_rules() -> Option<Vec<Value>> {
    Some(vec![rule("", &["pods"], &["list"])])
}

fn controller_cluster_rules() -> Vec<Value> {
    vec![
        rule("kubevirt.io", &["kubevirts"], &["list", "watch"]),
        // A pool makes machines and deletes them.
        rule("kubevirt.io", &["virtualmachines"], &["get", "list", "watch", "create", "patch", "delete"]),
        rule("kubevirt.io", &["virtualmachines/status"], &["patch"]),
        rule(
            "kubevirt.io",
            &["virtualmachineinstances"],
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        rule("kubevirt.io", &["virtualmachineinstancereplicasets"], &["get", "list", "watch"]),
        rule("kubevirt.io", &["virtualmachineinstancereplicasets/status"], &["patch"]),
        // Evictions and updates make migrations; old ones go.
        rule(
            "kubevirt.io",
            &["virtualmachineinstancemigrations"],
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        rule("kubevirt.io", &["virtualmachineinstancemigrations/status"], &["patch"]),
        rule("migrations.kubevirt.io", &["migrationpolicies"], &["list", "watch"]),
        // Its finalizer, while something is kept of its machines.
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
        // The launcher's pod is the owner of those that bring disks to its guest.
        rule("", &["pods/finalizers"], &["update"]),
        rule("instancetype.kubevirt.io", &NAMED, &["get"]),
        rule("apps", &["controllerrevisions"], &["get", "list", "create", "delete"]),
        rule("", &["pods"], &["get", "list", "watch", "create", "patch", "delete"]),
        // The claim of an instance that keeps UEFI variables or TPM state, and the class it gets; what a pool's machines leave
        // has other owners then. How large the disks of machines are, for metrics.
        rule("", &["persistentvolumeclaims"], &["get", "list", "watch", "create", "patch", "delete"]),
        // From which nodes volumes can be reached that are plugged in once the guest runs.
        rule("", &["persistentvolumes"], &["get"]),
        // Whether the networks of Multus that an instance names are there, and which resources of nodes come with them.
        rule("k8s.cni.cncf.io", &["network-attachment-definitions"], &["get"]),
        // Whether the claim of a disk is filled; those of templates are made, and what they copy is asked about before: CDI
        // takes our own word for it.
        rule("cdi.kubevirt.io", &["datavolumes"], &["get", "list", "watch", "create", "patch", "delete"]),
        rule("cdi.kubevirt.io", &["datavolumes/source"], &["create"]),
        // Made for DataImportCrons, which also take former imports away.
        rule("cdi.kubevirt.io", &["datasources"], &["get", "list", "watch", "create", "patch"]),
        rule("cdi.kubevirt.io", &["datasources/status"], &["patch"]),
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
        // Where there is no CDI they are filled, and whether that is so, their definition tells.
        rule("cdi.kubevirt.io", &["datavolumes/status"], &["patch"]),
        rule("cdi.kubevirt.io", &["datavolumes/finalizers"], &["update"]),
        rule("cdi.kubevirt.io", &["dataimportcrons"], &["get", "list", "watch", "patch"]),
        rule("cdi.kubevirt.io", &["dataimportcrons/status"], &["patch"]),
        rule("cdi.kubevirt.io", &["dataimportcrons/finalizers"], &["update"]),
        named(
            "apiextensions.k8s.io",
            &["customresourcedefinitions"],
            &[
                DATA_VOLUME_DEFINITION,
                DATA_SOURCE_DEFINITION,
                IMPORT_CRON_DEFINITION,
                STORAGE_PROFILE_DEFINITION,
                CDI_DEFINITION,
            ],
            &["get"],
        ),
        // Since when it is asked who copies claims of other namespaces.
        named("admissionregistration.k8s.io", &["validatingadmissionpolicies"], &[COPIES_POLICY], &["get"]),
        named(
            "admissionregistration.k8s.io",
            &["validatingadmissionpolicybindings"],
            &[COPIES_BINDING],
            &["get"],
        ),
        rule("storage.k8s.io", &["storageclasses"], &["get", "list"]),
        // What claims of a class get for what they leave open.
        rule("cdi.kubevirt.io", &["storageprofiles"], &["get", "list", "create"]),
        rule("cdi.kubevirt.io", &["storageprofiles/status"], &["patch"]),
        // Instances with an outdated launcher, where the KubeVirt object says so.
        rule("", &["pods/eviction"], &["create"]),
        // Guests grow and shrink while they run.
        rule("", &["pods/resize"], &["patch"]),
        // One whose handler is silent takes no new guests.
        rule("", &["nodes"], &["get", "list", "watch", "patch"]),
        // Whether launchers of a namespace get limits.
        rule("", &["namespaces"], &["get"]),
        rule("", &["resourcequotas"], &["list"]),
        rule("events.k8s.io", &["events"], &["create", "patch"]),
    ]
}

/// The lease, how many launchers are outdated, and what metrics tell.
fn controller_local_rules() -> Option<Vec<Value>> {
    Some(vec![
        rule("kubevirt.io", &["kubevirts/status"], &["patch"]),
        named("coordination.k8s.io", &["leases"], &["virt-controller"], &["get", "update"]),
        // A name cannot be asked for when an object is made.
        rule("coordination.k8s.io", &["leases"], &["create"]),
        // Which labels of machines metrics tell.
        named("", &["configmaps"], &[VM_LABELS_CONFIG_MAP], &["list", "watch"]),
        // Which registries have no TLS.
        named("", &["configmaps"], &[INSECURE_REGISTRIES_CONFIG_MAP], &["get"]),
        // Whom the pods of uploads are to believe.
        named("", &["configmaps"], &[CA_CONFIG_MAP], &["get"]),
    ])
}

/// No secrets and no config maps: the kubelet mounts what an instance uses. A policy keeps each handler to its own node.
fn handler_cluster_rules() -> Vec<Value> {
    vec![
        rule("kubevirt.io", &["virtualmachineinstances"], &["list", "watch", "patch"]),
        rule("kubevirt.io", &["kubevirts"], &["list", "watch"]),
        rule("", &["pods"], &["list", "watch"]),
        // Its own: heartbeat, and labels of what guests can have there.
        rule("", &["nodes"], &["get", "patch"]),
        // Its own certificate: a name is not known before the request is made, and what is read is no secret.
        rule(CERTIFICATES, &["certificatesigningrequests"], &["create", "get"]),
        rule("events.k8s.io", &["events"], &["create", "patch"]),
    ]
}

fn handler_local_rules() -> Option<Vec<Value>> {
    None
}
