//! The pod that receives the image of a claim: its address and its certificate.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use barevirt_api::cdi::{PopulatorKind, annotation, populator, prime_name};
use barevirt_component::certificates::ParsedCertificate;
use barevirt_import_job::copy::KEYS_CONTAINER;
use barevirt_import_job::{UPLOAD_PORT, upload_pod_name, upload_server_name};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{Api, Client, ResourceExt};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::answer::Refusal;

/// Interval of the checks whether a pod still exists.
const LOOK: Duration = Duration::from_secs(15);

/// An upload server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    namespace: String,
    name: String,
    uid: String,
    /// Its address.
    pub(super) address: SocketAddr,
    /// Its certificate, whose key only this server has; it is for the claim.
    pub(super) certificate: CertificateDer<'static>,
}

/// Finds the pod of a claim.
///
/// 503 until it is ready, 409 once the claim is filled.
pub(super) async fn find(client: &Client, namespace: &str, claim: &str) -> Result<Server, Refusal> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let look = async |claim: &str| {
        claims.get_opt(claim).await.map_err(|error| Refusal::from_kube("get the claim", error))
    };
    let mut found = look(claim).await?;
    let mut claim = claim.to_owned();
    if let Some(through) = found.as_ref().and_then(filled_through) {
        found = look(&through).await?;
        claim = through;
    }
    let claim = claim.as_str();
    let pod = pods.get_opt(&upload_pod_name(claim)).await;
    let pod = pod.map_err(|error| Refusal::from_kube("get the upload pod", error))?;
    server(claim, found.as_ref(), pod.as_ref())
}

/// The claim through which a claim is filled that names a populator, until it is filled. It follows from the UID: what users
/// write into their claims leads nowhere else.
fn filled_through(claim: &PersistentVolumeClaim) -> Option<String> {
    let filled = claim.annotations().get(annotation::PHASE).is_some_and(|phase| phase == "Succeeded");
    let (kind, _) = populator(claim)?;
    (kind == PopulatorKind::Upload && !filled).then(|| prime_name(claim))
}

fn server(name: &str, claim: Option<&PersistentVolumeClaim>, pod: Option<&Pod>) -> Result<Server, Refusal> {
    let not_yet = |why: &str| Refusal::unavailable(format!("claim {name} takes no upload yet: {why}"));
    let claim = claim.ok_or_else(|| not_yet("it is not there"))?;
    if claim.annotations().get(annotation::PHASE).is_some_and(|phase| phase == "Succeeded") {
        return Err(Refusal::conflict("persistentvolumeclaims", name, "it is filled"));
    }
    let pod = pod.ok_or_else(|| not_yet("it has no upload pod"))?;
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let own = pod.owner_references().iter().any(|owner| owner.controller == Some(true) && owner.uid == uid);
    if uid.is_empty() || !own {
        return Err(not_yet("the pod of that name is not its own"));
    }
    let status = pod.status.clone().unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    let ready = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let address = status.pod_ip.and_then(|address| address.parse::<IpAddr>().ok());
    let (true, None, Some(address)) = (ready, &pod.metadata.deletion_timestamp, address) else {
        return Err(not_yet("its upload pod is not ready"));
    };
    let certificate = certificate(pod).ok_or_else(|| not_yet("its pod is not an upload pod"))?;
    // Its users may have made the pod. They could have it show the public certificate of a handler or of another claim's pod,
    // and pass our connection on to that server, which would take it for one that is meant for it.
    if !is_for(&certificate, uid) {
        return Err(not_yet("the certificate of its pod is not for it"));
    }
    Ok(Server {
        namespace: pod.namespace().unwrap_or_default(),
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        address: SocketAddr::new(address, UPLOAD_PORT),
        certificate,
    })
}

/// The certificate of the key that the pod has made for itself.
fn certificate(pod: &Pod) -> Option<CertificateDer<'static>> {
    let all = pod.status.as_ref()?.init_container_statuses.as_ref()?;
    let ended = all.iter().find(|one| one.name == KEYS_CONTAINER)?.state.as_ref()?.terminated.as_ref()?;
    let message = ended.message.as_deref().filter(|_| ended.exit_code == 0)?;
    CertificateDer::from_pem_slice(message.as_bytes()).ok()
}

/// Whether it is the certificate of the upload into the claim with that UID, and of nothing else.
fn is_for(certificate: &CertificateDer<'_>, claim_uid: &str) -> bool {
    let names = ParsedCertificate::read(certificate).map(|read| read.dns_names).unwrap_or_default();
    names == [upload_server_name(claim_uid)]
}

impl Server {
    /// A server at this address, for tests.
    #[cfg(test)]
    pub(super) fn at(address: SocketAddr, certificate: CertificateDer<'static>) -> Self {
        let text = |text: &str| text.to_owned();
        Server { namespace: text("shop"), name: text("pod"), uid: text("p1"), address, certificate }
    }

    /// Returns when the pod is gone. This is needed because a lost node does not close its connections.
    pub(super) async fn gone(&self, client: &Client) {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &self.namespace);
        loop {
            tokio::time::sleep(LOOK).await;
            // Without an answer the pod counts as existing.
            if let Ok(found) = pods.get_metadata_opt(&self.name).await
                && found.and_then(|found| found.uid()).as_ref() != Some(&self.uid)
            {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A certificate for these names, PEM.
    fn certificate_for(names: &[&str]) -> String {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        rcgen::generate_simple_self_signed(names).unwrap().cert.pem()
    }

    fn objects(change: impl FnOnce(&mut Value, &mut Value)) -> Result<Server, Refusal> {
        let mut claim = json!({ "metadata": { "name": "disk", "uid": "c1", "annotations": {} } });
        let mut pod = json!({
            "metadata": { "name": "cdi-upload-disk", "namespace": "shop", "uid": "p1", "ownerReferences": [
                { "apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "disk", "uid": "c1", "controller": true },
            ] },
            "status": { "podIP": "10.0.0.1", "conditions": [{ "type": "Ready", "status": "True" }],
                "initContainerStatuses": [{
                    "name": "keys", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                    "state": { "terminated": { "exitCode": 0, "message": certificate_for(&["c1.upload.barevirt.dev"]) } },
                }] },
        });
        change(&mut claim, &mut pod);
        let pod = (!pod.is_null()).then(|| serde_json::from_value(pod).unwrap());
        let claim = (!claim.is_null()).then(|| serde_json::from_value(claim).unwrap());
        server("disk", claim.as_ref(), pod.as_ref())
    }

    #[test]
    fn a_pod_that_is_ready_and_the_claims_own_is_found() {
        let found = objects(|_, _| {}).unwrap();
        assert_eq!(found.address, "10.0.0.1:8443".parse().unwrap());
        assert_eq!((found.name.as_str(), found.uid.as_str()), ("cdi-upload-disk", "p1"));
    }

    #[test]
    fn a_claim_with_a_populator_is_filled_through_another_one() {
        let through = |kind: &str, phase: &str| {
            let claim = json!({
                "metadata": { "uid": "c1", "annotations": { annotation::PHASE: phase } },
                "spec": { "dataSourceRef": { "apiGroup": "cdi.kubevirt.io", "kind": kind, "name": "x" } },
            });
            filled_through(&serde_json::from_value(claim).unwrap())
        };
        assert_eq!(through("VolumeUploadSource", "Running").as_deref(), Some("populator-c1"));
        assert_eq!(through("VolumeUploadSource", "Succeeded"), None, "it answers that it is filled");
        assert_eq!(through("VolumeImportSource", "Running"), None);
        assert_eq!(through("Other", "Running"), None);
    }

    #[test]
    fn an_upload_is_refused_until_the_claims_pod_is_ready() {
        type Change = fn(&mut Value, &mut Value);
        let all: [(Change, &str); 8] = [
            (|claim, _| *claim = json!(null), "it is not there"),
            (|_, pod| *pod = json!(null), "it has no upload pod"),
            (|_, pod| pod["metadata"]["ownerReferences"][0]["uid"] = json!("c0"), "not its own"),
            (|_, pod| pod["metadata"]["ownerReferences"] = json!([]), "not its own"),
            (|_, pod| pod["status"]["conditions"][0]["status"] = json!("False"), "is not ready"),
            (|_, pod| pod["status"]["podIP"] = json!(null), "is not ready"),
            (|_, pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"), "is not ready"),
            (|_, pod| pod["status"]["initContainerStatuses"] = json!([]), "is not an upload pod"),
        ];
        for (change, why) in all {
            let refusal = objects(change).unwrap_err();
            assert!(refusal.code == 503 && refusal.message.contains(why), "{why}: {refusal:?}");
        }
        let filled =
            objects(|claim, _| claim["metadata"]["annotations"][annotation::PHASE] = json!("Succeeded"));
        assert_eq!(filled.unwrap_err().code, 409);
    }

    #[test]
    fn a_pod_with_the_certificate_of_another_server_gets_no_connection_to_pass_on() {
        let handler = "node1.virt-handler.kubevirt";
        let (own, other) = ("c1.upload.barevirt.dev", "c2.upload.barevirt.dev");
        for names in [vec![handler], vec![other], vec![own, other], vec!["upload.barevirt.dev"], vec![]] {
            let shown = certificate_for(&names);
            let refusal = objects(|_, pod| {
                pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["message"] = json!(shown);
            });
            let refusal = refusal.unwrap_err();
            assert!(
                refusal.code == 503 && refusal.message.contains("is not for it"),
                "{names:?}: {refusal:?}"
            );
        }
    }
}
