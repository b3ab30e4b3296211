//! Labels the node with what guests can use on it: CPU models and features, machine types, and features of
//! the kernel's KVM. The controller and users select nodes by these labels. Names and meanings are those of
//! KubeVirt's node-labeller.
//!
//! ```text
//!   launcher's node-capabilities, /dev/kvm, /proc ──> Facts (once) ─┐
//!   KubeVirt object (obsolete models) ──────────────────────────────┼─> plan ──> one patch, if any
//!   the node as it is ──────────────────────────────────────────────┘
//! ```
//!
//! It checks when the `KubeVirt` object changes and every 3 to 6.6 minutes, and removes labels that are no
//! longer true. A node with the annotation `node-labeller.kubevirt.io/skip-node` is not changed.

mod deprecated;
mod facts;
mod plan;

pub use deprecated::export_deprecated;

use std::path::Path;
use std::time::Duration;

use barevirt_api::names::{OBSOLETE_HOST_MODEL_LABEL, SKIP_LABELS_ANNOTATION};
use barevirt_component::installation::Installation;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::events::{Event, EventType, Recorder};
use kube::{Api, Client};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use self::facts::Facts;
use crate::FIELD_MANAGER;
use crate::heartbeat::spread;

/// Shortest time between two checks without a change.
const PERIOD: Duration = Duration::from_secs(180);
/// Pause before a failed check is repeated.
const RETRY: Duration = Duration::from_secs(5);
/// Longest time that the API server may take to answer.
const API_DEADLINE: Duration = Duration::from_secs(30);

/// Keeps the labels up to date for as long as the process lives. `capabilities` is the folder of the
/// launcher's file.
pub async fn run(
    client: Client,
    recorder: Recorder,
    node: String,
    installation: Installation,
    capabilities: &Path,
) {
    let Some(facts) = Facts::find(capabilities) else {
        // The failure is already logged. Labels that an earlier handler wrote are better than none, so they
        // stay.
        return;
    };
    let api: Api<Node> = Api::all(client);
    let mut changes = installation.subscribe();
    installation.ready().await;
    loop {
        changes.borrow_and_update();
        let wait = match look(&api, &recorder, &node, &installation, &facts).await {
            Ok(()) => spread(PERIOD, Timestamp::now()),
            Err(error) => {
                warn!(node, error, "labels of the node not written");
                RETRY
            }
        };
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = sleep(wait) => {}
        }
    }
}

async fn look(
    api: &Api<Node>,
    recorder: &Recorder,
    name: &str,
    installation: &Installation,
    facts: &Facts,
) -> Result<(), String> {
    let models = installation.settings().cpu_models;
    let node: PartialObjectMeta<Node> = within(api.get_metadata(name)).await?;
    if node.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(SKIP_LABELS_ANNOTATION)) {
        return Ok(());
    }
    let present = node.metadata.labels.unwrap_or_default();
    let wanted = plan::labels(facts, &models);
    let Some(patch) = plan::patch(&present, &wanted) else { return Ok(()) };
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    within(api.patch_metadata(name, &params, &Patch::Merge(patch))).await?;
    info!(node = name, labels = wanted.len(), "labels of the node written");
    if wanted.contains_key(OBSOLETE_HOST_MODEL_LABEL) && !present.contains_key(OBSOLETE_HOST_MODEL_LABEL) {
        let reference = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(name.to_owned()),
            uid: node.metadata.uid,
            ..ObjectReference::default()
        };
        // The event is sent once; if that fails, it is not repeated.
        if let Err(error) = within(recorder.publish(&obsolete(facts), &reference)).await {
            warn!(node = name, error, "event not published");
        }
    }
    Ok(())
}

/// KubeVirt's event.
fn obsolete(facts: &Facts) -> Event {
    let model = facts.capabilities.host_model.as_deref().unwrap_or_default();
    Event {
        type_: EventType::Warning,
        reason: "HostModelIsObsolete".to_owned(),
        note: Some(format!("This node has {model} host-model cpu that is included in ObsoleteCPUModels")),
        action: "Label".to_owned(),
        secondary: None,
    }
}

async fn within<T, E: std::fmt::Display>(work: impl Future<Output = Result<T, E>>) -> Result<T, String> {
    match timeout(API_DEADLINE, work).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err("the API server does not answer in time".to_owned()),
    }
}
