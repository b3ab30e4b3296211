//! The first process of a VM pod: parent of exactly one QEMU.
//!
//! It runs in two ways: [`pod`], driven by virt-handler, and [`run`], alone on any machine with QEMU. Both
//! prepare what QEMU needs and leave the VM to the [`supervisor`].
//!
//! The modules, from the outside in. Each module uses only modules that are listed below it.
//!
//! **What the program does**, one for each subcommand
//!
//! - [`pod`]: the first process of a VM pod; [`run`]: runs a manifest without Kubernetes; [`volume`]: the
//!   program of an attachment pod; [`filesystem`]: the program of a container that shares a directory;
//!   [`passt`]: the program of the container that joins the guest to the pod network; [`awaited`]: how these
//!   containers and the launcher connect; [`node_capabilities`]: the features that guests of this node can have.
//!
//! **The VM**
//!
//! - [`supervisor`]: the one task that owns it. It turns what happens into events of [`lifecycle`], a pure
//!   state machine, and carries out the effects.
//! - [`migration`]: how the VM moves to another node, or comes from one.
//! - [`status`]: its published state; [`guest_end`]: how it ended; [`standstill`]: observations about a QEMU
//!   that does not answer.
//! - [`process`]: QEMU and swtpm as processes; [`descriptors`]: descriptors that they inherit; [`signals`]:
//!   signals to stop.
//!
//! **Preparation of QEMU**
//!
//! - [`assembly`] assembles the parts: sockets, the plan of `barevirt_machine`, the command line.
//! - [`volumes`], [`reported`], [`growing`], [`disk`], [`object_disk`], [`cloudinit`], [`iso`], [`acpi_table`], [`state`]:
//!   contents and files of its disks.
//! - [`firmware`]: UEFI, kernel boot, TPM; [`clock`]: the hardware clock.
//! - [`accelerator`], [`host_cpu`], [`host_cpus`], [`host_devices`], [`sriov`]: features of this host; [`bare_qemu`]
//!   asks QEMU about them.
//! - [`pins`] and [`real_time`]: CPUs and scheduling of its threads.
//!
//! **Around a running guest**
//!
//! - [`guest_agent`], [`credentials`], [`probe`]: functions that use the agent in the guest.
//! - [`peripherals`]: the devices that QEMU has.
//! - [`console`], [`serial_log`], [`people`], [`screenshot`]: access of users.
//! - [`dhcp`]: its addresses; [`downward_metrics`]: metrics of the node for the guest; [`stats`]: metrics of
//!   the guest.

pub mod accelerator;
pub mod acpi_table;
pub mod assembly;
pub mod awaited;
pub mod bare_qemu;
pub mod cards;
pub mod clock;
pub mod cloudinit;
pub mod console;
pub mod credentials;
pub mod descriptors;
pub mod dhcp;
pub mod disk;
pub mod downward_metrics;
pub mod filesystem;
pub mod firmware;
#[cfg(test)]
mod fuzz_targets;
pub mod growing;
pub mod guest_agent;
pub mod guest_end;
pub mod host_cpu;
pub mod host_cpus;
pub mod host_devices;
pub mod iso;
pub mod lifecycle;
pub mod migration;
pub mod node_capabilities;
pub mod object_disk;
pub mod passt;
pub mod people;
pub mod peripherals;
pub mod pins;
pub mod pod;
pub mod probe;
pub mod process;
pub mod real_time;
pub mod reported;
pub mod run;
pub mod screenshot;
pub mod serial_log;
pub mod signals;
pub mod sriov;
pub mod standstill;
pub mod state;
pub mod stats;
pub mod status;
pub mod supervisor;
pub mod unused;
pub mod volume;
pub mod volumes;

// Names that the fuzz targets import from.
#[cfg(test)]
extern crate self as libfuzzer_sys;
#[cfg(test)]
extern crate self as virt_launcher;
