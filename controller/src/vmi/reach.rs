//! Nodes that reach the volumes which are plugged in once the guest runs, according to their storage.
//!
//! Read only when the pod is to be made, and only for instances with such volumes. Nothing is waited for: a claim that is
//! missing or unbound imposes nothing, nor does one whose storage is reachable from everywhere.

use super::claims::{self, Claims};
use super::state::State;
use super::subject::subject;
use crate::cluster::Cluster;
use barevirt_api::firmware::STATE_VOLUME;
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_component::notes::Note;
use barevirt_component::request::call_opt;
use barevirt_component::request::{Category, Error};
use barevirt_plan::pod::reach::{IgnoreReason, Reach};
use k8s_openapi::api::core::v1::{NodeSelectorTerm, PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt;
use kube::api::Api;
use tracing::warn;

/// Reason of the event about volumes that are ignored when the guest is placed.
const OUT_OF_REACH: &str = "VolumeOutOfReach";

/// Looks at the volumes that come later; and at the pod's own volumes only if one of the former is not reachable from
/// everywhere.
pub(super) async fn observe(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    own: &Claims,
    state: Option<&State>,
) -> Result<Vec<Reach>, Error> {
    let namespace = vmi.namespace().unwrap_or_default();
    let mut reaches = vec![];
    for volume in vmi.spec.volumes.iter().filter(|volume| volume.is_hotpluggable()) {
        let Some(name) = volume.claim().map(|claim| claim.name) else { continue };
        let Some(claim) = claims::look_for_claim(&cluster.client, &namespace, name).await? else { continue };
        let terms = terms(cluster, vmi, &claim).await?;
        reaches.extend(terms.map(|terms| Reach { volume: volume.name.clone(), comes_later: true, terms }));
    }
    if reaches.is_empty() {
        return Ok(reaches);
    }
    let kept = state.and_then(|state| state.claim.as_ref()).map(|claim| (STATE_VOLUME, claim));
    for (volume, claim) in own.of_volumes(vmi).chain(kept) {
        let terms = terms(cluster, vmi, claim).await?;
        reaches.extend(terms.map(|terms| Reach { volume: volume.to_owned(), comes_later: false, terms }));
    }
    Ok(reaches)
}

async fn terms(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    claim: &PersistentVolumeClaim,
) -> Result<Option<Vec<NodeSelectorTerm>>, Error> {
    let Some(name) = bound_to(claim) else { return Ok(None) };
    let volumes: Api<PersistentVolume> = Api::all(cluster.client.clone());
    match call_opt("get", || format!("persistent volume {name}"), volumes.get(name)).await {
        Ok(volume) => Ok(volume.and_then(|volume| node_terms(claim, volume))),
        // Without the right to read volumes the guest is placed anyway, perhaps where the volume cannot be brought.
        Err(error) if error.category() == Category::Refused => {
            warn!(
                vmi = subject(vmi),
                error = error.message(),
                "a volume is ignored when the guest is placed"
            );
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The name of the volume that a claim is bound to.
fn bound_to(claim: &PersistentVolumeClaim) -> Option<&str> {
    let name = claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty());
    name.filter(|_| claims::claim_phase(claim) == "Bound" && claim.metadata.deletion_timestamp.is_none())
}

/// The node requirements of a volume. They are ignored if the volume is bound to another claim, since any user can write a
/// volume's name into a claim.
fn node_terms(claim: &PersistentVolumeClaim, volume: PersistentVolume) -> Option<Vec<NodeSelectorTerm>> {
    let spec = volume.spec?;
    let bound = spec.claim_ref.and_then(|claim| claim.uid);
    bound.filter(|uid| claim.metadata.uid.as_ref() == Some(uid))?;
    Some(spec.node_affinity?.required?.node_selector_terms)
}

/// The event about ignored volumes, if there are any.
pub(super) fn note(ignored: &[(&str, IgnoreReason)]) -> Option<Note> {
    let told = |(volume, why): &(&str, IgnoreReason)| format!("volume {volume}: {}", why.reason());
    let told: Vec<String> = ignored.iter().map(told).collect();
    let message = || format!("The guest is placed without regard to what is plugged in: {}", told.join("; "));
    (!told.is_empty()).then(|| Note::warning(OUT_OF_REACH, message()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn claim(phase: &str, volume: Value) -> PersistentVolumeClaim {
        let claim =
            json!({"metadata": {"uid": "c1"}, "spec": {"volumeName": volume}, "status": {"phase": phase}});
        serde_json::from_value(claim).unwrap()
    }

    fn volume(uid: &str, affinity: Value) -> PersistentVolume {
        serde_json::from_value(json!({"spec": {"claimRef": {"uid": uid}, "nodeAffinity": affinity}})).unwrap()
    }

    #[test]
    fn only_a_bound_claim_has_a_volume() {
        assert_eq!(bound_to(&claim("Bound", json!("pv"))), Some("pv"));
        assert_eq!(bound_to(&claim("Bound", json!(""))), None);
        for phase in ["Pending", "Lost", ""] {
            assert_eq!(bound_to(&claim(phase, json!("pv"))), None, "{phase}");
        }
        let mut going = claim("Bound", json!("pv"));
        going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(bound_to(&going), None);
    }

    #[test]
    fn node_terms_of_a_volume_count_only_for_the_claim_that_it_is_bound_to() {
        let terms = json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]);
        let required = json!({"required": {"nodeSelectorTerms": terms}});
        let claim = claim("Bound", json!("pv"));
        let told = node_terms(&claim, volume("c1", required.clone()));
        assert_eq!(serde_json::to_value(told).unwrap(), terms);
        assert_eq!(node_terms(&claim, volume("c2", required)), None);
        assert_eq!(node_terms(&claim, volume("c1", json!({}))), None);
        assert_eq!(node_terms(&claim, PersistentVolume::default()), None);
        let nobodys = PersistentVolumeClaim::default();
        assert_eq!(
            node_terms(&nobodys, volume("c1", json!({"required": {"nodeSelectorTerms": terms}}))),
            None
        );
    }
}
