//! Claims that grow while their guests run. The instance's status follows; with it the node's handler has the launcher
//! make the guest's disk larger.
//!
//! ```text
//!   user changes the request of a claim ─> its storage grows ─> capacity of the claim ─> status of the instance ─> launcher
//! ```
//!
//! Sizes come from the watch of all claims. A claim that seems to be larger than the status says is read from the API
//! server, so each growth costs one request and one write. A claim that is smaller changes nothing.

use super::action::Plan;
use super::claims;
use super::observed::Observed;
use super::status::status_patch;
use crate::cluster::{Cluster, Vmi};
use crate::inventory::Grown;
use barevirt_api::names::{PHASE_RUNNING, is_final_phase};
use barevirt_api::v1::{PersistentVolumeClaimInfo, VirtualMachineInstance, Volume};
use barevirt_component::request::Error;
use barevirt_plan::phase;
use futures::channel::mpsc::UnboundedSender;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource as _, ResourceExt};
use serde_json::json;

/// The volumes of an instance whose claims have more bytes than its status says, with the names of these claims.
fn outdated<'a>(
    vmi: &'a VirtualMachineInstance,
    bytes: impl Fn(&str) -> Option<u64> + 'a,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let entries = vmi.status.iter().flat_map(|status| &status.volume_status);
    entries.filter_map(move |entry| {
        let info = entry.persistent_volume_claim_info.as_ref()?;
        let claim = info.claim_name.as_deref()?;
        // A volume may be about to move to another claim.
        let is_its = |volume: &Volume| {
            volume.name == entry.name && volume.claim().is_some_and(|wanted| wanted.name == claim)
        };
        let is_larger = bytes(claim) > info.disk_bytes();
        (is_larger && vmi.spec.volumes.iter().any(is_its)).then_some((entry.name.as_str(), claim))
    })
}

/// Queues the running instances whose claims have grown.
pub(crate) fn queue(cluster: &Cluster, grown: &Grown, queue: &UnboundedSender<ObjectRef<Vmi>>) {
    let all = cluster.vmis.state();
    for vmi in all.iter().filter(|vmi| grown.concerns(vmi.meta().namespace.as_deref().unwrap_or_default())) {
        let Ok(vmi) = vmi.unpack() else { continue };
        if !is_final_phase(phase(&vmi)) && look(cluster, &vmi).next().is_some() {
            // A send fails only when the receiver is gone; then the process ends.
            let object = ObjectRef::new(&vmi.name_any()).within(&vmi.namespace().unwrap_or_default());
            let _ = queue.unbounded_send(object);
        }
    }
}

/// Those of the cluster.
fn look<'a>(
    cluster: &'a Cluster,
    vmi: &'a VirtualMachineInstance,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let namespace = vmi.metadata.namespace.as_deref().unwrap_or_default();
    outdated(vmi, move |claim| cluster.claim_bytes(namespace, claim))
}

/// Looks up the claims of a running instance that have grown, by the names of their volumes.
pub(super) async fn observe(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
) -> Result<Vec<(String, PersistentVolumeClaimInfo)>, Error> {
    let namespace = vmi.namespace().unwrap_or_default();
    let mut grown = vec![];
    for (volume, name) in look(cluster, vmi) {
        let found = claims::look_for_claim(&cluster.client, &namespace, name).await?;
        grown.extend(found.map(|claim| (volume.to_owned(), claims::info(&claim))));
    }
    Ok(grown)
}

/// Writes the larger sizes to the status of a running instance.
pub(super) fn plan(observed: &Observed) -> Plan {
    let vmi = &observed.vmi;
    if observed.grown.is_empty() || phase(vmi) != PHASE_RUNNING {
        return Plan::default();
    }
    let mut status = vmi.status.clone().unwrap_or_default();
    for (volume, now) in &observed.grown {
        let entry = status.volume_status.iter_mut().find(|entry| entry.name == *volume);
        let told = entry.and_then(|entry| entry.persistent_volume_claim_info.as_mut());
        if let Some(told) =
            told.filter(|told| told.claim_name == now.claim_name && told.disk_bytes() < now.disk_bytes())
        {
            told.clone_from(now);
        }
    }
    Plan::default().act_if(status_patch(vmi, json!({}), &status))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vmi::tests::{observed, patch_of, running};
    use serde_json::Value;

    fn info(claim: &str, request: &str, capacity: &str) -> Value {
        json!({"claimName": claim, "requests": {"storage": request}, "capacity": {"storage": capacity}})
    }

    fn vmi(info: &Value) -> VirtualMachineInstance {
        let mut vmi = crate::vmi::tests::vmi(json!({
        "phase": "Running", "nodeName": "node01", "activePods": {"p1": "node01"}, "volumeStatus": [
            {"name": "root", "target": "vda"},
            {"name": "data", "target": "vdb", "persistentVolumeClaimInfo": info},
            {"name": "vm-state", "target": "", "persistentVolumeClaimInfo": {"claimName": "kept"}},
        ]}));
        let volumes = json!([
            {"name": "root", "containerDisk": {"image": "a"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "c"}},
        ]);
        vmi.spec.volumes = serde_json::from_value(volumes).unwrap();
        vmi
    }

    fn grown(volume: &str, info: Value) -> (String, PersistentVolumeClaimInfo) {
        (volume.to_owned(), serde_json::from_value(info).unwrap())
    }

    #[test]
    fn only_a_larger_claim_of_a_volume_is_news() {
        let of = |info: &Value, bytes: Option<u64>| outdated(&vmi(info), |_| bytes).count();
        let known = info("c", "1Ki", "2Ki");
        assert_eq!(of(&known, Some(1025)), 1);
        assert_eq!(of(&known, Some(1024)), 0);
        assert_eq!(of(&known, Some(1)), 0);
        assert_eq!(of(&known, None), 0);
        // The volume is about to move away from this claim.
        assert_eq!(of(&info("other", "1Ki", "2Ki"), Some(1025)), 0);
        assert_eq!(of(&json!({"claimName": "c"}), Some(1)), 1, "nothing was known");
    }

    #[test]
    fn the_status_follows_a_claim_that_grows_and_none_that_shrinks() {
        let mut observed = observed(vmi(&info("c", "2Gi", "1Gi")), Some(running()));
        observed.grown = vec![grown("data", info("c", "2Gi", "2Gi"))];
        let status = patch_of(&plan(&observed))["status"]["volumeStatus"].clone();
        assert_eq!(status[1]["persistentVolumeClaimInfo"]["capacity"]["storage"], "2Gi");
        assert_eq!((&status[0]["target"], &status[1]["target"]), (&json!("vda"), &json!("vdb")));
        assert_eq!(crate::vmi::plan::plan(&observed).actions, plan(&observed).actions);
        for none in [
            grown("data", info("c", "2Gi", "512Mi")),
            grown("data", info("d", "9Gi", "9Gi")),
            grown("root", info("c", "9Gi", "9Gi")),
        ] {
            observed.grown = vec![none];
            assert_eq!(plan(&observed), Plan::default());
        }
        observed.grown = vec![grown("data", info("c", "2Gi", "2Gi"))];
        observed.vmi.status.as_mut().unwrap().phase = Some("Scheduled".to_owned());
        assert_eq!(plan(&observed), Plan::default());
    }
}
