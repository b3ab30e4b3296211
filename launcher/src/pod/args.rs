//! Arguments of `virt-launcher pod`. virt-controller writes the pod's command line. The paths have defaults
//! that fit its mounts; tests give others.

use std::path::PathBuf;

use barevirt_api::network_resource::NetworkResource;
use barevirt_api::settings::{NodeDisk, Smbios};

use crate::cloudinit;
use crate::disk::{claim, container};
use crate::stats;

/// Run the VM that virt-handler specifies, in its pod.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Name of the VirtualMachineInstance.
    #[arg(long)]
    pub name: String,

    /// Its namespace.
    #[arg(long)]
    pub namespace: String,

    /// Its UID: no other instance runs in this pod.
    #[arg(long)]
    pub uid: String,

    /// Seconds that the guest has to shut down when the pod is deleted.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub grace_period_seconds: u64,

    /// Emulate if there is no hardware acceleration.
    #[arg(long)]
    pub allow_emulation: bool,

    /// Fail at once, for tests of guests that never start.
    #[arg(long)]
    pub simulate_crash: bool,

    /// Boot of the kernel of the node from which the guest comes, if a migration made this pod.
    #[arg(long, value_name = "BOOT-ID")]
    pub source_kernel: Option<String>,

    /// System information in SMBIOS for the guest, as JSON: manufacturer, product, version, sku, family.
    #[arg(long, value_name = "JSON", default_value_t)]
    pub smbios: Smbios,

    /// A network whose card is a PCI function of the node, and the resource of that function.
    #[arg(long, value_name = "NETWORK=RESOURCE")]
    pub network_resource: Vec<NetworkResource>,

    /// Log level, as klog counts: 2 is the default, from 3 on more, from 6 on everything.
    #[arg(long, env = "VIRT_LAUNCHER_LOG_VERBOSITY", value_name = "LEVEL", default_value_t = 2)]
    pub log_verbosity: u32,

    /// Seconds until everything for the start must have arrived: the handler's Sync, its descriptors, the
    /// container disks.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub start_deadline_seconds: u64,

    /// UID of the pod, from the downward API.
    #[arg(long, env = "POD_UID", default_value = "")]
    pub pod_uid: String,

    /// Name of the node, from the downward API; given to guests that request metrics of it.
    #[arg(long, env = "NODE_NAME", default_value = "")]
    pub node_name: String,

    /// Directory of the handler's sockets.
    #[arg(long, value_name = "DIR", default_value = barevirt_protocol::names::SOCKETS_DIRECTORY)]
    pub sockets: PathBuf,

    /// Directory of the monitor for users, the display's socket, the serial log, mounted objects and their
    /// disks.
    #[arg(long, value_name = "DIR", default_value = "/var/run/kubevirt-private")]
    pub private: PathBuf,

    /// Directory of overlays and cloud-init images.
    #[arg(long, value_name = "DIR", default_value = "/var/run/kubevirt-ephemeral-disks")]
    pub ephemeral_disks: PathBuf,

    /// Socket that the helpers of container disks connect to.
    #[arg(long, value_name = "SOCKET", default_value = container::SOCKET)]
    pub container_disks: PathBuf,

    /// The images of container disks are volumes of this pod instead of containers.
    #[arg(long)]
    pub image_volumes: bool,

    /// Largest virtual size of a container disk.
    #[arg(long, value_name = "BYTES", default_value_t = NodeDisk::default().largest_image)]
    pub largest_image: u64,

    /// Do not log the guest's serial console, unless the instance requests it.
    #[arg(long)]
    pub without_serial_log: bool,

    /// The guest does not report free memory to the node. One that moves keeps what its start said.
    #[arg(long)]
    pub without_free_page_reporting: bool,

    /// Seconds between two reports of the guest's memory; 0: it makes none.
    #[arg(long, value_name = "SECONDS", default_value_t = stats::MEMORY_REPORTS)]
    pub memory_report_seconds: u32,

    /// Directory of mounted secrets, one for each volume.
    #[arg(long, value_name = "DIR", default_value = cloudinit::SECRETS)]
    pub secrets: PathBuf,

    /// Paths of claims.
    #[command(flatten)]
    pub claims: claim::Places,

    /// Directory of the sockets of the servers of shared directories.
    #[arg(long, value_name = "DIR", default_value = barevirt_api::filesystem::SOCKETS)]
    pub filesystems: PathBuf,

    /// Directory of passt's socket.
    #[arg(long, value_name = "DIR", default_value = barevirt_api::passt::SOCKETS)]
    pub passt: PathBuf,

    /// File from which Kubernetes reads the termination message.
    #[arg(long, value_name = "FILE", default_value = "/dev/termination-log")]
    pub termination_log: PathBuf,

    /// Directory of the claim that keeps UEFI variables and the TPM's state.
    #[arg(long, value_name = "DIR", default_value = barevirt_api::firmware::STATE_DIRECTORY)]
    pub state: PathBuf,

    /// Directory of UEFI images.
    #[arg(long, value_name = "DIR", default_value = "/usr/share/OVMF")]
    pub ovmf: PathBuf,

    /// swtpm, which emulates the TPM.
    #[arg(long, value_name = "PROGRAM", default_value = "/usr/bin/swtpm")]
    pub swtpm: PathBuf,

    /// QEMU.
    #[arg(long, value_name = "PROGRAM", default_value = "/usr/bin/qemu-system-x86_64")]
    pub qemu: PathBuf,
}

#[cfg(test)]
mod tests {
    use barevirt_api::network_resource::RESOURCE_ARGUMENT;
    use clap::Parser;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Program {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn networks_have_resources() {
        let parse = |more: &[&str]| {
            let plain = ["pod", "--name", "a", "--namespace", "b", "--uid", "u"];
            Program::try_parse_from(plain.iter().chain(more)).map(|program| program.args.network_resource)
        };
        assert_eq!(parse(&[]).unwrap(), []);
        let both = ["red", "blue"].map(|network| NetworkResource::new(network, "a.b/c").unwrap());
        let told = both.each_ref().map(|card| format!("{RESOURCE_ARGUMENT}={card}"));
        assert_eq!(parse(&told.each_ref().map(String::as_str)).unwrap(), both);
        let error = parse(&["--network-resource=red"]).unwrap_err().to_string();
        assert!(error.contains("red"), "{error}");
    }
}
