//! Names that several components share: labels, annotations, finalizers, phases, conditions, reasons.
//!
//! Names of KubeVirt keep KubeVirt's spelling, because tools and users' scripts compare them.

mod conditions;
mod labels;
mod pods;
mod reasons;
mod states;

pub use conditions::*;
pub use labels::*;
pub use pods::*;
pub use reasons::*;
pub use states::*;

/// Namespace of the components.
pub const INSTALL_NAMESPACE: &str = "kubevirt";
/// Service account of the API server.
pub const SERVICE_ACCOUNT_API: &str = "kubevirt-apiserver";
/// Service account of the controller.
pub const SERVICE_ACCOUNT_CONTROLLER: &str = "kubevirt-controller";
/// Config map of the components' namespace with the certificates of their authorities, which virt-operator makes.
pub const CA_CONFIG_MAP: &str = "kubevirt-ca";
/// Key in that config map; its value is PEM.
pub const CA_BUNDLE_KEY: &str = "ca-bundle";
/// Policy that checks who may copy a claim of another namespace.
pub const COPIES_POLICY: &str = "kubevirt-datavolume-sources-policy";
/// Binding of that policy.
pub const COPIES_BINDING: &str = "kubevirt-datavolume-sources-binding";
/// Config map of the components' namespace whose values are registries without TLS, `host:port`: CDI's name.
pub const INSECURE_REGISTRIES_CONFIG_MAP: &str = "cdi-insecure-registries";
/// Config map in which administrators choose the machine labels that metrics report.
pub const VM_LABELS_CONFIG_MAP: &str = "kubevirt-vm-labels-config";
/// Service account of the handlers.
pub const SERVICE_ACCOUNT_HANDLER: &str = "kubevirt-handler";
/// Name of the operator: in its lease, in managed fields, and in the label of objects that it makes.
pub const OPERATOR: &str = "virt-operator";
/// Label of everything that the operator makes.
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// Service account of the operator.
pub const SERVICE_ACCOUNT_OPERATOR: &str = "kubevirt-operator";
/// Signer of handlers' certificates: certificate requests name it, and rights are granted for it.
pub const HANDLER_SIGNER: &str = "barevirt.dev/virt-handler";
/// Common name of every handler's certificate.
pub const HANDLER_COMMON_NAME: &str = "virt-handler";
/// Common name of the certificate that virt-api shows to handlers.
pub const HANDLER_CLIENT_COMMON_NAME: &str = "kubevirt.io:system:client:virt-handler";

/// The name under which callers reach the handler of a node. It is not in DNS and has no address.
pub fn handler_host(node: &str) -> String {
    format!("{node}.virt-handler.{INSTALL_NAMESPACE}")
}

/// Name of the one `KubeVirt` object.
pub const KUBEVIRT_NAME: &str = "kubevirt";

/// The longest value of a label.
const LABEL_VALUE_MAX: usize = 63;

/// Value of [`VMI_ID_LABEL`]: the instance's name, or, if that is too long for a label, its beginning and
/// eight digits of its SHA-1. KubeVirt's own clients compute the same value.
pub fn vmi_id(name: &str) -> String {
    use sha1::{Digest, Sha1};
    if name.len() <= LABEL_VALUE_MAX {
        return name.to_owned();
    }
    let hash = Sha1::digest(name.as_bytes());
    let digits: String = hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let start: String = name.chars().take(LABEL_VALUE_MAX - 1 - digits.len()).collect();
    format!("{start}-{digits}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_becomes_a_label_of_its_own() {
        assert_eq!(vmi_id("web"), "web");
        let (a, b) = (vmi_id(&format!("{}a", "x".repeat(70))), vmi_id(&format!("{}b", "x".repeat(70))));
        assert_eq!(a.len(), 63);
        assert_ne!(a, b);
    }
}
