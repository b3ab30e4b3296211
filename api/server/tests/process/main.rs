//! virt-api as it is shipped, in its own process, between real clients and an API server in the test's
//! process, all on loopback.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test fails by panicking, helpers of tests too.

mod consoles;
mod flood;
mod virt_api_process;
