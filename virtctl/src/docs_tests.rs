//! Checks the docs against the program and the repository: `make docs-test`, which is part of `make check`.
//!
//! ```text
//!   files -> pages (text, blocks of code, headings) --> links: each leads to a file and a heading; each page is in SUMMARY.md
//!                                                   +-> commands: virtctl's parser, targets of make, files of the repository
//!                                                   +-> manifests: what admission says of them
//! ```
//!
//! A test collects all mistakes and reports them together, each with file and line.

mod commands;
mod links;
mod manifests;
mod pages;

/// Fails with all mistakes.
fn nothing_is_wrong(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}
