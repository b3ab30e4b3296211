//! Offers devices for virtual machines as resources of the node, `devices.kubevirt.io/*`. Pods that request
//! one are scheduled to a node that has it, and quotas count it, as in KubeVirt.
//!
//! ```text
//!   kubelet <──Register── plugin (one for each resource)      /var/lib/kubelet/device-plugins/kubelet.sock
//!   kubelet ──ListAndWatch, Allocate──> plugin                .../kubevirt-<name>.sock
//! ```
//!
//! These resources give a pod no device nodes: launchers get what they need as descriptors. Devices that QEMU
//! opens by path are the exception, so the pod gets their nodes: `/dev/userfaultfd` for the target of a
//! migration that may use post-copy, and host devices that a guest gets as a whole ([`permitted`]). A kubelet
//! that starts forgets all plugins and removes their sockets. Each plugin checks every two seconds whether its
//! socket and the kubelet's socket have changed, and registers again if they have.

mod copy;
pub mod host;
pub mod permitted;
mod plugin;
#[cfg(test)]
mod tests;
mod v1beta1;

use std::path::{Path, PathBuf};

use barevirt_api::names::USERFAULTFD_RESOURCE;
use tokio::sync::watch;

/// A resource of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Its name, after `devices.kubevirt.io/`.
    pub name: &'static str,
    /// The device that the resource needs.
    pub device: PathBuf,
}

impl Resource {
    /// The resources of every node.
    pub fn all() -> [Self; 4] {
        [
            ("kvm", "/dev/kvm"),
            ("tun", "/dev/net/tun"),
            ("vhost-net", "/dev/vhost-net"),
            ("vhost-vsock", "/dev/vhost-vsock"),
        ]
        .map(|(name, device)| Resource { name, device: PathBuf::from(device) })
    }
}

/// Offers `/dev/userfaultfd`, which QEMU needs to receive a guest in post-copy. It is offered on nodes without the
/// device, too.
pub fn offer_userfaultfd(folder: &Path) -> Registered {
    let offer = plugin::Offer {
        resource: USERFAULTFD_RESOURCE.to_owned(),
        endpoint: "kubevirt-userfaultfd.sock".to_owned(),
        supply: plugin::Supply::Copied { name: "userfaultfd", copy: copy::NodeCopy::userfaultfd(folder) },
    };
    start(offer, folder)
}

/// Whether the kubelet knows a resource, as a channel to wait on.
pub type Registered = watch::Receiver<bool>;

/// Offers a resource to the kubelet for as long as the process lives. `folder` contains the kubelet's socket.
pub fn offer(resource: Resource, folder: &Path) -> Registered {
    let Resource { name, device } = resource;
    let offer = plugin::Offer {
        resource: format!("devices.kubevirt.io/{name}"),
        endpoint: format!("kubevirt-{name}.sock"),
        supply: plugin::Supply::Shared { name, device },
    };
    start(offer, folder)
}

fn start(offer: plugin::Offer, folder: &Path) -> Registered {
    let (registered, seen) = watch::channel(false);
    tokio::spawn(plugin::run(offer, folder.to_owned(), registered));
    seen
}
