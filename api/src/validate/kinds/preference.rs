//! Rules for preferences as objects. The result of applying one is validated with the machine.

use crate::preference::VirtualMachinePreferenceSpec;
use crate::syntax::quoted;
use crate::validate::{Cause, Path};

/// Topologies, each with its older name.
const TOPOLOGIES: [(&str, &str); 5] = [
    ("sockets", "preferSockets"),
    ("cores", "preferCores"),
    ("threads", "preferThreads"),
    ("spread", "preferSpread"),
    ("any", "preferAny"),
];
/// Cores for each socket if a preference that spreads gives no ratio.
const RATIO: i64 = 2;

/// Everything wrong with a preference of either kind.
pub fn validate(spec: &VirtualMachinePreferenceSpec) -> Vec<Cause> {
    let path = Path::new("spec.cpu");
    let Some((cpu, wanted)) =
        spec.cpu.as_ref().and_then(|cpu| Some((cpu, cpu.preferred_cpu_topology.as_deref()?)))
    else {
        return Vec::new();
    };
    let Some((topology, _)) = TOPOLOGIES.into_iter().find(|(name, older)| [name, older].contains(&&wanted))
    else {
        let message = format!("unknown preferredCPUTopology {}", quoted(wanted));
        return vec![Cause::invalid(&path.child("preferredCPUTopology"), message)];
    };
    if topology != "spread" {
        return Vec::new();
    }
    let options = cpu.spread_options.as_ref();
    let across = options.and_then(|options| options.across.as_deref()).unwrap_or("SocketsCores");
    // Zero counts as not given in the older field, and as zero in the newer one.
    let older = spec.prefer_spread_socket_to_core_ratio.filter(|ratio| *ratio != 0);
    let ratio = options.and_then(|options| options.ratio).or(older).unwrap_or(RATIO);
    let path = path.child("spreadOptions");
    match across {
        "CoresThreads" if ratio != 2 => vec![Cause::invalid(
            &path.child("ratio"),
            "only a ratio of 2 (1 core 2 threads) is allowed when spreading vCPUs over cores and threads",
        )],
        "CoresThreads" | "SocketsCores" | "SocketsCoresThreads" => Vec::new(),
        other => {
            vec![Cause::invalid(&path.child("across"), format!("across {} is not supported", quoted(other)))]
        }
    }
}

/// Warnings for values that are accepted.
pub fn warnings(spec: &VirtualMachinePreferenceSpec) -> Vec<String> {
    let wanted = spec.cpu.as_ref().and_then(|cpu| cpu.preferred_cpu_topology.as_deref());
    let older = TOPOLOGIES.into_iter().find(|(_, older)| Some(*older) == wanted);
    older
        .map(|(name, older)| {
            format!(
                "PreferredCPUTopology {older} is deprecated for removal in a future release, please use {name} instead"
            )
        })
        .into_iter()
        .collect()
}
