//! Arguments of `virt-launcher run`.

use std::path::PathBuf;
use std::str::FromStr;

use barevirt_machine::HostForward;

/// Boot a manifest on this machine: no Kubernetes, no root, user networking.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// A VirtualMachineInstance or VirtualMachine, YAML or JSON; `-` reads it from standard input.
    pub manifest: PathBuf,

    /// Connect this terminal to the guest's serial console; ctrl-] leaves it.
    #[arg(long)]
    pub console: bool,

    /// Print QEMU's command line and start nothing.
    #[arg(long)]
    pub dry_run: bool,

    /// Forward a port of this machine to the guest: [ADDRESS:]PORT:GUESTPORT[/udp]. ADDRESS is 127.0.0.1 unless given.
    #[arg(short = 'p', long = "publish", value_name = "[ADDRESS:]PORT:GUESTPORT[/udp]")]
    pub publish: Vec<Publish>,

    /// The image of a volume: VOLUME=PATH, qcow2 or raw. It is only read, what the guest writes is dropped at the end. Also for
    /// volumes that are claims in a cluster.
    #[arg(long = "disk", value_name = "VOLUME=PATH")]
    pub disks: Vec<DiskPath>,

    /// Keep a volume as the guest leaves it: VOLUME=PATH, a new qcow2 image, written when the guest has ended.
    #[arg(long = "save", value_name = "VOLUME=PATH")]
    pub saves: Vec<DiskPath>,

    /// Where images of container disks are looked for: a volume with the image `registry/guest-tiny:devel` is
    /// DIR/guest-tiny.qcow2 (or .img, .raw).
    #[arg(long, value_name = "DIR", default_value = "target/images")]
    pub images: PathBuf,

    /// Use KVM; fail where there is none.
    #[arg(long, conflicts_with = "tcg")]
    pub kvm: bool,

    /// Use emulation, even where there is KVM.
    #[arg(long)]
    pub tcg: bool,

    /// Guest memory, in place of the manifest's, e.g. 512Mi.
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,

    /// Keep the guest's serial output in this file, at most 4 MiB of it.
    #[arg(long, value_name = "FILE")]
    pub serial_log: Option<PathBuf>,

    /// Listen here for users who send QMP commands to the guest's QEMU.
    #[arg(long, value_name = "SOCKET")]
    pub qmp: Option<PathBuf>,

    /// The kernel of a manifest with kernelBoot, in place of the one in its container image.
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,

    /// The initial file system of a manifest with kernelBoot.
    #[arg(long, value_name = "FILE")]
    pub initrd: Option<PathBuf>,

    /// Keep persistent UEFI variables and TPM state here.
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,

    /// Directory of UEFI images, as in Debian's package ovmf.
    #[arg(long, value_name = "DIR", default_value = "/usr/share/OVMF")]
    pub ovmf: PathBuf,

    /// swtpm, for manifests with a TPM.
    #[arg(long, value_name = "PROGRAM", default_value = "swtpm")]
    pub swtpm: PathBuf,

    /// QEMU.
    #[arg(long, value_name = "PROGRAM", default_value = "qemu-system-x86_64")]
    pub qemu: PathBuf,
}

/// One forwarded port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publish(pub HostForward);

impl FromStr for Publish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (ports, protocol) = match text.rsplit_once('/') {
            Some((ports, protocol @ ("tcp" | "udp"))) => (ports, protocol),
            Some((_, other)) => return Err(format!("protocol {other:?} is neither tcp nor udp")),
            None => (text, "tcp"),
        };
        let (host, guest_port) = ports.rsplit_once(':').ok_or("a port of the guest is missing")?;
        let (address, host_port) = host.rsplit_once(':').unwrap_or(("127.0.0.1", host));
        let port = |text: &str| match text.parse() {
            Ok(port @ 1..) => Ok(port),
            _ => Err(format!("{text:?} is not a port")),
        };
        let address: std::net::Ipv4Addr =
            address.parse().map_err(|_| format!("{address:?} is not an IPv4 address"))?;
        Ok(Self(HostForward {
            protocol: protocol.to_owned(),
            host_address: address.to_string(),
            host_port: port(host_port)?,
            guest_port: port(guest_port)?,
        }))
    }
}

/// The image of one volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskPath {
    /// The volume.
    pub volume: String,
    /// The image.
    pub path: PathBuf,
}

impl FromStr for DiskPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((volume, path)) if !volume.is_empty() && !path.is_empty() => {
                Ok(Self { volume: volume.to_owned(), path: path.into() })
            }
            _ => Err("must be VOLUME=PATH".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_published_as_other_tools_do() {
        let forward = |text: &str| text.parse::<Publish>().map(|Publish(forward)| forward);
        let ssh = forward("2222:22").unwrap();
        assert_eq!(
            (ssh.protocol.as_str(), ssh.host_address.as_str(), ssh.host_port, ssh.guest_port),
            ("tcp", "127.0.0.1", 2222, 22)
        );
        let dns = forward("0.0.0.0:5353:53/udp").unwrap();
        assert_eq!((dns.protocol.as_str(), dns.host_address.as_str()), ("udp", "0.0.0.0"));
        for bad in ["22", "a:22", "0:22", "22:70000", "2222:22/sctp", "host:1:2", ""] {
            assert!(forward(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn disks_name_their_volume() {
        let disk: DiskPath = "root=/x=y.img".parse().unwrap();
        assert_eq!((disk.volume.as_str(), disk.path.to_str()), ("root", Some("/x=y.img")));
        assert!("root".parse::<DiskPath>().is_err());
        assert!("=x".parse::<DiskPath>().is_err());
    }
}
