//! Runs the tests of the workspace, and tells where the time went.
//!
//! ```text
//!   .ci/compile --> programs --> selection (tier, ONLY, CHANGED) --> libtest --> results --> report
//!                                        long.txt, areas.txt                  tries       times.json, flaky.json
//! ```
//!
//! `cargo test` would compile and run as well. This has one compilation of the whole workspace for all tests, so that no crate
//! is built twice with other features; it knows how long each test took; and what failed once and then passed is counted.

pub mod libtest;
pub mod programs;
pub mod report;
pub mod selection;
