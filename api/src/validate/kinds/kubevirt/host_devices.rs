//! Devices of the nodes that guests may have: resources and the devices that belong to them.

use crate::settings::{is_pci_selector, usb_selector};
use crate::syntax::{is_resource_name, quoted};
use crate::v1::PermittedHostDevices;
use crate::validate::{Cause, Path};

/// Everything wrong with the list.
pub(super) fn validate(path: &Path, permitted: &PermittedHostDevices, causes: &mut Vec<Cause>) {
    let mut check = |field: Path, good: bool, value: &str, what: &str| {
        if !good {
            causes.push(Cause::invalid(&field, format!("{field} {} is not {what}", quoted(value))));
        }
    };
    let resource = "the name of a resource, such as example.com/gpu";
    for (index, device) in permitted.pci_host_devices.iter().enumerate() {
        let path = path.child("pciHostDevices").index(index);
        let selector = &device.pci_vendor_selector;
        let what = "vendor and device number in hexadecimal, such as 10DE:1EB8";
        check(path.child("pciVendorSelector"), is_pci_selector(selector), selector, what);
        let name = &device.resource_name;
        check(path.child("resourceName"), is_resource_name(name), name, resource);
    }
    for (index, device) in permitted.mediated_devices.iter().enumerate() {
        let path = path.child("mediatedDevices").index(index);
        let selector = &device.mdev_name_selector;
        check(path.child("mdevNameSelector"), !selector.trim().is_empty(), selector, "the name of a type");
        let name = &device.resource_name;
        check(path.child("resourceName"), is_resource_name(name), name, resource);
    }
    for (index, device) in permitted.usb.iter().enumerate() {
        let path = path.child("usb").index(index);
        let name = &device.resource_name;
        check(path.child("resourceName"), is_resource_name(name), name, resource);
        let selectors = path.child("selectors");
        for (index, selector) in device.selectors.iter().enumerate() {
            let given = format!("{}:{}", selector.vendor, selector.product);
            let what = "vendor and product number, four hexadecimal digits each";
            check(selectors.index(index), usb_selector(selector).is_some(), &given, what);
        }
    }
    for (index, device) in permitted.usb.iter().enumerate() {
        if device.selectors.is_empty() && device.external_resource_provider != Some(true) {
            let field = path.child("usb").index(index).child("selectors");
            causes.push(Cause::invalid(&field, format!("{field} names no device")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn fields(permitted: Value) -> Vec<String> {
        let mut causes = Vec::new();
        validate(&Path::new("p"), &serde_json::from_value(permitted).unwrap(), &mut causes);
        causes.into_iter().map(|cause| cause.field).collect()
    }

    #[test]
    fn a_host_device_without_a_selector_is_refused() {
        let good = json!({
            "pciHostDevices": [{"pciVendorSelector": "10DE:1EB8", "resourceName": "nvidia.com/T4"}],
            "mediatedDevices": [{"mdevNameSelector": "GRID T4-1Q", "resourceName": "nvidia.com/GRID_T4-1Q"}],
            "usb": [{"resourceName": "kubevirt.io/storage", "selectors": [{"vendor": "46f4", "product": "0001"}]}],
        });
        assert_eq!(fields(good), Vec::<String>::new());
        let bad = json!({
            "pciHostDevices": [{"pciVendorSelector": "10DE", "resourceName": "T4"}],
            "mediatedDevices": [{"mdevNameSelector": " ", "resourceName": "a b/c"}],
            "usb": [{"resourceName": "kubevirt.io/storage"},
                    {"resourceName": "kubevirt.io/storage", "selectors": [{"vendor": "+6f4", "product": "1"}]}],
        });
        assert_eq!(
            fields(bad),
            [
                "p.pciHostDevices[0].pciVendorSelector",
                "p.pciHostDevices[0].resourceName",
                "p.mediatedDevices[0].mdevNameSelector",
                "p.mediatedDevices[0].resourceName",
                "p.usb[1].selectors[0]",
                "p.usb[0].selectors",
            ]
        );
    }
}
