//! A Helm chart: the objects of [`crate::manifest`] and the `KubeVirt` object, with the user's choices as values.
//!
//! ```text
//! manifest(placeholders) --templates--> templates/operator.yaml   --helm template--> the objects of manifest()
//! definition of KubeVirt ----------------> crds/kubevirt.yaml
//! manifests/chart/{Chart,values}.yaml ---> the same, with version, registry, tag and digests
//! ```
//!
//! The definition is in `crds/`, which Helm creates first: a chart cannot contain an object of a kind that its own templates
//! define. Helm neither changes nor deletes it afterwards; virt-operator gives it the fields of its version
//! (`operator::definition`). The namespace, the priority class and the `KubeVirt` object stay when the release is
//! uninstalled: without them the running installation would be lost.

use crate::manifest::OWN;
use crate::yaml::{self, YamlError};
use crate::{INSTALLED, Images, Reference, manifest};
use barevirt_api::names::INSTALL_NAMESPACE;
use serde_json::{Value, json};

/// Annotation that keeps Helm from deleting an object.
pub const KEEP: (&str, &str) = ("helm.sh/resource-policy", "keep");
/// Kinds with this annotation, in addition to the `KubeVirt` object.
const KEPT: [&str; 2] = ["Namespace", "PriorityClass"];
/// Placeholders for values while the objects are made: no object contains these words.
const POLICY: &str = "PLACEHOLDER-policy";
const IMAGE: &str = "PLACEHOLDER-image";
const PINNED: &str = "PLACEHOLDER-pinned";
const SECRETS: &str = "PLACEHOLDER-secrets";

/// A file of the chart could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ChartError {
    /// An object has no YAML form.
    #[error(transparent)]
    Yaml(#[from] YamlError),
    /// A hand-written file lacks a line that is to be filled in.
    #[error("manifests/chart/{file} has no line {line:?}")]
    Line {
        /// The file.
        file: &'static str,
        /// The line.
        line: &'static str,
    },
}

/// All files of the chart in that version for these images: path below the chart, and text.
///
/// # Errors
/// A hand-written file was changed and has no place for a value.
pub fn files(version: &str, images: &Images) -> Result<Vec<(&'static str, String)>, ChartError> {
    Ok(vec![
        ("Chart.yaml", chart(version, images)?),
        ("values.yaml", values(images)?),
        ("crds/kubevirt.yaml", yaml::print(&definitions(images))?),
        (
            "templates/_helpers.tpl",
            include_str!("../../../manifests/chart/templates/_helpers.tpl").to_owned(),
        ),
        ("templates/NOTES.txt", include_str!("../../../manifests/chart/templates/NOTES.txt").to_owned()),
        (
            "templates/kubevirt.yaml",
            include_str!("../../../manifests/chart/templates/kubevirt.yaml").to_owned(),
        ),
        ("templates/operator.yaml", templates()?),
    ])
}

/// Version of the chart in the repository.
pub const DEVEL: &str = "0.0.0-devel";

fn chart(version: &str, images: &Images) -> Result<String, ChartError> {
    let text = include_str!("../../../manifests/chart/Chart.yaml");
    let text = filled("Chart.yaml", text, "version: 0.0.0-devel", format!("version: {}", scalar(version)?))?;
    filled("Chart.yaml", &text, "appVersion: devel", format!("appVersion: {}", scalar(&images.tag)?))
}

fn values(images: &Images) -> Result<String, ChartError> {
    let file = "values.yaml";
    let text = include_str!("../../../manifests/chart/values.yaml");
    let registry = format!("  registry: {}", scalar(&images.registry)?);
    let text = filled(file, text, "  registry: localhost/barevirt", registry)?;
    let text = filled(file, &text, "  tag: devel", format!("  tag: {}", scalar(&images.tag)?))?;
    let policy = format!("  pullPolicy: {}", scalar(&images.pull_policy)?);
    let text = filled(file, &text, "  pullPolicy: IfNotPresent", policy)?;
    let digests: Vec<String> = [crate::operator::NAME]
        .iter()
        .chain(&INSTALLED)
        .filter_map(|name| {
            let digest = Reference::read(images.pinned.get(*name)?).ok()?.digest?;
            Some(format!("\n    {name}: {digest}"))
        })
        .collect();
    if digests.is_empty() {
        return Ok(text);
    }
    filled(file, &text, "  digests: {}", format!("  digests:{}", digests.concat()))
}

/// Replaces one line by another.
fn filled(file: &'static str, text: &str, line: &'static str, with: String) -> Result<String, ChartError> {
    let mut lines: Vec<&str> = text.lines().collect();
    let place = lines.iter().position(|known| *known == line).ok_or(ChartError::Line { file, line })?;
    lines[place] = &with;
    Ok(lines.join("\n") + "\n")
}

fn scalar(text: &str) -> Result<String, YamlError> {
    Ok(yaml::document(&json!(text))?.trim_end().to_owned())
}

fn is_definition(object: &Value) -> bool {
    object["kind"] == "CustomResourceDefinition"
}

fn definitions(images: &Images) -> Vec<Value> {
    manifest(images).into_iter().filter(is_definition).collect()
}

/// Everything of the manifest except the definition, with template expressions for values.
fn templates() -> Result<String, YamlError> {
    let images = Images {
        registry: IMAGE.to_owned(),
        tag: IMAGE.to_owned(),
        pull_policy: POLICY.to_owned(),
        pinned: [(crate::operator::NAME.to_owned(), IMAGE.to_owned())].into(),
    };
    let mut text = yaml::HEAD.to_owned();
    for mut object in manifest(&images).into_iter().filter(|object| !is_definition(object)) {
        if KEPT.iter().any(|kind| object["kind"] == *kind) {
            object["metadata"]["annotations"][KEEP.0] = json!(KEEP.1);
        }
        if object["kind"] == "Deployment" {
            let pod = &mut object["spec"]["template"]["spec"];
            pod["imagePullSecrets"] = json!(SECRETS);
            for variable in pod["containers"][0]["env"].as_array_mut().into_iter().flatten() {
                if variable["name"] == OWN.version {
                    *variable = json!(PINNED);
                }
            }
        }
        let document = yaml::document(&object)?;
        let template: Vec<String> = document.lines().map(template).collect();
        let document = format!("---\n{}\n", template.join("\n"));
        match object["kind"] == "Namespace" {
            false => text.push_str(&document),
            true => text.push_str(&format!(
                "{{{{- if and .Values.namespace.create (ne .Release.Namespace \"{INSTALL_NAMESPACE}\") }}}}\n\
                 {document}{{{{- end }}}}\n"
            )),
        }
    }
    Ok(text)
}

/// A line of an object as a line of a template.
fn template(line: &str) -> String {
    let indent = line.len() - line.trim_start().len();
    let pad = " ".repeat(indent);
    let line = line.replace("{{", "{{ \"{{\" }}");
    match line.trim_start() {
        word if word == format!("- {PINNED}") => {
            format!("{pad}{{{{- include \"barevirt.pinned\" . | nindent {indent} }}}}")
        }
        word if word == format!("imagePullSecrets: {SECRETS}") => format!(
            "{pad}{{{{- with .Values.imagePullSecrets }}}}\n\
             {pad}imagePullSecrets: {{{{- toYaml . | nindent {indent} }}}}\n\
             {pad}{{{{- end }}}}"
        ),
        _ => line
            .replace(IMAGE, "{{ include \"barevirt.image\" (list . \"virt-operator\") }}")
            .replace(POLICY, "{{ .Values.image.pullPolicy }}"),
    }
}

#[cfg(test)]
mod tests;
