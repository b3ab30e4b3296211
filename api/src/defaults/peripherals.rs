//! Defaults of the tablet and the watchdog.

use crate::v1::{Input, VirtualMachineInstanceSpec};

/// Name of the default tablet.
const TABLET_NAME: &str = "default-0";

/// Adds the tablet if it is requested and none is listed. A preference may choose its bus.
pub(super) fn tablet(spec: &mut VirtualMachineInstanceSpec) {
    let devices = &mut spec.domain.devices;
    if devices.autoattach_input_device.unwrap_or(false) && devices.inputs.is_empty() {
        devices.inputs.push(Input { name: TABLET_NAME.to_owned(), ..Input::default() });
    }
}

pub(super) fn complete(spec: &mut VirtualMachineInstanceSpec) {
    let devices = &mut spec.domain.devices;
    for input in &mut devices.inputs {
        if input.bus.as_deref().is_none_or(str::is_empty) {
            input.bus = Some("usb".to_owned());
        }
        if input.type_.is_empty() {
            "tablet".clone_into(&mut input.type_);
        }
    }
    if let Some(watchdog) = devices.watchdog.as_mut().filter(|watchdog| watchdog.diag288.is_none()) {
        let action = &mut watchdog.i6300esb.get_or_insert_default().action;
        if action.as_deref().is_none_or(str::is_empty) {
            *action = Some("reset".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_requested_tablet_is_added_if_no_input_is_listed() {
        for (devices, tablets) in [
            (json!({}), vec![]),
            (json!({"autoattachInputDevice": false}), vec![]),
            (json!({"autoattachInputDevice": true}), vec!["default-0"]),
            (
                json!({"autoattachInputDevice": true, "inputs": [{"name": "mine", "type": "tablet"}]}),
                vec!["mine"],
            ),
        ] {
            let mut spec = serde_json::from_value(json!({"domain": {"devices": devices}})).unwrap();
            tablet(&mut spec);
            complete(&mut spec);
            let inputs = &spec.domain.devices.inputs;
            assert_eq!(inputs.iter().map(|input| input.name.as_str()).collect::<Vec<_>>(), tablets);
            assert!(
                inputs.iter().all(|input| input.type_ == "tablet" && input.bus.as_deref() == Some("usb"))
            );
        }
    }

    #[test]
    fn a_watchdog_resets() {
        let devices = json!({"watchdog": {"name": "w"}});
        let mut spec: VirtualMachineInstanceSpec =
            serde_json::from_value(json!({"domain": {"devices": devices}})).unwrap();
        complete(&mut spec);
        let watchdog = spec.domain.devices.watchdog.unwrap();
        assert_eq!(watchdog.i6300esb.unwrap().action.as_deref(), Some("reset"));
    }
}
