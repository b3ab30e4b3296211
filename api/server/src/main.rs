//! Admission webhooks and the aggregated subresources.kubevirt.io API.

fn main() {}
