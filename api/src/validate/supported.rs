//! The fields that have an effect in this version. Every other field of KubeVirt's API is refused by name and
//! never ignored.
//!
//! The lists are data, one field per line: a new feature adds its fields there. This check runs last: a field
//! that breaks a rule only has the cause of that rule.

use super::{Cause, Path, gated};
use crate::gates::Gates;
use crate::migratable::SERVED;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::LazyLock;

static VMI: LazyLock<Fields> = LazyLock::new(|| Fields::parse(include_str!("supported/vmi.txt")));
static VM: LazyLock<Fields> = LazyLock::new(|| Fields::parse(include_str!("supported/vm.txt")));
static REPLICA_SET: LazyLock<Fields> =
    LazyLock::new(|| Fields::parse(include_str!("supported/replica_set.txt")));
static POOL: LazyLock<Fields> = LazyLock::new(|| Fields::parse(include_str!("supported/pool.txt")));
static KUBEVIRT: LazyLock<Fields> = LazyLock::new(|| kubevirt_fields(SERVED));
static MIGRATION_POLICY: LazyLock<Fields> =
    LazyLock::new(|| Fields::parse(include_str!("supported/migration_policy.txt")));

/// The fields of the `KubeVirt` object, of a version that serves migrations or of one that does not.
fn kubevirt_fields(served: bool) -> Fields {
    let migrations = if served {
        include_str!("supported/kubevirt_migrations.txt")
    } else {
        include_str!("supported/kubevirt_no_migrations.txt")
    };
    Fields::parse(&format!("{}\n{migrations}", include_str!("supported/kubevirt.txt")))
}

/// A cause for each field of an instance's specification that would have no effect.
pub(super) fn vmi(path: &Path, spec: &impl Serialize, gates: &Gates, causes: &mut Vec<Cause>) {
    check(&VMI, path, spec, gates, causes);
}

/// The same for a machine's specification, without its template.
pub(super) fn vm(path: &Path, spec: &impl Serialize, gates: &Gates, causes: &mut Vec<Cause>) {
    check(&VM, path, spec, gates, causes);
}

/// The same for a replica set's specification, without its template.
pub(super) fn replica_set(path: &Path, spec: &impl Serialize, gates: &Gates, causes: &mut Vec<Cause>) {
    check(&REPLICA_SET, path, spec, gates, causes);
}

/// The same for a pool's specification, without its template.
pub(super) fn pool(path: &Path, spec: &impl Serialize, gates: &Gates, causes: &mut Vec<Cause>) {
    check(&POOL, path, spec, gates, causes);
}

/// The same for the specification of the `KubeVirt` object.
pub(super) fn kubevirt(path: &Path, spec: &impl Serialize, gates: &Gates, causes: &mut Vec<Cause>) {
    check(&KUBEVIRT, path, spec, gates, causes);
}

/// The same for the specification of a migration policy.
pub(super) fn migration_policy(path: &Path, spec: &impl Serialize, gates: &Gates, causes: &mut Vec<Cause>) {
    check(&MIGRATION_POLICY, path, spec, gates, causes);
}

fn check(fields: &Fields, path: &Path, spec: &impl Serialize, gates: &Gates, causes: &mut Vec<Cause>) {
    match serde_json::to_value(spec) {
        Ok(value) => {
            let mut refused = Vec::new();
            fields.check(path, &value, gates, &mut refused);
            for path in refused {
                refuse(&path, gates, causes);
            }
        }
        // Our types are made of strings, numbers, lists and maps with string keys, which always have a JSON form.
        Err(error) => causes.push(Cause::invalid(path, format!("{path} cannot be read: {error}"))),
    }
}

/// Names of the fields that are given in an object of ours.
pub(super) fn given(object: &impl Serialize) -> Vec<String> {
    match serde_json::to_value(object) {
        Ok(Value::Object(fields)) => fields.into_iter().map(|(name, _)| name).collect(),
        _ => Vec::new(),
    }
}

/// A tree of field names.
#[derive(Debug, Default)]
struct Fields {
    children: BTreeMap<String, Fields>,
    /// Any value below it is accepted.
    whole: bool,
    /// Only these values are accepted.
    values: Vec<Value>,
}

impl Fields {
    fn parse(text: &str) -> Self {
        let mut root = Fields::default();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (field, value) = match line.split_once(" = ") {
                Some((field, value)) => (field, Some(value)),
                None => (line, None),
            };
            let (field, whole) = match field.strip_suffix(" **") {
                Some(field) => (field, true),
                None => (field, false),
            };
            let steps = field.split('.').flat_map(|name| match name.strip_suffix("[]") {
                Some(name) => vec![name, "[]"],
                None => vec![name],
            });
            let leaf = steps.fold(&mut root, |at, step| at.children.entry(step.to_owned()).or_default());
            leaf.whole |= whole;
            leaf.values.extend(value.map(|value| {
                serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()))
            }));
        }
        root
    }

    /// The fields of a value that would have no effect, each by the path of its topmost field.
    fn check(&self, path: &Path, value: &Value, gates: &Gates, refused: &mut Vec<Path>) {
        if self.whole {
            return;
        }
        if !self.values.is_empty() && !self.values.contains(value) {
            refused.push(path.clone());
            return;
        }
        match value {
            Value::Object(object) => {
                for (name, value) in object.iter().filter(|(_, value)| !says_nothing(value)) {
                    let path = path.child(name);
                    match self.children.get(name) {
                        // A feature that is switched off needs no support.
                        Some(fields)
                            if *value == Value::Bool(false) || gated::closed(&path, gates).is_none() =>
                        {
                            fields.check(&path, value, gates, refused);
                        }
                        _ => refused.push(path),
                    }
                }
            }
            Value::Array(items) => {
                let Some(fields) = self.children.get("[]") else { return };
                for (index, item) in items.iter().enumerate() {
                    fields.check(&path.index(index), item, gates, refused);
                }
            }
            _ => {}
        }
    }
}

/// Refuses a field that has no effect, because its gate is off or because it is not supported yet. If a rule
/// has already refused the field, a field inside it, or the list around it, only the cause about a gate is
/// added.
fn refuse(path: &Path, gates: &Gates, causes: &mut Vec<Cause>) {
    let list = path.holder().list().to_string();
    if let Some(cause) = gated::closed(path, gates) {
        // The same gate is named only once for a list.
        if !causes.contains(&cause) {
            causes.push(cause);
        }
    } else if !causes.iter().any(|cause| path.holds(&cause.field) || cause.field == list) {
        causes.push(Cause::not_supported_yet(path, ""));
    }
}

/// Whether the value means the same as leaving the field out. An empty object does not: it may switch
/// something on.
fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(spec: &Value) -> Vec<String> {
        let mut causes = Vec::new();
        vmi(&Path::new("spec"), spec, &Gates::default(), &mut causes);
        causes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_unsupported_field_is_named_once() {
        let spec = json!({
            "hostname": "a",
            "domain": {"devices": {
                "disks": [{"name": "a"}, {"name": "b", "lun": {"bus": "scsi", "reservation": true}}],
            }},
        });
        assert_eq!(refused(&spec), ["spec.domain.devices.disks[1].lun.reservation is not supported yet"]);
    }

    /// Settings of migrations only have an effect if migrations are served. Until then only the defaults,
    /// which change nothing, are accepted.
    #[test]
    fn settings_of_migrations_come_with_migrations() {
        let refused = |served: bool, migrations: Value| {
            let spec = json!({"configuration": {"migrations": migrations}});
            let mut refused = Vec::new();
            kubevirt_fields(served).check(&Path::new("spec"), &spec, &Gates::default(), &mut refused);
            refused.iter().map(|path| path.to_string()).collect::<Vec<String>>()
        };
        let own = json!({
            "allowAutoConverge": true, "bandwidthPerMigration": "64Mi", "completionTimeoutPerGiB": 30,
            "nodeDrainTaintKey": "mine", "parallelMigrationsPerCluster": 1, "parallelOutboundMigrationsPerNode": 1,
            "progressTimeout": 5, "network": "migrations", "allowPostCopy": true, "allowWorkloadDisruption": true,
            "matchSELinuxLevelOnMigration": true, "unsafeMigrationOverride": true,
        });
        assert_eq!(refused(true, own.clone()), Vec::<String>::new());
        assert_eq!(refused(false, own).len(), 12);
        let of_kubevirt = json!({"matchSELinuxLevelOnMigration": false, "unsafeMigrationOverride": false});
        assert_eq!(refused(true, of_kubevirt), Vec::<String>::new());
        for served in [false, true] {
            for given in [json!({"disableTLS": true}), json!({"utilityVolumesTimeout": 1})] {
                assert_eq!(refused(served, given.clone()).len(), 1, "{served} {given}");
            }
        }
    }

    #[test]
    fn unsupported_fields_with_default_values_are_accepted() {
        let spec = json!({
            "affinity": {"nodeAffinity": {"anything": [1]}},
            "livenessProbe": null,
            "accessCredentials": [],
            "domain": {"devices": {"disks": [{"shareable": false}]}},
        });
        assert_eq!(refused(&spec), Vec::<String>::new());
    }
}
