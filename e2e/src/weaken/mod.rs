//! `make weaken`: takes one protection after the other out of a copy of the repository, and shows that its test fails.
//!
//! ```text
//!   weaken.yaml --> protections --> copy of a commit --> each test passes --> one edit, compile, test --> it fails --> found.tsv
//!                   list.rs         copy.rs                                   copy.rs                                 record.rs
//! ```
//!
//! It takes hours, so it can be run in parts: results are kept, and the next run continues with the commit of
//! the first run.
//!
//! If the test passes without the protection, the next change may lose the protection unnoticed.

pub mod copy;
pub mod list;
pub mod record;
#[cfg(test)]
mod threats;
