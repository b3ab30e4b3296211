//! Devices of the nodes that guests may have.

use crate::syntax::is_resource_name;
use crate::v1::{KubeVirtConfiguration, PermittedHostDevices, UsbSelector};
use std::collections::BTreeMap;

/// Which devices belong to a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// PCI functions of these vendor and device numbers, such as `10de:1eb8`, in lower case.
    Pci(String),
    /// Mediated devices of this type, with `_` instead of spaces.
    Mediated(String),
    /// Sets of USB devices, one of each vendor and product number.
    Usb(Vec<(u16, u16)>),
}

/// The configured resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostDevices {
    /// Whether any devices are configured. If not, guests may request every resource that a node has.
    limited: bool,
    /// By the resource's name.
    resources: BTreeMap<String, Resource>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Resource {
    /// A device plugin from elsewhere provides it.
    external: bool,
    selectors: Vec<Selector>,
}

impl HostDevices {
    pub(super) fn of_configuration(configuration: &KubeVirtConfiguration) -> Self {
        let Some(permitted) = &configuration.permitted_host_devices else { return Self::default() };
        let PermittedHostDevices { mediated_devices, pci_host_devices, usb } = permitted;
        let mut devices = HostDevices { limited: true, resources: BTreeMap::new() };
        for device in pci_host_devices {
            let selector = is_pci_selector(&device.pci_vendor_selector)
                .then(|| Selector::Pci(device.pci_vendor_selector.to_ascii_lowercase()));
            devices.add(&device.resource_name, device.external_resource_provider, selector);
        }
        for device in mediated_devices {
            let selector = Some(Selector::Mediated(mediated_type(&device.mdev_name_selector)));
            devices.add(&device.resource_name, device.external_resource_provider, selector);
        }
        for device in usb {
            let numbers: Option<Vec<_>> = device.selectors.iter().map(usb_selector).collect();
            let selector = numbers.filter(|numbers| !numbers.is_empty()).map(Selector::Usb);
            devices.add(&device.resource_name, device.external_resource_provider, selector);
        }
        devices
    }

    /// A resource whose selector cannot be read is permitted but found on no node; admission refuses such a
    /// selector.
    fn add(&mut self, resource: &str, external: Option<bool>, selector: Option<Selector>) {
        if !is_resource_name(resource) {
            return;
        }
        let external = external.unwrap_or(false);
        let known = self
            .resources
            .entry(resource.to_owned())
            .or_insert_with(|| Resource { external, selectors: Vec::new() });
        known.external &= external;
        if !external {
            known.selectors.extend(selector);
        }
    }

    /// Whether guests may request the resource.
    pub fn is_permitted(&self, resource: &str) -> bool {
        !self.limited || self.resources.contains_key(resource)
    }

    /// Resources that our handlers offer, and the devices of each.
    pub fn offered(&self) -> impl Iterator<Item = (&str, &[Selector])> {
        let ours = self.resources.iter().filter(|(_, resource)| !resource.external);
        ours.map(|(name, resource)| (name.as_str(), resource.selectors.as_slice()))
    }
}

/// A type's name in the form that is compared: some write spaces as `_`.
pub fn mediated_type(name: &str) -> String {
    name.trim().replace(' ', "_")
}

/// Whether the text is vendor and device number of a PCI function: `10DE:1EB8`.
pub(crate) fn is_pci_selector(text: &str) -> bool {
    text.split_once(':').is_some_and(|(vendor, device)| number(vendor).is_some() && number(device).is_some())
}

/// Vendor and product number of a USB device.
pub(crate) fn usb_selector(selector: &UsbSelector) -> Option<(u16, u16)> {
    Some((number(&selector.vendor)?, number(&selector.product)?))
}

fn number(text: &str) -> Option<u16> {
    (text.len() == 4 && text.chars().all(|digit| digit.is_ascii_hexdigit()))
        .then(|| u16::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of(permitted: Value) -> HostDevices {
        let configuration = json!({ "permittedHostDevices": permitted });
        HostDevices::of_configuration(&serde_json::from_value(configuration).unwrap())
    }

    #[test]
    fn devices_outside_a_given_list_are_not_permitted() {
        assert!(HostDevices::default().is_permitted("a.b/c"));
        assert!(!of(json!({})).is_permitted("a.b/c"));
        let external = json!([{"pciVendorSelector": "10DE:1EB8", "resourceName": "a.b/c", "externalResourceProvider": true}]);
        let devices = of(json!({ "pciHostDevices": external }));
        assert!(devices.is_permitted("a.b/c"));
        assert_eq!(devices.offered().count(), 0);
    }

    #[test]
    fn a_resource_is_all_that_its_selectors_select() {
        let pci = |selector: &str| json!({"pciVendorSelector": selector, "resourceName": "a.b/c"});
        let devices = of(json!({
            "pciHostDevices": [pci("10DE:1EB8"), pci("8086:1572"), pci("nonsense")],
            "mediatedDevices": [{"mdevNameSelector": "GRID T4-1Q", "resourceName": "a.b/vgpu"}],
            "usb": [{"resourceName": "a.b/usb", "selectors": [{"vendor": "46f4", "product": "7777"}]}],
        }));
        let offered: Vec<_> = devices.offered().collect();
        let pci = ["10de:1eb8", "8086:1572"].map(|selector| Selector::Pci(selector.to_owned()));
        let mediated = [Selector::Mediated("GRID_T4-1Q".to_owned())];
        let usb = [Selector::Usb(vec![(0x46f4, 0x7777)])];
        assert_eq!(offered, [("a.b/c", &pci[..]), ("a.b/usb", &usb[..]), ("a.b/vgpu", &mediated[..])]);
    }
}
