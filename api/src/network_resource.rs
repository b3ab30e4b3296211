//! The resource of nodes that a network comes with: its definition names it, and a pod on the network asks for it.

use crate::names::USERFAULTFD_RESOURCE;
use crate::syntax::is_resource_name;
use std::fmt::{Display, Formatter};
use std::str::FromStr;

/// Annotation of a NetworkAttachmentDefinition: the resource.
pub const RESOURCE_ANNOTATION: &str = "k8s.v1.cni.cncf.io/resourceName";
/// Argument by which virt-controller gives a launcher the resource of a network whose card is a PCI function of
/// the node, as `--network-resource=red=example.com/vf`.
pub const RESOURCE_ARGUMENT: &str = "--network-resource";

/// A network of an instance, and its resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NetworkResource {
    /// Name of the network in the instance.
    pub network: String,
    /// Name of the resource.
    pub resource: String,
}

/// The text does not name a network and a resource.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the name of a network, =, and the name of a resource")]
pub struct NotNetworkResource(String);

impl NetworkResource {
    /// A network and its resource; `None` if pods cannot ask for a resource of this name, or may not: users write definitions,
    /// and virt-controller asks.
    pub fn new(network: &str, resource: &str) -> Option<Self> {
        let good = !network.is_empty() && is_resource_name(resource) && resource != USERFAULTFD_RESOURCE;
        good.then(|| Self { network: network.to_owned(), resource: resource.to_owned() })
    }
}

impl Display for NetworkResource {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.network, self.resource)
    }
}

impl FromStr for NetworkResource {
    type Err = NotNetworkResource;

    fn from_str(text: &str) -> Result<Self, NotNetworkResource> {
        let parts = text.split_once('=').and_then(|(network, resource)| Self::new(network, resource));
        parts.ok_or_else(|| NotNetworkResource(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERFAULTFD: &str = "red=devices.kubevirt.io/userfaultfd";

    #[test]
    fn an_argument_names_a_network_and_its_resource() {
        let text = "red=intel.com/sriov_net-a";
        assert_eq!(text.parse::<NetworkResource>().unwrap().to_string(), text);
        for wrong in
            ["", "red", "=a.b/c", "red=", "red=c", "red=a.b/c=d", "red=a.b/../c", "red=a b/c", USERFAULTFD]
        {
            assert!(wrong.parse::<NetworkResource>().is_err(), "{wrong}");
        }
    }
}
