//! Network binding plugins.

use crate::quantity;
use crate::settings::{Attachment, LINK_REFRESH};
use crate::syntax::quoted;
use crate::v1::InterfaceBindingPlugin;
use crate::validate::{Cause, Path, networks};
use std::collections::BTreeMap;

/// Everything wrong with the plugins.
pub(super) fn validate(
    path: &Path,
    plugins: &BTreeMap<String, InterfaceBindingPlugin>,
    causes: &mut Vec<Cause>,
) {
    for (name, plugin) in plugins {
        let field = path.child(name);
        if name.is_empty() {
            causes.push(Cause::required(&field, format!("{path}: a plugin must have a name")));
        }
        validate_one(&field, plugin, causes);
    }
}

fn validate_one(path: &Path, plugin: &InterfaceBindingPlugin, causes: &mut Vec<Cause>) {
    let InterfaceBindingPlugin {
        compute_resource_overhead,
        domain_attachment_type,
        downward_api,
        migration,
        network_attachment_definition,
        sidecar_image,
    } = plugin;
    let text = |given: &'_ Option<String>| given.clone().filter(|text| !text.is_empty());
    if text(sidecar_image).is_some() {
        let field = path.child("sidecarImage");
        let why = "a sidecar changes a libvirt domain, and there is no libvirt here: a plugin is served by \
                   its domainAttachmentType alone";
        causes.push(Cause::not_supported(&field, format!("{field} is not supported: {why}")));
    }
    if text(downward_api).is_some() {
        let field = path.child("downwardAPI");
        let why = "it is for sidecars, which are not served";
        causes.push(Cause::not_supported(&field, format!("{field} is not supported: {why}")));
    }
    let field = path.child("domainAttachmentType");
    match text(domain_attachment_type) {
        None => causes.push(Cause::required(&field, format!("{field} must be tap or managedTap"))),
        Some(given) if Attachment::named(&given).is_none() => {
            let message = format!("{field} {} is not one of tap, managedTap", quoted(&given));
            causes.push(Cause::invalid(&field, message));
        }
        Some(_) => {}
    }
    let method = migration.as_ref().and_then(|migration| text(&migration.method));
    if let Some(method) = method.filter(|method| method != LINK_REFRESH) {
        let field = path.child("migration.method");
        let message = format!("{field} {} is not {LINK_REFRESH}", quoted(&method));
        causes.push(Cause::invalid(&field, message));
    }
    let definition = text(network_attachment_definition);
    let field = path.child("networkAttachmentDefinition");
    causes.extend(definition.and_then(|given| networks::misnamed(&field, &given)));
    let Some(overhead) = compute_resource_overhead else { return };
    let path = path.child("computeResourceOverhead");
    for (list, resources) in [("limits", &overhead.limits), ("requests", &overhead.requests)] {
        for (resource, amount) in resources {
            let field = path.child(list).child(resource);
            if (list, resource.as_str()) != ("requests", "memory") {
                let message = format!("{field} is not supported: requests.memory alone is added");
                causes.push(Cause::not_supported(&field, message));
            } else if quantity::bytes(amount).is_err() {
                causes
                    .push(Cause::invalid(&field, format!("{field} {} is not an amount", quoted(&amount.0))));
            }
        }
    }
}
