//! The crate's fuzz targets, each of which runs here over its seeds.

// The attribute of a program without `main` has no effect in a module.
#![allow(unused_attributes)]

#[path = "../../e2e/fuzz/replay.rs"]
mod replay;

#[path = "../fuzz/fuzz_targets/cgroup_path.rs"]
mod cgroup_path;
#[path = "../fuzz/fuzz_targets/launcher_status.rs"]
mod launcher_status;
#[path = "../fuzz/fuzz_targets/netlink.rs"]
mod netlink;
#[path = "../fuzz/fuzz_targets/resolver.rs"]
mod resolver;

#[test]
fn every_fuzz_target_holds_for_its_seeds() {
    replay::all(
        "fuzz",
        &[
            ("launcher_status", launcher_status::run),
            ("cgroup_path", cgroup_path::run),
            ("resolver", resolver::run),
            ("netlink", netlink::run),
        ],
    );
}
