//! The protocol between virt-controller and the two virt-importers that copy a claim from another namespace.
//!
//! ```text
//!   in each of the two pods, before its work:  virt-importer keys --> key: KEYS, never leaves the pod
//!                                                       \--> certificate: termination message --> virt-controller
//!   virt-controller -- address and certificate of the sender: Source::Sender --> importer, beside the claim that is filled
//!   virt-controller -- certificate of the importer: RECEIVER_FILE ------------> sender, beside the claim that is copied
//!   importer -- GET DISK_PATH, mutual TLS, each accepts only the other's certificate --> sender
//! ```
//!
//! No secret is exchanged, and no Secret object is made.

/// Argument with which virt-importer makes a key. A further one is the name in its certificate; without it that is [`PEER`].
pub const MAKE_KEYS: &str = "keys";
/// Name of the container that makes a pod's key.
pub const KEYS_CONTAINER: &str = "keys";
/// Argument with which virt-importer sends a claim.
pub const SEND: &str = "send";
/// Directory with the pod's own key and certificate.
pub const KEYS: &str = "/keys";
/// The certificate there, PEM.
pub const CERTIFICATE: &str = "tls.crt";
/// The key there, PEM.
pub const KEY: &str = "tls.key";
/// Name in both certificates.
pub const PEER: &str = "peer.import.barevirt.dev";
/// Directory where the sender finds the importer's certificate.
pub const RECEIVER: &str = "/receiver";
/// The importer's certificate there, PEM; empty until it is known.
pub const RECEIVER_FILE: &str = "tls.crt";
/// Port of the sender.
pub const SEND_PORT: u16 = 8443;
/// Path of the disk at the sender.
pub const DISK_PATH: &str = "/disk";
/// Longest certificate, in bytes.
pub const LONGEST_CERTIFICATE: usize = 2048;
