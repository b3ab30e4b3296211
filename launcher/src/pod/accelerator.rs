//! The accelerator of a guest: KVM, if the handler has handed it over and guests can boot with it, else emulation.

use barevirt_api::sizing;
use barevirt_machine::{Accelerator, Bytes, CpuQuestion, FdSet, FdSetMember, HostCpu};
use barevirt_protocol::names::KVM;

use super::descriptor_store::DescriptorStore;
use super::shared::Pod;
use super::wanted::Wanted;
use crate::accelerator::processor_virtualises;
use crate::descriptors::Descriptors;
use crate::guest_end::GuestEnd;
use crate::host_cpu;

/// The set of descriptors for /dev/kvm.
const KVM_SET: u32 = 1;

/// CPU features that a guest can have here, if the manifest needs to know.
///
/// # Errors
/// The end of the guest if QEMU cannot be asked.
pub(super) async fn host_cpu(pod: &Pod, wanted: &Wanted) -> Result<Option<HostCpu>, GuestEnd> {
    let kvm =
        pod.store.borrow().copy(KVM).filter(|_| is_usable(wanted.may_emulate(pod.args.allow_emulation)));
    let accelerator = match kvm {
        Some(_) => Accelerator::Kvm { device: None },
        None => emulation(),
    };
    let Some(question) = CpuQuestion::of(&wanted.vmi, &accelerator) else { return Ok(None) };
    match host_cpu::ask(&pod.args.qemu, &accelerator, kvm, &question).await {
        Ok(host_cpu) => Ok(Some(host_cpu)),
        Err(error) => Err(GuestEnd::failed("StartFailed", error.to_string())),
    }
}

/// If emulation is allowed, KVM is only used if guests can boot with it.
fn is_usable(may_emulate: bool) -> bool {
    !may_emulate || processor_virtualises()
}

fn emulation() -> Accelerator {
    Accelerator::Tcg { buffer: Bytes(sizing::TCG_BUFFER_BYTES) }
}

/// The guest's accelerator, with the set of descriptors that QEMU opens it by. KVM's descriptor is taken from `store`.
pub(super) fn accelerator(
    store: &mut DescriptorStore,
    may_emulate: bool,
    descriptors: &mut Descriptors,
) -> (Accelerator, Vec<FdSet>) {
    match store.take(KVM).filter(|_| is_usable(may_emulate)) {
        Some(kvm) => {
            let members = vec![FdSetMember { fd: descriptors.add(kvm), what: KVM.to_owned() }];
            (Accelerator::Kvm { device: Some(KVM_SET) }, vec![FdSet { number: KVM_SET, members }])
        }
        None => (emulation(), Vec::new()),
    }
}
