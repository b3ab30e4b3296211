//! Waits while CDI converts the uploaded image into the volume. CDI reports on the claim.

use barevirt_api::cdi::annotation;
use std::time::Duration;

use anyhow::bail;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use tokio::time::Instant;

use super::cluster::Cluster;
use super::existing::annotated;
use super::ready::EVERY;
use crate::waiting::Waiting;

/// Longest that an image may take.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// How often in a row the API server may fail to answer.
const FAILURES: u32 = 15;

/// The state of the image, as the claim reports it.
#[derive(Debug, PartialEq, Eq)]
enum ClaimProgress {
    Done,
    Going,
    /// The upload server ended before it was done, and waits for another upload.
    Lost(String),
}

/// Restarts of the upload server.
pub(super) fn restarts(claim: &PersistentVolumeClaim) -> u32 {
    annotated(claim, annotation::RESTARTS).and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// `before`: restarts before the image was sent, if known.
fn seen(claim: &PersistentVolumeClaim, before: Option<u32>) -> ClaimProgress {
    if annotated(claim, annotation::PHASE) == Some("Succeeded") {
        return ClaimProgress::Done;
    }
    match before {
        Some(before) if restarts(claim) > before => {
            ClaimProgress::Lost(annotated(claim, annotation::MESSAGE).unwrap_or_default().to_owned())
        }
        _ => ClaimProgress::Going,
    }
}

/// Waits until the volume is filled.
pub(super) async fn wait(cluster: &Cluster<'_>, name: &str, before: Option<u32>) -> anyhow::Result<()> {
    let until = Instant::now() + LONGEST;
    let mut failures = 0;
    let mut waiting = Waiting::on_terminal();
    loop {
        match cluster.claim_opt(name).await {
            Ok(Some(claim)) => {
                failures = 0;
                match seen(&claim, before) {
                    ClaimProgress::Done => {
                        println!("Processing completed successfully");
                        return Ok(());
                    }
                    ClaimProgress::Going => {}
                    ClaimProgress::Lost(message) => bail!(lost(cluster.namespace(), name, &message)),
                }
            }
            Ok(None) => {
                bail!(
                    "persistentvolumeclaims \"{name}\" not found: it was deleted while its image was processed"
                )
            }
            // A large image takes hours. The wait continues when the API server restarts meanwhile.
            Err(_) if failures < FAILURES => failures += 1,
            Err(error) => return Err(error),
        }
        if Instant::now() > until {
            println!(
                "Timed out waiting for post upload processing to complete, please check upload pod status for progress"
            );
            bail!(
                "timed out waiting for the condition: the image in PVC {}/{name} is processed",
                cluster.namespace()
            );
        }
        waiting.pause(EVERY, "waiting until the image is processed").await;
    }
}

fn lost(namespace: &str, name: &str, message: &str) -> String {
    let why = if message.is_empty() { String::new() } else { format!(" ({message})") };
    format!(
        "processing of the image in PVC {namespace}/{name} failed: its upload pod has restarted{why}. The pod's events and log say more; upload again with --no-create"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn look(annotations: Value, before: Option<u32>) -> ClaimProgress {
        let claim = json!({ "metadata": { "annotations": annotations } });
        seen(&serde_json::from_value(claim).unwrap(), before)
    }

    #[test]
    fn a_claim_says_when_its_image_is_processed() {
        let running = json!({ "cdi.kubevirt.io/storage.pod.phase": "Running" });
        assert_eq!(look(running, Some(0)), ClaimProgress::Going);
        assert_eq!(look(json!({}), Some(0)), ClaimProgress::Going);
        let done = json!({
            "cdi.kubevirt.io/storage.pod.phase": "Succeeded", "cdi.kubevirt.io/storage.pod.restarts": "3",
        });
        assert_eq!(look(done, Some(0)), ClaimProgress::Done);
    }

    #[test]
    fn a_restarted_upload_server_has_lost_the_image() {
        let anew = json!({
            "cdi.kubevirt.io/storage.pod.phase": "Running",
            "cdi.kubevirt.io/storage.pod.restarts": "3",
            "cdi.kubevirt.io/storage.condition.running.message": "unable to convert",
        });
        assert_eq!(look(anew.clone(), Some(3)), ClaimProgress::Going);
        assert_eq!(look(anew.clone(), None), ClaimProgress::Going);
        assert_eq!(look(anew, Some(2)), ClaimProgress::Lost("unable to convert".to_owned()));
        let words = lost("shop", "disk", "unable to convert");
        assert!(words.starts_with("processing of the image in PVC shop/disk failed"), "{words}");
        assert!(words.contains("(unable to convert)") && words.contains("--no-create"), "{words}");
    }
}
