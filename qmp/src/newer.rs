//! Commands with types of this crate's own, used like those of the [`qapi`] crate.
//!
//! A command is here for one of two reasons: QEMU has it in a version that the crate does not know, or the crate's type of
//! its answer cannot be read on x86, or would refuse a whole list for one entry that is new.

use qapi::qmp::{CpuModelExpansionType, CpuModelInfo, QmpCommand};
use qapi::{Command, qga::QgaCommand};
use serde::{Deserialize, Serialize};

/// `guest-get-load`: since QEMU 10.0 (`qga/qapi-schema.json`).
#[derive(Debug, Clone, Copy, Serialize)]
pub struct GuestGetLoad {}

/// The answer to [`GuestGetLoad`]: mean number of processes that run or want to.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct GuestLoadAverage {
    /// Over one minute.
    pub load1m: f64,
    /// Over five minutes.
    pub load5m: f64,
    /// Over fifteen minutes.
    pub load15m: f64,
}

impl QgaCommand for GuestGetLoad {}
impl Command for GuestGetLoad {
    type Ok = GuestLoadAverage;
    const NAME: &'static str = "guest-get-load";
    const ALLOW_OOB: bool = false;
}

/// `guest-get-fsinfo`. The crate's type has the buses that it knows, and a disk on another one would hide its file system.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct GuestGetFsinfo {}

/// An entry of the answer to [`GuestGetFsinfo`] (`GuestFilesystemInfo` in `qga/qapi-schema.json`): what is read of it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct GuestFileSystem {
    /// Name of the disk or volume.
    pub name: String,
    /// Where it is mounted.
    pub mountpoint: String,
    /// Type of the file system.
    #[serde(rename = "type")]
    pub kind: String,
    /// Used bytes; some file systems do not say.
    #[serde(default)]
    pub used_bytes: Option<u64>,
    /// Size in bytes without what is reserved.
    #[serde(default)]
    pub total_bytes: Option<u64>,
    /// The disks that it is on.
    pub disk: Vec<GuestFileSystemDisk>,
}

/// A disk of a [`GuestFileSystem`] (`GuestDiskAddress`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct GuestFileSystemDisk {
    /// The bus as the agent names it.
    pub bus_type: String,
    /// Serial number, where the disk has one.
    #[serde(default)]
    pub serial: Option<String>,
}

impl QgaCommand for GuestGetFsinfo {}
impl Command for GuestGetFsinfo {
    type Ok = Vec<GuestFileSystem>;
    const NAME: &'static str = "guest-get-fsinfo";
    const ALLOW_OOB: bool = false;
}

/// `query-cpu-model-expansion`. The crate requires `deprecated-props`, which QEMU has on s390x alone
/// (`qapi/machine-target.json`, since 9.1).
#[derive(Debug, Clone, Serialize)]
pub struct QueryCpuModelExpansion {
    /// How far the model is expanded.
    #[serde(rename = "type")]
    pub kind: CpuModelExpansionType,
    /// The model.
    pub model: CpuModelInfo,
}

/// The answer to [`QueryCpuModelExpansion`].
#[derive(Debug, Clone, Deserialize)]
pub struct CpuModelExpansion {
    /// The expanded model.
    pub model: CpuModelInfo,
}

impl QmpCommand for QueryCpuModelExpansion {}
impl Command for QueryCpuModelExpansion {
    type Ok = CpuModelExpansion;
    const NAME: &'static str = "query-cpu-model-expansion";
    const ALLOW_OOB: bool = false;
}

/// `query-named-block-nodes`, of which the names are read. Details of a driver that the crate does not know may not hide a
/// node.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct QueryNamedBlockNodes {
    /// Without the nodes below each node.
    pub flat: bool,
}

/// An entry of the answer to [`QueryNamedBlockNodes`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct NamedBlockNode {
    /// The node's name.
    #[serde(rename = "node-name", default)]
    pub node_name: Option<String>,
}

impl QmpCommand for QueryNamedBlockNodes {}
impl Command for QueryNamedBlockNodes {
    type Ok = Vec<NamedBlockNode>;
    const NAME: &'static str = "query-named-block-nodes";
    const ALLOW_OOB: bool = false;
}
