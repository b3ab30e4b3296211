use super::*;
use proptest::prelude::*;

/// A host whose nodes have this many cores with two CPUs each: `n` and `n + all cores`, as PCs number them.
pub(crate) fn host(nodes: u32, cores: u32, allowed: &str) -> HostCpus {
    let all = nodes * cores;
    let cells = (0..nodes).map(|id| HostCell {
        id,
        cores: (id * cores..(id + 1) * cores).map(|core| vec![core, core + all]).collect(),
        distances: (0..nodes).map(|other| (other, if other == id { 10 } else { 21 })).collect(),
    });
    HostCpus { allowed: CpuSet::parse(allowed).unwrap(), cells: cells.collect(), may_bind: false }
}

fn demand(sockets: u32, cores: u32, threads: u32, pool: u32, emulator: u32) -> Demand {
    let topology = Topology { sockets, cores, threads, max_sockets: sockets };
    let cpus = DedicatedCpus { vcpus: topology.vcpus(), io_threads: pool, emulator };
    Demand { topology, cpus, io_threads: pool, on_one_node: false }
}

fn sets(sets: &[CpuSet]) -> Vec<String> {
    sets.iter().map(ToString::to_string).collect()
}

#[test]
fn sibling_threads_are_on_one_core() {
    // Cores 0/4, 1/5, 2/6, 3/7.
    let pinned = demand(1, 2, 2, 0, 0).pin(&host(1, 4, "1,2,5,6")).unwrap();
    assert_eq!(pinned, Pinning { vcpus: vec![1, 5, 2, 6], io_threads: vec![], emulator: None });
    // A broken core is used last, and a guest core may consist of two halves.
    let pinned = demand(1, 2, 2, 0, 0).pin(&host(1, 4, "0,1,2,5")).unwrap();
    assert_eq!(pinned.vcpus, [1, 5, 0, 2]);
}

#[test]
fn guests_without_sibling_threads_fill_cores() {
    assert_eq!(demand(3, 1, 1, 0, 0).pin(&host(1, 4, "0,1,4")).unwrap().vcpus, [0, 4, 1]);
}

#[test]
fn the_emulator_has_what_makes_no_core() {
    let pinned = demand(1, 1, 2, 0, 1).pin(&host(1, 4, "0,1,5")).unwrap();
    assert_eq!((pinned.vcpus, pinned.emulator.unwrap().to_string()), (vec![1, 5], "0".to_owned()));
    let pinned = demand(1, 1, 2, 0, 2).pin(&host(1, 4, "0,1,4,5")).unwrap();
    assert_eq!((pinned.vcpus, pinned.emulator.unwrap().to_string()), (vec![0, 4], "1,5".to_owned()));
}

#[test]
fn threads_of_the_pool_have_a_cpu_each_and_the_emulator_another() {
    let pinned = demand(2, 1, 1, 2, 1).pin(&host(1, 4, "0-3,4")).unwrap();
    assert_eq!(pinned.vcpus, [0, 4]);
    assert_eq!(sets(&pinned.io_threads), ["1", "2"]);
    assert_eq!(pinned.emulator.unwrap().to_string(), "3");
}

#[test]
fn other_io_threads_are_with_the_emulator_or_spread_over_the_guests_cpus() {
    let of = |vcpus: u32, emulator: u32, io_threads: u32| {
        let demand = Demand { io_threads, ..demand(vcpus, 1, 1, 0, emulator) };
        let allowed = format!("0-{}", vcpus + emulator - 1);
        let one_each = HostCpus { allowed: CpuSet::parse(&allowed).unwrap(), ..HostCpus::default() };
        sets(&demand.pin(&one_each).unwrap().io_threads)
    };
    assert_eq!(of(2, 1, 2), ["2", "2"]);
    assert_eq!(of(8, 0, 3), ["0-2", "3-5", "6-7"]);
    assert_eq!(of(2, 0, 3), ["1", "0", "1"]);
    assert_eq!(of(1, 0, 1), ["0"]);
    assert_eq!(of(4, 0, 0), Vec::<String>::new());
}

#[test]
fn missing_cpus_are_named() {
    let short = demand(2, 1, 1, 0, 1).pin(&host(1, 2, "1,3")).unwrap_err();
    assert_eq!(short.to_string(), "the container may use 2 CPUs (1,3), and its guest needs 3 of its own");
    let exclusive = |allowed: &str| demand(2, 1, 1, 0, 1).check_exclusive(&host(1, 4, allowed));
    assert_eq!(exclusive("0,1"), Err(PinningError::TooFew { given: 2, cpus: "0-1".into(), needed: 3 }));
    assert_eq!(exclusive("0-2"), Ok(()));
    let shared = exclusive("0-7").unwrap_err().to_string();
    assert!(shared.contains("8 CPUs (0-7)") && shared.contains("static"), "{shared}");
}

#[test]
fn a_core_across_nodes_is_refused_where_nodes_count() {
    // One CPU on each node.
    let demand = demand(1, 1, 2, 0, 0);
    assert_eq!(demand.pin(&host(2, 2, "0,2")).unwrap().vcpus, [0, 2]);
    let error = Demand { on_one_node: true, ..demand }.pin(&host(2, 2, "0,2")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "1 cores of the guest do not fit on a NUMA node each: the container's CPUs are 0,2"
    );
}

proptest! {
    #[test]
    fn every_thread_has_one_that_is_no_others(
        sockets in 1..4_u32, cores in 1..3_u32, threads in 1..3_u32, pool in 0..3_u32, emulator in 0..3_u32,
        nodes in 1..4_u32, order in Just((0..48_u32).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let demand = demand(sockets, cores, threads, pool, emulator);
        let needed = usize::try_from(demand.cpus.all()).unwrap();
        let mut host = host(nodes, 24 / nodes, "");
        host.allowed = order[..needed].iter().copied().collect();
        let pinned = demand.pin(&host).unwrap();
        prop_assert_eq!(pinned.vcpus.len(), usize::try_from(demand.topology.vcpus()).unwrap());
        let all: Vec<u32> = pinned.vcpus.iter().copied()
            .chain(pinned.io_threads.iter().flat_map(|set| set.iter().collect::<Vec<_>>()))
            .chain(pinned.emulator.iter().flat_map(|set| set.iter().collect::<Vec<_>>()))
            .collect();
        prop_assert_eq!(all.len(), needed);
        prop_assert_eq!(all.into_iter().collect::<CpuSet>(), host.allowed);
    }
}
