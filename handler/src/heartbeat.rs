//! Says that this node can run guests, and that its handler lives.
//!
//! KubeVirt's facts: label `kubevirt.io/schedulable=true` and annotation `kubevirt.io/heartbeat` on the node, at start
//! and then every 60 to 132 seconds. KubeVirt sets the label to false when its handler shuts down. This one does not:
//! guests are not affected by its restart, and a launcher that is placed meanwhile waits for the next handler; a handler
//! that stays away is noticed by the age of its heartbeat.

use std::time::Duration;

use barevirt_api::names::{HEARTBEAT_ANNOTATION, SCHEDULABLE_LABEL};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::{SignedDuration, Timestamp, Unit};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::sync::FIELD_MANAGER;

/// Shortest time between two beats.
const PERIOD: Duration = Duration::from_secs(60);
/// How long the API server may take.
const API_DEADLINE: Duration = Duration::from_secs(30);
/// How soon a failed beat is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Beats for as long as the process lives.
pub async fn run(client: Client, node: String) {
    let api: Api<Node> = Api::all(client);
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let mut healthy = false;
    loop {
        let now = Timestamp::now();
        let patch = Patch::Merge(beat(now));
        let answer = timeout(API_DEADLINE, api.patch_metadata(&node, &params, &patch)).await;
        match answer {
            Ok(Ok(_)) => {
                if !healthy {
                    info!(node, "node is schedulable for guests");
                }
                healthy = true;
                sleep(pause(now)).await;
                continue;
            }
            Ok(Err(error)) => warn!(node, %error, "heartbeat not written"),
            Err(_) => warn!(node, "heartbeat not written in time"),
        }
        healthy = false;
        sleep(RETRY).await;
    }
}

/// The patch of one beat.
fn beat(now: Timestamp) -> Value {
    // Whole seconds, as Kubernetes writes times.
    let now = now.round(Unit::Second).unwrap_or(now);
    json!({
        "metadata": {
            "labels": { SCHEDULABLE_LABEL: "true" },
            "annotations": { HEARTBEAT_ANNOTATION: now.to_string() },
        },
    })
}

/// Time to the next beat: spread, so that the handlers of a cluster that started at once do not beat at once.
fn pause(now: Timestamp) -> Duration {
    let spread = PERIOD * 6 / 5;
    // The sub-second part of the time is as good as random for this.
    let fraction = SignedDuration::from_nanos(i64::from(now.subsec_nanosecond())).as_secs_f64().abs();
    PERIOD + spread.mul_f64(fraction.min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_writes_label_and_annotation_only() {
        let at: Timestamp = "2026-11-21T13:00:00.4Z".parse().unwrap();
        let expected = json!({"metadata": {
            "labels": {"kubevirt.io/schedulable": "true"},
            "annotations": {"kubevirt.io/heartbeat": "2026-11-21T13:00:00Z"},
        }});
        assert_eq!(beat(at), expected);
    }

    #[test]
    fn beats_are_60_to_132_seconds_apart() {
        for nanosecond in [0, 1, 500_000_000, 999_999_999] {
            let pause = pause(Timestamp::new(1, nanosecond).unwrap());
            assert!((60.0..=132.0).contains(&pause.as_secs_f64()), "{pause:?}");
        }
    }
}
