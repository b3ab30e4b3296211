//! The agent of a node: the only component with node privileges.

fn main() {}
