//! The command line for virtual machines on Kubernetes.

fn main() {}
