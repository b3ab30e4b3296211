//! Waits until a pod of CDI is ready for the upload.

use barevirt_api::cdi::annotation;
use std::time::Duration;

use anyhow::bail;
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim};
use kube::api::DynamicObject;
use tokio::time::Instant;

use super::cluster::Cluster;
use super::existing::annotated;
use super::upload::Upload;
use crate::waiting::Waiting;

/// How often the object is read.
pub(super) const EVERY: Duration = Duration::from_secs(2);
/// Messages of provisioners that lost a race and try again.
const OUTDATED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// Waits until the DataVolume says that it can be uploaded to.
pub(super) async fn data_volume(cluster: &Cluster<'_>, upload: &Upload) -> anyhow::Result<()> {
    let (namespace, name) = (cluster.namespace(), &upload.name);
    let mut wait = Wait::new(upload);
    let mut phase = String::new();
    loop {
        match cluster.data_volume(name).await? {
            None => println!("DV {name} not found..."),
            Some(found) => {
                phase = found.data["status"]["phase"].as_str().unwrap_or_default().to_owned();
                if takes_uploads(&phase, upload.force_bind).map_err(anyhow::Error::msg)? {
                    wait.over();
                    return Ok(());
                }
                let claim = found.data["status"]["claimName"].as_str().unwrap_or(name);
                let claim = cluster.claim_opt(claim).await?;
                look_for_failures(cluster, claim.as_ref(), Some(&found)).await?;
                wait.announce(name);
            }
        }
        if !wait.go_on().await {
            bail!(
                "timed out waiting for the condition: DataVolume {namespace}/{name} is {} and takes no upload after {} s; see 'kubectl describe datavolume {name}'",
                if phase.is_empty() { "in no phase" } else { &phase },
                upload.wait_secs
            );
        }
    }
}

/// Waits until the claim says that its pod can be uploaded to.
pub(super) async fn claim(cluster: &Cluster<'_>, upload: &Upload) -> anyhow::Result<()> {
    let (namespace, name) = (cluster.namespace(), &upload.name);
    let mut wait = Wait::new(upload);
    loop {
        let found = cluster.claim_opt(name).await?;
        if let Some(claim) = &found {
            if annotated(claim, annotation::READY).is_some_and(is_true) {
                wait.over();
                return Ok(());
            }
            look_for_failures(cluster, Some(claim), None).await?;
            wait.announce(name);
        }
        if !wait.go_on().await {
            let status = found.as_ref().and_then(|claim| claim.status.as_ref());
            let bound = status.and_then(|status| status.phase.as_deref()) == Some("Bound");
            bail!(
                "timed out waiting for the condition: PVC {namespace}/{name} has no upload pod that is ready after {} s; {}",
                upload.wait_secs,
                match bound || upload.force_bind {
                    true => format!("see 'kubectl describe pvc {name}'"),
                    false => "the claim is not bound: where its storage class waits for the first consumer, use --force-bind"
                        .to_owned(),
                }
            );
        }
    }
}

/// A wait with a deadline, which says once what it waits for.
struct Wait {
    until: Instant,
    announced: bool,
    waiting: Waiting,
}

impl Wait {
    fn new(upload: &Upload) -> Self {
        let until = Instant::now() + Duration::from_secs(upload.wait_secs.into());
        Self { until, announced: false, waiting: Waiting::on_terminal() }
    }

    fn announce(&mut self, name: &str) {
        if !std::mem::replace(&mut self.announced, true) {
            println!("Waiting for PVC {name} upload pod to be ready...");
        }
    }

    fn over(&self) {
        if self.announced {
            println!("Pod now ready");
        }
    }

    /// Waits until the object is read again. False after the deadline.
    async fn go_on(&mut self) -> bool {
        let left = self.until.saturating_duration_since(Instant::now());
        self.waiting.pause(left.min(EVERY), "waiting until the upload can begin").await;
        !left.is_zero()
    }
}

/// Fails when events say that there will be no volume.
async fn look_for_failures(
    cluster: &Cluster<'_>,
    claim: Option<&PersistentVolumeClaim>,
    data_volume: Option<&DynamicObject>,
) -> anyhow::Result<()> {
    let claim = claim.map(|claim| ("PersistentVolumeClaim", &claim.metadata));
    let data_volume = data_volume.map(|data_volume| ("DataVolume", &data_volume.metadata));
    for (kind, metadata) in claim.into_iter().chain(data_volume) {
        let events = cluster.events(kind, metadata.name.as_deref().unwrap_or_default()).await?;
        if let Some(failure) = failure(&events, kind, metadata.uid.as_deref()) {
            bail!("{failure}");
        }
    }
    Ok(())
}

/// A failure in the events of an object that waiting does not solve.
fn failure(events: &[Event], kind: &str, uid: Option<&str>) -> Option<String> {
    let about = |event: &&Event| event.involved_object.uid.as_deref() == uid;
    events.iter().filter(about).find_map(|event| {
        let message = event.message.as_deref().unwrap_or_default();
        match (kind, event.reason.as_deref()?) {
            ("PersistentVolumeClaim", "ProvisioningFailed") if !message.contains(OUTDATED) => {
                Some(format!("Provisioning failed: {message}"))
            }
            ("DataVolume", "ErrClaimNotValid") => Some(format!("Claim not valid: {message}")),
            _ => None,
        }
    })
}

/// Whether a DataVolume in that phase can be uploaded to. Fails if waiting cannot help.
fn takes_uploads(phase: &str, force_bind: bool) -> Result<bool, String> {
    match phase {
        "UploadReady" => Ok(true),
        "WaitForFirstConsumer" | "PendingPopulation" if !force_bind => Err(format!(
            "cannot upload to DataVolume in {phase} phase, make sure the PVC is Bound, or use force-bind flag"
        )),
        "Failed" | "Succeeded" => Err(format!("cannot upload to DataVolume in {phase} phase")),
        _ => Ok(false),
    }
}

/// Reads a boolean as Go prints it.
fn is_true(text: &str) -> bool {
    matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn a_phase_says_whether_to_wait() {
        assert_eq!(takes_uploads("UploadReady", false), Ok(true));
        for phase in ["", "Pending", "UploadScheduled", "PVCBound"] {
            assert_eq!(takes_uploads(phase, false), Ok(false), "{phase}");
        }
        for phase in ["WaitForFirstConsumer", "PendingPopulation"] {
            assert_eq!(takes_uploads(phase, true), Ok(false), "{phase}");
            let words = takes_uploads(phase, false).unwrap_err();
            assert!(words.contains(phase) && words.ends_with("or use force-bind flag"), "{words}");
        }
        for phase in ["Failed", "Succeeded"] {
            assert!(takes_uploads(phase, true).is_err(), "{phase}");
        }
    }

    fn events(list: Value) -> Vec<Event> {
        serde_json::from_value(list).unwrap()
    }

    #[test]
    fn an_event_about_this_very_object_ends_the_wait() {
        let event = |uid: &str, reason: &str, message: &str| {
            json!({
                "metadata": {}, "involvedObject": { "uid": uid }, "reason": reason, "message": message,
            })
        };
        let (claims, volumes) = ("PersistentVolumeClaim", "DataVolume");
        let failed = events(json!([
            event("former", "ProvisioningFailed", "the former one"),
            event("1", "WaitForFirstConsumer", "not yet"),
            event("1", "ProvisioningFailed", "no space"),
        ]));
        let words = Some("Provisioning failed: no space".to_owned());
        assert_eq!(failure(&failed, claims, Some("1")), words);
        assert_eq!(failure(&failed, claims, Some("2")), None);
        assert_eq!(failure(&failed, volumes, Some("1")), None);
        let raced = format!("Operation cannot be fulfilled: {OUTDATED}");
        assert_eq!(
            failure(&events(json!([event("1", "ProvisioningFailed", &raced)])), claims, Some("1")),
            None
        );
        let refused = events(json!([event("1", "ErrClaimNotValid", "no access mode")]));
        assert_eq!(failure(&refused, volumes, Some("1")), Some("Claim not valid: no access mode".to_owned()));
    }

    #[test]
    fn readiness_is_read_as_go_writes_it() {
        assert!(is_true("true") && is_true("1"));
        assert!(!is_true("false") && !is_true(""));
    }
}
