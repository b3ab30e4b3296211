//! virt-api as it is shipped, in a process of its own, between real clients and an API server of this process, all on loopback.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test fails by panicking, helpers of tests too.

mod consoles;
mod flood;
mod virt_api_process;
