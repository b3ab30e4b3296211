//! Reads container images: manifests, and the layers that they name. virt-importer reads those of a registry with it, and
//! virtctl those of a file.
//!
//! All input is untrusted: each read into memory is bounded, and no file is opened.
//!
//! The modules:
//!
//! - [`manifest`]: manifests and indexes, and the image of an index for an architecture.
//! - [`layer`]: the archive of a layer, entry by entry.
//! - [`listing`]: what the layers of an image have in /disk together.
//! - [`unpack`]: a stream that may be compressed.

pub mod layer;
pub mod listing;
pub mod manifest;
pub mod unpack;
