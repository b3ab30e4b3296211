//! `make weaken`: takes one protection after the other out of a copy of the repository, and shows that its test fails.
//!
//! ```text
//!   weaken.yaml --> protections --> copy of a commit --> each test passes --> one edit, compile, test --> it fails --> found.tsv
//!                   list.rs         copy.rs                                   copy.rs                                 record.rs
//! ```
//!
//! It takes hours, so it can be run in pieces: what was found is kept, and the next run goes on at the commit that the first one
//! began with.
//!
//! A protection whose test passes without it is not protected: the next change may lose it unseen.

pub mod copy;
pub mod list;
pub mod record;
#[cfg(test)]
mod threats;
