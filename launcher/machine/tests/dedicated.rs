//! Guests with dedicated CPUs and NUMA nodes, on simulated hosts: exact command lines, and places of threads.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test fails by panicking, helpers of tests too.

mod common;

use barevirt_api::valid::ValidVmi;
use barevirt_machine::*;
use common::facts;

const KVM: Accelerator = Accelerator::Kvm { device: Some(9) };

fn pinned() -> ValidVmi {
    common::valid(serde_saphyr::from_str(include_str!("manifests/dedicated.yaml")).unwrap())
}

/// Nodes with four cores of two CPUs each.
fn host(nodes: u32, allowed: &str, may_bind: bool) -> HostCpus {
    let all = nodes * 4;
    let cells = (0..nodes).map(|id| HostCell {
        id,
        cores: (id * 4..id * 4 + 4).map(|core| vec![core, core + all]).collect(),
        distances: (0..nodes).map(|other| (other, if other == id { 10 } else { 21 })).collect(),
    });
    HostCpus { allowed: CpuSet::parse(allowed).unwrap(), cells: cells.collect(), may_bind }
}

fn planned(host: HostCpus) -> Result<Machine, PlanError> {
    let vmi = pinned();
    plan(&vmi, &Facts { accelerator: KVM, host_cpus: Some(host), ..facts(&vmi) })
}

/// Options about processors and memory.
fn lines(machine: &Machine) -> String {
    let argv = argv(machine);
    let options = argv.windows(2).filter(|words| {
        matches!(words[0].as_str(), "-machine" | "-cpu" | "-smp" | "-m" | "-numa")
            || (words[0] == "-object" && (words[1].contains("memory") || words[1].contains("thread")))
    });
    options.map(|words| words.join(" ")).collect::<Vec<_>>().join("\n")
}

#[test]
fn two_nodes_whose_memory_is_touched_first() {
    let machine = planned(host(2, "1,4,5,9,12", false)).unwrap();
    let pinning = machine.pinning.as_ref().unwrap();
    assert_eq!(pinning.vcpus, [1, 9, 4, 12]);
    assert_eq!(pinning.emulator.as_ref().unwrap().to_string(), "5");
    // With the emulator's own CPU there is one thread for both disks, on the same CPU.
    assert_eq!(pinning.io_threads.iter().map(ToString::to_string).collect::<Vec<_>>(), ["5"]);
    insta::assert_snapshot!(lines(&machine));
}

#[test]
fn two_nodes_whose_memory_is_bound() {
    insta::assert_snapshot!(lines(&planned(host(2, "1,4,5,9,12", true)).unwrap()));
}

#[test]
fn one_node() {
    insta::assert_snapshot!(lines(&planned(host(1, "0-2,4,5", false)).unwrap()));
}

#[test]
fn missing_cpus_are_named_with_the_field() {
    let refused = |host| planned(host).unwrap_err().to_string();
    let field = "spec.domain.cpu.dedicatedCpuPlacement: cannot give every thread a CPU: ";
    assert_eq!(
        refused(host(1, "0-3", false)),
        format!("{field}the container may use 4 CPUs (0-3), and its guest needs 5 of its own")
    );
    let shared = refused(host(1, "0-7", false));
    assert!(shared.starts_with(field) && shared.contains("CPU manager policy static"), "{shared}");
    // Three nodes, of which only one has two free CPUs for a core.
    assert_eq!(
        refused(host(3, "0,4,8-10", false)),
        format!(
            "{field}1 cores of the guest do not fit on a NUMA node each: the container's CPUs are 0,4,8-10"
        )
    );
    let vmi = pinned();
    let unknown = plan(&vmi, &Facts { accelerator: KVM, ..facts(&vmi) }).unwrap_err();
    assert!(matches!(unknown, PlanError::Unprepared { .. }), "{unknown}");
}
