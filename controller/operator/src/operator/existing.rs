//! Workloads that would be lost with an installation: checked before its removal.

use barevirt_component::request::Error;
use barevirt_component::request::call_opt;
use kube::Client;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::ApiResource;

/// Kinds that block the removal of a KubeVirt with `BlockUninstallIfWorkloadsExist`: name, plural, display name.
const KINDS: [(&str, &str, &str); 3] = [
    ("VirtualMachineInstance", "virtualmachineinstances", "Virtual Machine Instances"),
    ("VirtualMachine", "virtualmachines", "Virtual Machines"),
    (
        "VirtualMachineInstanceReplicaSet",
        "virtualmachineinstancereplicasets",
        "Virtual Machine Instance Replica Sets",
    ),
];

/// The first workload found, for a message.
pub(super) async fn workloads(client: &Client) -> Result<Option<String>, Error> {
    for (kind, plural, words) in KINDS {
        let resource = ApiResource {
            group: "kubevirt.io".to_owned(),
            version: "v1".to_owned(),
            api_version: "kubevirt.io/v1".to_owned(),
            kind: kind.to_owned(),
            plural: plural.to_owned(),
        };
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let params = ListParams::default().limit(1);
        let found = call_opt("list", || plural.to_owned(), api.list_metadata(&params)).await?;
        if let Some(first) = found.and_then(|list| list.items.into_iter().next()) {
            let namespace = first.namespace().unwrap_or_default();
            return Ok(Some(format!("{words} present, such as {namespace}/{}", first.name_any())));
        }
    }
    Ok(None)
}
