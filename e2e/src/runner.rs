//! Runs the tests of the workspace, and reports where the time went.
//!
//! ```text
//!   .ci/compile --> programs --> selection (tier, ONLY, CHANGED) --> libtest --> results --> report
//!                                        long.txt, areas.txt                  tries       times.json, flaky.json
//! ```
//!
//! `cargo test` would also compile and run the tests. This program compiles the whole workspace once for all
//! tests, so that no crate is built twice with different features. It also records how long each test takes,
//! and counts tests that fail once and then pass.

pub mod libtest;
pub mod programs;
pub mod report;
pub mod selection;
