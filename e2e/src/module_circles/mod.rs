//! The inner structure of the crates: which modules import each other in circles, which files and functions
//! are longest.
//!
//! ```text
//!   crates    cargo's list of crates -> the file at the root of each
//!   modules   a root file -> its tree of modules: what each defines, imports and mentions (syn)
//!   names     a path that a module mentions -> the module that defines it, through every re-export on the way
//!   circles   which file mentions names of which -> groups of files that all reach each other
//!   problems  circles against the committed list of known ones, lengths against their limit -> what to do
//! ```
//!
//! An edge is a use of another file's name within the same crate, in a `use` or in code. A `mod child;` and a
//! `pub use child::Name;` are not edges by themselves, nor is anything in tests (`#[cfg(test)]`,
//! `*tests.rs`). Two files that import each other, a parent and its child say, are one idea in two files;
//! three or more are a circle.

pub mod circles;
pub mod crates;
pub mod modules;
pub mod names;
pub mod problems;

#[cfg(test)]
mod tests;
