//! Dedicated CPUs of the host for a guest, and the host's CPU topology.

use std::collections::BTreeSet;
use std::fmt;

/// CPUs of the host, by number. As text it is a list such as `0-3,8`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet(pub BTreeSet<u32>);

impl CpuSet {
    /// Parses the kernel's list form; `None` if the text is invalid.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut cpus = BTreeSet::new();
        for part in text.trim().split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
            // Kernels support some thousands of CPUs.
            if last < first || last > u32::from(u16::MAX) {
                return None;
            }
            cpus.extend(first..=last);
        }
        Some(Self(cpus))
    }

    /// Number of CPUs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no CPUs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.iter().peekable();
        let mut comma = "";
        while let Some(first) = rest.next() {
            let mut last = first;
            while let Some(next) = rest.next_if(|next| *next == last + 1) {
                last = next;
            }
            write!(f, "{comma}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            comma = ",";
        }
        Ok(())
    }
}

/// A NUMA node of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostCell {
    /// Its number.
    pub id: u32,
    /// Its CPUs, grouped by core.
    pub cores: Vec<Vec<u32>>,
    /// Distances to other nodes and to itself, in the kernel's units.
    pub distances: Vec<(u32, u32)>,
}

impl HostCell {
    /// Whether the CPU belongs to this node.
    #[must_use]
    pub fn has(&self, cpu: u32) -> bool {
        self.cores.iter().flatten().any(|other| *other == cpu)
    }
}

/// The host's CPUs as the launcher found them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostCpus {
    /// CPUs that this process may run on.
    pub allowed: CpuSet,
    /// All CPUs of the host, node by node.
    pub cells: Vec<HostCell>,
    /// Whether this process, and so QEMU, may bind memory to a node. The container runtime's seccomp filter
    /// may forbid it.
    pub may_bind: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_as_the_kernel_writes_them() {
        for (text, cpus) in [("", vec![]), ("0-3,8\n", vec![0, 1, 2, 3, 8]), ("7", vec![7])] {
            assert_eq!(CpuSet::parse(text), Some(cpus.into_iter().collect()), "{text}");
        }
        for text in ["3-1", "a", "0-", "0-99999999"] {
            assert_eq!(CpuSet::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_written_cpu_set_is_read_back(cpus in proptest::collection::btree_set(0..300_u32, 0..40)) {
            let set = CpuSet(cpus);
            prop_assert_eq!(CpuSet::parse(&set.to_string()), Some(set));
        }
    }
}
