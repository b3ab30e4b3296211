//! Fills one claim: with an image from a web server or a registry, or with an empty disk.
//!
//! ```text
//!   run: job --> web (redirects, addresses) --> download (resume, checksum) --feed--> image --> target
//!                registry (token, manifest) --> layer (archive) -----------------------/  \--> convert (qemu-img)
//!                local (another claim, an image of the node) --------------------------/
//!   look: a registry or a web server --> the digest of what it has; nothing is got
//!   upload: job --> server, for virt-api alone --feed--> image --> as above
//!   send: a claim --mutual TLS (keys)--> receive: the importer of another namespace
//! ```
//!
//! Everything here comes from strangers: addresses from who makes DataVolumes, answers from servers, images from whoever made
//! them. What may be connected to is in [`address`]; what is read into memory is bounded where it is read; what is written is
//! bounded by the claim; qemu-img, which alone reads an image's tables, runs within limits ([`limits`]).
//!
//! A failure says whether another try may help ([`failure::Failure`]); the exit code and the termination message say the same to
//! virt-controller.

mod accept;
pub mod address;
pub mod checksum;
pub mod convert;
pub mod download;
pub mod failure;
pub mod feed;
pub mod image;
pub mod keys;
pub mod limits;
pub mod local;
pub mod look;
pub mod progress;
pub mod receive;
pub mod registry;
pub mod run;
pub mod s3;
pub mod send;
pub mod target;
pub mod trust;
pub mod unpack;
pub mod upload;
pub mod url;
pub mod web;
