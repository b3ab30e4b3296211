//! Observes one instance: from caches, and from the API server where a stale answer could do harm.

use super::claim_lock;
use super::claims::{self, Claims};
use super::consumer::{self, Consumer};
use super::grown;
use super::hotplug::attachments::{self, Attachments};
use super::hotplug::volumes;
use super::instance_end::InstanceEnd;
use super::networks::definitions::Definitions;
use super::observed::Observed;
use super::others::{self, Other};
use super::places::node_of;
use super::subject::subject;
use super::{networks, progress, proof, reach, resize, state, volume_turn};
use crate::cluster::Cluster;
use crate::config::Config;
use crate::expectations::{Key, Kind};
use barevirt_api::names::{
    CREATED_BY_LABEL, DISKS_OF_LABEL, PHASE_PENDING, PHASE_RUNNING, PHASE_SCHEDULING, is_final_phase,
};
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_component::request::Error;
use barevirt_component::request::{call, call_opt};
use barevirt_plan::phase;
use barevirt_plan::pod::target::launcher_name;
use k8s_openapi::api::core::v1::{Namespace, Pod, ResourceQuota};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use kube::runtime::reflector::ObjectRef;
use std::time::Instant;

/// The observation; `None` while the pods' cache lags behind our own writes.
pub(super) async fn observe(
    cluster: &Cluster,
    vmi: VirtualMachineInstance,
) -> Result<Option<Observed>, Error> {
    let (namespace, uid) = (vmi.namespace().unwrap_or_default(), vmi.uid().unwrap_or_default());
    let pod_name = launcher_name(&vmi);
    if cluster.expectations.owes(&Key::new(Kind::Pod, &namespace, &pod_name), Instant::now()) {
        return Ok(None);
    }

    let deleting = vmi.metadata.deletion_timestamp.is_some();
    let cached = cluster.pods.get(&ObjectRef::new(&pod_name).within(&namespace));
    // A pod that cannot be decoded was logged when it arrived; it is read again below.
    let mut launcher = cached.and_then(|pod| pod.unpack().ok());
    let mut strays = vec![];
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &namespace);
    if launcher.is_none() && deleting {
        // The finalizer is removed only when the API server confirms that nothing is left.
        (strays, launcher) = split(made_for(&pods, &vmi, &uid).await?, &pod_name);
    }
    if launcher.is_none() && (deleting || phase(&vmi) != PHASE_PENDING) {
        // The same holds for the report that a pod is gone.
        launcher = call_opt("get", || format!("pod {namespace}/{pod_name}"), pods.get(&pod_name)).await?;
    }

    let lives = |pod: &Pod| pod.metadata.deletion_timestamp.is_none() && InstanceEnd::of(pod).is_none();
    let runs = !deleting && phase(&vmi) == PHASE_RUNNING && launcher.as_ref().is_some_and(lives);
    let attachments = if runs || (!deleting && is_final_phase(phase(&vmi))) {
        let Some(found) = attachments::observe(cluster, &vmi, launcher.as_ref().filter(|_| runs)).await?
        else {
            return Ok(None);
        };
        found
    } else {
        Attachments::default()
    };
    let goes_first = if runs && volume_turn::is_due(&vmi) {
        claim_lock::goes_first(&vmi, claims::beside(cluster, &vmi))
    } else {
        None
    };
    let grown = if runs { grown::observe(cluster, &vmi).await? } else { vec![] };
    let starting = !deleting && [PHASE_PENDING, PHASE_SCHEDULING].contains(&phase(&vmi));
    let has_claims =
        vmi.spec.volumes.iter().any(|volume| !volume.is_hotpluggable() && volume.claim().is_some());
    let consumer = if has_claims && (starting || (!deleting && is_final_phase(phase(&vmi)))) {
        let Some(found) = consumer::observe(cluster, &vmi) else { return Ok(None) };
        found
    } else {
        Consumer::default()
    };

    let node = node_of(cluster, launcher.as_ref()).await?;
    let mut beside = vec![];
    for pod in others::look(cluster, &vmi, launcher.as_ref()).await? {
        let node = node_of(cluster, Some(&pod)).await?;
        let wanted = others::is_wanted(&cluster.migrations, &vmi, &pod);
        beside.push(Other { pod, node, wanted });
    }
    let target = others::target(cluster, &vmi, &beside).await?;
    let is_asked_to_move = others::is_asked(&cluster.migrations, &vmi);
    let mut found = vec![];
    for pod in strays {
        let node = node_of(cluster, Some(&pod)).await?;
        found.push(Other { pod, node, wanted: false });
    }
    let strays = found;
    let begins = launcher.is_none() && starting;
    let resizes = runs && resize::is_due(&vmi);
    // Concurrently: a start waits for all of them.
    let config = async {
        match cluster.config() {
            config if begins || resizes => in_namespace(cluster, config, &namespace).await,
            config => Ok(config),
        }
    };
    let state = async { if starting { state::observe(cluster, &vmi, begins).await } else { Ok(None) } };
    // Its pod is made with them, and they are written to the status when it runs.
    let is_due = starting && launcher.as_ref().is_none_or(progress::runs);
    let claims = async { if is_due { claims::observe(cluster, &vmi).await } else { Ok(Claims::default()) } };
    let definitions = async {
        let waits = starting && launcher.as_ref().is_none_or(|pod| !progress::runs(pod));
        let overdue = |pod: &Pod| networks::is_overdue(&vmi, pod, Timestamp::now());
        let needs_another = runs && launcher.as_ref().is_some_and(overdue);
        if waits || needs_another {
            networks::observe(cluster, &vmi, launcher.as_ref(), begins || needs_another).await
        } else {
            Ok(Definitions::default())
        }
    };
    let (config, state, claims, definitions) = futures::try_join!(config, state, claims, definitions)?;
    // While something is missing, no pod is placed.
    let reaches = if begins && claims.trouble(&vmi).is_none() {
        reach::observe(cluster, &vmi, &claims, state.as_ref()).await?
    } else {
        vec![]
    };
    let wants_vsock = vmi.spec.domain.devices.autoattach_vsock == Some(true);
    let context_id = if starting && wants_vsock { cluster.context_ids.of(&uid) } else { None };
    let made = launcher.as_ref().and_then(|pod| pod.metadata.uid.as_deref()).unwrap_or_default();
    let is_created_here = cluster.created_pods.knows(made);
    if is_created_here && proof::names(&vmi, made) {
        cluster.created_pods.forget(made);
    }
    let same_addresses = if begins || runs {
        networks::same_addresses(cluster, &vmi, begins || networks::changes(&vmi)).await?
    } else {
        Vec::new()
    };
    let now = Timestamp::now();
    Ok(Some(Observed {
        definitions,
        same_addresses,
        is_created_here,
        state,
        claims,
        consumer,
        reaches,
        grown,
        attachments,
        goes_first,
        context_id,
        vmi,
        pod: launcher,
        strays,
        others: beside,
        target,
        is_asked_to_move,
        node,
        config,
        now,
    }))
}

/// The settings for a pod in that namespace. The namespace is read only where a setting depends on its labels.
pub(super) async fn in_namespace(
    cluster: &Cluster,
    config: Config,
    namespace: &str,
) -> Result<Config, Error> {
    let quotas: Api<ResourceQuota> = Api::namespaced(cluster.client.clone(), namespace);
    let all = ListParams::default();
    let found = quotas.list(&all);
    let quotas = call("list", || format!("resource quotas of {namespace}"), found).await?.items;
    let labels = if config.settings.pods.cpu_limit.is_some() || !quotas.is_empty() {
        let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
        let found = namespaces.get_metadata(namespace);
        let found = call_opt("get", || format!("namespace {namespace}"), found).await?;
        found.and_then(|found| found.metadata.labels)
    } else {
        None
    };
    Ok(config.in_namespace(labels.as_ref(), &quotas))
}

/// The pods that were made for an instance: launchers, and pods that bring disks to them.
async fn made_for(pods: &Api<Pod>, vmi: &VirtualMachineInstance, uid: &str) -> Result<Vec<Pod>, Error> {
    let brings_disks = volumes::has_any(vmi).then_some(DISKS_OF_LABEL);
    let mut found = vec![];
    for label in [CREATED_BY_LABEL].into_iter().chain(brings_disks) {
        let labelled = ListParams::default().labels(&format!("{label}={uid}"));
        found.extend(call("list", || format!("pods of {}", subject(vmi)), pods.list(&labelled)).await?.items);
    }
    Ok(found)
}

/// Separates the pod with the launcher's name from the others.
fn split(pods: Vec<Pod>, name: &str) -> (Vec<Pod>, Option<Pod>) {
    let (mut launcher, others): (Vec<Pod>, Vec<Pod>) =
        pods.into_iter().partition(|pod| pod.name_any() == name);
    (others, launcher.pop())
}
