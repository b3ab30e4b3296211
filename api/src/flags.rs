//! Flags of our programs, which `customizeComponents.flags` of the `KubeVirt` object may set. Each program has a test that its
//! list here is complete. A flag that a program does not know would keep its pods from starting.

use crate::v1::Flags;

/// Flags of virt-api, without `--`.
pub const VIRT_API: &[&str] = &[
    "listen",
    "uploads-listen",
    "probes-listen",
    "namespace",
    "serving-certs",
    "client-certs",
    "ca",
    "node-name",
];
/// Flags of virt-controller.
pub const VIRT_CONTROLLER: &[&str] = &[
    "namespace",
    "launcher-image",
    "importer-image",
    "passt-image",
    "image-pull-policy",
    "node-grace-seconds",
    "listen",
    "certificates",
    "identity",
    "node-name",
];
/// Flags of virt-handler.
pub const VIRT_HANDLER: &[&str] = &[
    "node-name",
    "pods-dir",
    "kubelet-dir",
    "capabilities-dir",
    "listen",
    "client-ca",
    "migration-listen",
    "pod-ip",
    "probes-listen",
];

/// The flags that no program has: the component as the object names it, the program, and the flag.
pub(crate) fn unknown(given: &Flags) -> Vec<(&'static str, &'static str, &str)> {
    let programs = [
        ("api", "virt-api", &given.api, VIRT_API),
        ("controller", "virt-controller", &given.controller, VIRT_CONTROLLER),
        ("handler", "virt-handler", &given.handler, VIRT_HANDLER),
    ];
    let mut unknown = Vec::new();
    for (component, program, given, known) in programs {
        // virt-operator writes them in lower case, as KubeVirt's does.
        let names = given.keys().filter(|name| !known.contains(&name.to_lowercase().as_str()));
        unknown.extend(names.map(|name| (component, program, name.as_str())));
    }
    unknown
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn flags_of_kubevirts_programs_are_found() {
        let given = json!({
            "api": {"port": "8443", "Listen": "[::]:8444", "v": "5"}, "controller": {"node-grace-seconds": "20"},
            "handler": {"listen": "[::]:8186", "max-devices": "110"},
        });
        let given: Flags = serde_json::from_value(given).unwrap();
        let found = [
            ("api", "virt-api", "port"),
            ("api", "virt-api", "v"),
            ("handler", "virt-handler", "max-devices"),
        ];
        assert_eq!(unknown(&given), found);
        assert!(unknown(&Flags::default()).is_empty());
    }
}
