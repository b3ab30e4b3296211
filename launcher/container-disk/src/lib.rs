//! The disk inside a user's image: how it is found, opened and checked. The program `container-disk` hands it
//! over from a container of that image; the launcher opens it itself if the image is a volume of its pod. All
//! programs that get images check their first bytes with this crate.

pub mod disk;
pub mod header;
