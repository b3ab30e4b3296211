//! The definition of DataVolumes, for clusters without CDI. Rules in the definition make the API server
//! refuse the fields that we do not serve. They go away when CDI replaces our definition with its own.

use super::DataVolume;
use crate::crd;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, ValidationRule,
};
use kube_core::CustomResourceExt;

/// Longest address of a source, in bytes.
pub(super) const LONGEST_URL: i64 = 8192;

/// A rule about one schema of the specification.
pub(super) struct Rule {
    /// Members on the path from the specification to the schema of the rule.
    pub(super) at: &'static [&'static str],
    /// Expression in CEL.
    pub(super) rule: &'static str,
    /// Message for users.
    pub(super) message: &'static str,
    /// Field that the message is about, below `at`.
    pub(super) field: &'static str,
}

/// Rules that hold wherever an image is named: in DataVolumes, and in the kinds that populate claims.
const SHARED: &[Rule] = &[
    Rule {
        at: &[],
        rule: "!has(self.contentType) || self.contentType in ['', 'kubevirt', 'archive']",
        message: "contentType is kubevirt (a disk image) or archive",
        field: ".contentType",
    },
    Rule {
        at: &[],
        rule: "!has(self.checkpoints) || size(self.checkpoints) == 0",
        message: "warm imports are served by CDI alone, and this cluster has none",
        field: ".checkpoints",
    },
    not_served("!has(self.gcs)", ".gcs"),
    not_served("!has(self.imageio)", ".imageio"),
    not_served("!has(self.vddk)", ".vddk"),
    Rule {
        at: &["source", "http"],
        rule: "self.url.startsWith('http://') || self.url.startsWith('https://')",
        message: "url must begin with http:// or https://",
        field: ".url",
    },
    Rule {
        at: &["source", "http"],
        rule: "!has(self.insecureSkipVerify) || !self.insecureSkipVerify",
        message: "a server's certificate is always checked: give its authority in certConfigMap, or a checksum and http",
        field: ".insecureSkipVerify",
    },
    Rule {
        at: &["source", "registry"],
        rule: "has(self.url) && self.url.startsWith('docker://')",
        message: "url must be given, and begin with docker://",
        field: ".url",
    },
    Rule {
        at: &["source", "registry"],
        rule: "!has(self.imageStream)",
        message: "image streams are served by CDI alone, and this cluster has none",
        field: ".imageStream",
    },
    Rule {
        at: &["source", "registry"],
        rule: "!has(self.pullMethod) || self.pullMethod in ['pod', 'node']",
        message: "pullMethod is pod or node",
        field: ".pullMethod",
    },
    Rule {
        at: &["source", "registry"],
        rule: "!has(self.secretRef) || self.secretRef == '' || !has(self.pullMethod) || self.pullMethod != 'node'",
        message: "a node that pulls the image has credentials of its own",
        field: ".secretRef",
    },
    Rule {
        at: &["source", "registry"],
        rule: "!has(self.certConfigMap) || self.certConfigMap == '' || !has(self.pullMethod) || self.pullMethod != 'node'",
        message: "a node that pulls the image has authorities of its own",
        field: ".certConfigMap",
    },
    Rule {
        at: &["source", "s3"],
        rule: "self.url.startsWith('http://') || self.url.startsWith('https://')",
        message: "url must begin with http:// or https://, and name endpoint, bucket and object",
        field: ".url",
    },
];

/// Rules of DataVolumes alone.
const RULES: &[Rule] = &[
    Rule {
        at: &[],
        rule: "has(self.source) || has(self.sourceRef)",
        message: "one of source and sourceRef must be given",
        field: "",
    },
    Rule {
        at: &[],
        rule: "!has(self.source) || !has(self.sourceRef)",
        message: "only one of source and sourceRef can be given",
        field: ".sourceRef",
    },
    Rule {
        at: &["sourceRef"],
        rule: "self.kind == 'DataSource'",
        message: "a source can be named by a DataSource alone",
        field: ".kind",
    },
    Rule {
        at: &[],
        rule: "has(self.pvc) != has(self.storage)",
        message: "exactly one of pvc and storage must be given",
        field: "",
    },
    Rule {
        at: &[],
        rule: "!has(self.contentType) || self.contentType != 'archive' || has(self.source) && \
            (has(self.source.http) || has(self.source.s3) || has(self.source.upload))",
        message: "an archive can be the content of the sources http, s3 and upload only",
        field: ".contentType",
    },
    Rule {
        at: &[],
        rule: "!has(self.contentType) || self.contentType != 'archive' || !has(self.pvc) || \
            !has(self.pvc.volumeMode) || self.pvc.volumeMode != 'Block'",
        message: "an archive needs a claim with a file system",
        field: ".pvc.volumeMode",
    },
    Rule {
        at: &[],
        rule: "!has(self.contentType) || self.contentType != 'archive' || !has(self.storage) || \
            !has(self.storage.volumeMode) || self.storage.volumeMode != 'Block'",
        message: "an archive needs a claim with a file system",
        field: ".storage.volumeMode",
    },
    Rule {
        at: &["pvc"],
        rule: "has(self.resources) && has(self.resources.requests) && 'storage' in self.resources.requests",
        message: "resources.requests.storage must be given",
        field: ".resources",
    },
    Rule {
        at: &["pvc"],
        rule: "!has(self.dataSource) && !has(self.dataSourceRef)",
        message: "a claim that is filled from a source has no data source of its own",
        field: "",
    },
    Rule {
        at: &[],
        rule: "!has(self.storage) || has(self.sourceRef) || has(self.source) && has(self.source.pvc) || has(self.storage.resources) && \
            has(self.storage.resources.requests) && 'storage' in self.storage.resources.requests",
        message: "storage.resources.requests.storage must be given, except for a copy",
        field: ".storage",
    },
    Rule {
        at: &["storage"],
        rule: "!has(self.dataSource) && !has(self.dataSourceRef)",
        message: "a claim that is filled from a source has no data source of its own",
        field: "",
    },
    Rule {
        at: &["source"],
        rule: "[has(self.blank), has(self.gcs), has(self.http), has(self.imageio), has(self.pvc), has(self.registry), \
            has(self.s3), has(self.snapshot), has(self.upload), has(self.vddk)].filter(given, given).size() == 1",
        message: "exactly one source must be given",
        field: "",
    },
    not_served("!has(self.snapshot)", ".snapshot"),
    // An importer that is started again would go on with other settings. CDI refuses it, too.
    Rule { at: &[], rule: "self == oldSelf", message: "Cannot update DataVolume Spec", field: "" },
];

const fn not_served(rule: &'static str, field: &'static str) -> Rule {
    Rule {
        at: &["source"],
        rule,
        message: "this source is served by CDI alone, and this cluster has none",
        field,
    }
}

/// The definition that is installed in clusters without CDI.
pub fn definition() -> CustomResourceDefinition {
    judged(DataVolume::crd(), RULES)
}

/// The definition of a kind that has sources as DataVolumes have them, with the rules of those and its own.
pub(super) fn judged(definition: CustomResourceDefinition, rules: &[Rule]) -> CustomResourceDefinition {
    let mut definition = crd::without_unsigned(definition);
    for version in &mut definition.spec.versions {
        let Some(schema) = crd::schema(version) else { continue };
        judge_source(schema);
        judge(schema, rules);
    }
    definition
}

/// Adds rules to the specification of that schema, which may lack some of their members.
pub(super) fn judge(schema: &mut JSONSchemaProps, rules: &[Rule]) {
    for Rule { at, rule, message, field } in rules {
        let path: Vec<&str> = ["spec"].iter().chain(*at).copied().collect();
        let Some(schema) = below(schema, &path) else { continue };
        self::rule(schema, rule, message, field);
    }
}

/// Adds the rules about sources, content and checkpoints that DataVolumes have, too, and the longest addresses.
fn judge_source(schema: &mut JSONSchemaProps) {
    for source in ["http", "registry", "s3"] {
        if let Some(url) = below(schema, &["spec", "source", source, "url"]) {
            url.max_length = Some(LONGEST_URL);
        }
    }
    for rule in SHARED {
        // A rule about a member that this kind does not have would not compile.
        let member =
            rule.field.strip_prefix('.').map(|member| [["spec"].as_slice(), rule.at, &[member]].concat());
        if member.is_none_or(|path| below(schema, &path).is_some()) {
            judge(schema, std::slice::from_ref(rule));
        }
    }
}

/// Adds a rule. `field` is the field that the message is about, below the schema.
pub(super) fn rule(schema: &mut JSONSchemaProps, rule: &str, message: &str, field: &str) {
    schema.x_kubernetes_validations.get_or_insert_default().push(ValidationRule {
        rule: rule.to_owned(),
        message: Some(message.to_owned()),
        field_path: (!field.is_empty()).then(|| field.to_owned()),
        ..ValidationRule::default()
    });
}

pub(super) fn below<'a>(schema: &'a mut JSONSchemaProps, path: &[&str]) -> Option<&'a mut JSONSchemaProps> {
    path.iter().try_fold(schema, |schema, member| schema.properties.as_mut()?.get_mut(*member))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_about_something_and_names_what_is_there() {
        let mut definition = definition();
        assert_eq!(definition.metadata.name.as_deref(), Some("datavolumes.cdi.kubevirt.io"));
        let schema = crd::schema(&mut definition.spec.versions[0]).unwrap();
        for rule in SHARED.iter().chain(RULES) {
            let path: Vec<&str> = ["spec"].iter().chain(rule.at).copied().collect();
            let found = below(schema, &path).unwrap_or_else(|| panic!("{path:?}"));
            let rules = found.x_kubernetes_validations.as_ref().unwrap();
            assert!(rules.iter().any(|found| found.rule == rule.rule), "{}", rule.rule);
            if let Some(field) = rule.field.strip_prefix('.') {
                let below_it: Vec<&str> = field.split('.').collect();
                assert!(below(found, &below_it).is_some(), "{} of {path:?}", rule.field);
            }
        }
    }

    #[test]
    fn each_source_is_either_served_or_refused() {
        let mut definition = definition();
        let schema = crd::schema(&mut definition.spec.versions[0]).unwrap();
        let source = below(schema, &["spec", "source"]).unwrap();
        for name in source.properties.as_ref().unwrap().keys() {
            let served = ["blank", "http", "pvc", "registry", "s3", "upload"].contains(&name.as_str());
            let refused = SHARED.iter().chain(RULES).any(|rule| rule.rule == format!("!has(self.{name})"));
            assert!(served != refused, "{name}");
            assert!(
                RULES.iter().any(|rule| rule.rule.contains(&format!("has(self.{name}),"))
                    || rule.rule.contains(&format!("has(self.{name})]"))),
                "{name}"
            );
        }
    }
}
