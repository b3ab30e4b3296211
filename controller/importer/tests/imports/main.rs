//! Imports over the real protocol, from servers of these tests on loopback, with the real qemu-img.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation, missing_docs)]

mod archive;
mod copies;
mod hostile;
mod http;
mod local;
mod look;
mod registry;
mod s3;
mod server;
mod upload;
mod world;
