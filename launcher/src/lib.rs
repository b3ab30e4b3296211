//! The first process of a VM pod: parent of exactly one QEMU.
//!
//! Two ways to run: [`pod`], driven by virt-handler, and [`run`], alone on any machine with QEMU. Both prepare what
//! QEMU needs and leave the VM to the [`supervisor`].
//!
//! The modules, from the outside in; each names only what stands below it.
//!
//! **What the program does**, one for each subcommand
//!
//! - [`pod`]: the first process of a VM pod; [`run`]: a manifest without Kubernetes; [`volume`]: the program of an attachment
//!   pod; [`filesystem`]: that of a container that shares a directory; [`passt`]: that of one that joins the guest to the pod network;
//!   [`awaited`]: where they meet the launcher; [`node_capabilities`]: what guests of this node can have.
//!
//! **The VM**
//!
//! - [`supervisor`]: the one task that owns it. It turns what happens into events of [`lifecycle`], a pure state machine, and
//!   does what that answers.
//! - [`migration`]: how it moves to another node, or comes from one.
//! - [`status`]: what is told of it; [`verdict`]: how it ended; [`standstill`]: what is seen of a QEMU that does not answer.
//! - [`process`]: QEMU and swtpm as processes; [`descriptors`]: what they inherit; [`signals`]: when to stop.
//!
//! **What QEMU is started with**
//!
//! - [`assembly`] puts it together: sockets, the plan of `barevirt_machine`, the command line.
//! - [`volumes`], [`disk`], [`object_disk`], [`cloudinit`], [`iso`], [`acpi_table`], [`state`]: what its disks hold, and where.
//! - [`firmware`]: UEFI, kernel boot, TPM; [`clock`]: the hardware clock.
//! - [`accelerator`], [`host_cpu`], [`host_cpus`], [`host_devices`]: what this host has; [`bare_qemu`] asks QEMU for it.
//! - [`pins`] and [`real_time`]: where its threads run, and how.
//!
//! **Around a running guest**
//!
//! - [`guest_agent`], [`credentials`], [`probe`]: all that goes by the agent in the guest.
//! - [`console`], [`serial_log`], [`people`], [`screenshot`]: what people see of it.
//! - [`dhcp`]: its addresses; [`downward_metrics`]: what it may know of its node; [`stats`]: its numbers.

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
pub mod guest_agent;
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
pub mod pins;
pub mod pod;
pub mod probe;
pub mod process;
pub mod real_time;
pub mod run;
pub mod screenshot;
pub mod serial_log;
pub mod signals;
pub mod standstill;
pub mod state;
pub mod stats;
pub mod status;
pub mod supervisor;
pub mod verdict;
pub mod volume;
pub mod volumes;
