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
            .with("cpus", self.topology.vcpus())
            .with("maxcpus", self.topology.max_vcpus())
            .with("sockets", max_sockets)
            .with("cores", cores)
            .with("threads", threads)
            .into_string()
    }
}
