//! What virt-controller and two virt-importers agree on where a claim is copied from another namespace.
//!
//! ```text
//!   in each of the two pods, before its work:  virt-importer keys --> key: KEYS, never leaves the pod
//!                                                       \--> certificate: termination message --> virt-controller
//!   virt-controller -- address and certificate of the sender: Source::Sender --> importer, beside the claim that is filled
//!   virt-controller -- certificate of the importer: RECEIVER_FILE ------------> sender, beside the claim that is copied
//!   importer -- GET DISK_PATH, mutual TLS, each knows the other's very certificate --> sender
//! ```
//!
//! So nothing secret is told to anybody, and no secret is made.

/// Argument of a virt-importer that makes a key.
pub const MAKE_KEYS: &str = "keys";
/// Argument of a virt-importer that sends.
pub const SEND: &str = "send";
/// Directory with the pod's own key and certificate.
pub const KEYS: &str = "/keys";
/// The certificate there, PEM.
pub const CERTIFICATE: &str = "tls.crt";
/// The key there, PEM.
pub const KEY: &str = "tls.key";
/// Name in both certificates.
pub const PEER: &str = "peer.import.barevirt.dev";
/// Directory where the sender is told of the importer.
pub const RECEIVER: &str = "/receiver";
/// The importer's certificate there, PEM; empty until it is known.
pub const RECEIVER_FILE: &str = "tls.crt";
/// Port of the sender.
pub const SEND_PORT: u16 = 8443;
/// Where the sender has the disk.
pub const DISK_PATH: &str = "/disk";
/// Longest certificate, in bytes.
pub const LONGEST_CERTIFICATE: usize = 2048;
