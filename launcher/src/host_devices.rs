//! Devices of the node that this pod has. The kubelet passes the choice of its device plugins in environment
//! variables:
//!
//! | variable | value |
//! |---|---|
//! | `PCI_RESOURCE_<RESOURCE>` | addresses, such as `0000:65:00.0,0000:66:00.0` |
//! | `MDEV_PCI_RESOURCE_<RESOURCE>` | UUIDs of mediated devices |
//! | `USB_RESOURCE_<RESOURCE>` | bus and device number, such as `3:7,3:8` |
//!
//! `<RESOURCE>` is the resource's name in capitals, with `_` instead of `/` and `.`. Other device plugins
//! follow the same rule.

use std::collections::{BTreeMap, VecDeque};

use barevirt_api::names::{MEDIATED_VARIABLE, PCI_VARIABLE, USB_VARIABLE, device_variable};
use barevirt_api::valid::ValidVmi;
use barevirt_machine::HostSource;

/// Why an entry of the manifest has no device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostDeviceError {
    /// The pod has none, or too few.
    #[error("{field}: this pod was given no device of {resource} for it: none is left in {variable}")]
    Missing {
        /// Path of the entry.
        field: String,
        /// The resource.
        resource: String,
        /// The variables that were read.
        variable: String,
    },
    /// A value in the environment is not a device.
    #[error("{variable}: {value:?} is not a {what}")]
    Value {
        /// The variable.
        variable: String,
        /// A value of its list.
        value: String,
        /// The expected form.
        what: &'static str,
    },
}

/// The devices of each entry of the manifest, by its path.
///
/// # Errors
/// Names the first entry without a device, or the value that cannot be read.
pub fn given(
    vmi: &ValidVmi,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Vec<(String, Vec<HostSource>)>, HostDeviceError> {
    let mut shares: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, resource) in vmi.host_devices() {
        *shares.entry(resource).or_default() += 1;
    }
    let mut pools = BTreeMap::new();
    for (resource, entries) in shares {
        pools.insert(resource, pool(resource, entries, &environment)?);
    }
    vmi.host_devices()
        .map(|(field, resource)| match pools.get_mut(resource).and_then(VecDeque::pop_front) {
            Some(sources) => Ok((field, sources)),
            None => Err(HostDeviceError::Missing {
                field,
                resource: resource.to_owned(),
                variable: [PCI_VARIABLE, MEDIATED_VARIABLE, USB_VARIABLE]
                    .map(|prefix| device_variable(prefix, resource))
                    .join(", "),
            }),
        })
        .collect()
}

/// The devices of each entry of a resource. A USB resource may consist of several devices, which all belong
/// to one entry.
fn pool(
    resource: &str,
    entries: usize,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<VecDeque<Vec<HostSource>>, HostDeviceError> {
    let read = |prefix: &str, what: &'static str, parse: fn(&str) -> Option<HostSource>| {
        let variable = device_variable(prefix, resource);
        let text = environment(&variable).unwrap_or_default();
        let values = text.split(',').map(str::trim).filter(|value| !value.is_empty());
        let parsed = values.map(|value| {
            parse(value).ok_or_else(|| HostDeviceError::Value {
                variable: variable.clone(),
                value: value.to_owned(),
                what,
            })
        });
        parsed.collect::<Result<Vec<_>, _>>()
    };
    let single =
        [read(PCI_VARIABLE, "PCI address", pci)?, read(MEDIATED_VARIABLE, "UUID", mediated)?].concat();
    let usb = read(USB_VARIABLE, "number of a bus and a device", usb)?;
    let share = usb.len().div_ceil(entries.max(1)).max(1);
    let sets = usb.chunks(share).map(<[_]>::to_vec);
    Ok(single.into_iter().map(|source| vec![source]).chain(sets).collect())
}

fn pci(value: &str) -> Option<HostSource> {
    value.parse().ok().map(HostSource::Pci)
}

fn mediated(value: &str) -> Option<HostSource> {
    let is_uuid =
        value.len() == 36 && value.chars().all(|letter| letter.is_ascii_hexdigit() || letter == '-');
    is_uuid.then(|| HostSource::Mediated(value.to_owned()))
}

fn usb(value: &str) -> Option<HostSource> {
    let (bus, device) = value.split_once(':')?;
    Some(HostSource::Usb { bus: bus.parse().ok()?, device: device.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn vmi(gpus: &[&str], others: &[&str]) -> ValidVmi {
        let entries = |names: &[&str]| -> Vec<serde_json::Value> {
            let entry = |(at, name)| json!({"name": format!("d{at}"), "deviceName": name});
            names.iter().enumerate().map(entry).collect()
        };
        let vmi = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "a", "namespace": "b"},
            "spec": {"domain": {"memory": {"guest": "64Mi"},
                "devices": {"gpus": entries(gpus), "hostDevices": entries(others)}}},
        });
        ValidVmi::new(serde_json::from_value(vmi).unwrap()).unwrap()
    }

    fn of(
        vmi: &ValidVmi,
        environment: &[(&str, &str)],
    ) -> Result<Vec<(String, Vec<HostSource>)>, HostDeviceError> {
        given(vmi, |name| {
            environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn each_entry_has_its_own() {
        let vmi =
            vmi(&["nvidia.com/T4", "nvidia.com/grid_t4-1q"], &["nvidia.com/T4", "x.io/keys", "x.io/keys"]);
        let uuid = "53764d0e-85a0-42b4-af5c-2046b460b1dc";
        let given = of(
            &vmi,
            &[
                ("PCI_RESOURCE_NVIDIA_COM_T4", "0000:65:00.0, 0000:66:00.1"),
                ("MDEV_PCI_RESOURCE_NVIDIA_COM_GRID_T4-1Q", uuid),
                ("USB_RESOURCE_X_IO_KEYS", "3:7,3:8,4:1,4:2"),
            ],
        )
        .unwrap();
        let field = |list: &str, at: usize| format!("spec.domain.devices.{list}[{at}]");
        let usb = |bus, devices: [u16; 2]| devices.map(|device| HostSource::Usb { bus, device }).to_vec();
        assert_eq!(
            given,
            [
                (field("gpus", 0), vec![HostSource::Pci("0000:65:00.0".parse().unwrap())]),
                (field("gpus", 1), vec![HostSource::Mediated(uuid.into())]),
                (field("hostDevices", 0), vec![HostSource::Pci("0000:66:00.1".parse().unwrap())]),
                (field("hostDevices", 1), usb(3, [7, 8])),
                (field("hostDevices", 2), usb(4, [1, 2])),
            ]
        );
    }

    #[test]
    fn missing_host_devices_are_named() {
        let error = of(&vmi(&["a.b/c"], &[]), &[]).unwrap_err().to_string();
        assert!(error.starts_with("spec.domain.devices.gpus[0]: "), "{error}");
        assert!(error.contains("a.b/c") && error.contains(" PCI_RESOURCE_A_B_C,"), "{error}");
        let one = [("PCI_RESOURCE_A_B_C", "0000:65:00.0")];
        let error = of(&vmi(&["a.b/c"], &["a.b/c"]), &one).unwrap_err();
        assert!(matches!(error, HostDeviceError::Missing { field, .. } if field.contains("hostDevices[0]")));
    }

    #[test]
    fn an_invalid_device_address_is_not_passed_to_qemu() {
        for (variable, value) in [
            ("PCI_RESOURCE_A_B_C", "0000:65:00.0,display=on"),
            ("PCI_RESOURCE_A_B_C", "65:00.0"),
            ("MDEV_PCI_RESOURCE_A_B_C", "../../x"),
            ("USB_RESOURCE_A_B_C", "1"),
            ("USB_RESOURCE_A_B_C", "1:70000"),
        ] {
            let error = of(&vmi(&["a.b/c"], &[]), &[(variable, value)]).unwrap_err();
            assert!(matches!(error, HostDeviceError::Value { .. }), "{value}: {error}");
        }
    }
}
