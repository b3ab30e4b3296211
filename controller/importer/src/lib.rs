//! Fills one claim: with an image from a web server or a registry, with the files of an archive, with a copy, or with an
//! empty disk.
//!
//! ```text
//!   run: job --> web (redirects, addresses) --> download (resume, checksum) --feed--> image --> target
//!                registry (token, manifest) --> layer (archive) -----------------------/  \--> convert (qemu-img)
//!                local (another claim, an image of the node) --------------------------/
//!   look: a registry or a web server --> the digest of its contents; nothing is downloaded
//!   upload: job --> server, for virt-api alone --feed--> image --> as above
//!   a job for an archive: web or upload --feed--> archive --> files in the claim, instead of image --> target
//!   send: a claim --mutual TLS (keys)--> receive: the importer of another namespace
//! ```
//!
//! All input is untrusted: addresses come from users who make DataVolumes, answers from servers, images from their authors.
//! [`address`] limits connections; each read into memory is bounded; the claim bounds what is written; only qemu-img parses
//! an image's tables, and it runs within limits ([`limits`]); only a thread that can open nothing but the claim reads an
//! archive ([`mod@archive`]).
//!
//! A failure shows whether a retry may help ([`failure::Failure`]); exit code and termination message report the same to
//! virt-controller.
//!
//! The modules, from the outside in. Each module uses only modules that are listed below it.
//!
//! **What the program does**: `main.rs` reads the job, and calls one of these
//!
//! - [`upload`]: receives an image or an archive from virt-api; [`look`]: the digest of a source; [`run`]: all other imports.
//! - [`send`]: sends a claim to the importer of another namespace.
//! - [`limits`]: executes another program within limits.
//!
//! **Into the claim**
//!
//! - `claim`: a claim with one disk, or with the files of an archive; [`mod@archive`]: unpacks an archive into a claim.
//! - `reading`: a transfer that is read while it arrives; [`local`]: the disk of another claim, or of an image of the node.
//! - [`image`]: writes an image as it arrives; [`mod@format`]: judges its first and last bytes;
//!   [`convert`]: runs qemu-img on an image that is not raw.
//! - [`target`]: the disk on a claim: a file or a block device.
//!
//! **From the network**
//!
//! - [`download`]: one file, over as many connections as needed; [`registry`]: images of a registry; [`receive`]: the claim
//!   of another namespace.
//! - [`web`]: one request with its redirects; [`proxy`]: proxies on the way; [`s3`]: signatures of requests.
//! - [`address`]: addresses that may be connected to; [`url`]: addresses as text; [`trust`]: trusted authorities; [`keys`]:
//!   keys that pods make for themselves.
//!
//! **Shared by all**
//!
//! - [`feed`]: passes bytes from a transfer to the thread that writes; [`checksum`]: checksums of these bytes.
//! - [`progress`]: the progress of an import, and the server that reports it; `accept`: a limited number of connections.
//! - [`failure`]: failures, and whether a retry may help.

mod accept;
pub mod address;
pub mod archive;
pub mod checksum;
mod claim;
pub mod convert;
pub mod download;
pub mod failure;
pub mod feed;
pub mod format;
#[cfg(test)]
mod fuzz_targets;
pub mod image;
pub mod keys;
pub mod limits;
pub mod local;
pub mod look;
pub mod progress;
pub mod proxy;
mod reading;
pub mod receive;
pub mod registry;
pub mod run;
pub mod s3;
pub mod send;
pub mod target;
pub mod trust;
pub mod upload;
pub mod url;
pub mod web;

// Names that the fuzz targets import from.
#[cfg(test)]
extern crate self as libfuzzer_sys;
#[cfg(test)]
extern crate self as virt_importer;
