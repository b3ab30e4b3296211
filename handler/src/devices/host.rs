//! Finds the devices of this node that belong to a permitted resource, in sysfs. It only reads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use barevirt_api::names::{MEDIATED_VARIABLE, PCI_VARIABLE, USB_VARIABLE, device_variable};
use barevirt_api::settings::{HostDevices, Selector, mediated_type};

/// The driver through which a PCI function is passed to a guest.
const DRIVER: &str = "vfio-pci";

/// How a launcher addresses a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// PCI address.
    Pci(String),
    /// UUID.
    Mediated(String),
    /// Bus number and device number of each device in the set.
    Usb(Vec<(u16, u16)>),
}

/// A device, or a set of devices, that one guest gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDevice {
    /// The name that the kubelet uses for it.
    pub id: String,
    /// The address that the guest's launcher gets.
    pub address: Address,
    /// Device nodes that the container needs.
    pub nodes: Vec<PathBuf>,
    /// The NUMA node to which the device is attached.
    pub numa: Option<i64>,
}

impl HostDevice {
    /// Name of the launcher's environment variable, and this device's part of its value.
    pub fn variable(&self, resource: &str) -> (String, String) {
        let (prefix, value) = match &self.address {
            Address::Pci(address) => (PCI_VARIABLE, address.clone()),
            Address::Mediated(uuid) => (MEDIATED_VARIABLE, uuid.clone()),
            Address::Usb(devices) => {
                let devices: Vec<String> =
                    devices.iter().map(|(bus, device)| format!("{bus}:{device}")).collect();
                (USB_VARIABLE, devices.join(","))
            }
        };
        (device_variable(prefix, resource), value)
    }
}

/// Devices of each permitted resource. A resource without devices on this node has an empty list.
pub fn find(permitted: &HostDevices, sys: &Path) -> BTreeMap<String, Vec<HostDevice>> {
    let mut usb = usb_devices(sys);
    permitted
        .offered()
        .map(|(resource, selectors)| {
            let found = selectors.iter().flat_map(|selector| match selector {
                Selector::Pci(numbers) => pci(sys, numbers),
                Selector::Mediated(name) => mediated(sys, name),
                Selector::Usb(numbers) => usb_sets(&mut usb, numbers),
            });
            (resource.to_owned(), found.collect())
        })
        .collect()
}

fn pci(sys: &Path, numbers: &str) -> Vec<HostDevice> {
    let one = |path: &PathBuf| {
        let text = fs::read_to_string(path.join("uevent")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("PCI_ID="))?;
        let is_given = line.eq_ignore_ascii_case(numbers) && link(path, "driver")? == DRIVER;
        let address = path.file_name()?.to_str()?.to_owned();
        is_given.then(|| vfio(path, path, Address::Pci(address)))?
    };
    entries(&sys.join("bus/pci/devices")).iter().filter_map(one).collect()
}

fn mediated(sys: &Path, name: &str) -> Vec<HostDevice> {
    let one = |path: &PathBuf| {
        let kind = path.join("mdev_type");
        // A type without a name is known by the name of its directory.
        let given = fs::read_to_string(kind.join("name"))
            .ok()
            .or_else(|| fs::canonicalize(&kind).ok()?.file_name()?.to_str().map(str::to_owned))?;
        let uuid = path.file_name()?.to_str()?.to_owned();
        let parent = fs::canonicalize(path).ok()?.parent()?.to_owned();
        (mediated_type(&given) == name).then(|| vfio(path, &parent, Address::Mediated(uuid)))?
    };
    entries(&sys.join("bus/mdev/devices")).iter().filter_map(one).collect()
}

/// A device that is passed by its VFIO group. The kubelet knows it by the group too, because a group has only
/// one owner.
fn vfio(path: &Path, near: &Path, address: Address) -> Option<HostDevice> {
    let id = link(path, "iommu_group")?;
    let numa = fs::read_to_string(near.join("numa_node")).ok().and_then(|text| text.trim().parse().ok());
    let nodes = vec![PathBuf::from("/dev/vfio/vfio"), Path::new("/dev/vfio").join(&id)];
    Some(HostDevice { id, address, nodes, numa: numa.filter(|node| *node >= 0) })
}

struct Usb {
    vendor: u16,
    product: u16,
    bus: u16,
    device: u16,
}

fn usb_devices(sys: &Path) -> Vec<Usb> {
    let one = |path: &PathBuf| {
        let text = |name: &str| fs::read_to_string(path.join(name)).ok();
        let hex = |name: &str| u16::from_str_radix(text(name)?.trim(), 16).ok();
        let number = |name: &str| text(name)?.trim().parse().ok();
        Some(Usb {
            vendor: hex("idVendor")?,
            product: hex("idProduct")?,
            bus: number("busnum")?,
            device: number("devnum")?,
        })
    };
    entries(&sys.join("bus/usb/devices")).iter().filter_map(one).collect()
}

/// Makes as many sets as there are devices for. Each device is in one set only.
fn usb_sets(free: &mut Vec<Usb>, numbers: &[(u16, u16)]) -> Vec<HostDevice> {
    let mut sets = Vec::new();
    loop {
        let mut chosen = BTreeSet::new();
        for (vendor, product) in numbers {
            let is_it = |(index, usb): &(usize, &Usb)| {
                usb.vendor == *vendor && usb.product == *product && !chosen.contains(index)
            };
            match free.iter().enumerate().find(is_it) {
                Some((index, _)) => chosen.insert(index),
                None => return sets,
            };
        }
        if chosen.is_empty() {
            return sets;
        }
        let mut devices = Vec::new();
        for index in chosen.into_iter().rev() {
            let usb = free.remove(index);
            devices.push((usb.bus, usb.device));
        }
        devices.reverse();
        let node = |(bus, device): &(u16, u16)| PathBuf::from(format!("/dev/bus/usb/{bus:03}/{device:03}"));
        let names: Vec<String> = devices.iter().map(|(bus, device)| format!("{bus}-{device}")).collect();
        sets.push(HostDevice {
            id: format!("usb-{}", names.join("-")),
            nodes: devices.iter().map(node).collect(),
            address: Address::Usb(devices),
            numa: None,
        });
    }
}

/// The entries of a directory, sorted by name.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// The last part of the path to which a link leads.
fn link(path: &Path, name: &str) -> Option<String> {
    fs::read_link(path.join(name)).ok()?.file_name()?.to_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use barevirt_api::settings::Settings;
    use barevirt_api::v1::KubeVirtSpec;
    use serde_json::json;
    use std::os::unix::fs::symlink;

    fn pci_device(sys: &Path, address: &str, id: &str, driver: &str, group: &str) {
        let path = sys.join("bus/pci/devices").join(address);
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("uevent"), format!("DRIVER={driver}\nPCI_ID={id}\n")).unwrap();
        fs::write(path.join("numa_node"), "1\n").unwrap();
        symlink(format!("../../../bus/pci/drivers/{driver}"), path.join("driver")).unwrap();
        symlink(format!("../../../kernel/iommu_groups/{group}"), path.join("iommu_group")).unwrap();
    }

    #[test]
    fn permitted_devices_bound_to_vfio_are_found() {
        let sys = tempfile::tempdir().unwrap();
        let sys = sys.path();
        pci_device(sys, "0000:65:00.0", "10DE:1EB8", "vfio-pci", "45");
        pci_device(sys, "0000:66:00.0", "10DE:1EB8", "nvidia", "46");
        pci_device(sys, "0000:67:00.0", "8086:1572", "vfio-pci", "47");
        let mediated = sys.join("devices/pci0/0000:03:00.0/53764d0e-85a0-42b4-af5c-2046b460b1dc");
        fs::create_dir_all(mediated.join("mdev_type")).unwrap();
        fs::write(mediated.join("mdev_type/name"), "GRID T4-1Q\n").unwrap();
        fs::write(mediated.parent().unwrap().join("numa_node"), "-1\n").unwrap();
        symlink("../../../../kernel/iommu_groups/60", mediated.join("iommu_group")).unwrap();
        fs::create_dir_all(sys.join("bus/mdev/devices")).unwrap();
        symlink(&mediated, sys.join("bus/mdev/devices").join(mediated.file_name().unwrap())).unwrap();
        for (name, product, device) in [("3-1", "0001", "7"), ("3-2", "0002", "8"), ("3-3", "0001", "9")] {
            let path = sys.join("bus/usb/devices").join(name);
            fs::create_dir_all(&path).unwrap();
            for (file, value) in
                [("idVendor", "46f4"), ("idProduct", product), ("busnum", "3"), ("devnum", device)]
            {
                fs::write(path.join(file), format!("{value}\n")).unwrap();
            }
        }
        let usb = |product: &str| json!({"vendor": "46f4", "product": product});
        let spec: KubeVirtSpec = serde_json::from_value(json!({"configuration": {"permittedHostDevices": {
            "pciHostDevices": [
                {"pciVendorSelector": "10de:1eb8", "resourceName": "nvidia.com/T4"},
                {"pciVendorSelector": "ffff:ffff", "resourceName": "x.io/none"},
                {"pciVendorSelector": "8086:1572", "resourceName": "x.io/theirs", "externalResourceProvider": true},
            ],
            "mediatedDevices": [{"mdevNameSelector": "GRID T4-1Q", "resourceName": "nvidia.com/GRID_T4-1Q"}],
            "usb": [{"resourceName": "x.io/keys", "selectors": [usb("0001"), usb("0002")]}],
        }}}))
        .unwrap();
        let found = find(&Settings::from_kubevirt(Some(&spec)).host_devices, sys);
        let names: Vec<_> = found.iter().map(|(name, devices)| (name.as_str(), devices.len())).collect();
        assert_eq!(
            names,
            [("nvidia.com/GRID_T4-1Q", 1), ("nvidia.com/T4", 1), ("x.io/keys", 1), ("x.io/none", 0)]
        );
        let only = |resource: &str| found[resource][0].clone();
        let card = only("nvidia.com/T4");
        assert_eq!((card.id.as_str(), card.numa), ("45", Some(1)));
        assert_eq!(card.nodes, [PathBuf::from("/dev/vfio/vfio"), PathBuf::from("/dev/vfio/45")]);
        let variable = card.variable("nvidia.com/T4");
        assert_eq!(variable, ("PCI_RESOURCE_NVIDIA_COM_T4".to_owned(), "0000:65:00.0".to_owned()));
        let part = only("nvidia.com/GRID_T4-1Q");
        assert_eq!((part.id.as_str(), part.numa), ("60", None));
        let keys = only("x.io/keys");
        assert_eq!(keys.variable("x.io/keys"), ("USB_RESOURCE_X_IO_KEYS".to_owned(), "3:7,3:8".to_owned()));
        assert_eq!(keys.nodes[1], PathBuf::from("/dev/bus/usb/003/008"));
    }
}
