//! What can be done about a pool.

use barevirt_api::v1::{VirtualMachine, VirtualMachineInstance};
use serde_json::Value;

/// One step on the cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Let go of the machine that is not selected any more.
    Release(Box<VirtualMachine>),
    /// Hold the pool, until no machine of it is held.
    Guard,
    /// Let go of the pool.
    Unguard,
    /// Hold the machine: what it owns stays when it goes.
    Hold(Box<VirtualMachine>),
    /// Let go of the machine: what it owns goes with it.
    Unhold(Box<VirtualMachine>),
    /// Part the machine, which leaves, from what it owns, and let go of it.
    Keep(Box<VirtualMachine>),
    /// Create the machine.
    Create(Box<VirtualMachine>),
    /// Delete the machine.
    Delete(Box<VirtualMachine>),
    /// The same with what it owns going before it: the next one of its number finds nothing of it.
    Replace(Box<VirtualMachine>),
    /// Merge this into the machine of that name.
    Update(String, Value),
    /// Have the machine's instance be made anew, by deleting it.
    Renew(Box<VirtualMachineInstance>),
    /// The same for a machine that is not started by itself: by a request to restart.
    Restart(Box<VirtualMachine>, String),
    /// Note on the instance that it is of this generation of the pool.
    Relabel(Box<VirtualMachineInstance>, String),
    /// Remove generations that nothing is from any more.
    Prune,
}
