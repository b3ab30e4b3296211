//! Virtual machines, their instances and launcher pods, behind a lease.

fn main() {}
