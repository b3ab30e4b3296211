//! The first process of a VM pod: parent of exactly one QEMU.
//!
//! Two ways to run: [`pod`], driven by virt-handler, and [`run`], alone on any machine with QEMU. Both prepare what
//! QEMU needs and leave the VM to the [`supervisor`].

pub mod accelerator;
pub mod acpi_table;
pub mod assembly;
pub mod bare_qemu;
pub mod clock;
pub mod cloudinit;
pub mod console;
pub mod credentials;
pub mod descriptors;
pub mod dhcp;
pub mod disk;
pub mod downward_metrics;
pub mod firmware;
pub mod guest_agent;
pub mod host_cpu;
pub mod host_cpus;
pub mod host_devices;
pub mod iso;
pub mod lifecycle;
pub mod node_capabilities;
pub mod object_disk;
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
