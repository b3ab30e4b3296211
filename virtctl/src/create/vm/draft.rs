//! A machine that is built step by step.

use std::collections::BTreeMap;

use barevirt_api::v1::VirtualMachine;

/// A machine that is not complete yet.
pub(super) struct Draft {
    pub(super) vm: VirtualMachine,
    /// Volumes by the boot order that was asked for.
    pub(super) boot_orders: BTreeMap<i32, String>,
    /// What the credentials ask of cloud-init.
    pub(super) cloud_init: CloudInit,
    /// Warnings to print beside the manifest.
    pub(super) warnings: Vec<String>,
}

/// What cloud-init has to do, for its own flags and for other flags.
#[derive(Debug, Default)]
pub(super) struct CloudInit {
    /// `--cloud-init`.
    pub(super) kind: Option<String>,
    /// `--ga-manage-ssh`.
    pub(super) manage_ssh: Option<bool>,
}
