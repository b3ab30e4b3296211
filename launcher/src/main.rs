//! The first process of a VM pod: parent of exactly one QEMU.

fn main() {}
