//! Manifests: shown, explained, compared, made from a form, and applied.

use barevirt_api::instancetype::matcher::{Family, Scope};
use barevirt_api::v1::VirtualMachine;
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::Failure;
use super::ask::{Cluster, KUBEVIRT, within};
use super::machine;
use super::route::{Question, Target, is_name};
use crate::explain::{self, Manifests};
use crate::session::INSTANCES;
use crate::{create, diff, yaml};

/// The values of the form. Texts are those of the flags of `virtctl create vm`; an empty one is left out.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Form {
    name: String,
    namespace: String,
    run_strategy: String,
    instancetype: String,
    preference: String,
    cores: String,
    memory: String,
    /// A container disk: an image.
    image: String,
    /// An existing claim.
    claim: String,
    /// The size of an empty volume.
    blank: String,
    user: String,
    ssh_key: String,
    /// cloud-init user data, in base64.
    user_data: String,
}

impl Form {
    /// The flags. No flag reads a file.
    fn flags(&self) -> Vec<String> {
        let flags = [
            ("name", "", &self.name),
            ("run-strategy", "", &self.run_strategy),
            ("instancetype", "", &self.instancetype),
            ("preference", "", &self.preference),
            ("memory", "", &self.memory),
            ("volume-containerdisk", "src:", &self.image),
            ("volume-pvc", "src:", &self.claim),
            ("volume-import", "type:blank,size:", &self.blank),
            ("user", "", &self.user),
            ("ssh-key", "", &self.ssh_key),
            ("cloud-init-user-data", "", &self.user_data),
        ];
        flags
            .into_iter()
            .map(|(flag, prefix, text)| (flag, prefix, text.trim()))
            .filter(|(_, _, text)| !text.is_empty())
            .map(|(flag, prefix, text)| format!("--{flag}={prefix}{text}"))
            .collect()
    }
}

/// The manifest for the values of a form.
pub(super) fn draft(form: &Form, default_namespace: &str) -> Result<Value, Failure> {
    let namespace = match form.namespace.trim() {
        "" => default_namespace,
        namespace => namespace,
    };
    let (mut manifest, warnings) = create::machine(&form.flags(), namespace)?;
    let cores = form.cores.trim();
    if !cores.is_empty() {
        let cores: u32 =
            cores.parse().map_err(|_| Failure::bad(format!("{cores:?} is not a number of CPUs")))?;
        manifest["spec"]["template"]["spec"]["domain"]["cpu"] = json!({ "cores": cores });
    }
    Ok(json!({ "text": yaml::text(&manifest)?, "warnings": warnings }))
}

/// The manifest of an existing machine, which can be applied again.
pub(super) async fn show(cluster: &Cluster, target: &Target) -> Result<Value, Failure> {
    let found = match cluster.find(&machine::path(target, "virtualmachines")).await? {
        Some(machine) => machine,
        None => cluster.get(&machine::path(target, INSTANCES)).await?,
    };
    let mut object = machine::without_notes(found);
    if let Some(members) = object.as_object_mut() {
        members.remove("status");
    }
    Ok(json!({ "text": yaml::text(&object)? }))
}

/// Replaces a machine by its edited manifest.
pub(super) async fn save(cluster: &Cluster, target: &Target, text: &str) -> Result<Value, Failure> {
    let subject = Subject::of(&Manifests::of_text(text)?, &cluster.namespace)?;
    if subject.plural != "virtualmachines" || subject.target != *target {
        let Target { namespace, name } = target;
        return Err(Failure::bad(format!(
            "the manifest is not that of the VirtualMachine {namespace}/{name}"
        )));
    }
    cluster.json(Method::PUT, &machine::path(target, subject.plural), Some(&subject.object)).await?;
    Ok(json!({ "message": format!("{} is changed", target.name) }))
}

/// Answers a question about a manifest.
pub(super) async fn ask(cluster: &Cluster, question: Question, text: &str) -> Result<Value, Failure> {
    let manifests = Manifests::of_text(text)?;
    match question {
        Question::Explain => explain(cluster, manifests).await,
        Question::Diff => compare(cluster, &manifests).await,
        Question::Check => {
            create(cluster, &manifests, "?dryRun=All", "The API server accepts this manifest.").await
        }
        Question::Create => create(cluster, &manifests, "", "made").await,
    }
}

async fn explain(cluster: &Cluster, mut manifests: Manifests) -> Result<Value, Failure> {
    for subject in manifests.subjects.clone() {
        for named in named(cluster, subject).await? {
            manifests.take(named)?;
        }
    }
    let session = cluster.session(&cluster.namespace);
    let settings = within(diff::settings(&session)).await?;
    let (text, accepted) = explain::in_words(&manifests, settings, &cluster.namespace);
    Ok(json!({ "text": text, "accepted": accepted }))
}

/// The instance type and the preference that a machine names, if the cluster has them.
async fn named(cluster: &Cluster, subject: Value) -> Result<Vec<Value>, Failure> {
    // The explanation reports a manifest that cannot be parsed.
    let Ok(vm) = serde_json::from_value::<VirtualMachine>(subject) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for family in [Family::Instancetype, Family::Preference] {
        let Some(matcher) = family.matcher(&vm) else { continue };
        let (Ok(scope), Some(name)) = (matcher.scope(), matcher.name) else { continue };
        let namespace = vm.metadata.namespace.as_deref().unwrap_or(&cluster.namespace);
        if !is_name(name) || !is_name(namespace) {
            continue;
        }
        let plural = format!("{}s", family.object_kind(scope).to_lowercase());
        let within = match scope {
            Scope::Cluster => String::new(),
            Scope::Namespaced => format!("/namespaces/{namespace}"),
        };
        let path = format!("/apis/instancetype.kubevirt.io/v1beta1{within}/{plural}/{name}");
        found.extend(cluster.find(&path).await?);
    }
    Ok(found)
}

async fn compare(cluster: &Cluster, manifests: &Manifests) -> Result<Value, Failure> {
    let subject = Subject::of(manifests, &cluster.namespace)?;
    if subject.plural != "virtualmachines" {
        return Err(Failure::bad("an instance cannot be changed: a VirtualMachine can"));
    }
    let runs = cluster.find(&machine::path(&subject.target, INSTANCES)).await?.is_some();
    let session = cluster.session(&subject.target.namespace);
    let (name, changes) = within(diff::of_manifest(&session, None, subject.object)).await??;
    let mut text = diff::text(&format!("VirtualMachine {name}"), &changes);
    if !runs {
        text.push_str("It does not run: its next start uses what it is then.\n");
    }
    Ok(json!({ "text": text }))
}

async fn create(cluster: &Cluster, manifests: &Manifests, query: &str, said: &str) -> Result<Value, Failure> {
    let Subject { object, plural, target } = Subject::of(manifests, &cluster.namespace)?;
    let Target { namespace, name } = &target;
    let path = format!("{KUBEVIRT}/namespaces/{namespace}/{plural}{query}");
    cluster.json(Method::POST, &path, Some(&object)).await?;
    Ok(json!({ "message": said, "namespace": namespace, "name": name }))
}

/// The only machine or instance of a manifest.
struct Subject {
    object: Value,
    plural: &'static str,
    target: Target,
}

impl Subject {
    fn of(manifests: &Manifests, default_namespace: &str) -> Result<Self, Failure> {
        if !manifests.others.is_empty() {
            let others = manifests.others.join(", ");
            return Err(Failure::bad(format!("the page applies machines only; kubectl takes {others}")));
        }
        let [object] = manifests.subjects.as_slice() else {
            return Err(Failure::bad("the manifest has to be one VirtualMachine or VirtualMachineInstance"));
        };
        let mut object = object.clone();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let plural = if object["kind"] == "VirtualMachine" { "virtualmachines" } else { INSTANCES };
        let name = text(&object["metadata"]["name"]);
        let mut namespace = text(&object["metadata"]["namespace"]);
        if namespace.is_empty() {
            namespace = default_namespace.to_owned();
            object["metadata"]["namespace"] = json!(namespace);
        }
        for (field, name) in [("metadata.name", &name), ("metadata.namespace", &namespace)] {
            if !is_name(name) {
                return Err(Failure::bad(format!("{field}: {name:?} is not a name of an object")));
            }
        }
        Ok(Self { object, plural, target: Target { namespace, name } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafted(form: Value) -> Result<String, Failure> {
        let form: Form = serde_json::from_value(form).unwrap();
        draft(&form, "home").map(|draft| draft["text"].as_str().unwrap_or_default().to_owned())
    }

    #[test]
    fn a_form_becomes_a_manifest() {
        let form = json!({"name": "web", "cores": "2", "memory": "1Gi", "image": "registry/image:1", "user": "ann",
            "sshKey": "ssh-ed25519 AAAA ann", "runStrategy": "Halted"});
        let text = drafted(form).unwrap();
        for part in [
            "namespace: home",
            "name: web",
            "cores: 2",
            "guest: 1Gi",
            "image: registry/image:1",
            "user: ann",
            "ssh-ed25519 AAAA ann",
            "runStrategy: Halted",
        ] {
            assert!(text.contains(part), "{part} is missing in:\n{text}");
        }
        assert!(drafted(json!({"namespace": "shop"})).unwrap().contains("namespace: shop"));
    }

    #[test]
    fn a_form_s_text_is_no_flag() {
        let failure = drafted(json!({"memory": "--password-file=/etc/passwd"})).unwrap_err();
        assert!(failure.message.contains("memory"), "{}", failure.message);
        let text = drafted(json!({"user": "--password-file=/etc/passwd"})).unwrap();
        assert!(!text.contains("root:"), "{text}");
        assert!(serde_json::from_value::<Form>(json!({"passwordFile": "/etc/passwd"})).is_err());
        assert!(drafted(json!({"cores": "two"})).unwrap_err().message.contains("two"));
    }

    #[test]
    fn a_manifest_is_one_machine() {
        let subject = |text: &str| Subject::of(&Manifests::of_text(text)?, "home");
        let machine = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: a}\n";
        let found = subject(machine).unwrap();
        assert_eq!((found.plural, found.target.namespace.as_str()), ("virtualmachines", "home"));
        assert_eq!(found.object["metadata"]["namespace"], "home");
        let message = |text: &str| subject(text).err().unwrap().message;
        assert!(message(&format!("{machine}---\n{machine}")).contains("has to be one"));
        assert!(message(&machine.replace("name: a", "name: a/b")).contains("metadata.name"));
        assert!(
            message(&machine.replace("name: a", "name: a, namespace: ..")).contains("metadata.namespace")
        );
        let secret = format!("{machine}---\napiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\n");
        assert!(message(&secret).contains("kubectl takes Secret s"));
        assert!(!message("{").is_empty());
    }
}
