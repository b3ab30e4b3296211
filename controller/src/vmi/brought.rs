//! The state of a migrating guest's hot-plugged disks on the target node.

use super::hotplug::target::{Brought, find, is_settled, judge};
use super::observe::in_namespace;
use crate::cluster::Cluster;
use barevirt_api::hotplug::plugged;
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_component::request::Error;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// Looks at the disks. `target` is the launcher pod on the target node.
pub(crate) async fn brought(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    target: &Pod,
) -> Result<Brought, Error> {
    if !is_settled(vmi) {
        return Ok(Brought::Unsettled);
    }
    if plugged(vmi).is_empty() {
        return Ok(Brought::default());
    }
    let Some(found) = find(cluster, vmi, target) else { return Ok(Brought::Waits(vec![])) };
    let namespace = vmi.namespace().unwrap_or_default();
    let config = in_namespace(cluster, cluster.config(), &namespace).await?;
    Ok(judge(vmi, target, &found, &config))
}
