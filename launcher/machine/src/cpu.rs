//! Virtual CPUs.

use barevirt_api::sizing::Topology;

use crate::quote::Options;

/// What the guest's CPU looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CpuModel {
    /// The host's, all that KVM can show of it.
    Host,
    /// All that the accelerator has: under emulation, what QEMU itself can do.
    Max,
    /// One of QEMU's models by its name.
    Named(String),
    /// QEMU's model without anything, and all that the host's has, one by one: the same CPU on another host.
    Spelled(Vec<(String, String)>),
}

/// A property of the CPU beside its model.
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
    /// What is added to it or taken away; a later one counts.
    pub flags: Vec<Flag>,
    /// The arrangement.
    pub topology: Topology,
    /// Sockets that have processors: more or fewer than at the start where the guest comes from another node.
    pub sockets: u32,
}

impl Cpu {
    /// The argument of `-cpu`.
    pub(crate) fn model(&self) -> String {
        // The one option whose values cannot be quoted: what comes here holds no comma.
        let model = match &self.model {
            CpuModel::Host => Options::kind("host"),
            CpuModel::Max => Options::kind("max"),
            CpuModel::Named(name) => Options::kind(name),
            // Addresses as wide as the host's, as its own model has them.
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
