//! How the vCPUs of an instance type become sockets, cores and threads.

use super::VirtualMachinePreferenceSpec;
use crate::cause::{Cause, Path};

/// The topology that the preference requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Every vCPU is a socket.
    Sockets,
    /// Every vCPU is a core of one socket.
    Cores,
    /// Every vCPU is a thread of one core.
    Threads,
    /// The vCPUs are spread over several levels, with this ratio.
    Spread(Across, u32),
    /// Any; treated as `Sockets`.
    Any,
}

/// The levels that share the vCPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Across {
    /// Sockets with this many cores each.
    SocketsCores,
    /// Sockets with this many cores each, and two threads for each core.
    SocketsCoresThreads,
    /// Cores of one socket with this many threads each.
    CoresThreads,
}

impl Across {
    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::SocketsCores => "SocketsCores",
            Self::SocketsCoresThreads => "SocketsCoresThreads",
            Self::CoresThreads => "CoresThreads",
        }
    }
}

/// Threads of a core where all three levels share the vCPUs.
const THREADS_PER_CORE: u32 = 2;
/// Cores of a socket if the preference gives no ratio.
const RATIO: u32 = 2;

/// Sockets, cores and threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Sockets.
    pub sockets: u32,
    /// Cores of each.
    pub cores: u32,
    /// Threads of each.
    pub threads: u32,
}

/// The topology that a preference requests; sockets without a preference. `path` is that of the preference's
/// specification.
///
/// # Errors
/// The field whose value is not known.
pub fn topology(path: &Path, preference: Option<&VirtualMachinePreferenceSpec>) -> Result<Topology, Cause> {
    let Some(preference) = preference else { return Ok(Topology::Sockets) };
    let cpu = preference.cpu.as_ref();
    match cpu.and_then(|cpu| cpu.preferred_cpu_topology.as_deref()).unwrap_or("sockets") {
        "sockets" | "preferSockets" => Ok(Topology::Sockets),
        "cores" | "preferCores" => Ok(Topology::Cores),
        "threads" | "preferThreads" => Ok(Topology::Threads),
        "any" | "preferAny" => Ok(Topology::Any),
        "spread" | "preferSpread" => spread(path, preference),
        unknown => {
            let field = path.child("cpu.preferredCPUTopology");
            Err(Cause::invalid(&field, format!("unknown preferredCPUTopology {unknown}")))
        }
    }
}

fn spread(path: &Path, preference: &VirtualMachinePreferenceSpec) -> Result<Topology, Cause> {
    let options = preference.cpu.as_ref().and_then(|cpu| cpu.spread_options.as_ref());
    let across = match options.and_then(|options| options.across.as_deref()).unwrap_or("SocketsCores") {
        "SocketsCores" => Across::SocketsCores,
        "SocketsCoresThreads" => Across::SocketsCoresThreads,
        "CoresThreads" => Across::CoresThreads,
        unknown => {
            let field = path.child("cpu.spreadOptions.across");
            return Err(Cause::invalid(&field, format!("across {unknown} is not supported")));
        }
    };
    let old = preference.prefer_spread_socket_to_core_ratio.filter(|ratio| *ratio != 0);
    let (field, ratio) = match (options.and_then(|options| options.ratio), old) {
        (Some(ratio), _) => ("cpu.spreadOptions.ratio", ratio),
        (None, Some(ratio)) => ("preferSpreadSocketToCoreRatio", ratio),
        (None, None) => return Ok(Topology::Spread(across, RATIO)),
    };
    let field = path.child(field);
    match u32::try_from(ratio) {
        Ok(ratio) if across == Across::CoresThreads && ratio != THREADS_PER_CORE => Err(Cause::invalid(
            &path.child("cpu.spreadOptions.ratio"),
            "only a ratio of 2 (1 core 2 threads) is allowed when spreading vCPUs over cores and threads",
        )),
        Ok(ratio @ 1..) => Ok(Topology::Spread(across, ratio)),
        _ => Err(Cause::invalid(&field, format!("{field} '{ratio}': must be greater than 0"))),
    }
}

impl Topology {
    /// Divides the vCPUs of an instance type, at least one.
    ///
    /// # Errors
    /// KubeVirt's sentence about a number that cannot be divided so.
    pub fn divide(self, vcpus: u32) -> Result<Layout, String> {
        let layout = Layout { sockets: 1, cores: 1, threads: 1 };
        let even = |number: u32| vcpus.is_multiple_of(number);
        match self {
            Self::Sockets | Self::Any => Ok(Layout { sockets: vcpus, ..layout }),
            Self::Cores => Ok(Layout { cores: vcpus, ..layout }),
            Self::Threads => Ok(Layout { threads: vcpus, ..layout }),
            Self::Spread(Across::SocketsCores, ratio) if even(ratio) => {
                Ok(Layout { sockets: vcpus / ratio, cores: ratio, ..layout })
            }
            Self::Spread(Across::SocketsCores, ratio) => Err(format!(
                "{vcpus} vCPUs provided by the instance type are not divisible by the Spec.PreferSpreadSocketToCoreRatio \
                 or Spec.CPU.PreferSpreadOptions.Ratio of {ratio} provided by the preference"
            )),
            Self::Spread(Across::CoresThreads, ratio) if even(ratio) => {
                Ok(Layout { cores: vcpus / ratio, threads: ratio, ..layout })
            }
            Self::Spread(Across::CoresThreads, ratio) => Err(format!(
                "{vcpus} vCPUs provided by the instance type are not divisible by the number of threads per core {ratio}"
            )),
            Self::Spread(Across::SocketsCoresThreads, ratio)
                if even(THREADS_PER_CORE) && (vcpus / THREADS_PER_CORE).is_multiple_of(ratio) =>
            {
                let sockets = vcpus / THREADS_PER_CORE / ratio;
                Ok(Layout { sockets, cores: ratio, threads: THREADS_PER_CORE })
            }
            Self::Spread(Across::SocketsCoresThreads, ratio) => Err(format!(
                "{vcpus} vCPUs provided by the instance type are not divisible by the number of threads per core \
                 {THREADS_PER_CORE} and Spec.PreferSpreadSocketToCoreRatio or Spec.CPU.PreferSpreadOptions.Ratio of {ratio}"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn of(preference: Value) -> Result<Topology, String> {
        let preference: VirtualMachinePreferenceSpec = serde_json::from_value(preference).unwrap();
        topology(&Path::new("spec"), Some(&preference)).map_err(|cause| cause.to_string())
    }

    #[test]
    fn names_old_and_new() {
        for (name, wanted) in [
            ("sockets", Topology::Sockets),
            ("preferSockets", Topology::Sockets),
            ("cores", Topology::Cores),
            ("preferCores", Topology::Cores),
            ("threads", Topology::Threads),
            ("preferThreads", Topology::Threads),
            ("any", Topology::Any),
            ("preferAny", Topology::Any),
            ("spread", Topology::Spread(Across::SocketsCores, 2)),
            ("preferSpread", Topology::Spread(Across::SocketsCores, 2)),
        ] {
            assert_eq!(of(json!({"cpu": {"preferredCPUTopology": name}})), Ok(wanted));
        }
        assert_eq!(topology(&Path::new("spec"), None), Ok(Topology::Sockets));
        assert_eq!(of(json!({})), Ok(Topology::Sockets));
        assert_eq!(
            of(json!({"cpu": {"preferredCPUTopology": "ring"}})),
            Err("spec.cpu.preferredCPUTopology: unknown preferredCPUTopology ring".to_owned())
        );
    }

    #[test]
    fn options_of_spread() {
        let spread = |options: Value, old: Value| {
            of(json!({
                "cpu": {"preferredCPUTopology": "spread", "spreadOptions": options},
                "preferSpreadSocketToCoreRatio": old,
            }))
        };
        assert_eq!(spread(json!({}), json!(4)), Ok(Topology::Spread(Across::SocketsCores, 4)));
        assert_eq!(spread(json!({"ratio": 3}), json!(4)), Ok(Topology::Spread(Across::SocketsCores, 3)));
        assert_eq!(
            spread(json!({"across": "SocketsCoresThreads"}), json!(0)),
            Ok(Topology::Spread(Across::SocketsCoresThreads, 2))
        );
        assert_eq!(
            spread(json!({"across": "CoresThreads"}), json!(null)),
            Ok(Topology::Spread(Across::CoresThreads, 2))
        );
        for (options, old, message) in [
            (
                json!({"across": "Dies"}),
                json!(null),
                "spec.cpu.spreadOptions.across: across Dies is not supported",
            ),
            (
                json!({"across": "CoresThreads", "ratio": 4}),
                json!(null),
                "spec.cpu.spreadOptions.ratio: only a ratio of 2 (1 core 2 threads) is allowed when spreading vCPUs over \
                 cores and threads",
            ),
            (json!({"ratio": 0}), json!(null), "spec.cpu.spreadOptions.ratio '0': must be greater than 0"),
            (json!({}), json!(-1), "spec.preferSpreadSocketToCoreRatio '-1': must be greater than 0"),
        ] {
            assert_eq!(spread(options, old), Err(message.to_owned()));
        }
    }

    #[test]
    fn vcpus_divided() {
        let spread = Topology::Spread;
        for (topology, vcpus, wanted) in [
            (Topology::Sockets, 6, Some((6, 1, 1))),
            (Topology::Any, 6, Some((6, 1, 1))),
            (Topology::Cores, 6, Some((1, 6, 1))),
            (Topology::Threads, 6, Some((1, 1, 6))),
            (spread(Across::SocketsCores, 2), 6, Some((3, 2, 1))),
            (spread(Across::SocketsCores, 3), 6, Some((2, 3, 1))),
            (spread(Across::SocketsCores, 4), 6, None),
            (spread(Across::SocketsCores, 2), 1, None),
            (spread(Across::CoresThreads, 2), 6, Some((1, 3, 2))),
            (spread(Across::CoresThreads, 2), 5, None),
            (spread(Across::SocketsCoresThreads, 3), 12, Some((2, 3, 2))),
            (spread(Across::SocketsCoresThreads, 2), 6, None),
            (spread(Across::SocketsCoresThreads, 2), 5, None),
        ] {
            let layout =
                topology.divide(vcpus).ok().map(|layout| (layout.sockets, layout.cores, layout.threads));
            assert_eq!(layout, wanted, "{topology:?} of {vcpus}");
        }
    }

    proptest! {
        #[test]
        fn no_vcpu_is_lost(vcpus in 1..10_000_u32, ratio in 1..64_u32) {
            for topology in [
                Topology::Sockets, Topology::Cores, Topology::Threads, Topology::Any,
                Topology::Spread(Across::SocketsCores, ratio),
                Topology::Spread(Across::CoresThreads, ratio),
                Topology::Spread(Across::SocketsCoresThreads, ratio),
            ] {
                if let Ok(layout) = topology.divide(vcpus) {
                    prop_assert_eq!(layout.sockets * layout.cores * layout.threads, vcpus);
                }
            }
        }
    }
}
