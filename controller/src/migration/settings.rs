//! The settings of a migration: the installation's, and those of the policy that selects the instance. They are chosen when
//! the target pod is about to be made, and recorded in the migration's status before it is made. The hand-over reads them
//! there. So the pod, the record and the handlers have the same ones, whatever is changed meanwhile.

use super::subject::subject;
use barevirt_api::migrations::MigrationPolicy;
use barevirt_api::v1::{
    MigrationConfiguration, VirtualMachineInstance, VirtualMachineInstanceMigration,
    VirtualMachineInstanceMigrationStatus,
};
use barevirt_component::request::{Error, call, call_opt};
use barevirt_plan::migration::{Effective, effective};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ListParams};
use kube::core::DeserializeGuard;
use kube::{Client, ResourceExt};

/// The settings that were recorded before the target pod was made.
pub(super) fn recorded(migration: &VirtualMachineInstanceMigration) -> Option<Effective> {
    let state = migration.status.as_ref()?.migration_state.as_ref()?;
    let configuration = state.migration_configuration.clone()?;
    Some(Effective { configuration, policy: state.migration_policy_name.clone() })
}

/// Records the settings.
pub(super) fn record(status: &mut VirtualMachineInstanceMigrationStatus, chosen: &Effective) {
    let state = status.migration_state.get_or_insert_default();
    state.migration_configuration = Some(chosen.configuration.clone());
    state.migration_policy_name.clone_from(&chosen.policy);
}

/// Chooses the settings that are in force now; `given` are the installation's. The API server is asked for the policies: a
/// cache may lack one that was made just before the migration.
pub(super) async fn choose(
    client: &Client,
    given: &MigrationConfiguration,
    vmi: &VirtualMachineInstance,
) -> Result<Effective, Error> {
    let policies = policies(client, vmi).await?;
    let name = vmi.namespace().unwrap_or_default();
    // The namespace's labels are read only where a policy needs them.
    let labels = if policies.iter().any(|policy| !policy.spec.selectors.namespace_selector.is_empty()) {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let found = namespaces.get_metadata(&name);
        let found = call_opt("get", || format!("namespace {name}, for {}", subject(vmi)), found).await?;
        found.and_then(|found| found.metadata.labels)
    } else {
        None
    };
    Ok(effective(given, &policies, vmi.metadata.labels.as_ref(), labels.as_ref()))
}

/// All policies that can be decoded.
async fn policies(client: &Client, vmi: &VirtualMachineInstance) -> Result<Vec<MigrationPolicy>, Error> {
    let all: Api<DeserializeGuard<MigrationPolicy>> = Api::all(client.clone());
    // Without a resource version, the API server answers with the latest state.
    let latest = ListParams::default();
    let about = || format!("migration policies, for {}", subject(vmi));
    let listed = call("list", about, all.list(&latest)).await?;
    Ok(listed.items.into_iter().filter_map(|policy| policy.0.ok()).collect())
}

#[cfg(test)]
mod tests;
