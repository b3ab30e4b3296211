//! How much of the node's disk guests may take.
//!
//! KubeVirt has no fields for these limits, so annotations of the `KubeVirt` object set them.

use crate::names::{EPHEMERAL_DISKS_ANNOTATION, LARGEST_IMAGE_ANNOTATION};
use crate::quantity;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

/// The annotations that are read.
pub(crate) const NODE_DISK_ANNOTATIONS: [&str; 2] = [LARGEST_IMAGE_ANNOTATION, EPHEMERAL_DISKS_ANNOTATION];

/// The limits, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeDisk {
    /// Virtual size of the image of a container disk, which also limits how much its guest may write.
    pub largest_image: u64,
    /// All ephemeral disks of one instance together. Without this limit only their sizes are limited.
    pub total: Option<u64>,
}

impl Default for NodeDisk {
    fn default() -> Self {
        NodeDisk { largest_image: 1 << 40, total: None }
    }
}

impl NodeDisk {
    /// The limits in the object's annotations; a value out of range counts as not given.
    pub(super) fn of_annotations(annotations: Option<&BTreeMap<String, String>>) -> Self {
        let size =
            |name: &str| annotations.and_then(|all| all.get(name)).and_then(|text| node_disk_size(text));
        NodeDisk {
            largest_image: size(LARGEST_IMAGE_ANNOTATION).unwrap_or(NodeDisk::default().largest_image),
            total: size(EPHEMERAL_DISKS_ANNOTATION),
        }
    }
}

/// A quantity between 1Mi and 64Ti in bytes, since no larger image is served; `None` for any other text.
pub(crate) fn node_disk_size(text: &str) -> Option<u64> {
    let bytes = quantity::bytes(&Quantity(text.to_owned())).ok()?;
    ((1 << 20)..=(64 << 40)).contains(&bytes).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_count_as_not_given() {
        let of = |image: &str, total: &str| {
            let all = [(LARGEST_IMAGE_ANNOTATION, image), (EPHEMERAL_DISKS_ANNOTATION, total)];
            let all = all.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
            NodeDisk::of_annotations(Some(&all))
        };
        assert_eq!(of("20Gi", "50G"), NodeDisk { largest_image: 20 << 30, total: Some(50_000_000_000) });
        assert_eq!(of("64Ti", "1Mi"), NodeDisk { largest_image: 64 << 40, total: Some(1 << 20) });
        for bad in ["", "x", "-1Gi", "0", "1023Ki", "65Ti", "9999999Ei"] {
            assert_eq!(of(bad, bad), NodeDisk::default(), "{bad:?}");
        }
        assert_eq!(NodeDisk::of_annotations(None), NodeDisk::default());
        assert_eq!(NodeDisk::default().largest_image, 1_099_511_627_776);
    }
}
