//! The objects of an installation, and virt-operator, which applies them.
//!
//! ```text
//! Images --manifest()--> [object, ...] --yaml::print()--> manifests/barevirt-operator.yaml --kubectl apply--> cluster
//! Images --strategy()--> [object, ...] --operator, as the KubeVirt object says----------------------------> cluster
//! ```
//!
//! Both lists come from pure functions, in an order in which the objects can be applied. Objects are JSON values; a test
//! reads each into its type and back, so that a misspelt field is found.
//!
//! The modules, from the outside in; each depends only on modules below it.
//!
//! **The process**
//!
//! - `bin/virt-operator.rs` waits for the lease; [`operator`] compares the cluster with the installation, in passes, and
//!   rolls out what differs; its webhook validates writes of the `KubeVirt` object.
//! - [`certificates`]: makes, rotates and publishes the certificates of all components.
//! - [`monitoring`]: the service and the rules for a monitoring stack.
//!
//! **The objects**, a file for each kind
//!
//! - `manifest`: what a user applies; [`chart`]: the same for Helm; [`strategy`]: what the operator applies after that.
//! - `workloads`: Deployments and the DaemonSet; `rbac`: rights of the components; `user_roles`: rights of users; `policy`:
//!   limits of a handler's token; `network_policies`: open ports; `webhooks` and `api_services`: requests that the API
//!   server forwards to us; `instancetypes`: ready-made sizes.
//!
//! **Shared parts of the objects**
//!
//! - `images`: names of images; `objects`: common labels and priorities; [`yaml`]: how objects are printed.

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

/// All objects that the operator installs, in the order in which they can be applied. [`manifest`] has the objects that the
/// operator itself needs, including the definition of the `KubeVirt` kind.
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

/// All definitions except that of the `KubeVirt` kind. They are large and always the same, so they are made once.
fn definitions() -> &'static [Value] {
    static MADE: OnceLock<Vec<Value>> = OnceLock::new();
    MADE.get_or_init(|| {
        let own = crd::kubevirt().metadata.name;
        crd::all().iter().filter(|other| other.metadata.name != own).map(definition).collect()
    })
}
