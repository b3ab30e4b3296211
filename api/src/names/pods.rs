//! Names and paths in a launcher pod.

/// User and group id of launchers.
pub const LAUNCHER_UID: i64 = 107;
/// Resource of nodes that gives a pod `/dev/userfaultfd`, if the node has it.
pub const USERFAULTFD_RESOURCE: &str = "devices.kubevirt.io/userfaultfd";
/// Main container of a launcher pod.
pub const COMPUTE_CONTAINER: &str = "compute";
/// Suffix of a secret with access credentials in the name of its volume and in its mount directory.
pub const ACCESS_CREDENTIAL_SUFFIX: &str = "-access-cred";
/// Directory where images of container disks are mounted into a launcher, if they are volumes of its pod;
/// KubeVirt's.
pub const IMAGE_VOLUMES: &str = "/var/run/kubevirt-image-volume";

/// Where the image of a volume is mounted. The path has the volume's index, because no name from a user may
/// be part of a path.
pub fn image_volume(index: usize) -> String {
    format!("{IMAGE_VOLUMES}/disk_{index}")
}

/// Directory where claims with file systems are mounted into a launcher, each by the name of its volume; KubeVirt's.
pub const CLAIMS: &str = "/var/run/kubevirt-private/vmi-disks";
/// Directory where claims that are devices are put into a launcher, each by the name of its volume; KubeVirt's.
pub const CLAIM_DEVICES: &str = "/dev";

/// Where the image of a kernel boot is mounted.
pub fn kernel_image_volume() -> String {
    format!("{IMAGE_VOLUMES}/kernel-boot")
}

/// Prefix of the variable that gives a launcher the PCI functions of its pod; KubeVirt's, like the next two.
pub const PCI_VARIABLE: &str = "PCI_RESOURCE";
/// The same for mediated devices.
pub const MEDIATED_VARIABLE: &str = "MDEV_PCI_RESOURCE";
/// The same for USB devices.
pub const USB_VARIABLE: &str = "USB_RESOURCE";

/// The same for the PCI functions of networks, by which the device plugin of SR-IOV cards gives them.
pub const NETWORK_DEVICE_VARIABLE: &str = "PCIDEVICE";

/// Name of that variable for a resource: in capitals, with `_` instead of `/` and `.`.
pub fn device_variable(prefix: &str, resource: &str) -> String {
    format!("{prefix}_{}", resource.to_uppercase().replace(['/', '.'], "_"))
}
