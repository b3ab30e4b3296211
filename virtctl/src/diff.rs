//! diff: which changes of a virtual machine its running instance takes over, and which take a restart; shown before they are
//! made.
//!
//! The API server's own admission fills in defaults (a dry run), and the code that decides is
//! virt-controller's.

use std::path::PathBuf;

use anyhow::{Context, bail};
use barevirt_api::defaults;
use barevirt_api::settings::{Settings, deciding};
use barevirt_api::v1::{KubeVirt, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec};
use barevirt_plan::difference::{self, When};
use barevirt_plan::fields::Change;
use barevirt_plan::live_update::Follows;
use barevirt_plan::revision::Comparison;
use clap::{ArgGroup, Args};
use http::Method;
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde::Serialize;
use serde_json::Value;

use crate::explain::Manifests;
use crate::session::{self, Connection, Session};
use crate::yaml::Format;

/// Arguments of `virtctl diff`.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("what").required(true).args(["file", "vm"]),
    after_help = "Examples:\n  \
        # What a change would do, before you make it:\n  virtctl diff -f vm.yaml\n  \
        # Changes of a virtual machine that its running instance does not have yet:\n  virtctl diff myvm"
)]
pub(crate) struct Diff {
    /// The virtual machine.
    vm: Option<String>,
    /// Manifest of the changed virtual machine, `-` for standard input.
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Output format; readable text by default.
    #[arg(short, long, value_enum)]
    output: Option<Format>,
}

/// One changed field in the printed form.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ShownChange {
    field: String,
    from: Value,
    to: Value,
    /// `in place`, `waits`, `restart` or `next start`.
    applies: &'static str,
    /// Why it takes a restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl Diff {
    /// Compares.
    pub(crate) async fn run(&self, connection: &Connection) -> anyhow::Result<()> {
        let session = connection.open().await?;
        let mut all = Vec::new();
        match (&self.file, &self.vm) {
            (Some(file), _) => {
                let manifests = Manifests::load(std::slice::from_ref(file))?;
                for subject in manifests.subjects {
                    if subject["kind"] != "VirtualMachine" {
                        bail!("an instance cannot be changed: diff is for a VirtualMachine");
                    }
                    all.push(of_manifest(&session, connection.asked_namespace(), subject).await?);
                }
            }
            (None, Some(name)) => {
                let name = name.strip_prefix("vm/").unwrap_or(name);
                let vm = machine(&session, name).await?;
                let changes = pending(&session, &vm).await?;
                all.push((name.to_owned(), changes));
            }
            (None, None) => bail!("a virtual machine is missing"),
        }
        match self.output {
            Some(format) => {
                let object: serde_json::Map<String, Value> =
                    all.into_iter().map(|(name, changes)| (name, serde_json::json!(changes))).collect();
                print!("{}", format.text(&object)?);
            }
            None => {
                for (name, changes) in &all {
                    print!("{}", text(&format!("VirtualMachine {name}"), changes));
                }
            }
        }
        Ok(())
    }
}

async fn machine(session: &Session, name: &str) -> anyhow::Result<VirtualMachine> {
    let vms: Api<VirtualMachine> = Api::namespaced(session.client.clone(), &session.namespace);
    vms.get(name).await.map_err(session::plain).with_context(|| format!("get VirtualMachine {name}"))
}

/// The machine as a manifest would make it, by a dry run: with the changes and refusals of admission. `asked`
/// is the namespace of the command line, which comes before the manifest's.
pub(crate) async fn of_manifest(
    session: &Session,
    asked: Option<&str>,
    manifest: Value,
) -> anyhow::Result<(String, Vec<ShownChange>)> {
    let given: VirtualMachine = serde_json::from_value(manifest).context("read the VirtualMachine")?;
    let name = given.metadata.name.clone().unwrap_or_default();
    let mut session = Session { client: session.client.clone(), namespace: session.namespace.clone() };
    if let (None, Some(namespace)) = (asked, &given.metadata.namespace) {
        session.namespace.clone_from(namespace);
    }
    let old = machine(&session, &name).await?;
    let wanted = VirtualMachine { spec: given.spec, ..old.clone() };
    let vms: Api<VirtualMachine> = Api::namespaced(session.client.clone(), &session.namespace);
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let admitted = vms.replace(&name, &dry, &wanted).await.map_err(session::plain);
    let admitted = admitted.with_context(|| format!("VirtualMachine {name} would be refused"))?;
    let mut changes: Vec<ShownChange> = difference::of_machine(&old, &admitted)
        .into_iter()
        .map(|change| followed(shown_change(change, &When::InPlace)))
        .collect();
    changes.extend(pending(&session, &admitted).await?);
    Ok((name, changes))
}

/// Adds what the controller does at once with a change of the machine itself.
fn followed(mut change: ShownChange) -> ShownChange {
    if change.field.starts_with("spec.dataVolumeTemplates") {
        change.reason = Some("missing DataVolumes are made; existing ones do not change".to_owned());
    }
    change
}

/// Changes of a machine that its running instance does not have yet; empty when it does not run.
pub(crate) async fn pending(session: &Session, vm: &VirtualMachine) -> anyhow::Result<Vec<ShownChange>> {
    let name = vm.metadata.name.clone().unwrap_or_default();
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(session.client.clone(), &session.namespace);
    let vmi = vmis.get_opt(&name).await.map_err(session::plain).context("get its instance")?;
    let Some(vmi) = vmi else {
        eprintln!("VirtualMachine {name} is not running: its next start uses what it is then.");
        return Ok(Vec::new());
    };
    let revision = vmi.status.as_ref().and_then(|status| status.virtual_machine_revision_name.clone());
    let Some(revision) = revision.filter(|revision| !revision.is_empty()) else {
        bail!("the instance {name} does not say what it was started from: no virtual machine started it");
    };
    let revisions: Api<ControllerRevision> = Api::namespaced(session.client.clone(), &session.namespace);
    let kept = revisions.get(&revision).await.map_err(session::plain);
    let kept = kept.with_context(|| format!("get what {name} was started from"))?;
    let wanted = expanded(session, vm).await?;
    let follows = Follows::of(&settings(session).await);
    let comparison = Comparison::of(vm, &kept, &vmi, &follows)
        .with_context(|| format!("controller revision {revision} cannot be read"))?;
    let comparison = applied(session, vm, comparison).await;
    let differences = difference::of(vm, &wanted, &vmi, comparison, &follows);
    Ok(differences.into_iter().map(|(change, when)| shown_change(change, &when)).collect())
}

/// The comparison of what the guest would be, where another instance type or preference is named than at the start. Where it
/// cannot be known, the names are compared, as the controller does.
async fn applied(session: &Session, vm: &VirtualMachine, comparison: Comparison) -> Comparison {
    if !comparison.names_others() {
        return comparison;
    }
    let [then, now] = comparison.machines(vm);
    match (expanded(session, &then).await, expanded(session, &now).await) {
        (Ok(then), Ok(now)) => comparison.applied([then, now]),
        (Err(error), _) | (_, Err(error)) => {
            eprintln!("Instance types and preferences are compared by their names: {error:#}.");
            comparison
        }
    }
}

/// The machine's template with its instance type, preference and defaults.
async fn expanded(session: &Session, vm: &VirtualMachine) -> anyhow::Result<VirtualMachineInstanceSpec> {
    let path = format!("/apis/subresources.kubevirt.io/v1/namespaces/{}/expand-vm-spec", session.namespace);
    let mut expanded = vm.clone();
    if vm.spec.instancetype.is_some() || vm.spec.preference.is_some() {
        let answer = session.call_json(Method::PUT, path, vm).await.context("expand the virtual machine")?;
        expanded = serde_json::from_value(answer).context("read the expanded virtual machine")?;
    }
    let mut spec = expanded.spec.template.spec;
    defaults::spec(&mut spec);
    Ok(spec)
}

/// The installation's settings; if the user may not read them, the built-in ones with a warning.
pub(crate) async fn settings(session: &Session) -> Settings {
    let objects: Api<KubeVirt> = Api::all(session.client.clone());
    match objects.list(&ListParams::default()).await {
        Ok(list) => Settings::from_kubevirt(deciding(&list.items).map(|object| &object.spec)),
        Err(error) => {
            eprintln!(
                "The KubeVirt object cannot be read ({}): defaults are assumed.",
                session::plain(error)
            );
            Settings::default()
        }
    }
}

fn shown_change(change: Change, when: &When) -> ShownChange {
    let Change { path, from, to } = change;
    let secret = path.contains("userData") || path.contains("networkData");
    let shown = |value: Value| match value {
        value if value.is_null() || !secret => redacted(value),
        _ => Value::from("<redacted>"),
    };
    let (applies, reason) = match when {
        When::InPlace => ("in place", None),
        When::Migration => ("migration", None),
        When::Waits => ("waits", None),
        When::Restart(why) => ("restart", Some(why.clone())),
        When::NextStart => ("next start", None),
    };
    ShownChange { field: path, from: shown(from), to: shown(to), applies, reason }
}

/// A whole volume that is new or gone holds its secrets too.
fn redacted(mut value: Value) -> Value {
    match &mut value {
        Value::Object(members) => {
            for (name, member) in members.iter_mut() {
                let secret = matches!(
                    name.as_str(),
                    "userData" | "userDataBase64" | "networkData" | "networkDataBase64"
                );
                *member = if secret { Value::from("<redacted>") } else { redacted(member.take()) };
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = redacted(item.take())),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    value
}

/// The differences for people, by when they are applied.
pub(crate) fn text(subject: &str, changes: &[ShownChange]) -> String {
    if changes.is_empty() {
        return format!("{subject}: no difference.\n");
    }
    let mut text = format!("{subject}:\n");
    for (applies, sentence) in [
        ("in place", "applied while the guest runs"),
        ("waits", "applied once a change that is under way has ended, or the guest runs"),
        ("restart", "needs a restart"),
        ("next start", "applied at the next start"),
    ] {
        let those: Vec<&ShownChange> = changes.iter().filter(|change| change.applies == applies).collect();
        if those.is_empty() {
            continue;
        }
        text.push_str(&format!("  {sentence}:\n"));
        for ShownChange { field, from, to, reason, .. } in those {
            let short =
                |value: &Value| if value.is_null() { "nothing".to_owned() } else { value.to_string() };
            text.push_str(&format!("    {field}: {} -> {}\n", short(from), short(to)));
            if let Some(reason) = reason {
                text.push_str(&format!("      {reason}\n"));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn templates_change_no_data_volume_that_is_there() {
        let change = |path: &str| Change { path: path.to_owned(), from: Value::Null, to: json!(1) };
        let reason = |path: &str| followed(shown_change(change(path), &When::InPlace)).reason;
        assert!(reason("spec.dataVolumeTemplates[0]").is_some_and(|reason| reason.contains("do not change")));
        assert_eq!(reason("spec.runStrategy"), None);
    }

    #[test]
    fn a_change_is_shown_with_its_time_and_without_secrets() {
        let change = |path: &str, from: Value, to: Value| Change { path: path.to_owned(), from, to };
        let volume = json!({"name": "seed", "cloudInitNoCloud": {"userData": "hunter2"}});
        let changes = [
            shown_change(change("spec.template.spec.domain.cpu.sockets", json!(1), json!(2)), &When::InPlace),
            shown_change(
                change("spec.template.spec.volumes[seed]", Value::Null, volume),
                &When::Restart("why".into()),
            ),
            shown_change(
                change("x.cloudInitNoCloud.userData", json!("hunter1"), json!("hunter2")),
                &When::NextStart,
            ),
        ];
        let text = text("VirtualMachine web", &changes);
        assert!(text.contains(
            "  applied while the guest runs:\n    spec.template.spec.domain.cpu.sockets: 1 -> 2\n"
        ));
        assert!(
            text.contains("needs a restart:\n    spec.template.spec.volumes[seed]: nothing -> {"),
            "{text}"
        );
        assert!(text.contains("\n      why\n") && !text.contains("hunter"), "{text}");
        assert_eq!(super::text("VirtualMachine web", &[]), "VirtualMachine web: no difference.\n");
    }
}
