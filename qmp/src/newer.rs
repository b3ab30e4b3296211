//! Commands with this crate's own types, used like those of the [`qapi`] crate.
//!
//! There are two reasons for a command to be here: QEMU has it since a version that the crate does not know,
//! or the crate's type for its answer cannot be decoded on x86 or would refuse a whole list because of one
//! new entry.

use qapi::qmp::{CpuModelExpansionType, CpuModelInfo, QmpCommand};
use qapi::{Command, qga::QgaCommand};
use serde::{Deserialize, Serialize};

/// `guest-get-load`: since QEMU 10.0 (`qga/qapi-schema.json`).
#[derive(Debug, Clone, Copy, Serialize)]
pub struct GuestGetLoad {}

/// The answer to [`GuestGetLoad`]: mean number of processes that run or wait for a CPU.
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

/// `guest-get-fsinfo`. The crate's type only allows the buses that it knows, and a disk on another bus would
/// hide its file system.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct GuestGetFsinfo {}

/// An entry of the answer to [`GuestGetFsinfo`] (`GuestFilesystemInfo` in `qga/qapi-schema.json`), with the
/// fields that are used.
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
    /// Used bytes; some file systems do not report them.
    #[serde(default)]
    pub used_bytes: Option<u64>,
    /// Size in bytes without reserved space.
    #[serde(default)]
    pub total_bytes: Option<u64>,
    /// The disks that hold it.
    pub disk: Vec<GuestFileSystemDisk>,
}

/// A disk of a [`GuestFileSystem`] (`GuestDiskAddress`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct GuestFileSystemDisk {
    /// The bus, as the agent names it.
    pub bus_type: String,
    /// Serial number, if the disk has one.
    #[serde(default)]
    pub serial: Option<String>,
}

impl QgaCommand for GuestGetFsinfo {}
impl Command for GuestGetFsinfo {
    type Ok = Vec<GuestFileSystem>;
    const NAME: &'static str = "guest-get-fsinfo";
    const ALLOW_OOB: bool = false;
}

/// `query-cpu-model-expansion`. The crate requires `deprecated-props`, which QEMU only has on s390x
/// (`qapi/machine-target.json`, since 9.1).
#[derive(Debug, Clone, Serialize)]
pub struct QueryCpuModelExpansion {
    /// The kind of expansion.
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

/// `query-named-block-nodes`, of which only names and sizes are decoded, so that an unknown driver does not hide
/// a node.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct QueryNamedBlockNodes {
    /// Omits the nodes below each node.
    pub flat: bool,
}

/// An entry of the answer to [`QueryNamedBlockNodes`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct NamedBlockNode {
    /// The node's name.
    #[serde(rename = "node-name", default)]
    pub node_name: Option<String>,
    /// Its image.
    pub image: NamedBlockImage,
}

/// The image of a [`NamedBlockNode`] (`ImageInfo`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct NamedBlockImage {
    /// Size of the disk in bytes.
    #[serde(rename = "virtual-size")]
    pub virtual_size: u64,
    /// Bytes that its own files take, without images beneath it; `None` if its driver cannot tell.
    #[serde(rename = "actual-size", default)]
    pub actual_size: Option<u64>,
}

impl QmpCommand for QueryNamedBlockNodes {}
impl Command for QueryNamedBlockNodes {
    type Ok = Vec<NamedBlockNode>;
    const NAME: &'static str = "query-named-block-nodes";
    const ALLOW_OOB: bool = false;
}

/// `query-block`, of which only drives with removable media are of interest here: the crate's type describes every driver's
/// image.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct QueryBlock {}

/// An entry of the answer to [`QueryBlock`] (`BlockInfo` in `qapi/block-core.json`).
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct BlockDrive {
    /// Id of the device, or its path in QEMU's object tree.
    #[serde(default)]
    pub qdev: Option<String>,
    /// Whether the tray is open; only of devices with a tray.
    #[serde(default)]
    pub tray_open: Option<bool>,
    /// Its medium, if there is one.
    #[serde(default)]
    pub inserted: Option<BlockMedium>,
}

/// The medium of a [`BlockDrive`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct BlockMedium {
    /// Name of its block node.
    #[serde(rename = "node-name", default)]
    pub node_name: Option<String>,
}

impl QmpCommand for QueryBlock {}
impl Command for QueryBlock {
    type Ok = Vec<BlockDrive>;
    const NAME: &'static str = "query-block";
    const ALLOW_OOB: bool = false;
}
