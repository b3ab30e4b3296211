//! The crate's fuzz targets, each of which runs here over its seeds.

// The attribute of a program without `main` has no effect in a module.
#![allow(unused_attributes)]

#[path = "../../../e2e/fuzz/replay.rs"]
mod replay;

#[path = "../fuzz/fuzz_targets/archive.rs"]
mod archive;
#[path = "../fuzz/fuzz_targets/image_format.rs"]
mod image_format;

#[test]
fn every_fuzz_target_holds_for_its_seeds() {
    replay::all("fuzz", &[("archive", archive::run), ("image_format", image_format::run)]);
}
