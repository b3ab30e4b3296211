//! Another launcher pod of a running instance, which a migration moves the guest to.

use super::kept;
use super::observe::in_namespace;
use super::reach;
use super::state;
use super::{claims, networks};
use crate::cluster::Cluster;
use crate::pod;
use barevirt_api::names::REASON_DATA_VOLUME_NOT_READY;
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_api::valid::ValidVmi;
use barevirt_api::validate::Cause;
use barevirt_component::request::Error;
use barevirt_plan::pod::target::{Target, make};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;

/// The result of building it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TargetPod {
    /// The pod, and the claim for the instance's state that comes before it.
    Pod(Box<Pod>, Option<Box<PersistentVolumeClaim>>),
    /// An object that the guest uses is missing or cannot be used now.
    Waits(String),
    /// A claim is being filled, which takes as long as it takes.
    Fills(String),
    /// No such pod is possible.
    Invalid(String),
}

/// Builds the pod from the present state of the cluster.
pub(crate) async fn build_target_pod(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    target: Target<'_>,
) -> Result<TargetPod, Error> {
    let valid = match ValidVmi::new(vmi.clone()) {
        Ok(valid) => valid,
        Err(causes) => return Ok(TargetPod::Invalid(Cause::joined(&causes))),
    };
    let namespace = vmi.namespace().unwrap_or_default();
    let (config, state, claims, definitions) = futures::try_join!(
        in_namespace(cluster, cluster.config(), &namespace),
        state::observe(cluster, vmi, false),
        claims::observe(cluster, vmi),
        networks::observe(cluster, vmi, None, true),
    )?;
    // For a claim that waits for its first consumer, the pod is the consumer; the guest is handed over once it is filled.
    if let Some((reason, message)) = claims.trouble(vmi) {
        let fills = reason == REASON_DATA_VOLUME_NOT_READY;
        return Ok(if fills { TargetPod::Fills(message) } else { TargetPod::Waits(message) });
    }
    if let Some(message) = networks::unknown_binding(vmi, &config.settings.bindings) {
        return Ok(TargetPod::Waits(message));
    }
    if let Some(message) = definitions.refusal() {
        return Ok(TargetPod::Waits(message));
    }
    let own = state.as_ref().and_then(|state| state.claim.as_ref());
    let new = own.and_then(|own| kept::of_target(vmi, target.migration, own));
    // A claim that is not bound yet imposes no node.
    let bound = state.as_ref().filter(|_| new.is_none());
    let reaches = reach::observe(cluster, vmi, &claims, bound).await?;
    let mut pod = pod::build(&valid, &config);
    pod::claims::add(&mut pod, &valid, |claim| claims.mode(claim));
    pod::networks::ask(&mut pod, &definitions.resources);
    pod::reach::add(&mut pod, &reaches);
    match state::step(vmi, state.as_ref()) {
        state::Step::Nothing | state::Step::Forget(_) => {}
        state::Step::Ready(own) => {
            pod::state::add(&mut pod, &new.as_ref().map_or(own, ResourceExt::name_any));
        }
        state::Step::Create(_) => {
            return Ok(TargetPod::Waits("the claim for its state is not there".to_owned()));
        }
        state::Step::Wait(_, message) => return Ok(TargetPod::Waits(message)),
    }
    make(&mut pod, &valid, &target);
    Ok(TargetPod::Pod(Box::new(pod), new.map(Box::new)))
}
