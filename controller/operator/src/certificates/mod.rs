//! The components' certificates: made, rotated and published by the leading operator.
//!
//! ```text
//!   Secret kubevirt-ca ----signs----> Secrets kubevirt-virt-api-certs, kubevirt-controller-certs,
//!        |                    |               kubevirt-operator-certs, kubevirt-virt-handler-certs
//!        |                    +-----> CertificateSigningRequests of the handlers, one for each node
//!        +--is in--> ConfigMap kubevirt-ca (ca-bundle) --> caBundle of our webhook configurations and APIServices
//! ```
//!
//! The `KubeVirt` object sets the lifetimes ([`barevirt_api::rotation`]). A new authority is first added to the bundle and
//! to every `caBundle`, and signs only when every reader has it; the old one stays in the bundle until everything that it
//! signed is replaced. So peers trust each other at every moment of a rotation.
//!
//! Each certificate has one role: a server's certificate is refused where a client's is required, and vice versa. A
//! handler's key never leaves its process; [`requests`] decides which handler gets which node's certificate.
//!
//! This module keeps no state: each round looks at the cluster, [`plan`]s, and writes what is missing by server-side apply.

mod issue;
mod keeper;
mod plan;
mod publish;
pub mod requests;
pub mod signer;

pub use issue::{Authority, CertificateError, Issued, Leaf, Profile, Role};
pub use keeper::Keeper;
pub use publish::{FORMER_SECRETS, Publisher, Round, RoundError};
