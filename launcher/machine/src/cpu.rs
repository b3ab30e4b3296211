//! Virtual CPUs.

use barevirt_api::sizing::Topology;

use crate::quote::Options;

/// The model of the guest's CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CpuModel {
    /// The host's CPU, with all features that KVM can show.
    Host,
    /// All features of the accelerator: with emulation, everything that QEMU itself can do.
    Max,
    /// One of QEMU's models by its name.
    Named(String),
    /// QEMU's empty model with all features of the host's CPU, one by one: the same CPU on another host.
    Spelled(Vec<(String, String)>),
}

/// A property of the CPU in addition to its model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    name: String,
    value: String,
}

impl Flag {
    pub(crate) fn new(name: &str, value: &str) -> Self {
        Self { name: name.to_owned(), value: value.to_owned() }
    }

    pub(crate) fn switch(name: &str, on: bool) -> Self {
        Self::new(name, if on { "on" } else { "off" })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

/// Model and arrangement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// The model.
    pub model: CpuModel,
    /// Properties added or removed; a later one overrides.
    pub flags: Vec<Flag>,
    /// The arrangement.
    pub topology: Topology,
    /// Sockets with processors: they may differ from the number at the start if the guest comes from another
    /// node.
    pub sockets: u32,
}

impl Cpu {
    /// The argument of `-cpu`.
    pub(crate) fn model(&self) -> String {
        // The values of this option cannot be quoted; none of the values here contains a comma.
        let model = match &self.model {
            CpuModel::Host => Options::kind("host"),
            CpuModel::Max => Options::kind("max"),
            CpuModel::Named(name) => Options::kind(name),
            // Physical addresses as wide as the host's, like the host's own model.
            CpuModel::Spelled(words) => words
                .iter()
                .fold(Options::kind("base").switch("host-phys-bits", true), |model, (name, value)| {
                    model.with(name, value)
                }),
        };
        self.flags.iter().fold(model, |model, Flag { name, value }| model.with(name, value)).into_string()
    }

    /// The argument of `-smp`.
    pub(crate) fn smp(&self) -> String {
        let Topology { max_sockets, cores, threads, .. } = self.topology;
        Options::new()
            .with("cpus", Topology { sockets: self.sockets, ..self.topology }.vcpus())
            .with("maxcpus", self.topology.max_vcpus())
            .with("sockets", max_sockets)
            .with("cores", cores)
            .with("threads", threads)
            .into_string()
    }
}
