//! Migrations that this program creates itself.
//!
//! The name is derived from the instance and its latest migration, so that an old observation never leads to a second
//! object; admission refuses a second migration as well.

use crate::cluster::Cluster;
use crate::expectations::{Key, Kind};
use crate::generated;
use crate::write::FIELD_MANAGER;
use barevirt_api::names::{
    MIGRATION_FINALIZER, MIGRATION_SELECTOR_LABEL, REASON_FAILED_CREATE, REASON_SUCCESSFUL_CREATE,
    VOLUME_UPDATE_MIGRATION_LABEL, vmi_id,
};
use barevirt_api::v1::{
    VirtualMachineInstance, VirtualMachineInstanceMigration, VirtualMachineInstanceMigrationSpec,
};
use barevirt_component::error::response;
use barevirt_component::notes::Note;
use barevirt_component::request::{Error, call};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use kube::{Resource, ResourceExt};
use std::collections::BTreeMap;
use std::time::Instant;
use tracing::info;

/// First in the queue.
pub const CRITICAL: &str = "system-critical";
/// Last in the queue.
pub const MAINTENANCE: &str = "system-maintenance";
/// In the middle of the queue.
pub const USER: &str = "user-triggered";

/// Most letters of a label's value.
const LONGEST_LABEL: usize = 63;

/// An instance that is to migrate.
#[derive(Clone, Copy, Debug)]
pub struct InstanceRef<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its UID.
    pub uid: &'a str,
}

/// A request for a migration.
#[derive(Clone, Copy, Debug)]
pub struct MigrationRequest<'a> {
    /// Prefix of its name.
    pub beginning: &'a str,
    /// The annotation with the reason: key and value.
    pub why: (&'a str, &'a str),
    /// Whether it also moves volumes to other claims.
    pub moves_volumes: bool,
    /// Its priority in the queue.
    pub priority: &'a str,
    /// Its purpose, for events; begins with a space unless it is empty.
    pub purpose: &'a str,
}

/// Builds the migration. `latest` is the UID of the instance's latest migration.
fn migration(
    instance: InstanceRef<'_>,
    request: &MigrationRequest<'_>,
    latest: &str,
) -> VirtualMachineInstanceMigration {
    let mut labels = BTreeMap::from([(MIGRATION_SELECTOR_LABEL.to_owned(), vmi_id(instance.name))]);
    if request.moves_volumes {
        // The longest names do not fit into a label; KubeVirt uses the UID, too.
        let owner = if instance.name.len() > LONGEST_LABEL { instance.uid } else { instance.name };
        labels.insert(VOLUME_UPDATE_MIGRATION_LABEL.to_owned(), owner.to_owned());
    }
    VirtualMachineInstanceMigration {
        metadata: ObjectMeta {
            name: Some(generated::name(request.beginning, &format!("{}/{latest}", instance.uid))),
            namespace: Some(instance.namespace.to_owned()),
            labels: Some(labels),
            annotations: Some([(request.why.0.to_owned(), request.why.1.to_owned())].into()),
            finalizers: Some(vec![MIGRATION_FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: VirtualMachineInstanceMigrationSpec {
            vmi_name: Some(instance.name.to_owned()),
            priority: Some(request.priority.to_owned()),
            ..VirtualMachineInstanceMigrationSpec::default()
        },
        status: None,
    }
}

/// Creates the migration, unless that was done a moment ago.
///
/// # Errors
/// The API server fails to create it; an event of the instance reports that.
pub async fn ask(
    cluster: &Cluster,
    instance: InstanceRef<'_>,
    request: &MigrationRequest<'_>,
) -> Result<(), Error> {
    let InstanceRef { namespace, name, .. } = instance;
    let known = cluster.migrations.of_instance(namespace, name);
    let latest = known.iter().max_by_key(|(name, row)| (row.created, name.clone()));
    let latest = latest.map(|(_, row)| row.uid.as_ref()).unwrap_or_default();
    let migration = migration(instance, request, latest);
    let own = migration.name_any();
    let api: Api<VirtualMachineInstanceMigration> = Api::namespaced(cluster.client.clone(), namespace);
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    cluster.migrations.asked(namespace, name, Instant::now());
    let write = cluster.expectations.begin(Key::new(Kind::Vmim, namespace, &own), Instant::now());
    match call("create", || format!("migration {namespace}/{own}"), api.create(&params, &migration)).await {
        Ok(created) => {
            write.done(created.metadata.resource_version.as_deref());
            info!(namespace, vmi = name, migration = own, "asked for a migration");
            let message = format!("Created Migration {own}{}", request.purpose);
            cluster.notes.tell(Note::normal(REASON_SUCCESSFUL_CREATE, message), reference(instance));
            Ok(())
        }
        Err(Error::Api { source, .. }) if response(&source).is_some_and(|a| a.reason == "AlreadyExists") => {
            Ok(())
        }
        Err(error) => {
            cluster.migrations.not_asked(namespace, name);
            let message = format!("Error creating a Migration{}: {}", request.purpose, error.message());
            cluster.notes.tell(Note::warning(REASON_FAILED_CREATE, message), reference(instance));
            Err(error)
        }
    }
}

fn reference(instance: InstanceRef<'_>) -> ObjectReference {
    ObjectReference {
        api_version: Some(VirtualMachineInstance::api_version(&()).into_owned()),
        kind: Some(VirtualMachineInstance::kind(&()).into_owned()),
        namespace: Some(instance.namespace.to_owned()),
        name: Some(instance.name.to_owned()),
        uid: Some(instance.uid.to_owned()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_name_follows_from_the_instance_and_its_latest_migration() {
        let instance = InstanceRef { namespace: "ns", name: "web", uid: "u1" };
        let request = MigrationRequest {
            beginning: "kubevirt-evacuation-",
            why: ("kubevirt.io/evacuationMigration", "node01"),
            moves_volumes: false,
            priority: CRITICAL,
            purpose: "",
        };
        let first = migration(instance, &request, "");
        assert_eq!(first, migration(instance, &request, ""));
        assert_ne!(first.metadata.name, migration(instance, &request, "m1").metadata.name);
        let value = serde_json::to_value(&first).unwrap();
        assert!(value["metadata"]["name"].as_str().unwrap().starts_with("kubevirt-evacuation-"));
        assert_eq!(value["metadata"]["annotations"], json!({"kubevirt.io/evacuationMigration": "node01"}));
        assert_eq!(value["metadata"]["labels"], json!({"kubevirt.io/vmi-name": "web"}));
        assert_eq!(value["spec"], json!({"vmiName": "web", "priority": "system-critical"}));
        let label = |instance| {
            let moved = migration(instance, &MigrationRequest { moves_volumes: true, ..request }, "");
            moved.labels().get("kubevirt.io/volume-update-migration").cloned().unwrap()
        };
        assert_eq!(label(instance), "web");
        assert_eq!(label(InstanceRef { name: &"a".repeat(64), ..instance }), "u1");
    }
}
