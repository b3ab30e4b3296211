//! Changes of the machine itself.

use crate::cluster::Cluster;
use crate::write;
use barevirt_api::names::RUN_STRATEGY_ALWAYS;
use barevirt_api::v1::{Interface, Network, VirtualMachine};
use barevirt_component::request::Error;
use kube::ResourceExt;
use serde_json::{Value, json};
use tracing::info;

/// Makes a halted machine run: sets `running` or `runStrategy`, whichever it uses.
pub(super) async fn switch_on(cluster: &Cluster, vm: &VirtualMachine) -> Result<(), Error> {
    let spec = match vm.spec.run_strategy {
        Some(_) => json!({"runStrategy": RUN_STRATEGY_ALWAYS}),
        None => json!({"running": true}),
    };
    patch_machine_with(cluster, vm, json!({ "spec": spec })).await?;
    info!(namespace = vm.namespace(), vm = vm.name_any(), "a request to start switched the machine on");
    Ok(())
}

/// Writes the template's cards.
pub(super) async fn write_cards(
    cluster: &Cluster,
    vm: &VirtualMachine,
    interfaces: &[Interface],
    networks: &[Network],
) -> Result<(), Error> {
    let spec = json!({"domain": {"devices": {"interfaces": interfaces}}, "networks": networks});
    patch_machine_with(cluster, vm, json!({"spec": {"template": {"spec": spec}}})).await?;
    info!(namespace = vm.namespace(), vm = vm.name_any(), "the template has these network cards now");
    Ok(())
}

/// Merges this into the machine's metadata.
pub(super) async fn patch_machine(
    cluster: &Cluster,
    vm: &VirtualMachine,
    metadata: Value,
) -> Result<(), Error> {
    patch_machine_with(cluster, vm, json!({ "metadata": metadata })).await
}

/// Merges `body` into the machine, if it is still the one that was observed.
pub(super) async fn patch_machine_with(
    cluster: &Cluster,
    vm: &VirtualMachine,
    mut body: Value,
) -> Result<(), Error> {
    body["metadata"]["resourceVersion"] = json!(vm.metadata.resource_version);
    let (namespace, name) = (vm.namespace().unwrap_or_default(), vm.name_any());
    write::patch::<VirtualMachine>(cluster, "patch", &namespace, &name, &body).await
}
