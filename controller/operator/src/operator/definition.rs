//! The definition of the `KubeVirt` kind. The user who installs virt-operator makes it, since the `KubeVirt` object
//! configures the operator. Some installation methods never change it again: Helm leaves existing definitions alone, so that
//! no upgrade deletes objects. So the leading operator gives the definition the fields of its own version. It never deletes
//! it.

use super::NAME;
use crate::objects::definition;
use barevirt_api::crd;
use barevirt_component::request::{Error, call, call_opt};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::Value;
use tracing::info;

/// Updates the definition to this version; writes nothing where it is up to date.
pub(super) async fn keep(client: &Client) -> Result<(), Error> {
    let wanted = crd::kubevirt();
    let name = wanted.metadata.name.clone().unwrap_or_default();
    let subject = || format!("definition {name}");
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let Some(found) = call_opt("get", subject, api.get(&name)).await? else { return Ok(()) };
    let wanted = definition(&wanted);
    if covers(&serde_json::to_value(&found).unwrap_or_default(), &wanted) {
        return Ok(());
    }
    let params = PatchParams::apply(NAME).force();
    call("apply", subject, api.patch(&name, &params, &Patch::Apply(&wanted))).await?;
    info!(definition = name, "applied: it was another version's");
    Ok(())
}

/// Whether everything wanted is there. Additions of the API server or of others are ignored.
fn covers(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => {
            wanted.iter().all(|(key, wanted)| found.get(key).is_some_and(|found| covers(found, wanted)))
        }
        (Value::Array(found), Value::Array(wanted)) => {
            found.len() == wanted.len()
                && found.iter().zip(wanted).all(|(found, wanted)| covers(found, wanted))
        }
        (found, wanted) => found == wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_added_by_the_api_server_are_no_difference_and_lost_fields_are() {
        let wanted = definition(&crd::kubevirt());
        let mut found: CustomResourceDefinition = serde_json::from_value(wanted.clone()).unwrap();
        found.metadata.uid = Some("u".into());
        found.spec.names.list_kind = Some("KubeVirtList".into());
        found.spec.conversion = serde_json::from_value(json!({"strategy": "None"})).unwrap();
        let found = serde_json::to_value(&found).unwrap();
        assert!(covers(&found, &wanted));
        let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
        let mut former = found.clone();
        former.pointer_mut(schema).unwrap().as_object_mut().unwrap().remove("imageTag").unwrap();
        assert!(!covers(&former, &wanted), "the former version did not know the field");
        let mut renamed = found;
        renamed["spec"]["names"]["shortNames"] = json!(["kv"]);
        assert!(!covers(&renamed, &wanted));
    }
}
