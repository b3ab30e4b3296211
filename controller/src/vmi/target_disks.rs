//! What a migrating guest needs on the target node before it is handed over: its hot-plugged disks, and the contents of claims
//! that its volumes move to.

use super::claim_lock;
use super::claims;
use super::consumer;
use super::hotplug::target::{TargetDisks, consumers, find, is_settled, judge};
use super::observe::in_namespace;
use crate::cluster::Cluster;
use barevirt_api::hotplug::plugged;
use barevirt_api::v1::{StorageMigratedVolumeInfo, VirtualMachineInstance, Volume};
use barevirt_component::request::Error;
use barevirt_plan::volume_migration::turn::gives_way;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

/// Looks at the disks. `target` is the launcher pod on the target node.
pub(crate) async fn target_disks(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    target: &Pod,
) -> Result<TargetDisks, Error> {
    if !is_settled(vmi) {
        return Ok(TargetDisks::Unsettled);
    }
    if moves(vmi).next().is_some() {
        // The others are looked at only once the cache shows the moves: then they are no older.
        if !shows_moves(cluster, vmi) {
            return Ok(TargetDisks::Unsettled);
        }
        if let Some(why) = claim_lock::held(vmi, claims::beside(cluster, vmi)) {
            return Ok(TargetDisks::Withheld(why));
        }
    }
    if let Some(waits) = being_filled(cluster, vmi, target).await? {
        return Ok(waits);
    }
    if plugged(vmi).is_empty() {
        return Ok(TargetDisks::default());
    }
    let Some(found) = find(cluster, vmi, target) else { return Ok(TargetDisks::Waits(vec![])) };
    let namespace = vmi.namespace().unwrap_or_default();
    let config = in_namespace(cluster, cluster.config(), &namespace).await?;
    Ok(judge(vmi, target, &found, &config))
}

/// The volumes that move to other claims with the guest.
fn moves(vmi: &VirtualMachineInstance) -> impl Iterator<Item = &StorageMigratedVolumeInfo> {
    vmi.status.iter().flat_map(|status| &status.migrated_volumes)
}

/// Whether the cache has the instance with these moves, which give way or do not.
fn shows_moves(cluster: &Cluster, vmi: &VirtualMachineInstance) -> bool {
    let namespace = vmi.namespace().unwrap_or_default();
    let cached = cluster.vmis.get(&ObjectRef::new(&vmi.name_any()).within(&namespace));
    let cached = cached.and_then(|cached| cached.unpack().ok());
    cached.is_some_and(|cached| {
        cached.metadata.uid == vmi.metadata.uid
            && moves(&cached).eq(moves(vmi))
            && gives_way(&cached) == gives_way(vmi)
    })
}

/// Why a claim that a volume moves to cannot be written to. The target's pod may be the consumer that its DataVolume waits
/// for, but not of a volume that was plugged in: such a claim gets a consumer of its own.
async fn being_filled(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    target: &Pod,
) -> Result<Option<TargetDisks>, Error> {
    let namespace = vmi.namespace().unwrap_or_default();
    let (mut fills, mut waiting) = (false, Vec::new());
    for moved in moves(vmi) {
        let volume = vmi.spec.volumes.iter().find(|volume| volume.name == moved.volume_name);
        let Some(claim) = volume.and_then(|volume| volume.claim()) else { continue };
        let found = claims::look(&cluster.client, &namespace, claim.name, claim.is_filled).await?;
        if let Some(why) = found.failure(&namespace, claim.name) {
            return Ok(Some(TargetDisks::Failed(why)));
        }
        if !volume.is_some_and(Volume::is_hotpluggable) {
            fills |= found.is_being_filled();
        } else if found.waits_for_consumer() {
            waiting.push(moved.volume_name.as_str());
        } else {
            // Where the claim is bound only when it is filled, the pod with the disk comes before that.
            fills |= found.trouble(&namespace, claim.name).is_some();
        }
    }
    if waiting.is_empty() {
        return Ok(fills.then_some(TargetDisks::BeingFilled));
    }
    let config = in_namespace(cluster, cluster.config(), &namespace).await?;
    let mut make = match consumers(vmi, target, &waiting, &config) {
        Ok(make) => make,
        Err(why) => return Ok(Some(TargetDisks::Failed(why))),
    };
    make.retain(|(pod, _)| {
        let found = consumer::find(cluster, &namespace, &pod.name_any());
        found.is_some_and(|found| found.pod.is_none() && found.pause.is_zero())
    });
    Ok(Some(TargetDisks::Waits(make)))
}
