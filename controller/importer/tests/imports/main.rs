//! Imports over the real protocol, from servers of these tests on loopback, with the real qemu-img.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation, missing_docs)]

mod archive;
mod copies;
mod formats;
mod hostile;
mod http;
mod local;
mod look;
mod proxy;
mod registry;
mod resume;
mod s3;
mod server;
mod tls;
mod upload;
mod world;

#[test]
fn the_program_says_which_build_it_is() {
    let output =
        std::process::Command::new(env!("CARGO_BIN_EXE_virt-importer")).arg("--version").output().unwrap();
    assert!(output.status.success());
    let expected = format!("virt-importer {}\n", container_disk::release::line());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}
