//! The components' certificates: made, rotated and published by the leading operator.
//!
//! ```text
//!   Secret kubevirt-ca ----signs----> Secrets kubevirt-virt-api-certs, kubevirt-controller-certs,
//!        |                    |               kubevirt-operator-certs, kubevirt-virt-handler-certs
//!        |                    +-----> CertificateSigningRequests of the handlers, one for each node
//!        +--is in--> ConfigMap kubevirt-ca (ca-bundle) --> caBundle of our webhook configurations and APIServices
//! ```
//!
//! How long each lives is the `KubeVirt` object's to say ([`barevirt_api::rotation`]). A new authority is first put into
//! the bundle and into every `caBundle`, and signs later, when every reader has it; the old one stays in the bundle until
//! what it has signed is replaced. So peers agree at every moment of a rotation.
//!
//! Each certificate has one role: a server's is refused where a client's is asked for, and the other way round. A handler's
//! key never leaves its process; [`requests`] decides who gets which node's certificate.
//!
//! Nothing here is kept in the process: each round looks at the cluster, [`plan`]s, and writes what is missing by
//! server-side apply.

mod issue;
mod keeper;
mod plan;
mod publish;
pub mod requests;
pub mod signer;

pub use issue::{Authority, CertificateError, Issued, Leaf, Profile, Role};
pub use keeper::Keeper;
pub use publish::{FORMER_SECRETS, Publisher, Round, RoundError};
