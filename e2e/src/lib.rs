//! Black-box tests and benchmarks against a real cluster.
