//! NUMA nodes of the guest: the host's nodes that its virtual CPUs are on, with the memory next to them.
//!
//! Every node has an equal part of the memory; remaining pages go to the first ones. If the process may not
//! bind memory to a node (`mbind` needs a capability in the container runtime's seccomp filter), a thread on
//! that node touches the pages first, and the kernel takes them from there as long as it has any. The
//! launcher checks the result after QEMU's start.

use crate::host_cpus::{CpuSet, HostCpus};
use crate::pinning::Pinning;
use crate::props::Props;
use crate::quote::Options;
use crate::units::Bytes;
use barevirt_api::sizing::Topology;
use std::collections::BTreeMap;

/// One node of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaCell {
    /// Its number in the guest.
    pub id: u32,
    /// The host's node that it represents.
    pub host: u32,
    /// Its virtual CPUs, by QEMU's index.
    pub vcpus: Vec<u32>,
    /// Its memory.
    pub size: Bytes,
    /// Size of the memory's pages.
    pub page: Bytes,
    /// How the memory is placed on the host's node.
    pub placed: Placed,
    /// Distances to the guest's nodes.
    pub distances: Vec<(u32, u32)>,
}

/// How memory is placed on a node of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placed {
    /// The host has only one node.
    Anyway,
    /// It is bound to the node.
    Bound,
    /// A thread on these CPUs touches it first.
    ByTouch(CpuSet),
}

/// Why there are no nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoCells {
    /// There is less than a page for each node.
    TooFewPages,
}

/// The guest's nodes.
pub(crate) fn cells(
    host: &HostCpus,
    pinning: &Pinning,
    topology: Topology,
    size: Bytes,
    page: Bytes,
) -> Result<Vec<NumaCell>, NoCells> {
    let mut of_host: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    for (vcpu, cpu) in (0..).zip(&pinning.vcpus) {
        // A CPU without a known node counts as on the first one.
        let cell = host.cells.iter().position(|cell| cell.has(*cpu)).unwrap_or(0);
        of_host.entry(cell).or_default().push(vcpu);
    }
    // Virtual CPUs that are not plugged in need a node, too.
    let there = u32::try_from(pinning.vcpus.len()).unwrap_or(u32::MAX);
    if let Some(mut first) = of_host.first_entry() {
        first.get_mut().extend(there..topology.max_vcpus());
    }
    let count = u64::try_from(of_host.len()).unwrap_or(1).max(1);
    let pages = size.0 / page.0.max(1);
    if pages < count {
        return Err(NoCells::TooFewPages);
    }
    let number = |at: usize| host.cells.get(at).map_or(0, |cell| cell.id);
    let hosts: Vec<u32> = of_host.keys().map(|at| number(*at)).collect();
    let cell = |(id, (at, vcpus)): (u32, (usize, Vec<u32>))| {
        let own = host.cells.get(at);
        let more = u64::from(u64::from(id) < pages % count);
        let all = own.map(|cell| cell.distances.as_slice()).unwrap_or_default();
        let distance =
            |other: &u32| all.iter().find(|(node, _)| node == other).map(|(_, distance)| *distance);
        let placed = match own {
            _ if host.may_bind => Placed::Bound,
            Some(own) if host.cells.len() > 1 => {
                Placed::ByTouch(host.allowed.iter().filter(|cpu| own.has(*cpu)).collect())
            }
            _ => Placed::Anyway,
        };
        NumaCell {
            id,
            host: number(at),
            vcpus,
            size: Bytes((pages / count + more) * page.0),
            page,
            placed,
            distances: (0..).zip(&hosts).filter_map(|(id, host)| Some((id, distance(host)?))).collect(),
        }
    };
    Ok((0..).zip(of_host).map(cell).collect())
}

impl NumaCell {
    fn backend(&self) -> String {
        format!("ram-node{}", self.id)
    }

    fn toucher(&self) -> String {
        format!("touch-node{}", self.id)
    }

    /// Objects for its memory; each refers only to earlier ones.
    pub(crate) fn objects(&self) -> Vec<Props> {
        let memory = Props::new("qom-type", "memory-backend-memfd")
            .with("id", self.backend())
            .with("size", self.size.0)
            .with("share", true)
            .with("hugetlb", true)
            .with("hugetlbsize", self.page.0)
            .with("prealloc", true);
        match &self.placed {
            Placed::Anyway => vec![memory],
            Placed::Bound => vec![memory.with("host-nodes", vec![self.host]).with("policy", "bind")],
            Placed::ByTouch(cpus) => {
                let toucher = Props::new("qom-type", "thread-context")
                    .with("id", self.toucher())
                    .with("cpu-affinity", cpus.iter().collect::<Vec<_>>());
                vec![toucher, memory.with("prealloc-context", self.toucher())]
            }
        }
    }

    /// Arguments of `-numa`. Distances follow when all nodes are defined.
    pub(crate) fn options(&self, topology: Topology) -> Vec<String> {
        let node = Options::kind("node").with("nodeid", self.id).with("memdev", self.backend());
        let cpu = |vcpu: &u32| {
            let (cores, threads) = (topology.cores.max(1), topology.threads.max(1));
            Options::kind("cpu")
                .with("node-id", self.id)
                .with("socket-id", vcpu / (cores * threads))
                .with("core-id", vcpu / threads % cores)
                .with("thread-id", vcpu % threads)
        };
        std::iter::once(node).chain(self.vcpus.iter().map(cpu)).map(Options::into_string).collect()
    }

    /// Arguments of `-numa` for the distances to other nodes.
    pub(crate) fn distance_options(&self) -> Vec<String> {
        let others = self.distances.iter().filter(|(other, _)| *other != self.id);
        let option = |(other, distance): &(u32, u32)| {
            Options::kind("dist").with("src", self.id).with("dst", other).with("val", distance).into_string()
        };
        others.map(option).collect()
    }
}

/// What is wrong with the kernel's placement of the memory, from QEMU's `/proc/PID/numa_maps`.
#[must_use]
pub fn misplaced(cells: &[NumaCell], numa_maps: &str) -> Option<String> {
    let mut wanted: BTreeMap<u32, u64> = BTreeMap::new();
    for cell in cells {
        *wanted.entry(cell.host).or_default() += cell.size.0 / cell.page.0.max(1);
    }
    let mut there: BTreeMap<u32, u64> = BTreeMap::new();
    for line in numa_maps.lines().filter(|line| line.contains("/memfd:") && line.contains(" huge")) {
        for word in line.split_whitespace() {
            let node = word.strip_prefix('N').and_then(|word| word.split_once('='));
            if let Some((Ok(node), Ok(pages))) =
                node.map(|(node, pages)| (node.parse(), pages.parse::<u64>()))
            {
                *there.entry(node).or_default() += pages;
            }
        }
    }
    wanted.iter().find_map(|(node, pages)| {
        let found = there.get(node).copied().unwrap_or(0);
        (found < *pages).then(|| format!("host NUMA node {node} gave {found} of {pages} huge pages"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_cpus::HostCell;

    const PAGE: Bytes = Bytes::mib(2);

    fn host(nodes: u32, may_bind: bool) -> HostCpus {
        let cells = (0..nodes).map(|id| HostCell {
            // Node numbers may have gaps.
            id: id * 2,
            cores: (id * 4..id * 4 + 4).map(|cpu| vec![cpu]).collect(),
            distances: (0..nodes).map(|other| (other * 2, 10 + 11 * id.abs_diff(other))).collect(),
        });
        HostCpus { allowed: (0..nodes * 4).collect(), cells: cells.collect(), may_bind }
    }

    fn cells_on(vcpus: &[u32], host: &HostCpus, pages: u64) -> Result<Vec<NumaCell>, NoCells> {
        let count = u32::try_from(vcpus.len()).unwrap();
        let topology = Topology { sockets: count, cores: 1, threads: 1, max_sockets: count };
        let pinning = Pinning { vcpus: vcpus.to_vec(), io_threads: vec![], emulator: None };
        cells(host, &pinning, topology, Bytes(pages * PAGE.0), PAGE)
    }

    #[test]
    fn nodes_are_those_of_the_cpus() {
        let cells = cells_on(&[8, 0, 9, 1], &host(3, false), 65).unwrap();
        let seen: Vec<_> =
            cells.iter().map(|cell| (cell.id, cell.host, cell.vcpus.clone(), cell.size.0 / PAGE.0)).collect();
        assert_eq!(seen, [(0, 0, vec![1, 3], 33), (1, 4, vec![0, 2], 32)]);
        assert_eq!(cells[0].placed, Placed::ByTouch((0..4).collect()));
        assert_eq!(cells[1].distances, [(0, 32), (1, 10)]);
        assert_eq!(cells_on(&[8, 0], &host(3, true), 65).unwrap()[1].placed, Placed::Bound);
    }

    #[test]
    fn one_node_of_the_host_is_one_of_the_guest() {
        let cells = cells_on(&[2, 3], &host(1, false), 64).unwrap();
        assert_eq!((cells.len(), &cells[0].placed, cells[0].vcpus.len()), (1, &Placed::Anyway, 2));
        // A host that reports no nodes.
        assert_eq!(cells_on(&[2, 3], &HostCpus::default(), 64).unwrap().len(), 1);
    }

    #[test]
    fn each_node_needs_a_page() {
        assert_eq!(cells_on(&[0, 4], &host(2, false), 1), Err(NoCells::TooFewPages));
    }

    #[test]
    fn memory_on_other_numa_nodes_is_reported() {
        let cells = cells_on(&[0, 4], &host(2, false), 4).unwrap();
        let maps = |first: &str, second: &str| {
            format!(
                "7f00 default file=/memfd:memory-backend-memfd\\040(deleted) huge dirty=2 {first} kernelpagesize_kB=2048\n\
                 7f80 default file=/memfd:memory-backend-memfd\\040(deleted) huge dirty=2 {second} kernelpagesize_kB=2048\n\
                 7fff default anon=900 dirty=900 N0=900 kernelpagesize_kB=4\n"
            )
        };
        assert_eq!(misplaced(&cells, &maps("N0=2", "N2=2")), None);
        let wrong = misplaced(&cells, &maps("N0=2", "N0=1 N2=1")).unwrap();
        assert_eq!(wrong, "host NUMA node 2 gave 1 of 2 huge pages");
    }
}
