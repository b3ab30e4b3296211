//! QEMU's answers about CPUs, and that a CPU spelled out from them is the same CPU.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test fails by panicking.

use std::path::Path;

use barevirt_api::v1::VirtualMachineInstance;
use barevirt_api::valid::ValidVmi;
use barevirt_machine::{Accelerator, Bytes, CpuQuestion};
use serde_json::json;
use virt_launcher::host_cpu::ask;

const TCG: Accelerator = Accelerator::Tcg { buffer: Bytes::mib(16) };

fn vmi(cpu: &serde_json::Value) -> ValidVmi {
    let vmi = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "a", "namespace": "b"},
        "spec": {"domain": {"memory": {"guest": "64Mi"}, "cpu": cpu, "devices": {}}},
    });
    let vmi: VirtualMachineInstance = serde_json::from_value(vmi).unwrap();
    ValidVmi::new(vmi).unwrap()
}

#[tokio::test(flavor = "current_thread")]
async fn qemu_reports_the_features_of_emulation() {
    let vmi = vmi(&json!({"features": [{"name": "sse4.2"}]}));
    let question = CpuQuestion::of(&vmi, &TCG).unwrap();
    let host = ask(Path::new("qemu-system-x86_64"), &TCG, None, &question).await.unwrap();
    let told = format!("{host:?}");
    assert!(told.contains("\"sse4.2\": Bool(true)"), "{told}");
    // QEMU does not emulate Intel's virtualisation.
    assert!(told.contains("\"vmx\": Bool(false)"), "{told}");
}

#[tokio::test(flavor = "current_thread")]
async fn an_error_of_a_qemu_that_does_not_start_has_its_last_output() {
    let question = CpuQuestion { all: "host", named: None };
    let kvm = Accelerator::Kvm { device: None };
    let nothing = tempfile::tempfile().unwrap().into();
    let error = ask(Path::new("qemu-system-x86_64"), &kvm, Some(nothing), &question).await.unwrap_err();
    assert!(error.to_string().contains("kvm"), "{error}");
}
