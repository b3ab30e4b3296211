//! The crate's fuzz targets, each of which runs here over its seeds.

// The attribute of a program without `main` has no effect in a module.
#![allow(unused_attributes)]

#[path = "../../../e2e/fuzz/replay.rs"]
mod replay;

#[path = "../../fuzz/fuzz_targets/admission.rs"]
mod admission;
#[path = "../../fuzz/fuzz_targets/front_proxy_headers.rs"]
mod front_proxy_headers;
#[path = "../../fuzz/fuzz_targets/manifest.rs"]
mod manifest;

#[test]
fn every_fuzz_target_holds_for_its_seeds() {
    replay::all(
        "../fuzz",
        &[
            ("admission", admission::run),
            ("manifest", manifest::run),
            ("front_proxy_headers", front_proxy_headers::run),
        ],
    );
}
