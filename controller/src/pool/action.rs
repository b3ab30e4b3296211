//! Actions on a pool.

use barevirt_api::v1::{VirtualMachine, VirtualMachineInstance};
use serde_json::Value;

/// A step on the cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Release a machine that is no longer selected.
    Release(Box<VirtualMachine>),
    /// Hold the pool (by a finalizer) until none of its machines is held.
    Guard,
    /// Release the pool.
    Unguard,
    /// Hold the machine: its dependents are to be kept when it is deleted.
    Hold(Box<VirtualMachine>),
    /// Release the machine: its dependents are deleted with it.
    Unhold(Box<VirtualMachine>),
    /// Detach the deleted machine from its dependents, and release it.
    Keep(Box<VirtualMachine>),
    /// Create the machine.
    Create(Box<VirtualMachine>),
    /// Delete the machine.
    Delete(Box<VirtualMachine>),
    /// The same, but its dependents are deleted before it: its successor with the same number finds nothing of it.
    Replace(Box<VirtualMachine>),
    /// Merge this into the machine of that name.
    Update(String, Value),
    /// Delete the machine's instance, so that it is made again.
    Renew(Box<VirtualMachineInstance>),
    /// The same for a machine that does not start by itself: by a request to restart.
    Restart(Box<VirtualMachine>, String),
    /// Record on the instance that it is of this generation of the pool.
    Relabel(Box<VirtualMachineInstance>, String),
    /// Remove generations that nothing uses any more.
    Prune,
}
