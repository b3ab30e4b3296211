//! Checks the docs against the program and the repository: `make docs-test`, which is part of `make check`.
//!
//! ```text
//!   files -> pages (text, blocks of code, headings) --> links: each leads to a file and a heading; each page is in SUMMARY.md
//!                                                   +-> commands: virtctl's parser, targets of make, files of the repository
//!                                                   +-> manifests: what admission says of them
//!                                                   +-> tables: each row is a line
//!   sources of the repository -----------------------> lists: lists in docs/api.md that follow the code
//! ```
//!
//! A test collects all mistakes and reports them together, each with file and line.

mod commands;
mod links;
mod lists;
mod manifests;
mod pages;
mod sources;
mod tables;

/// Fails with all mistakes.
fn nothing_is_wrong(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}
