//! Warnings for values that are accepted without an effect, or that are deprecated. KubeVirt accepts them as well.

use super::Path;
use crate::v1::{Interface, VirtualMachine, VirtualMachineInstanceSpec, VirtualMachineSpec};

/// Warnings for a machine.
pub fn vm_warnings(vm: &VirtualMachine) -> Vec<String> {
    vm_spec_warnings(&Path::new("spec"), &vm.spec)
}

/// Warnings for a machine's specification at this path. Pools have it at another path.
pub fn vm_spec_warnings(path: &Path, spec: &VirtualMachineSpec) -> Vec<String> {
    let mut warnings = Vec::new();
    if spec.running.is_some() {
        let (old, new) = (path.child("running"), path.child("runStrategy"));
        warnings.push(format!("{old} is deprecated, please use {new} instead."));
    }
    warnings.extend(spec_warnings(&path.child("template.spec"), &spec.template.spec));
    warnings
}

/// Warnings for an instance's specification at this path.
pub fn spec_warnings(path: &Path, spec: &VirtualMachineInstanceSpec) -> Vec<String> {
    let devices = path.child("domain.devices");
    let mut warnings = Vec::new();
    for (index, card) in spec.domain.devices.interfaces.iter().enumerate() {
        if card.sriov.is_some() {
            of_the_node(&devices.child("interfaces").index(index), card, &mut warnings);
        }
    }
    // Only a config drive tells the guest of tags.
    if spec.volumes.iter().all(|volume| volume.cloud_init_config_drive.is_none()) {
        untold(&devices, spec, &mut warnings);
    }
    warnings
}

/// Fields of a card that is a PCI function of the node. Consoles and templates write a model for every card.
fn of_the_node(field: &Path, card: &Interface, warnings: &mut Vec<String>) {
    let model = card.model.as_deref().is_some_and(|model| !model.is_empty());
    for (name, is_given) in [("model", model), ("dhcpOptions", card.dhcp_options.is_some())] {
        if is_given {
            let field = field.child(name);
            warnings.push(format!("{field} has no effect with sriov: the guest drives the card of the node"));
        }
    }
}

/// Tags of devices.
fn untold(field: &Path, spec: &VirtualMachineInstanceSpec, warnings: &mut Vec<String>) {
    let devices = &spec.domain.devices;
    let tags = [
        ("interfaces", devices.interfaces.iter().map(|card| card.tag.as_deref()).collect::<Vec<_>>()),
        ("gpus", devices.gpus.iter().map(|gpu| gpu.tag.as_deref()).collect()),
        ("hostDevices", devices.host_devices.iter().map(|device| device.tag.as_deref()).collect()),
    ];
    for (list, tags) in tags {
        for (index, tag) in tags.into_iter().enumerate() {
            if tag.is_some_and(|tag| !tag.is_empty()) {
                let field = field.child(list).index(index).child("tag");
                let why = "without a cloudInitConfigDrive volume, which tells the guest of it";
                warnings.push(format!("{field} has no effect {why}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Warnings for a machine with these devices and volumes.
    fn warnings(devices: &Value, volumes: &Value) -> Vec<String> {
        let spec = json!({
            "runStrategy": "Always",
            "template": {"spec": {"domain": {"devices": devices}, "volumes": volumes}},
        });
        vm_spec_warnings(&Path::new("spec"), &serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn a_deprecated_field_is_named_with_its_successor() {
        let spec = json!({"running": true, "template": {"spec": {"domain": {"devices": {}}}}});
        let spec: VirtualMachineSpec = serde_json::from_value(spec).unwrap();
        let warnings = vm_spec_warnings(&Path::new("spec.virtualMachineTemplate.spec"), &spec);
        assert_eq!(
            warnings,
            ["spec.virtualMachineTemplate.spec.running is deprecated, \
              please use spec.virtualMachineTemplate.spec.runStrategy instead."]
        );
        assert_eq!(self::warnings(&json!({}), &json!([])), [""; 0]);
    }

    #[test]
    fn what_only_an_emulated_card_has_is_named_on_a_card_of_the_node() {
        let card = |binding: &str| {
            json!({"interfaces": [
                {"name": "default", "masquerade": {}},
                {"name": "fast", binding: {}, "model": "virtio", "dhcpOptions": {"bootFileName": "a"}},
            ]})
        };
        let field = "spec.template.spec.domain.devices.interfaces[1]";
        let why = "has no effect with sriov: the guest drives the card of the node";
        assert_eq!(
            warnings(&card("sriov"), &json!([])),
            [format!("{field}.model {why}"), format!("{field}.dhcpOptions {why}")]
        );
        assert_eq!(warnings(&card("bridge"), &json!([])), [""; 0]);
        let unnamed = json!({"interfaces": [{"name": "fast", "sriov": {}, "model": ""}]});
        assert_eq!(warnings(&unnamed, &json!([])), [""; 0]);
    }

    #[test]
    fn a_tag_that_no_guest_hears_of_is_named() {
        let devices = json!({
            "interfaces": [{"name": "a", "bridge": {}, "tag": "red"}, {"name": "b", "bridge": {}, "tag": ""}],
            "gpus": [{"name": "a", "deviceName": "x/y", "tag": "codec"}],
            "hostDevices": [{"name": "b", "deviceName": "x/y"}, {"name": "c", "deviceName": "x/y", "tag": "disk"}],
        });
        let drive = |kind: &str| json!([{"name": "seed", kind: {"userData": "a"}}]);
        let field = "spec.template.spec.domain.devices";
        let why = "has no effect without a cloudInitConfigDrive volume, which tells the guest of it";
        assert_eq!(
            warnings(&devices, &drive("cloudInitNoCloud")),
            [
                format!("{field}.interfaces[0].tag {why}"),
                format!("{field}.gpus[0].tag {why}"),
                format!("{field}.hostDevices[1].tag {why}"),
            ]
        );
        assert_eq!(warnings(&devices, &drive("cloudInitConfigDrive")), [""; 0]);
    }
}
