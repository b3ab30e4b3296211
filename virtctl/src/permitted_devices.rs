//! permitted-devices: which devices of the nodes may be passed through.

use anyhow::Context;
use barevirt_api::v1::KubeVirt;
use clap::Args;
use kube::Api;
use kube::api::ListParams;
use serde_json::Value;

use crate::session::{self, Session};

/// Arguments of `virtctl permitted-devices`.
#[derive(Debug, Args)]
pub(crate) struct PermittedDevices {}

impl PermittedDevices {
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let namespace = &session.namespace;
        let api: Api<KubeVirt> = Api::namespaced(session.client.clone(), namespace);
        let list = api.list(&ListParams::default()).await.map_err(session::plain)?;
        let kubevirt = list.items.first();
        let kubevirt =
            kubevirt.with_context(|| format!("no KubeVirt resource in {namespace:?} namespace"))?;
        print!("{}", text(&serde_json::to_value(kubevirt)?["spec"]["configuration"]["permittedHostDevices"]));
        Ok(())
    }
}

/// Names of the resources, as KubeVirt prints them.
fn text(permitted: &Value) -> String {
    let names = |kind: &str| {
        let devices = permitted[kind].as_array().cloned().unwrap_or_default();
        let names = devices.iter().filter_map(|device| device["resourceName"].as_str().map(str::to_owned));
        names.collect::<Vec<_>>().join(", ")
    };
    format!(
        "Permitted Devices: \nHost Devices: \n{} \nGPU Devices: \n{}\n",
        names("pciHostDevices"),
        names("mediatedDevices")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_of_resources() {
        let permitted = json!({
            "pciHostDevices": [{"resourceName": "a/b"}, {"resourceName": "c/d"}],
            "mediatedDevices": [{"resourceName": "e/f"}]});
        let wanted = "Permitted Devices: \nHost Devices: \na/b, c/d \nGPU Devices: \ne/f\n";
        assert_eq!(text(&permitted), wanted);
        assert_eq!(text(&Value::Null), "Permitted Devices: \nHost Devices: \n \nGPU Devices: \n\n");
    }
}
