//! What a launcher reports about itself and its guest, which an attacker may have written: from the bytes to
//! the patch. Once a patch is written, the same report leads to no other patch. So no launcher can make the
//! handler write repeatedly by repeating itself.
#![no_main]

use barevirt_api::settings::NO_BINDINGS;
use barevirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceStatus};
use barevirt_protocol::v1::LauncherStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use libfuzzer_sys::fuzz_target;
use prost::Message as _;
use virt_handler::status::compute::{LauncherView, compute};
use virt_handler::status::patch::patch;
use virt_handler::status::volumes::missing;

fuzz_target!(|bytes: &[u8]| {
    let Ok(launcher) = LauncherStatus::decode(bytes) else { return };
    let now = Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
    let status = VirtualMachineInstanceStatus { phase: Some("Scheduled".to_owned()), ..Default::default() };
    let mut vmi = VirtualMachineInstance { status: Some(status), ..Default::default() };
    let seen = LauncherView {
        launcher: Some(&launcher),
        interfaces: Some(&[]),
        failure: None,
        is_current: true,
        readiness: None,
        bindings: &NO_BINDINGS,
    };
    let wanted = compute(&vmi, seen, &now);
    let _ = patch(&vmi, &wanted, &launcher.pci_layout);
    let _ = missing(&vmi, &launcher);
    vmi.status = Some(wanted);
    let again = compute(&vmi, seen, &now);
    assert_eq!(patch(&vmi, &again, &launcher.pci_layout), None);
});
