//! Status that other clients than our components write through its subresource. They need permission for it.

use super::lock;
use crate::v1::VirtualMachine;
use crate::validate::{Cause, Path};

/// Everything wrong with a machine's status.
pub fn machine(old: Option<&VirtualMachine>, new: &VirtualMachine) -> Vec<Cause> {
    let mut causes = old.map(|old| lock::machine(old, new)).unwrap_or_default();
    let requests = |vm: &VirtualMachine| vm.status.as_ref().map(|status| status.volume_requests.clone());
    if requests(new).is_some_and(|requests| !requests.is_empty()) && old.and_then(requests) != requests(new) {
        causes.push(Cause::not_supported_yet(&Path::new("status.volumeRequests"), ""));
    }
    causes
}
