//! An installation: what it consists of, and virt-operator, which makes the cluster so.
//!
//! ```text
//! Images --manifest()--> [object, ...] --yaml::print()--> manifests/barevirt-operator.yaml --kubectl apply--> cluster
//! Images --strategy()--> [object, ...] --operator, as the KubeVirt object says----------------------------> cluster
//! ```
//!
//! Both lists are pure functions, in an order in which the objects can be applied. Objects are JSON values; a test reads
//! each into its type and back, so that a misspelt field does not pass.
//!
//! The modules, from the outside in; each names only what stands below it.
//!
//! **The process**
//!
//! - `bin/virt-operator.rs` waits for the lease; [`operator`] compares the cluster with the installation, in passes, and rolls
//!   out what differs; its webhook judges writes of the `KubeVirt` object.
//! - [`certificates`]: those of all components, made, rotated and published.
//! - [`monitoring`]: the service and the rules of a monitoring stack.
//!
//! **The objects**, one file for a kind
//!
//! - [`chart`]: the same for Helm; `manifest`: what a person applies; [`strategy`]: what the operator applies after that.
//! - `workloads`: Deployments and the DaemonSet; `rbac`: what components may do; `user_roles`: what people may do; `policy`: what
//!   a handler's token may change; `network_policies`: which ports are open; `webhooks` and `api_services`: who asks us; `instancetypes`: sizes that come with it.
//!
//! **What the objects are made of**
//!
//! - `images`: names of images; `objects`: labels and priorities that all have; [`yaml`]: how they are printed.

mod api_services;
mod catalogue;
pub mod certificates;
pub mod chart;
mod images;
mod instancetypes;
mod manifest;
pub mod monitoring;
mod network_policies;
mod objects;
pub mod operator;
mod policy;
mod rbac;
mod user_roles;
mod webhooks;
mod workloads;
pub mod yaml;

#[cfg(test)]
mod tests;

pub use images::{INSTALLED, Images, Reference, ReferenceError, is_digest, variable};
pub use manifest::{kubevirt, manifest};

use barevirt_api::crd;
pub use catalogue::catalogue;
use objects::definition;
use serde_json::Value;
use std::sync::OnceLock;

/// All objects that the operator installs, in the order in which they can be applied. What the operator itself stands on,
/// the definition of the `KubeVirt` kind among it, comes by [`manifest`].
pub fn strategy(images: &Images) -> Vec<Value> {
    let mut objects = definitions().to_vec();
    objects.extend(rbac::objects());
    objects.extend(user_roles::objects());
    objects.extend(policy::objects());
    objects.extend(workloads::objects(images));
    objects.extend(webhooks::objects());
    objects.extend(api_services::objects());
    objects.extend(instancetypes::objects());
    objects
}

/// All definitions but that of the `KubeVirt` kind. They are large and always the same: made once.
fn definitions() -> &'static [Value] {
    static MADE: OnceLock<Vec<Value>> = OnceLock::new();
    MADE.get_or_init(|| {
        let own = crd::kubevirt().metadata.name;
        crd::all().iter().filter(|other| other.metadata.name != own).map(definition).collect()
    })
}
