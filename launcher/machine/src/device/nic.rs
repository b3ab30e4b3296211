//! Network interfaces: the backend on the host, and the card in the guest.

use crate::device::virtio::Virtio;
use crate::layout::Seat;
use crate::name;
use crate::props::Props;
use crate::quote;
use crate::units::Fd;
use barevirt_api::masquerade::Pair;
use serde_json::{Value, json};
use std::net::Ipv4Addr;

/// A tap's descriptor, as QEMU knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TapFd {
    /// Inherited at the start.
    Number(Fd),
    /// Passed to the monitor under this name (`getfd`) before a hotplug.
    Named(String),
}

impl TapFd {
    fn text(&self) -> String {
        match self {
            TapFd::Number(fd) => fd.to_string(),
            TapFd::Named(name) => name.clone(),
        }
    }
}

/// A port of this host that is forwarded to a port of the guest, in user networking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostForward {
    /// `tcp` or `udp`.
    pub protocol: String,
    /// Address on the host; 127.0.0.1 restricts it to this machine.
    pub host_address: String,
    /// Port on the host.
    pub host_port: u16,
    /// Port of the guest.
    pub guest_port: u16,
}

/// The backend of a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetBackend {
    /// A tap device, opened by a process with the right to do so: once for each of its queues.
    Tap(Vec<TapFd>),
    /// A connection to passt: a sequence of frames, each preceded by its length.
    Stream(Fd),
    /// QEMU's own network stack: it needs no privilege, and only forwarded ports lead to the guest. The guest
    /// has the IPv4 addresses of the masquerade binding.
    User {
        /// Gateway and guest.
        ipv4: Pair<Ipv4Addr>,
        /// Forwarded ports.
        forwards: Vec<HostForward>,
    },
}

/// The card's model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicModel {
    /// virtio-net, the default.
    Virtio(Virtio),
    /// Intel 82540EM.
    E1000,
    /// Intel 82574L.
    E1000e,
    /// Intel 82576.
    Igb,
    /// NE2000.
    Ne2kPci,
    /// AMD PCnet.
    Pcnet,
    /// Realtek 8139.
    Rtl8139,
}

impl NicModel {
    /// The model by its name in the API.
    #[must_use]
    pub fn from_api(name: &str) -> Option<Self> {
        Some(match name {
            "virtio" => NicModel::Virtio(Virtio::Current),
            "e1000" => NicModel::E1000,
            "e1000e" => NicModel::E1000e,
            "igb" => NicModel::Igb,
            "ne2k_pci" => NicModel::Ne2kPci,
            "pcnet" => NicModel::Pcnet,
            "rtl8139" => NicModel::Rtl8139,
            _ => return None,
        })
    }

    const fn driver(self) -> &'static str {
        match self {
            NicModel::Virtio(virtio) => virtio.of("virtio-net-pci", "virtio-net-pci-transitional"),
            NicModel::E1000 => "e1000",
            NicModel::E1000e => "e1000e",
            NicModel::Igb => "igb",
            NicModel::Ne2kPci => "ne2k_pci",
            NicModel::Pcnet => "pcnet",
            NicModel::Rtl8139 => "rtl8139",
        }
    }
}

/// One network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Index in the manifest's list of interfaces.
    pub at: usize,
    /// Name of the interface in the manifest.
    pub name: String,
    /// Model of the card.
    pub model: NicModel,
    /// Its MAC address, six hex pairs with colons.
    pub mac: String,
    /// Largest frame, given to the guest if the model supports it; `None` leaves it at 1500.
    pub mtu: Option<u16>,
    /// The backend.
    pub backend: NetBackend,
    /// Its place on the PCI bus.
    pub seat: Seat,
    /// Number from which guests make its name (`eno1`), wherever it is.
    pub acpi_index: Option<u32>,
    /// Place in the boot order. Only a card with a place has a boot ROM.
    pub boot_index: Option<u32>,
}

impl Nic {
    /// The card's id.
    #[must_use]
    pub fn id(&self) -> String {
        name::device("nic", &self.name)
    }

    /// The backend's id.
    #[must_use]
    pub fn netdev(&self) -> String {
        name::device("net", &self.name)
    }

    /// Number of its queues.
    fn queues(&self) -> usize {
        match &self.backend {
            NetBackend::Tap(queues) => queues.len(),
            NetBackend::Stream(_) | NetBackend::User { .. } => 1,
        }
    }

    pub(crate) fn backend_props(&self) -> Props {
        let id = self.netdev();
        match &self.backend {
            NetBackend::Tap(queues) => {
                let numbers: Vec<String> = queues.iter().map(TapFd::text).collect();
                let name = if queues.len() > 1 { "fds" } else { "fd" };
                Props::new("type", "tap").with("id", id).with(name, numbers.join(":"))
            }
            NetBackend::Stream(connection) => Props::new("type", "stream")
                .with("id", id)
                .with("server", false)
                .with("addr", json!({ "type": "fd", "str": connection.to_string() })),
            NetBackend::User { ipv4, forwards } => {
                let forwards: Vec<Value> =
                    forwards.iter().map(|forward| json!({ "str": forward.text() })).collect();
                let props = Props::new("type", "user")
                    .with("id", id)
                    .with("net", ipv4.range())
                    .with("host", ipv4.gateway.to_string())
                    .with("dhcpstart", ipv4.guest.to_string());
                if forwards.is_empty() { props } else { props.with("hostfwd", forwards) }
            }
        }
    }

    pub(crate) fn props(&self) -> Props {
        let virtio = if let NicModel::Virtio(virtio) = self.model { Some(virtio) } else { None };
        let props = Props::device(self.model.driver(), &self.id())
            .with("netdev", self.netdev())
            .with("mac", self.mac.clone())
            .seated(self.seat, virtio)
            .maybe("acpi-index", self.acpi_index)
            .maybe("bootindex", self.boot_index);
        let props = if self.boot_index.is_none() { props.with("romfile", "") } else { props };
        match self.model {
            NicModel::Virtio(_) => {
                let props = props.maybe("host_mtu", self.mtu);
                match self.queues() {
                    0 | 1 => props,
                    // An interrupt for each direction of each queue, one for the configuration, one for the
                    // control queue.
                    queues => props.with("mq", true).with("vectors", 2 * queues + 2),
                }
            }
            // These models cannot report an MTU.
            NicModel::E1000
            | NicModel::E1000e
            | NicModel::Igb
            | NicModel::Ne2kPci
            | NicModel::Pcnet
            | NicModel::Rtl8139 => props,
        }
    }
}

impl HostForward {
    fn text(&self) -> String {
        let Self { protocol, host_address, host_port, guest_port } = self;
        quote::quote(&format!("{protocol}:{host_address}:{host_port}-:{guest_port}"))
    }
}
