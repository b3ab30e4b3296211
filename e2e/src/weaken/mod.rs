//! `make weaken`: takes one protection after the other out of a copy of the repository, and shows that its test fails.
//!
//! ```text
//!   weaken.yaml --> protections --> copy of HEAD --> each test passes --> one edit, compile, test --> it fails
//!                   list.rs         copy.rs                               copy.rs
//! ```
//!
//! A protection whose test passes without it is not protected: the next change may lose it unseen.

pub mod copy;
pub mod list;
