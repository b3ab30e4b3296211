//! What a migrating guest needs on the target node before it is handed over: its hot-plugged disks, and the contents of claims
//! that its volumes move to.

use super::claims;
use super::hotplug::target::{Brought, find, is_settled, judge};
use super::observe::in_namespace;
use crate::cluster::Cluster;
use barevirt_api::hotplug::plugged;
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_component::request::Error;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// Looks at the disks. `target` is the launcher pod on the target node.
pub(crate) async fn brought(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    target: &Pod,
) -> Result<Brought, Error> {
    if !is_settled(vmi) {
        return Ok(Brought::Unsettled);
    }
    if let Some(waits) = being_filled(cluster, vmi).await? {
        return Ok(waits);
    }
    if plugged(vmi).is_empty() {
        return Ok(Brought::default());
    }
    let Some(found) = find(cluster, vmi, target) else { return Ok(Brought::Waits(vec![])) };
    let namespace = vmi.namespace().unwrap_or_default();
    let config = in_namespace(cluster, cluster.config(), &namespace).await?;
    Ok(judge(vmi, target, &found, &config))
}

/// Why a claim that a volume moves to cannot be written to. The target's pod may be the consumer that its DataVolume waits for.
async fn being_filled(cluster: &Cluster, vmi: &VirtualMachineInstance) -> Result<Option<Brought>, Error> {
    let namespace = vmi.namespace().unwrap_or_default();
    for moved in vmi.status.iter().flat_map(|status| &status.migrated_volumes) {
        let volume = vmi.spec.volumes.iter().find(|volume| volume.name == moved.volume_name);
        let Some(claim) = volume.and_then(|volume| volume.claim()) else { continue };
        let found = claims::look(&cluster.client, &namespace, claim.name, claim.is_filled).await?;
        if let Some(why) = found.failure(&namespace, claim.name) {
            return Ok(Some(Brought::Failed(why)));
        }
        if found.is_being_filled() {
            return Ok(Some(Brought::BeingFilled));
        }
    }
    Ok(None)
}
