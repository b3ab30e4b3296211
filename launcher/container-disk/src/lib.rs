//! The disk inside a user's image: how it is found, opened and checked. The program `container-disk` hands it
//! over from a container of that image; the launcher opens it itself if the image is a volume of its pod. All
//! programs that get images check their first bytes with this crate.
//!
//! The modules, from the outside in. None uses another, and `main.rs` describes the modules of the program.
//!
//! - [`disk`]: finds the disk below the image's root, and opens it without following a link.
//! - [`header`]: checks the first bytes of a disk image.
//! - [`release`]: version of this build, for programs without the types of the API.

pub mod disk;
pub mod header;
pub mod release;
