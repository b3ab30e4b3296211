//! Roles for users: KubeVirt's names and rules, aggregated to the roles of Kubernetes, so that a user with `edit` in a
//! namespace can work with virtual machines there.
//!
//! One table has all rights; a role is a column of it. docs/rbac.md explains intended differences from KubeVirt's. A golden
//! file lists the rights, one line for each role and resource.

use crate::objects::metadata;
use crate::rbac::SOURCES;
use barevirt_api::cdi::UPLOAD_GROUP as UPLOADS;
use serde_json::{Value, json};

/// Verbs of a rule.
type Verbs = &'static [&'static str];

const NONE: Verbs = &[];
const GET: Verbs = &["get"];
const UPDATE: Verbs = &["update"];
const CREATE: Verbs = &["create"];
const QMP: Verbs = &["get", "create"];
const LOOK_UP: Verbs = &["get", "list"];
const READ: Verbs = &["get", "list", "watch"];
const WRITE: Verbs = &["get", "delete", "create", "update", "patch", "list", "watch"];
const ALL: Verbs = &["get", "delete", "create", "update", "patch", "list", "watch", "deletecollection"];

const CALLS: &str = "subresources.kubevirt.io";

/// The rights of each role for some resources.
struct Row {
    group: &'static str,
    resources: &'static [&'static str],
    admin: Verbs,
    edit: Verbs,
    view: Verbs,
    migrate: Verbs,
}

impl Row {
    const fn new(group: &'static str, resources: &'static [&'static str]) -> Self {
        Self { group, resources, admin: NONE, edit: NONE, view: NONE, migrate: NONE }
    }

    const fn writers(mut self, admin: Verbs, edit: Verbs) -> Self {
        self.admin = admin;
        self.edit = edit;
        self
    }

    const fn view(mut self, verbs: Verbs) -> Self {
        self.view = verbs;
        self
    }

    const fn migrate(mut self, verbs: Verbs) -> Self {
        self.migrate = verbs;
        self
    }
}

const TABLE: &[Row] = &[
    // Subresources that only read.
    Row::new(
        CALLS,
        &[
            "virtualmachines/expand-spec",
            "virtualmachines/objectgraph",
            "virtualmachineinstances/guestosinfo",
            "virtualmachineinstances/filesystemlist",
            "virtualmachineinstances/userlist",
            "virtualmachineinstances/sev/fetchcertchain",
            "virtualmachineinstances/sev/querylaunchmeasurement",
            "virtualmachineinstances/objectgraph",
            "virtualmachineinstances/debug",
        ],
    )
    .writers(GET, GET)
    .view(GET),
    // Streams into the guest.
    Row::new(
        CALLS,
        &[
            "virtualmachines/portforward",
            "virtualmachineinstances/console",
            "virtualmachineinstances/vnc",
            "virtualmachineinstances/portforward",
            "virtualmachineinstances/usbredir",
        ],
    )
    .writers(GET, GET),
    Row::new(CALLS, &["virtualmachineinstances/vnc/screenshot"]).writers(GET, NONE),
    // QEMU's monitor: a command and a stream of commands, and the rights for each class of commands (api/src/monitor).
    Row::new(CALLS, &["virtualmachineinstances/qmp"]).writers(QMP, QMP).view(QMP),
    Row::new(CALLS, &["virtualmachineinstances/qmp/harmless"]).writers(CREATE, CREATE),
    Row::new(CALLS, &["virtualmachineinstances/qmp/disruptive"]).writers(CREATE, NONE),
    Row::new(
        CALLS,
        &[
            "virtualmachines/start",
            "virtualmachines/stop",
            "virtualmachines/restart",
            "virtualmachines/addvolume",
            "virtualmachines/removevolume",
            "virtualmachines/memorydump",
            "virtualmachines/removememorydump",
            "virtualmachines/evacuate/cancel",
            "virtualmachineinstances/pause",
            "virtualmachineinstances/unpause",
            "virtualmachineinstances/addvolume",
            "virtualmachineinstances/removevolume",
            "virtualmachineinstances/freeze",
            "virtualmachineinstances/unfreeze",
            "virtualmachineinstances/softreboot",
            "virtualmachineinstances/reset",
            "virtualmachineinstances/sev/setupsession",
            "virtualmachineinstances/sev/injectlaunchsecret",
            "virtualmachineinstances/evacuate/cancel",
        ],
    )
    .writers(UPDATE, UPDATE),
    Row::new(CALLS, &["expand-vm-spec"]).writers(UPDATE, UPDATE).view(UPDATE),
    Row::new(CALLS, &["virtualmachines/migrate"]).migrate(UPDATE),
    Row::new(
        "kubevirt.io",
        &[
            "virtualmachines",
            "virtualmachineinstances",
            "virtualmachineinstancepresets",
            "virtualmachineinstancereplicasets",
        ],
    )
    .writers(ALL, WRITE)
    .view(READ),
    Row::new("kubevirt.io", &["virtualmachineinstancemigrations"])
        .writers(READ, READ)
        .view(READ)
        .migrate(ALL),
    Row::new("kubevirt.io", &["kubevirts"]).writers(NONE, LOOK_UP).view(LOOK_UP),
    Row::new(
        "snapshot.kubevirt.io",
        &["virtualmachinesnapshots", "virtualmachinesnapshotcontents", "virtualmachinerestores"],
    )
    .writers(ALL, WRITE)
    .view(READ),
    Row::new("backup.kubevirt.io", &["virtualmachinebackups", "virtualmachinebackuptrackers"])
        .writers(ALL, WRITE)
        .view(READ),
    Row::new("export.kubevirt.io", &["virtualmachineexports"]).writers(ALL, WRITE).view(READ),
    Row::new("clone.kubevirt.io", &["virtualmachineclones"]).writers(ALL, WRITE).view(READ),
    Row::new(
        "instancetype.kubevirt.io",
        &[
            "virtualmachineinstancetypes",
            "virtualmachineclusterinstancetypes",
            "virtualmachinepreferences",
            "virtualmachineclusterpreferences",
        ],
    )
    .writers(ALL, WRITE)
    .view(READ),
    // CDI's kinds, where there is no CDI; CDI's own roles grant the same.
    Row::new("cdi.kubevirt.io", &["datavolumes", "datasources", "dataimportcrons"])
        .writers(ALL, WRITE)
        .view(READ),
    Row::new("cdi.kubevirt.io", &SOURCES).writers(ALL, WRITE).view(READ),
    // The same for uploads of images.
    Row::new(UPLOADS, &["uploadtokenrequests", "uploads/proxy"]).writers(CREATE, CREATE),
    Row::new("pool.kubevirt.io", &["virtualmachinepools"]).writers(ALL, WRITE).view(READ),
    Row::new("migrations.kubevirt.io", &["migrationpolicies"]).writers(READ, READ).view(READ),
];

pub(crate) fn objects() -> Vec<Value> {
    let rules = |verbs: fn(&Row) -> Verbs| {
        let granted = TABLE.iter().filter(|row| !verbs(row).is_empty());
        granted.map(|row| rule(row.group, row.resources, verbs(row))).collect()
    };
    vec![
        role("kubevirt.io:admin", Some("admin"), rules(|row| row.admin)),
        role("kubevirt.io:edit", Some("edit"), rules(|row| row.edit)),
        role("kubevirt.io:view", Some("view"), rules(|row| row.view)),
        // Bound by administrators: not every user who may edit may drain nodes.
        role("kubevirt.io:migrate", None, rules(|row| row.migrate)),
        role(
            "kubevirt.io:default",
            None,
            vec![
                rule(CALLS, &["version", "guestfs"], LOOK_UP),
                rule("kubevirt.io", &["kubevirts"], LOOK_UP),
                // As CDI grants it: clients find the address for uploads there.
                rule("cdi.kubevirt.io", &["cdiconfigs", "storageprofiles"], READ),
            ],
        ),
        for_everybody("kubevirt.io:default"),
        role(
            "instancetype.kubevirt.io:view",
            None,
            vec![rule(
                "instancetype.kubevirt.io",
                &["virtualmachineclusterinstancetypes", "virtualmachineclusterpreferences"],
                READ,
            )],
        ),
        for_everybody("instancetype.kubevirt.io:view"),
    ]
}

/// Binds the role of that name to all authenticated users.
fn for_everybody(role: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": metadata(role, ""),
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"},
        ],
    })
}

/// Beginning of the label by which a role of Kubernetes takes in a role.
pub(crate) const AGGREGATE_TO: &str = "rbac.authorization.k8s.io/aggregate-to-";

fn role(name: &str, aggregate_to: Option<&str>, rules: Vec<Value>) -> Value {
    let mut metadata = metadata(name, "");
    if let Some(target) = aggregate_to {
        metadata["labels"][format!("{AGGREGATE_TO}{target}")] = json!("true");
    }
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": metadata, "rules": rules,
    })
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    /// The rights of each role, by resource.
    fn grants() -> BTreeMap<String, BTreeMap<String, Vec<String>>> {
        let mut all = BTreeMap::new();
        for role in objects().iter().filter(|object| object["kind"] == "ClusterRole") {
            let granted: &mut BTreeMap<String, Vec<String>> =
                all.entry(role["metadata"]["name"].as_str().unwrap().to_owned()).or_default();
            for rule in role["rules"].as_array().unwrap() {
                let words = |key: &str| -> Vec<String> { serde_json::from_value(rule[key].clone()).unwrap() };
                for resource in words("resources") {
                    let line = format!("{} {resource}", words("apiGroups")[0]);
                    let verbs = granted.entry(line.clone()).or_default();
                    assert!(verbs.is_empty(), "{line} is granted twice");
                    *verbs = words("verbs");
                }
            }
        }
        all
    }

    /// All rights, one line for each role and resource.
    #[test]
    fn rights_of_user_roles() {
        let mut table = String::new();
        for (role, granted) in grants() {
            for (resource, verbs) in granted {
                table.push_str(&format!("{role} | {resource} | {}\n", verbs.join(",")));
            }
        }
        insta::assert_snapshot!("user_roles", table);
    }

    /// Each role has the rights of the role below it; `kubevirts` is KubeVirt's exception.
    #[test]
    fn admin_has_what_edit_has_and_edit_what_view_has() {
        let grants = grants();
        for (above, below) in [("admin", "edit"), ("edit", "view")] {
            let (above, below) =
                (&grants[&format!("kubevirt.io:{above}")], &grants[&format!("kubevirt.io:{below}")]);
            for (resource, verbs) in below {
                if resource == "kubevirt.io kubevirts" {
                    continue;
                }
                let more: BTreeSet<_> = above[resource].iter().collect();
                assert!(verbs.iter().all(|verb| more.contains(verb)), "{resource}");
            }
        }
    }

    #[test]
    fn roles_of_kubernetes_take_three_of_them_in() {
        let aggregated: BTreeMap<String, String> = objects()
            .iter()
            .filter_map(|object| {
                let labels = object["metadata"]["labels"].as_object()?;
                let target = labels.keys().find_map(|key| {
                    Some(key.strip_prefix("rbac.authorization.k8s.io/aggregate-to-")?.to_owned())
                })?;
                Some((object["metadata"]["name"].as_str()?.to_owned(), target))
            })
            .collect();
        let wanted =
            [("kubevirt.io:admin", "admin"), ("kubevirt.io:edit", "edit"), ("kubevirt.io:view", "view")];
        assert_eq!(aggregated, wanted.map(|(role, target)| (role.to_owned(), target.to_owned())).into());
    }

    /// Every served kind is granted to some role, and nothing else is.
    #[test]
    fn the_kinds_granted_are_the_kinds_served() {
        let served: BTreeSet<String> = barevirt_api::crd::all()
            .iter()
            .map(|crd| format!("{} {}", crd.spec.group, crd.spec.names.plural))
            .chain(
                ["datavolumes", "datasources", "dataimportcrons", "cdiconfigs", "storageprofiles"]
                    .iter()
                    .chain(&SOURCES)
                    .map(|kind| format!("cdi.kubevirt.io {kind}")),
            )
            .collect();
        let granted: BTreeSet<String> = grants()
            .values()
            .flat_map(BTreeMap::keys)
            .filter(|line| !line.starts_with(CALLS) && !line.starts_with(UPLOADS))
            .cloned()
            .collect();
        assert_eq!(granted, served);
    }
}
