//! Values that must be the same after every restart: the UUID and hardware addresses, derived from an
//! instance's name, and the hash that shows whether a specification changed.

use crate::v1::VirtualMachineInstanceSpec;
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// SMBIOS UUID of the instance with this name: version 8 (RFC 9562), from a hash.
pub fn uuid(namespace: &str, name: &str) -> String {
    let mut bytes = digest(&["uuid", namespace, name]);
    bytes[6] = (bytes[6] & 0x0f) | 0x80;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.iter().take(16).enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Hardware address of an interface without a given address: locally administered, unicast, and never
/// `02:00:00:00:00:00`, the address of the bridge in the pod.
pub fn mac(namespace: &str, name: &str, interface: &str) -> String {
    let bytes = digest(&["mac", namespace, name, interface]);
    // The last byte is never zero, so the address differs from the bridge's.
    format!("02:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}", bytes[0], bytes[1], bytes[2], bytes[3], bytes[4] | 1)
}

/// Hash of a specification: the same specification has the same hash in all versions of Barevirt that know
/// the same fields.
pub fn spec_hash(spec: &VirtualMachineInstanceSpec) -> String {
    // `serde_json::Value` sorts its maps. A specification always has a JSON form, because all keys of its
    // maps are strings.
    let json = serde_json::to_value(spec).map(|value| value.to_string()).unwrap_or_default();
    let mut text = String::with_capacity(16);
    for byte in Sha256::digest(json.as_bytes()).iter().take(8) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Hash of several parts, separated by zero bytes, which no name in Kubernetes contains.
fn digest(parts: &[&str]) -> [u8; 32] {
    Sha256::digest(parts.join("\0").as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_is_stable_and_well_formed() {
        let uuid = uuid("default", "vm");
        assert_eq!(uuid, super::uuid("default", "vm"));
        assert_ne!(uuid, super::uuid("default", "vm2"));
        assert_eq!(uuid.len(), 36);
        assert_eq!(&uuid[14..15], "8");
        assert!(["8", "9", "a", "b"].contains(&&uuid[19..20]));
    }

    #[test]
    fn mac_is_local_and_stable() {
        let mac = mac("default", "vm", "default");
        assert_eq!(mac, super::mac("default", "vm", "default"));
        assert!(mac.starts_with("02:"));
        assert_eq!(mac.len(), 17);
        assert_ne!(mac, super::mac("default", "vm", "other"));
    }

    #[test]
    fn spec_hash_follows_the_spec() {
        let mut spec = VirtualMachineInstanceSpec::default();
        let before = spec_hash(&spec);
        assert_eq!(before, spec_hash(&spec));
        spec.hostname = Some("other".into());
        assert_ne!(before, spec_hash(&spec));
    }
}
