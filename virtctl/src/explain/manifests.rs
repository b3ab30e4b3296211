//! Manifests from files, sorted by kind. Pure except for reading the files.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use barevirt_api::instancetype::expand::{Lookup, Lookups};
use barevirt_api::instancetype::matcher::{Family, Matcher, Scope};
use barevirt_api::instancetype::revision;
use barevirt_api::v1::{KubeVirt, VirtualMachine};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Largest file, in bytes: the limit of an API server.
const LARGEST: u64 = 3 << 20;

/// The objects of the files.
#[derive(Debug, Default)]
pub(crate) struct Manifests {
    /// Machines and instances, in their order.
    pub(crate) subjects: Vec<Value>,
    /// Instance types and preferences.
    named: Vec<Value>,
    /// The settings of the installation.
    pub(crate) kubevirt: Option<KubeVirt>,
    /// Kind and name of each object that is not explained.
    pub(crate) others: Vec<String>,
}

/// Text of a file, or of standard input.
pub(crate) fn read(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let source: Box<dyn std::io::Read> = if path == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path).with_context(|| format!("open {}", path.display()))?)
    };
    source.take(LARGEST + 1).read_to_string(&mut text).with_context(|| format!("read {}", path.display()))?;
    if text.len() as u64 > LARGEST {
        bail!("{} has more than {LARGEST} bytes", path.display());
    }
    Ok(text)
}

impl Manifests {
    /// Reads all objects of the files.
    pub(crate) fn load(paths: &[PathBuf]) -> anyhow::Result<Self> {
        let mut manifests = Self::default();
        for path in paths {
            manifests.add(&read(path)?).with_context(|| format!("manifest {}", path.display()))?;
        }
        manifests.with_subjects()
    }

    /// Reads all objects of one text.
    pub(crate) fn of_text(text: &str) -> anyhow::Result<Self> {
        let mut manifests = Self::default();
        manifests.add(text).context("the manifest")?;
        manifests.with_subjects()
    }

    fn with_subjects(self) -> anyhow::Result<Self> {
        if self.subjects.is_empty() {
            let held = if self.others.is_empty() {
                String::new()
            } else {
                format!(", but {}", self.others.join(", "))
            };
            bail!("there is no VirtualMachine and no VirtualMachineInstance of kubevirt.io in it{held}");
        }
        Ok(self)
    }

    /// Adds the documents of one text.
    pub(crate) fn add(&mut self, text: &str) -> anyhow::Result<()> {
        let options = serde_saphyr::options! { legacy_octal_numbers: true };
        let documents: Vec<Value> =
            serde_saphyr::from_multiple_with_options(text, options).context("is not YAML")?;
        documents.into_iter().try_for_each(|document| self.take(document))
    }

    /// Adds one document; a list adds its items.
    pub(crate) fn take(&mut self, document: Value) -> anyhow::Result<()> {
        if document.is_null() {
            return Ok(());
        }
        let kind = document["kind"].as_str().unwrap_or_default();
        let group = document["apiVersion"].as_str().unwrap_or_default().split('/').next().unwrap_or_default();
        match (group, kind) {
            ("v1", "List") => {
                for item in document["items"].as_array().into_iter().flatten() {
                    self.take(item.clone())?;
                }
            }
            ("kubevirt.io", "VirtualMachine" | "VirtualMachineInstance") => self.subjects.push(document),
            ("kubevirt.io", "KubeVirt") => {
                self.kubevirt = Some(serde_json::from_value(document).context("KubeVirt")?);
            }
            ("instancetype.kubevirt.io", _) => self.named.push(document),
            _ => self.others.push(describe(&document)),
        }
        Ok(())
    }

    /// The objects that a machine refers to, from the same files.
    pub(crate) fn lookups(&self, vm: &VirtualMachine) -> Lookups {
        Lookups {
            instancetype: self.lookup(vm, Family::Instancetype),
            preference: self.lookup(vm, Family::Preference),
        }
    }

    fn lookup<T: DeserializeOwned>(&self, vm: &VirtualMachine, family: Family) -> Lookup<T> {
        let Some(matcher) = family.matcher(vm) else { return Lookup::None };
        match self.find(vm, &matcher).and_then(|object| revision::object(family, object)) {
            Ok(found) => Lookup::Found(found),
            Err(why) => Lookup::Missing(why),
        }
    }

    fn find(&self, vm: &VirtualMachine, matcher: &Matcher<'_>) -> Result<&Value, String> {
        let scope = matcher.scope()?;
        let Some(name) = matcher.name else {
            return Err("inferFromVolume asks a volume of a cluster: name it with -f too, and say its name"
                .to_owned());
        };
        if matcher.revision_name.is_some() {
            return Err("revisionName names an object that only a cluster has".to_owned());
        }
        let kind = matcher.family.object_kind(scope);
        let same = |field: &Value, other: Option<&str>| {
            field.as_str().unwrap_or_default() == other.unwrap_or_default()
        };
        self.named
            .iter()
            .find(|object| {
                let metadata = &object["metadata"];
                object["kind"] == kind
                    && same(&metadata["name"], Some(name))
                    && (scope == Scope::Cluster
                        || same(&metadata["namespace"], vm.metadata.namespace.as_deref()))
            })
            .ok_or_else(|| format!("{kind} {name} is not in these files: give it with another -f"))
    }
}

/// Kind and name of a document.
pub(crate) fn describe(document: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    format!("{} {}", text(&document["kind"]), text(&document["metadata"]["name"]))
}
