//! Virtual CPUs.

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
}

/// How CPUs are arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Sockets at boot.
    pub sockets: u32,
    /// Cores of each socket.
    pub cores: u32,
    /// Threads of each core.
    pub threads: u32,
    /// Sockets there is room for; at least `sockets`.
    pub max_sockets: u32,
}

impl Topology {
    /// CPUs at boot.
    #[must_use]
    pub const fn cpus(&self) -> u32 {
        self.sockets.saturating_mul(self.cores).saturating_mul(self.threads)
    }

    /// CPUs there is room for.
    #[must_use]
    pub const fn max_cpus(&self) -> u32 {
        self.max_sockets.saturating_mul(self.cores).saturating_mul(self.threads)
    }
}

/// Model and arrangement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// The model.
    pub model: CpuModel,
    /// The arrangement.
    pub topology: Topology,
}

impl Cpu {
    /// The argument of `-cpu`.
    pub(crate) fn model(&self) -> String {
        match &self.model {
            CpuModel::Host => "host".to_owned(),
            CpuModel::Max => "max".to_owned(),
            CpuModel::Named(name) => Options::kind(name).into_string(),
        }
    }

    /// The argument of `-smp`.
    pub(crate) fn smp(&self) -> String {
        let Topology { max_sockets, cores, threads, .. } = self.topology;
        Options::new()
            .with("cpus", self.topology.cpus())
            .with("maxcpus", self.topology.max_cpus())
            .with("sockets", max_sockets)
            .with("cores", cores)
            .with("threads", threads)
            .into_string()
    }
}
