//! The components' certificates: made, rotated and published by the leading operator.
//!
//! ```text
//!   Secret kubevirt-ca ----signs----> Secrets kubevirt-virt-api-certs, kubevirt-virt-handler-server-certs,
//!        |                                    kubevirt-virt-handler-client-certs
//!        +--is in--> ConfigMap kubevirt-ca (ca-bundle) --> caBundle of our webhook configurations and APIServices
//! ```
//!
//! The authority lives seven days, the leaves twenty-four hours; each is renewed in the last fifth of its life, as KubeVirt
//! does. A new authority is put into the bundle first and signs from five minutes later on, when every reader of the
//! bundle has it; the old one stays in the bundle until it expires. So peers agree at every moment of a rotation.
//!
//! Nothing here is kept in the process: each round looks at the cluster, [`plan`]s, and writes what is missing by
//! server-side apply.

mod issue;
mod plan;
mod publish;

pub use issue::{Authority, CertificateError, Issued, Leaf, Seen};
pub use publish::{Publisher, RoundError};
