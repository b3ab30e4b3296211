//! The crate's fuzz targets, each of which runs here over its seeds.

// The attribute of a program without `main` has no effect in a module, and two targets have the module `guest`.
#![allow(unused_attributes, clippy::duplicate_mod)]

#[path = "../../e2e/fuzz/replay.rs"]
mod replay;

#[path = "../fuzz/fuzz_targets/agent_answers.rs"]
mod agent_answers;
#[path = "../fuzz/fuzz_targets/descriptor_message.rs"]
mod descriptor_message;
#[path = "../fuzz/fuzz_targets/dhcp4.rs"]
mod dhcp4;
#[path = "../fuzz/fuzz_targets/dhcp6.rs"]
mod dhcp6;
#[path = "../fuzz/fuzz_targets/image_header.rs"]
mod image_header;
#[path = "../fuzz/fuzz_targets/metrics_request.rs"]
mod metrics_request;
#[path = "../fuzz/fuzz_targets/people.rs"]
mod people;

#[test]
fn every_fuzz_target_holds_for_its_seeds() {
    replay::all(
        "fuzz",
        &[
            ("image_header", image_header::run),
            ("dhcp4", dhcp4::run),
            ("dhcp6", dhcp6::run),
            ("descriptor_message", descriptor_message::run),
            ("people", people::run),
            ("agent_answers", agent_answers::run),
            ("metrics_request", metrics_request::run),
        ],
    );
}
