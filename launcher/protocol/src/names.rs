//! Names that both sides use: sockets, the protocol version, descriptors and streams.

/// Version of the protocol that this library implements, for `HelloRequest.version`.
pub const VERSION: u32 = 1;

/// Lowest version that a launcher built with this library still supports.
pub const LOWEST_VERSION: u32 = 1;

/// Directory of both sockets as the launcher sees it in its container.
pub const SOCKETS_DIRECTORY: &str = "/var/run/kubevirt/sockets";

/// The same directory as the handler sees it, below the kubelet's directory of the pod.
pub const SOCKETS_VOLUME: &str = "volumes/kubernetes.io~empty-dir/sockets";

/// Name of the gRPC socket in the sockets directory.
pub const GRPC_SOCKET: &str = "launcher-sock";

/// Name of the descriptor socket in the sockets directory.
pub const DESCRIPTOR_SOCKET: &str = "launcher-fds";

/// Name of the descriptor of `/dev/kvm`.
pub const KVM: &str = "kvm";

/// Name of the descriptor of `/dev/vhost-vsock`.
pub const VHOST_VSOCK: &str = "vhost-vsock";

/// Longest descriptor name that is accepted, in bytes.
pub const LONGEST_NAME: usize = 512;

/// Largest disk that a launcher makes of the manifest and of objects, in bytes: several times what fits in them.
pub const LARGEST_MADE: u64 = 128 << 20;

/// Most connections for the memory of a guest that moves, in addition to the first one.
pub const MOST_MEMORY_CHANNELS: u8 = 16;

/// Stream of the guest's first serial port.
pub const STREAM_SERIAL0: &str = "serial0";

/// Stream of RFB, the VNC protocol.
pub const STREAM_VNC: &str = "vnc";

/// Stream of a free slot for a client's USB device.
pub const STREAM_USB: &str = "usbredir";

/// Stream of a client of the monitor for users.
pub const STREAM_QMP: &str = "qmp";

/// Stream of an attachment pod's disk.
pub const STREAM_DISK: &str = "disk";

/// A disk that is plugged into a running guest: a volume on a claim.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HotDisk {
    /// Name of the volume.
    pub volume: String,
    /// Name of the claim. The same volume on another claim is another disk.
    pub claim: String,
}

impl HotDisk {
    /// Name of its descriptor, e.g. `disk/data/claim`.
    #[must_use]
    pub fn descriptor(&self) -> String {
        format!("{STREAM_DISK}/{}/{}", self.volume, self.claim)
    }

    /// Parses the name of a disk's descriptor.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let (volume, claim) = name.strip_prefix(STREAM_DISK)?.strip_prefix('/')?.split_once('/')?;
        let sound = |part: &str| !part.is_empty() && !part.contains('/');
        (sound(volume) && sound(claim)).then(|| Self { volume: volume.to_owned(), claim: claim.to_owned() })
    }
}

/// The content of a migration's connection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MigrationStream {
    /// The guest's memory and device state.
    Memory,
    /// The content of the disk with this name, which no other node has.
    Disk(String),
    /// Pages of the guest's memory, where it has more connections than the first one. They are numbered from 1 on.
    Channel(u8),
}

impl MigrationStream {
    /// Its name, e.g. `memory` or `disk/root`.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Memory => "memory".to_owned(),
            Self::Disk(name) => format!("disk/{name}"),
            Self::Channel(number) => format!("channel/{number}"),
        }
    }

    /// Parses a stream's name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let sound =
            |disk: &str| !disk.is_empty() && !disk.contains('/') && !disk.chars().any(char::is_control);
        match name.split_once('/') {
            Some(("disk", disk)) => sound(disk).then(|| Self::Disk(disk.to_owned())),
            Some(("channel", number)) => channel(number).map(Self::Channel),
            Some(_) => None,
            None => (name == "memory").then_some(Self::Memory),
        }
    }
}

/// The number of a connection for memory.
fn channel(text: &str) -> Option<u8> {
    let number = text.parse().ok().filter(|number: &u8| (1..=MOST_MEMORY_CHANNELS).contains(number))?;
    (number.to_string() == text).then_some(number)
}

/// A connection between both ends of a migration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MigrationChannel {
    /// UID of the migration.
    pub uid: String,
    /// Its content.
    pub stream: MigrationStream,
}

impl MigrationChannel {
    /// Name of its descriptor, e.g. `migration/<uid>/memory`.
    #[must_use]
    pub fn descriptor(&self) -> String {
        format!("migration/{}/{}", self.uid, self.stream.name())
    }

    /// Parses the name of a migration's descriptor.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let (uid, stream) = name.strip_prefix("migration/")?.split_once('/')?;
        let stream = MigrationStream::parse(stream)?;
        (!uid.is_empty()).then(|| Self { uid: uid.to_owned(), stream })
    }
}

/// The kind of a network's descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NetworkDescriptor {
    /// One queue of the tap that QEMU uses: the only one, or the first of several. See [`tap_queues`].
    Tap,
    /// UDP socket on port 67, bound to the bridge.
    Dhcp4,
    /// UDP socket on port 547 over IPv6, bound to the bridge and joined to `ff02::1:2`.
    Dhcp6,
    /// Raw ICMPv6 socket bound to the bridge and joined to `ff02::2`. Where the guest is a host on the pod's own
    /// network: a packet socket bound to the tap, for router advertisements and DHCPv6, or to hear which addresses the guest
    /// has where it is given none.
    RouterAdvertisement,
}

impl NetworkDescriptor {
    /// All kinds, in the order of their definition.
    pub const ALL: [Self; 4] = [Self::Tap, Self::Dhcp4, Self::Dhcp6, Self::RouterAdvertisement];

    /// The last part of the descriptor's name.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Tap => "tap",
            Self::Dhcp4 => "dhcp4",
            Self::Dhcp6 => "dhcp6",
            Self::RouterAdvertisement => "ra",
        }
    }

    /// Name of this descriptor of the network called `network` in the spec, e.g. `net/default/tap`.
    pub fn of(self, network: &str) -> String {
        format!("net/{network}/{}", self.suffix())
    }

    /// The network and the kind, if the text is the name of a network's descriptor.
    pub fn parse(name: &str) -> Option<(&str, Self)> {
        let (network, suffix) = name.strip_prefix("net/")?.rsplit_once('/')?;
        if network.is_empty() || network.contains('/') {
            return None;
        }
        let is = |kind: &Self| kind.suffix() == suffix || (*kind == Self::Tap && is_further_queue(suffix));
        let kind = Self::ALL.into_iter().find(is)?;
        Some((network, kind))
    }
}

/// Most queues of a tap; the kernel's limit.
pub const MOST_TAP_QUEUES: u32 = 256;

/// Names of the descriptors of a tap's queues, the first one first: `net/default/tap`, `net/default/tap.1`, ...
///
/// The first one is passed last: a launcher that has it has all.
pub fn tap_queues(network: &str, queues: u32) -> impl Iterator<Item = String> {
    let first = NetworkDescriptor::Tap.of(network);
    (0..queues.clamp(1, MOST_TAP_QUEUES)).map(move |queue| match queue {
        0 => first.clone(),
        further => format!("{first}.{further}"),
    })
}

fn is_further_queue(suffix: &str) -> bool {
    let number = suffix.strip_prefix(NetworkDescriptor::Tap.suffix()).and_then(|rest| rest.strip_prefix('.'));
    number.is_some_and(|text| {
        text.parse()
            .is_ok_and(|number: u32| (1..MOST_TAP_QUEUES).contains(&number) && number.to_string() == text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_names_are_the_agreed_ones_and_parse_back() {
        let names: Vec<_> = NetworkDescriptor::ALL.into_iter().map(|kind| kind.of("default")).collect();
        assert_eq!(names, ["net/default/tap", "net/default/dhcp4", "net/default/dhcp6", "net/default/ra"]);
        for (name, kind) in names.iter().zip(NetworkDescriptor::ALL) {
            assert_eq!(NetworkDescriptor::parse(name), Some(("default", kind)));
        }
    }

    #[test]
    fn a_disk_is_named_by_its_volume_and_its_claim() {
        let disk = HotDisk { volume: "data".to_owned(), claim: "a.b".to_owned() };
        assert_eq!(disk.descriptor(), "disk/data/a.b");
        assert_eq!(HotDisk::parse("disk/data/a.b"), Some(disk));
        for name in ["disk", "disk/", "disk/data", "disk//a", "disk/data/", "disk/data/a/b", "net/data/tap"] {
            assert_eq!(HotDisk::parse(name), None, "{name}");
        }
    }

    #[test]
    fn a_connection_is_named_by_its_migration_and_what_it_carries() {
        for stream in [
            MigrationStream::Memory,
            MigrationStream::Disk("root".to_owned()),
            MigrationStream::Channel(1),
            MigrationStream::Channel(MOST_MEMORY_CHANNELS),
        ] {
            let channel = MigrationChannel { uid: "u-1".to_owned(), stream };
            assert_eq!(MigrationChannel::parse(&channel.descriptor()), Some(channel));
        }
        for name in [
            "migration",
            "migration/u",
            "migration//memory",
            "migration/u/other",
            "migration/u/v/memory",
            "migration/u/disk/",
            "migration/u/disk/a/b",
            "migration/u/channel/0",
            "migration/u/channel/17",
            "migration/u/channel/01",
            "migration/u/channel/+1",
            "migration/u/channel/1/2",
            "migration/u/channel",
        ] {
            assert_eq!(MigrationChannel::parse(name), None, "{name}");
        }
    }

    #[test]
    fn queues_of_a_tap_are_numbered_from_the_second_on() {
        let names: Vec<_> = tap_queues("default", 3).collect();
        assert_eq!(names, ["net/default/tap", "net/default/tap.1", "net/default/tap.2"]);
        for name in names {
            assert_eq!(NetworkDescriptor::parse(&name), Some(("default", NetworkDescriptor::Tap)));
        }
        assert_eq!((tap_queues("a", 0).count(), tap_queues("a", 1000).count()), (1, 256));
    }

    #[test]
    fn other_names_are_not_networks() {
        for name in [
            "net/default/tap.0",
            "net/default/tap.01",
            "net/default/tap.256",
            "net/default/tap.",
            "net/default/ra.1",
            "kvm",
            "net/",
            "net//tap",
            "net/a/b/tap",
            "net/default",
            "net/default/tape",
            "disk/default/tap",
        ] {
            assert_eq!(NetworkDescriptor::parse(name), None, "{name}");
        }
    }
}
