//! The result of each control in each state of the instance.

use super::*;
use serde_json::{Value, json};

fn vmi(phase: &str, conditions: &[&str], spec: Value) -> VirtualMachineInstance {
    let conditions: Vec<Value> =
        conditions.iter().map(|type_| json!({"type": type_, "status": "True"})).collect();
    let mut object = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "web"},
        "spec": {"domain": {"devices": {}}},
        "status": {"phase": phase, "conditions": conditions},
    });
    for (path, value) in spec.as_object().into_iter().flatten() {
        object["spec"][path] = value.clone();
    }
    serde_json::from_value(object).unwrap()
}

const ALL: [Control; 10] = [
    Control::Pause,
    Control::Unpause,
    Control::Freeze,
    Control::Unfreeze,
    Control::SoftReboot,
    Control::Reset,
    Control::GuestOsInfo,
    Control::UserList,
    Control::FilesystemList,
    Control::Screenshot,
];

/// Code and the end of the message; 200 if the control is possible.
fn judged(control: Control, vmi: &VirtualMachineInstance) -> (u16, String) {
    match judge(control, vmi) {
        Ok(()) => (200, String::new()),
        Err(refusal) => {
            let prefix = "Operation cannot be fulfilled on virtualmachineinstance.kubevirt.io \"web\": ";
            (refusal.code.as_u16(), refusal.message.replace(prefix, ""))
        }
    }
}

#[test]
fn only_what_runs_is_controlled() {
    for phase in ["", "Pending", "Scheduling", "Scheduled", "Succeeded", "Failed", "Unknown"] {
        let vmi = vmi(phase, &["AgentConnected", "Paused"], json!({}));
        for control in ALL {
            let wanted = match control {
                Control::Pause | Control::Freeze | Control::SoftReboot => {
                    (409, "VM is not running".to_owned())
                }
                Control::Unpause
                | Control::Unfreeze
                | Control::GuestOsInfo
                | Control::UserList
                | Control::FilesystemList => (409, "VMI is not running".to_owned()),
                Control::Screenshot => (400, "VMI is not running".to_owned()),
                Control::Reset if phase == "Scheduled" => (200, String::new()),
                Control::Reset => (
                    400,
                    format!(
                        "Failed to reset non-running VMI with phase {phase}: Unable to connect to \
                         VirtualMachineInstance because phase is {phase} instead of Running or Scheduled"
                    ),
                ),
            };
            assert_eq!(judged(control, &vmi), wanted, "{control:?} {phase}");
        }
    }
}

#[test]
fn a_control_is_refused_if_the_guests_state_forbids_it() {
    let running = || vmi("Running", &[], json!({}));
    let with = |conditions: &[&str]| vmi("Running", conditions, json!({}));
    let agent = "VMI does not have guest agent connected";
    let no_acpi = json!({"domain": {"devices": {}, "features": {"acpi": {"enabled": false}}}});
    let neither = "VMI neither have the agent connected nor the ACPI feature enabled";
    let headless = json!({"domain": {"devices": {"autoattachGraphicsDevice": false}}});
    let probe = "virtualmachineinstance.kubevirt.io \"web\" is forbidden: \
                 Pausing VMIs with a non-GuestAgentPing LivenessProbe is not supported";
    for (control, vmi, code, message) in [
        (Control::Pause, running(), 200, ""),
        (Control::Pause, with(&["Paused"]), 409, "VMI is already paused"),
        (
            Control::Pause,
            vmi("Running", &[], json!({"livenessProbe": {"tcpSocket": {"port": 1}}})),
            403,
            probe,
        ),
        (Control::Pause, vmi("Running", &[], json!({"livenessProbe": {"guestAgentPing": {}}})), 200, ""),
        (Control::Unpause, with(&["Paused"]), 200, ""),
        (Control::Unpause, running(), 409, "VMI is not paused"),
        (Control::Freeze, running(), 200, ""),
        (Control::Unfreeze, running(), 200, ""),
        (Control::SoftReboot, running(), 200, ""),
        (Control::SoftReboot, with(&["Paused"]), 409, "VMI is paused"),
        (Control::SoftReboot, vmi("Running", &[], no_acpi.clone()), 409, neither),
        (Control::SoftReboot, vmi("Running", &["AgentConnected"], no_acpi), 200, ""),
        (Control::Reset, with(&["Paused"]), 200, ""),
        (Control::GuestOsInfo, running(), 409, agent),
        (Control::UserList, running(), 409, agent),
        (Control::FilesystemList, running(), 409, agent),
        (Control::FilesystemList, with(&["AgentConnected"]), 200, ""),
        (Control::Screenshot, running(), 200, ""),
        (Control::Screenshot, vmi("Running", &[], headless), 400, "No graphics devices are present."),
    ] {
        assert_eq!(judged(control, &vmi), (code, message.to_owned()), "{control:?}");
    }
}

#[test]
fn every_control_has_a_path_of_its_own() {
    use crate::endpoints::{Call, ENDPOINTS};
    for control in ALL {
        let served: Vec<_> =
            ENDPOINTS.iter().filter(|endpoint| endpoint.call == Call::Control(control)).collect();
        assert_eq!(served.len(), 1, "{control:?}");
        assert_eq!(
            (served[0].path, served[0].verb.method() == Method::PUT),
            (control.path(), control.changes())
        );
    }
    assert!(moves_cursor(Some("a=b&moveCursor=true")) && !moves_cursor(Some("moveCursor=false")));
}

#[test]
fn kubevirts_client_hears_why_the_agent_says_nothing() {
    let refused = judge(Control::GuestOsInfo, &vmi("Running", &[], json!({}))).unwrap_err();
    let answer = in_text(Control::GuestOsInfo, refused.clone()).unwrap();
    assert_eq!(answer.status(), 500);
    assert_eq!(answer.headers()["content-type"], "text/plain");
    // Other controls answer with a `Status`.
    assert_eq!(in_text(Control::UserList, refused.clone()).unwrap_err(), refused);
    let missing = Refusal::not_found("no such instance");
    assert_eq!(in_text(Control::GuestOsInfo, missing.clone()).unwrap_err(), missing);
}
