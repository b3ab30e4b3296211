//! The `kubevirt.io` API: types, defaults, validation, sizing and names. Pure: no files, no clock, no network.
//!
//! ```text
//! v1::VirtualMachineInstance --defaults--> filled in --validate--> causes, or valid::ValidVmi --> sizing, machine, pod
//! ```
//!
//! The modules, from the outside in. Each module uses only modules that are listed below it.
//!
//! **What the programs call**
//!
//! - [`valid`]: a valid instance with its defaults, which all other code works on; [`sizing`]: what its pod
//!   asks of the node; [`firmware`]: what it asks of firmware and TPM.
//! - [`network_status`]: what Multus reports on a pod.
//! - [`validate`]: everything wrong with an object or a change, all causes at once, as admission answers.
//!   There is one file for each part of a specification, and [`validate::kinds`] for all kinds except
//!   machines and instances.
//! - [`migratable`]: whether an instance can move to another node while it runs, and why not.
//! - [`defaults`]: values of fields that are not given, and the changes of the mutating webhook.
//! - [`instancetype`] and [`preference`]: how the instance type and preference of a machine are read, checked
//!   and applied to its specification.
//! - [`crd`]: the custom resource definitions, made from the types; [`webhooks`]: which writes the API server
//!   sends to webhooks, and their paths.
//!
//! **What an administrator sets**
//!
//! - [`settings`]: the `KubeVirt` object with its defaults: guests, pods, nodes, components, live updates, host devices.
//! - [`flags`]: the flags of our programs that it may set.
//! - [`gates`]: feature gates; [`rotation`]: how long certificates live; [`workload_updates`]: when launchers are replaced.
//!
//! **The types, as they are on the wire**
//!
//! - [`v1`]: machines, instances, the `KubeVirt` object, migrations, replica sets: KubeVirt's fields, one by one.
//! - [`backup`], [`cdi`], [`clone`], [`export`], [`migrations`], [`pool`], [`restore`], [`snapshot`]: the other groups.
//! - [`freeze`], [`monitor`]: bodies of subresources, and the rights that each command of QEMU's monitor
//!   needs.
//!
//! **Shared parts**
//!
//! - [`cause`]: a field and what is wrong with it; [`unknown`]: unknown fields.
//! - [`names`]: labels, annotations, phases, conditions and reasons that several programs share; [`identity`]: UUIDs and
//!   hardware addresses that follow from a name; [`account`]: the account of a machine.
//! - [`architecture`]: processor architectures and their machine types; [`capacity`]: most CPUs, and memory
//!   that can grow; [`hotplug`]: volumes that are plugged and unplugged; [`disk_names`]: names of disks; [`networks`]: which networks Multus
//!   attaches, and the names of links in a pod; [`network_resource`]: what a network takes of a node;
//!   [`object_volume`] and [`cloud_init`]: volumes made of objects and of text; [`pci`]: addresses of devices
//!   in a guest, and [`pci_address`]: in a node; [`vcpu_mask`]: masks of CPUs.
//! - [`release`]: which build this is.
//! - [`quantity`], [`duration`], [`boolean`], [`syntax`]: how Kubernetes writes amounts, times, booleans and
//!   names.

pub mod account;
pub mod addresses;
pub mod advice;
pub mod architecture;
pub mod backup;
pub mod boolean;
pub mod capacity;
pub mod cause;
pub mod cdi;
pub mod clone;
pub mod cloud_init;
pub mod crd;
pub mod defaults;
pub mod disk_names;
pub mod duration;
pub mod export;
pub mod filesystem;
pub mod firmware;
pub mod flags;
pub mod freeze;
pub mod gates;
pub mod hotplug;
pub mod identity;
pub mod instancetype;
pub mod masquerade;
pub mod mesh;
pub mod migratable;
pub mod migrations;
pub mod monitor;
pub mod names;
pub mod network_resource;
pub mod network_status;
pub mod networks;
pub mod object_volume;
pub mod passt;
pub mod pci;
pub mod pci_address;
pub mod pool;
pub mod preference;
pub mod quantity;
pub mod release;
pub mod resolver;
pub mod restore;
pub mod rotation;
pub mod settings;
pub mod sizing;
pub mod snapshot;
pub mod syntax;
pub mod unknown;
pub mod v1;
pub mod valid;
pub mod validate;
pub mod vcpu_mask;
pub mod webhooks;
pub mod workload_updates;

#[cfg(test)]
mod properties;
