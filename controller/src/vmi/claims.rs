//! The claims that an instance's disks are on. Somebody else makes and fills them: the instance waits until they are there.
//!
//! Looked up past any cache, and only for instances that have not started. A claim that waits for its first consumer is bound
//! by the scheduler as it places the launcher; one that a DataVolume fills is used when that has succeeded.

use crate::cluster::Cluster;
use crate::error::Error;
use crate::shell::call_opt;
use barevirt_api::cdi;
use barevirt_api::names::REASON_PVC_NOT_FOUND;
use barevirt_api::v1::{PersistentVolumeClaimInfo, VirtualMachineInstance, VolumeStatus};
use barevirt_plan::pod::claims::Mode;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{Api, DynamicObject};
use kube::{Client, ResourceExt};
use std::collections::BTreeMap;
use std::time::Duration;

/// Reason of an instance whose DataVolume is being filled.
pub(super) const NOT_FILLED: &str = "DataVolumeNotReady";

/// How often a claim of somebody else's is looked for.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// What is there of the claims that volumes name, by their names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claims(BTreeMap<String, Found>);

/// One of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Found {
    /// The claim.
    pub(super) claim: Option<PersistentVolumeClaim>,
    /// Phase of the DataVolume that fills it, where there is such.
    pub(super) filling: Option<String>,
}

impl Found {
    /// Why a disk cannot be on it yet: reason and message.
    pub(super) fn trouble(&self, namespace: &str, name: &str) -> Option<(&'static str, String)> {
        match (&self.claim, self.filling.as_deref()) {
            (_, Some(phase)) if phase != "Succeeded" => {
                let phase = if phase.is_empty() { "Pending" } else { phase };
                Some((NOT_FILLED, format!("DataVolume {namespace}/{name} is not ready: {phase}")))
            }
            (None, _) => {
                let message = format!("PVC {namespace}/{name} does not exist, waiting for it to appear");
                Some((REASON_PVC_NOT_FOUND, message))
            }
            (Some(claim), _) if claim.metadata.deletion_timestamp.is_some() => {
                Some((REASON_PVC_NOT_FOUND, format!("PVC {namespace}/{name} is being deleted")))
            }
            _ => None,
        }
    }
}

impl Claims {
    /// Why the instance cannot have its pod yet: the first of its claims that is not there.
    pub(super) fn trouble(&self, vmi: &VirtualMachineInstance) -> Option<(&'static str, String)> {
        let namespace = vmi.namespace().unwrap_or_default();
        self.0.iter().find_map(|(name, found)| found.trouble(&namespace, name))
    }

    /// The mode of a claim.
    pub(super) fn mode(&self, name: &str) -> Mode {
        let claim = self.0.get(name).and_then(|found| found.claim.as_ref());
        Mode::of(claim.and_then(|claim| claim.spec.as_ref()?.volume_mode.as_deref()))
    }

    /// Those that are there, with the names of their volumes.
    pub(super) fn of_volumes<'a>(
        &'a self,
        vmi: &'a VirtualMachineInstance,
    ) -> impl Iterator<Item = (&'a str, &'a PersistentVolumeClaim)> {
        vmi.spec.volumes.iter().filter_map(|volume| {
            let found = self.0.get(volume.claim()?.name)?;
            Some((volume.name.as_str(), found.claim.as_ref()?))
        })
    }

    /// The claims in the instance's status, where the launcher finds how large new disks are to be.
    pub(super) fn note(&self, vmi: &VirtualMachineInstance, volumes: &mut Vec<VolumeStatus>) {
        for volume in &vmi.spec.volumes {
            let found = volume.claim().and_then(|claim| self.0.get(claim.name));
            let Some(claim) = found.and_then(|found| found.claim.as_ref()) else { continue };
            let info = Some(info(claim));
            match volumes.iter_mut().find(|known| known.name == volume.name) {
                Some(known) => known.persistent_volume_claim_info = info,
                None => volumes.push(VolumeStatus {
                    name: volume.name.clone(),
                    persistent_volume_claim_info: info,
                    ..VolumeStatus::default()
                }),
            }
        }
    }
}

/// What an instance's status tells of a claim.
pub(super) fn info(claim: &PersistentVolumeClaim) -> PersistentVolumeClaimInfo {
    let (spec, status) = (claim.spec.as_ref(), claim.status.as_ref());
    let requests = spec.and_then(|spec| spec.resources.as_ref()?.requests.clone());
    PersistentVolumeClaimInfo {
        claim_name: Some(claim.name_any()),
        access_modes: spec.and_then(|spec| spec.access_modes.clone()).unwrap_or_default(),
        capacity: status.and_then(|status| status.capacity.clone()).unwrap_or_default(),
        requests: requests.unwrap_or_default(),
        volume_mode: spec.and_then(|spec| spec.volume_mode.clone()),
        ..PersistentVolumeClaimInfo::default()
    }
}

/// Looks for those that the pod is to have.
pub(super) async fn observe(cluster: &Cluster, vmi: &VirtualMachineInstance) -> Result<Claims, Error> {
    let namespace = vmi.namespace().unwrap_or_default();
    let mut claims = Claims::default();
    for volume in vmi.spec.volumes.iter().filter(|volume| !volume.is_hotpluggable()) {
        let Some(wanted) = volume.claim() else { continue };
        let found = look(&cluster.client, &namespace, wanted.name, wanted.is_filled).await?;
        claims.0.insert(wanted.name.to_owned(), found);
    }
    Ok(claims)
}

/// Looks for one.
pub(super) async fn look(
    client: &Client,
    namespace: &str,
    name: &str,
    is_filled: bool,
) -> Result<Found, Error> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let claim = call_opt("get", || format!("claim {namespace}/{name}"), claims.get(name)).await?;
    if !is_filled {
        return Ok(Found { claim, filling: None });
    }
    // Where nobody has installed such, there is none of them.
    let all: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), namespace, &cdi::resource("DataVolume"));
    let found = call_opt("get", || format!("data volume {namespace}/{name}"), all.get(name)).await?;
    let filling = found.map(|found| found.data["status"]["phase"].as_str().unwrap_or_default().to_owned());
    Ok(Found { claim, filling })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claims(claim: serde_json::Value, filling: Option<&str>) -> Claims {
        let claim = serde_json::from_value(claim).unwrap();
        Claims([("c".to_owned(), Found { claim, filling: filling.map(str::to_owned) })].into())
    }

    #[test]
    fn an_instance_waits_for_its_claims() {
        let vmi: VirtualMachineInstance = serde_json::from_value(
            json!({"metadata": {"name": "vm", "namespace": "ns"}, "spec": {"domain": {"devices": {}}}}),
        )
        .unwrap();
        let there = json!({"metadata": {"name": "c"}});
        let going = json!({"metadata": {"name": "c", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
        for (claim, filling, expected) in [
            (there.clone(), None, None),
            (there.clone(), Some("Succeeded"), None),
            (json!(null), None, Some("PVC ns/c does not exist, waiting for it to appear")),
            (going, None, Some("PVC ns/c is being deleted")),
            (there.clone(), Some("ImportInProgress"), Some("DataVolume ns/c is not ready: ImportInProgress")),
            (json!(null), Some(""), Some("DataVolume ns/c is not ready: Pending")),
        ] {
            let trouble = claims(claim, filling).trouble(&vmi).map(|(_, message)| message);
            assert_eq!(trouble.as_deref(), expected);
        }
    }

    #[test]
    fn the_status_tells_of_each_volume_on_a_claim() {
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"name": "vm"},
            "spec": {"domain": {"devices": {}}, "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "x", "emptyDisk": {"capacity": "1Mi"}},
            ]},
        }))
        .unwrap();
        let claims = claims(
            json!({
                "metadata": {"name": "c"},
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "volumeMode": "Block",
                    "resources": {"requests": {"storage": "1Gi"}},
                },
                "status": {"capacity": {"storage": "2Gi"}},
            }),
            None,
        );
        let mut volumes = vec![];
        claims.note(&vmi, &mut volumes);
        claims.note(&vmi, &mut volumes);
        let told = json!([{"name": "data", "target": "", "persistentVolumeClaimInfo": {
            "claimName": "c", "accessModes": ["ReadWriteOnce"], "volumeMode": "Block",
            "requests": {"storage": "1Gi"}, "capacity": {"storage": "2Gi"},
        }}]);
        assert_eq!(serde_json::to_value(volumes).unwrap(), told);
        assert_eq!((claims.mode("c"), claims.mode("other")), (Mode::Block, Mode::Filesystem));
    }
}
