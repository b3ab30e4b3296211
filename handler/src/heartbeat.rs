//! Reports that this node can run guests and that its handler is alive.
//!
//! As in KubeVirt, it writes the label `kubevirt.io/schedulable` and the annotation `kubevirt.io/heartbeat`
//! to the node, at start and then every 60 to 132 seconds. It also writes whether the kubelet gives
//! containers exclusive CPUs. The label is `true` while the kubelet knows the resource that launchers
//! request; where guests are emulated, they request none. A change is written at once. At start, the kubelet
//! gets ten seconds to register the resource.
//!
//! KubeVirt sets the label to `false` when its handler shuts down. This handler does not: its restart does
//! not affect guests, and a launcher that is scheduled meanwhile waits for the next handler. If the label
//! were set to `false`, a launcher would be scheduled the moment it is `true` again. The scheduler sees that
//! before the kubelet does, and the kubelet would then reject the pod permanently. If a handler stays away,
//! virt-controller notices the age of its heartbeat and writes `false`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use barevirt_api::names::{
    CPU_MANAGER_LABEL, FORMER_CPU_MANAGER_LABEL, HEARTBEAT_ANNOTATION, SCHEDULABLE_LABEL,
};
use barevirt_component::installation::Installation;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::{SignedDuration, Timestamp, Unit};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::FIELD_MANAGER;
use crate::devices::Registered;
use crate::exclusive::{STATE_FILE, STATE_MAX};

/// Shortest time between two beats.
const PERIOD: Duration = Duration::from_secs(60);
/// Longest time that the API server may take to answer.
const API_DEADLINE: Duration = Duration::from_secs(30);
/// Pause before a failed heartbeat is retried.
const RETRY: Duration = Duration::from_secs(5);
/// How long the kubelet may take to register the resource before the first heartbeat reports that it is
/// missing.
const FIRST: Duration = Duration::from_secs(10);

/// What a heartbeat reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    schedulable: bool,
    cpu_manager: bool,
}

/// Sources of a heartbeat's data.
pub struct Sources {
    /// Settings of the installation.
    pub installation: Installation,
    /// Whether the kubelet knows the resource `kvm`.
    pub kvm: Registered,
    /// The kubelet's folder.
    pub kubelet: PathBuf,
}

impl Sources {
    fn look(&self) -> State {
        let settings = self.installation.settings();
        State {
            schedulable: settings.use_emulation || *self.kvm.borrow(),
            cpu_manager: settings.gates.is_on("CPUManager") && has_static_cpus(&self.kubelet),
        }
    }
}

/// Sends heartbeats for as long as the process lives.
pub async fn run(client: Client, node: String, mut sources: Sources) {
    let api: Api<Node> = Api::all(client);
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let mut changes = sources.installation.subscribe();
    sources.installation.ready().await;
    // The first heartbeat reports the resource whether it is registered or not, and a later change is
    // reported too.
    let _ = timeout(FIRST, sources.kvm.wait_for(|known| *known)).await;
    let mut told: Option<State> = None;
    loop {
        changes.borrow_and_update();
        sources.kvm.borrow_and_update();
        let now = Timestamp::now();
        let state = sources.look();
        let patch = Patch::Merge(beat(state, now));
        let answer = timeout(API_DEADLINE, api.patch_metadata(&node, &params, &patch)).await;
        let wait = match answer {
            Ok(Ok(_)) => {
                if told.replace(state) != Some(state) {
                    info!(
                        node,
                        schedulable = state.schedulable,
                        cpu_manager = state.cpu_manager,
                        "reported the node"
                    );
                }
                spread(PERIOD, now)
            }
            Ok(Err(error)) => {
                warn!(node, %error, "heartbeat not written");
                told = None;
                RETRY
            }
            Err(_) => {
                warn!(node, "heartbeat not written in time");
                told = None;
                RETRY
            }
        };
        let next = async {
            loop {
                // A change of other settings needs no heartbeat.
                let ended = tokio::select! {
                    changed = changes.changed() => changed.is_err(),
                    changed = sources.kvm.changed() => changed.is_err(),
                };
                if ended {
                    std::future::pending::<()>().await;
                }
                if told.is_some_and(|told| told != sources.look()) {
                    return;
                }
            }
        };
        // Waits until the pause ends or there is a change to report.
        let _ = timeout(wait, next).await;
    }
}

/// The patch of one heartbeat.
fn beat(state: State, now: Timestamp) -> Value {
    // Kubernetes writes times in whole seconds.
    let now = now.round(Unit::Second).unwrap_or(now);
    json!({
        "metadata": {
            "labels": {
                SCHEDULABLE_LABEL: state.schedulable.to_string(),
                CPU_MANAGER_LABEL: state.cpu_manager.to_string(),
                FORMER_CPU_MANAGER_LABEL: state.cpu_manager.to_string(),
            },
            "annotations": { HEARTBEAT_ANNOTATION: now.to_string() },
        },
    })
}

/// Whether the kubelet gives exclusive CPUs to containers that request whole CPUs, according to the state of
/// its CPU manager.
fn has_static_cpus(kubelet: &Path) -> bool {
    use std::io::Read as _;
    let mut text = String::new();
    let read = std::fs::File::open(kubelet.join(STATE_FILE))
        .and_then(|file| file.take(STATE_MAX).read_to_string(&mut text));
    read.is_ok() && serde_json::from_str::<Value>(&text).is_ok_and(|state| state["policyName"] == "static")
}

/// Time to the next heartbeat: between one and 2.2 periods, so that handlers that started together do not all
/// write at the same time.
pub(crate) fn spread(period: Duration, now: Timestamp) -> Duration {
    let spread = period * 6 / 5;
    // The sub-second part of the time is random enough for this.
    let fraction = SignedDuration::from_nanos(i64::from(now.subsec_nanosecond())).as_secs_f64().abs();
    period + spread.mul_f64(fraction.min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_writes_labels_and_annotation_only() {
        let at: Timestamp = "2026-11-21T13:00:00.4Z".parse().unwrap();
        let expected = json!({"metadata": {
            "labels": {"kubevirt.io/schedulable": "true", "kubevirt.io/cpumanager": "false", "cpumanager": "false"},
            "annotations": {"kubevirt.io/heartbeat": "2026-11-21T13:00:00Z"},
        }});
        assert_eq!(beat(State { schedulable: true, cpu_manager: false }, at), expected);
    }

    #[test]
    fn beats_are_60_to_132_seconds_apart() {
        for nanosecond in [0, 1, 500_000_000, 999_999_999] {
            let pause = spread(PERIOD, Timestamp::new(1, nanosecond).unwrap());
            assert!((60.0..=132.0).contains(&pause.as_secs_f64()), "{pause:?}");
        }
    }

    #[test]
    fn the_cpu_manager_is_read_from_the_kubelets_state() {
        let kubelet = tempfile::tempdir().unwrap();
        let state = kubelet.path().join("cpu_manager_state");
        assert!(!has_static_cpus(kubelet.path()));
        for (text, is) in [
            (r#"{"policyName":"static","defaultCpuSet":"0-3","checksum":1}"#, true),
            (r#"{"policyName":"none","defaultCpuSet":"","checksum":1}"#, false),
            ("static", false),
        ] {
            std::fs::write(&state, text).unwrap();
            assert_eq!(has_static_cpus(kubelet.path()), is, "{text}");
        }
    }
}
