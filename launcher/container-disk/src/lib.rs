//! The disk inside a user's image: how it is found and opened. The program hands it over from a container of that image; the
//! launcher does the same itself where the image is a volume of its pod. What its first bytes say is judged here for all who are given images.

pub mod disk;
pub mod header;
