//! The parts of an image or program, read from the output of cargo and Debian, and written as CycloneDX. The same input
//! gives the same text.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// Source of crates that come from the registry.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The subject of the bill.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    /// Name of the image or the program.
    pub(crate) name: String,
    /// Its version.
    pub(crate) version: String,
    /// When it was made, RFC 3339.
    pub(crate) time: String,
    /// Reference and digest, if it is an image.
    pub(crate) image: Option<(String, String)>,
}

/// A component of the subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its identifier within the bill.
    id: String,
    name: String,
    version: String,
    /// Package URL; `None` for what is in no registry.
    url: Option<String>,
    /// SPDX expression.
    licence: Option<String>,
    /// SHA-256 of the downloaded archive.
    sha256: Option<String>,
    /// Components that it needs.
    needs: Vec<String>,
    /// Whether it is a program of the subject.
    is_root: bool,
}

/// A bill of materials.
#[derive(Clone, Debug)]
pub(crate) struct Bill {
    /// Its subject.
    pub(crate) subject: Subject,
    /// The subject's components.
    pub(crate) parts: Vec<Part>,
}

/// The input is not in the form that cargo or Debian write.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BillError {
    /// A missing package.
    #[error("cargo's metadata has no package {0} in this workspace")]
    NoPackage(String),
    /// A package without a required field.
    #[error("cargo's metadata has a package without {0}")]
    Incomplete(&'static str),
    /// A line that does not describe a package.
    #[error("line {0} of the packages is not a name and a version")]
    Line(usize),
}

/// Hashes of crates by name and version, from Cargo.lock.
pub(crate) fn lock(text: &str) -> BTreeMap<(String, String), String> {
    let mut hashes = BTreeMap::new();
    for package in text.split("[[package]]").skip(1) {
        let value = |key: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""));
            line.and_then(|line| line.strip_suffix('"')).map(str::to_owned)
        };
        if let (Some(name), Some(version), Some(hash)) = (value("name"), value("version"), value("checksum"))
        {
            hashes.insert((name, version), hash);
        }
    }
    hashes
}

/// Names and versions in the output of `cargo tree --prefix none`.
pub(crate) fn tree(text: &str) -> BTreeSet<(String, String)> {
    let part = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned()))
    };
    text.lines().filter_map(part).collect()
}

/// The crates in the programs of these packages: what they need at run time, not what only builds or tests them. The
/// metadata covers the whole workspace; `linked` are the crates of these programs.
///
/// # Errors
/// A package is missing, or the metadata is invalid.
pub(crate) fn crates(
    metadata: &Value,
    roots: &[String],
    linked: &BTreeSet<(String, String)>,
    hashes: &BTreeMap<(String, String), String>,
) -> Result<Vec<Part>, BillError> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value, key: &'static str| {
        value[key].as_str().map(str::to_owned).ok_or(BillError::Incomplete(key))
    };
    let mut known = BTreeMap::new();
    for package in list(&metadata["packages"]) {
        if linked.contains(&(text(&package, "name")?, text(&package, "version")?)) {
            known.insert(text(&package, "id")?, package);
        }
    }
    let mut needs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for node in list(&metadata["resolve"]["nodes"]) {
        let needed = list(&node["deps"])
            .into_iter()
            .filter(|needed| list(&needed["dep_kinds"]).iter().any(|kind| kind["kind"].is_null()));
        let needed: Result<Vec<String>, BillError> = needed.map(|needed| text(&needed, "pkg")).collect();
        let mut needed = needed?;
        needed.retain(|id| known.contains_key(id));
        needs.insert(text(&node, "id")?, needed);
    }
    let mut open = vec![];
    for root in roots {
        let found =
            known.iter().find(|(_, package)| package["name"] == **root && package["source"].is_null());
        open.push(found.ok_or_else(|| BillError::NoPackage(root.clone()))?.0.clone());
    }
    let programs: BTreeSet<String> = open.iter().cloned().collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        if seen.insert(id.clone()) {
            open.extend(needs.get(&id).into_iter().flatten().cloned());
        }
    }
    let mut parts = vec![];
    for id in &seen {
        let package = known.get(id).ok_or_else(|| BillError::NoPackage(id.clone()))?;
        let (name, version) = (text(package, "name")?, text(package, "version")?);
        let is_registered = package["source"] == REGISTRY;
        parts.push(Part {
            id: reference(&known, id),
            url: is_registered.then(|| format!("pkg:cargo/{name}@{version}")),
            licence: package["license"].as_str().map(|licence| licence.replace('/', " OR ")),
            sha256: hashes.get(&(name.clone(), version.clone())).filter(|_| is_registered).cloned(),
            needs: needs.get(id).into_iter().flatten().map(|needed| reference(&known, needed)).collect(),
            is_root: programs.contains(id),
            name,
            version,
        });
    }
    Ok(parts)
}

/// Name and version: cargo's own ids contain folders of the machine.
fn reference(known: &BTreeMap<String, Value>, id: &str) -> String {
    let word = |key: &str| known.get(id).and_then(|package| package[key].as_str()).unwrap_or_default();
    format!("crate:{}@{}", word("name"), word("version"))
}

/// Packages of Debian, from lines of name and version.
///
/// # Errors
/// A line is not of that form.
pub(crate) fn packages(text: &str, suite: &str) -> Result<Vec<Part>, BillError> {
    let part = |(index, line): (usize, &str)| {
        let mut words = line.split_whitespace();
        let (Some(name), Some(version), None) = (words.next(), words.next(), words.next()) else {
            return Err(BillError::Line(index + 1));
        };
        let (path, escaped) = (escape(name), escape(version));
        Ok(Part {
            id: format!("deb:{name}@{version}"),
            name: name.to_owned(),
            version: version.to_owned(),
            url: Some(format!("pkg:deb/debian/{path}@{escaped}?arch=amd64&distro={suite}")),
            licence: None,
            sha256: None,
            needs: vec![],
            is_root: true,
        })
    };
    text.lines().enumerate().map(part).collect()
}

/// Escapes a text for a part of a URL.
fn escape(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b".-_~".contains(byte);
    text.bytes()
        .map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

impl Bill {
    /// The complete document.
    pub(crate) fn json(&self) -> Value {
        let Subject { name, version, time, image } = &self.subject;
        let subject = format!("barevirt:{name}@{version}");
        let mut component = json!({
            "type": if image.is_some() { "container" } else { "application" },
            "bom-ref": subject, "name": name, "version": version,
            "licenses": [{"expression": "Apache-2.0"}],
        });
        if let Some((reference, digest)) = image {
            component["properties"] = json!([
                {"name": "barevirt:image", "value": reference},
                {"name": "barevirt:digest", "value": digest},
            ]);
        }
        let roots: Vec<&str> =
            self.parts.iter().filter(|part| part.is_root).map(|part| part.id.as_str()).collect();
        let mut dependencies = vec![json!({"ref": subject, "dependsOn": roots})];
        dependencies.extend(self.parts.iter().map(|part| json!({"ref": part.id, "dependsOn": part.needs})));
        let mut document = json!({
            "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
            "metadata": {"component": component},
            "components": self.parts.iter().map(Part::json).collect::<Vec<_>>(),
            "dependencies": dependencies,
        });
        if time != "unknown" {
            document["metadata"]["timestamp"] = json!(time);
        }
        document["serialNumber"] = json!(format!("urn:uuid:{}", identity(&document.to_string())));
        document
    }
}

impl Part {
    fn json(&self) -> Value {
        let mut json = json!({
            "type": "library", "bom-ref": self.id, "name": self.name, "version": self.version,
        });
        if let Some(url) = &self.url {
            json["purl"] = json!(url);
        }
        if let Some(licence) = &self.licence {
            json["licenses"] = json!([{"expression": licence}]);
        }
        if let Some(hash) = &self.sha256 {
            json["hashes"] = json!([{"alg": "SHA-256", "content": hash}]);
        }
        json
    }
}

/// A UUID (version 8) derived from the contents.
fn identity(text: &str) -> String {
    let hash = Sha256::digest(text);
    let digits: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!(
        "{}-{}-8{}-a{}-{}",
        &digits[..8],
        &digits[8..12],
        &digits[13..16],
        &digits[17..20],
        &digits[20..32]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata() -> Value {
        let package = |id: &str, name: &str, source: Value, licence: &str| json!({"id": id, "name": name, "version": "1.0.0", "source": source, "license": licence});
        let needs = |id: &str, kind: Value| json!({"pkg": id, "dep_kinds": [{"kind": kind}]});
        json!({
            "packages": [
                package("path+file:///w#virt-x", "virt-x", Value::Null, "Apache-2.0"),
                package("r#used", "used", json!(REGISTRY), "MIT/Apache-2.0"),
                package("r#deep", "deep", json!(REGISTRY), "MIT"),
                package("r#tests", "tests", json!(REGISTRY), "MIT"),
                package("r#other", "other", json!(REGISTRY), "MIT"),
            ],
            "resolve": {"nodes": [
                {"id": "path+file:///w#virt-x", "deps": [needs("r#used", Value::Null), needs("r#tests", json!("dev"))]},
                {"id": "r#used", "deps": [needs("r#deep", Value::Null), needs("r#other", json!("build"))]},
                {"id": "r#deep", "deps": []},
                {"id": "r#tests", "deps": []},
                {"id": "r#other", "deps": []},
            ]},
        })
    }

    fn linked() -> BTreeSet<(String, String)> {
        tree("virt-x v1.0.0 (/w/x)\nused v1.0.0\ndeep v1.0.0\ntests v1.0.0\nother v1.0.0\n")
    }

    fn bill() -> Value {
        let text = "[[package]]\nname = \"used\"\nversion = \"1.0.0\"\nsource = \"x\"\nchecksum = \"abc\"\n\n\
                    [[package]]\nname = \"virt-x\"\nversion = \"1.0.0\"\n";
        let mut parts = crates(&metadata(), &["virt-x".to_owned()], &linked(), &lock(text)).unwrap();
        parts.extend(packages("qemu-system-x86 1:10.0.2+ds-2\n", "trixie").unwrap());
        let subject = Subject {
            name: "virt-x".into(),
            version: "2.0.0".into(),
            time: "2026-01-31T12:00:00Z".into(),
            image: Some(("r/virt-x:v2.0.0".into(), "sha256:1".into())),
        };
        Bill { subject, parts }.json()
    }

    #[test]
    fn a_bill_has_what_runs_and_nothing_else() {
        let bill = bill();
        let names: Vec<&str> = bill["components"]
            .as_array()
            .unwrap()
            .iter()
            .map(|part| part["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["virt-x", "deep", "used", "qemu-system-x86"]);
        let used = &bill["components"][2];
        assert_eq!(used["purl"], "pkg:cargo/used@1.0.0");
        assert_eq!(used["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(used["hashes"][0]["content"], "abc");
        let purl = "pkg:deb/debian/qemu-system-x86@1%3A10.0.2%2Bds-2?arch=amd64&distro=trixie";
        assert_eq!(bill["components"][3]["purl"], purl);
        assert!(bill["components"][0].get("purl").is_none(), "it is in no registry");
        assert!(!bill.to_string().contains("/w#"), "no folder of this machine");
        let dependencies = &bill["dependencies"];
        let roots = json!(["crate:virt-x@1.0.0", "deb:qemu-system-x86@1:10.0.2+ds-2"]);
        assert_eq!(dependencies[0], json!({"ref": "barevirt:virt-x@2.0.0", "dependsOn": roots}));
        assert_eq!(dependencies[1]["dependsOn"], json!(["crate:used@1.0.0"]));
    }

    #[test]
    fn the_same_is_written_each_time() {
        assert_eq!(bill().to_string(), bill().to_string());
        let serial = bill()["serialNumber"].as_str().unwrap().to_owned();
        assert_eq!(serial.len(), "urn:uuid:".len() + 36, "{serial}");
    }

    #[test]
    fn missing_crates_are_named() {
        let of = |name: &str, linked: &BTreeSet<(String, String)>| {
            crates(&metadata(), &[name.to_owned()], linked, &BTreeMap::new())
        };
        assert_eq!(of("virt-y", &linked()), Err(BillError::NoPackage("virt-y".into())));
        // A crate of the registry is not our program, whatever its name.
        assert!(of("used", &linked()).is_err());
        let mut less = linked();
        less.remove(&("deep".to_owned(), "1.0.0".to_owned()));
        let parts = of("virt-x", &less).unwrap();
        assert_eq!(parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>(), ["virt-x", "used"]);
        assert!(parts[1].needs.is_empty(), "a feature that is off");
        assert_eq!(packages("a 1\nb\n", "trixie"), Err(BillError::Line(2)));
    }
}
