//! Containers that work for the guest beside the launcher's container: virtiofsd and passt. They should end with the
//! guest; a container that ends before the guest is reported. Pure.

use super::action::Plan;
use super::observed::Observed;
use super::status::{note_trouble, status_patch};
use crate::config::Config;
use barevirt_api::names::{CONDITION_SYNCHRONIZED, REASON_FILESYSTEM_ENDED, REASON_PASST_ENDED};
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_api::{filesystem, passt};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};
use serde_json::json;

/// Message about an instance that needs passt while this process has no image of passt: the option may be
/// missing if this process runs without virt-operator.
pub(super) fn without_passt(vmi: &VirtualMachineInstance, config: &Config) -> Option<String> {
    let interface = passt::of(&vmi.spec).filter(|_| config.settings.pods.passt_image.is_none())?;
    let message = "needs passt, and virt-controller has no image of passt (--passt-image)";
    Some(format!("failed to render launch manifest: interface {} {message}", interface.name))
}

/// Reports a container that ended before its guest. Its service is out of the guest's reach until the guest is started again.
pub(super) fn plan(observed: &Observed, pod: &Pod) -> Plan {
    let vmi = &observed.vmi;
    let Some((reason, message)) = trouble(vmi, pod) else { return Plan::default() };
    let mut status = vmi.status.clone().unwrap_or_default();
    let mut notes = vec![];
    note_trouble(&mut status, &mut notes, CONDITION_SYNCHRONIZED, reason, &message, observed.now);
    let actions = status_patch(vmi, json!({}), &status).into_iter().collect();
    Plan { actions, notes, again: None }
}

fn trouble(vmi: &VirtualMachineInstance, pod: &Pod) -> Option<(&'static str, String)> {
    let joined = passt::of(&vmi.spec).and_then(|interface| {
        let how = ended(pod, passt::CONTAINER)?;
        let message =
            format!("interface {} is not joined to the pod network any more: {how}", interface.name);
        Some((REASON_PASST_ENDED, message))
    });
    joined.or_else(|| {
        filesystem::of(&vmi.spec).find_map(|volume| {
            let how = ended(pod, &filesystem::container(&volume.name))?;
            Some((REASON_FILESYSTEM_ENDED, format!("volume {} is not shared any more: {how}", volume.name)))
        })
    })
}

/// How a container ended, unless it ended with its guest: then it exits successfully.
fn ended(pod: &Pod, name: &str) -> Option<String> {
    let mut statuses = pod.status.as_ref()?.container_statuses.iter().flatten();
    let container = statuses.find(|container| container.name == name)?;
    let end = container.state.as_ref()?.terminated.as_ref().filter(|end| end.exit_code != 0)?;
    let ContainerStateTerminated { exit_code, reason, message, .. } = end;
    let why = reason.as_deref().filter(|reason| !matches!(*reason, "" | "Error"));
    let how = why.map_or_else(|| format!("exit code {exit_code}"), str::to_owned);
    let last = message.as_deref().and_then(|text| text.lines().rev().find(|line| !line.trim().is_empty()));
    let last = last.map(|line| format!(": {}", line.trim())).unwrap_or_default();
    Some(format!("container {name} ended with {how}{last}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, terminated: &serde_json::Value) -> Pod {
        let container = json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": terminated}});
        let status = json!({"phase": "Running", "containerStatuses": [container]});
        serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap()
    }

    #[test]
    fn a_container_that_fails_before_its_guest_is_reported() {
        let data = "virtiofs-data";
        assert_eq!(ended(&pod(data, &json!({"exitCode": 0})), data), None);
        assert_eq!(ended(&pod(data, &json!({"exitCode": 1})), "virtiofs-other"), None);
        let killed = ended(&pod(data, &json!({"exitCode": 137, "reason": "OOMKilled"})), data).unwrap();
        assert_eq!(killed, "container virtiofs-data ended with OOMKilled");
        let failed = json!({"exitCode": 1, "reason": "Error", "message": "first\nlast words\n"});
        let failed = ended(&pod(data, &failed), data).unwrap();
        assert!(failed.ends_with("ended with exit code 1: last words"), "{failed}");
    }

    #[test]
    fn unreachable_containers_are_named() {
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"name": "vm"},
            "spec": {
                "domain": {"devices": {
                    "filesystems": [{"name": "data", "virtiofs": {}}],
                    "interfaces": [{"name": "default", "passtBinding": {}}],
                }},
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            },
        }))
        .unwrap();
        let killed = json!({"exitCode": 137, "reason": "OOMKilled"});
        let (reason, message) = trouble(&vmi, &pod("passt", &killed)).unwrap();
        assert_eq!(reason, "PasstEnded");
        let what = "interface default is not joined to the pod network any more";
        assert_eq!(message, format!("{what}: container passt ended with OOMKilled"));
        let (reason, message) = trouble(&vmi, &pod("virtiofs-data", &killed)).unwrap();
        assert_eq!(reason, "FilesystemEnded");
        let what = "volume data is not shared any more";
        assert_eq!(message, format!("{what}: container virtiofs-data ended with OOMKilled"));
        assert_eq!(trouble(&vmi, &pod("other", &killed)), None);
    }

    #[test]
    fn an_instance_waits_where_there_is_no_image() {
        let vmi = |binding: &str| -> VirtualMachineInstance {
            let devices = json!({"interfaces": [{"name": "default", binding: {}}]});
            serde_json::from_value(json!({"metadata": {}, "spec": {"domain": {"devices": devices}}})).unwrap()
        };
        let mut config = Config {
            launcher_image: "launcher".to_owned(),
            image_pull_policy: None,
            settings: barevirt_api::settings::Settings::default(),
        };
        let message = without_passt(&vmi("passtBinding"), &config).unwrap();
        assert!(message.contains("interface default") && message.contains("--passt-image"), "{message}");
        assert_eq!(without_passt(&vmi("masquerade"), &config), None);
        config.settings.pods.passt_image = Some("passt".to_owned());
        assert_eq!(without_passt(&vmi("passtBinding"), &config), None);
    }
}
