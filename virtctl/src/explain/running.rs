//! A running VM: what it was made from, and which changes of its virtual machine it does not have yet.
//!
//! The command line is planned from the instance as it is, and compared with the one that QEMU was started
//! with. The launcher reports QEMU's arguments to users who may call `debug`.

use anyhow::Context;
use barevirt_api::names::CREATED_BY_LABEL;
use barevirt_api::v1::{VirtualMachine, VirtualMachineInstance};
use barevirt_plan::config::Config;
use barevirt_plan::fields::{Change, changed};
use barevirt_plan::pod::IMAGE_VOLUMES;
use k8s_openapi::api::core::v1::{Namespace, Pod, ResourceQuota};
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};

use super::arguments::{Explain, Section, config};
use super::explained::{Explained, outcome, shown_cause};
use super::{print, started};
use crate::session::{self, Session};
use crate::{debug, diff};

/// Whether the launcher's arguments say that images are volumes of its pod. They do, also where its guest has no image.
fn has_image_volumes(pod: &Pod) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.flat_map(|container| container.args.iter().flatten()).any(|argument| argument == IMAGE_VOLUMES)
}

/// Explains an instance of the cluster.
pub(super) async fn explain(asked: &Explain, name: &str, session: &Session) -> anyhow::Result<()> {
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(session.client.clone(), &session.namespace);
    let vmi = vmis.get(name).await.map_err(session::plain);
    let vmi = vmi.with_context(|| format!("get VirtualMachineInstance {name}"))?;
    let vms: Api<VirtualMachine> = Api::namespaced(session.client.clone(), &session.namespace);
    let owned = vmi.metadata.owner_references.iter().flatten().any(|owner| owner.kind == "VirtualMachine");
    let vm = if owned { vms.get_opt(name).await.map_err(session::plain)? } else { None };
    let pod = launcher(session, &vmi).await?;

    let mut settings = diff::settings(session).await;
    settings.use_emulation |= asked.emulation;
    // The pod that the controller made shows whether the cluster supports image volumes.
    settings.pods.image_volumes = pod.as_ref().is_some_and(has_image_volumes);
    let image = pod.as_ref().and_then(image).unwrap_or_else(|| asked.launcher_image.clone());
    let namespace = vmi.metadata.namespace.clone().unwrap_or_default();
    let config = in_namespace(session, config(image, settings)).await;
    let given = vm.as_ref().map_or(&vmi.spec, |vm| &vm.spec.template.spec).clone();
    let mut explained = Explained {
        kind: "VirtualMachineInstance".to_owned(),
        name: name.to_owned(),
        namespace,
        warnings: Vec::new(),
        causes: Vec::new(),
        outcome: None,
    };
    match outcome(vmi, &given, None, &config) {
        Ok(outcome) => explained.outcome = Some(outcome),
        Err(causes) => explained.causes = causes.into_iter().map(shown_cause).collect(),
    }
    let planned = explained.outcome.as_ref().map(|outcome| &outcome.pod);
    let in_pod = planned.zip(pod.as_ref()).map(|(planned, pod)| differing(planned, pod)).unwrap_or_default();
    let in_line = match &explained.outcome {
        Some(outcome) => line(session, name).await.map(|running| {
            let planned = outcome.command_line.iter().flat_map(|part| part.arguments.clone());
            started::differing(&planned.collect::<Vec<_>>(), &running)
        }),
        None => Ok(Vec::new()),
    };
    let pending = match &vm {
        Some(vm) => diff::pending(session, vm).await?,
        None => Vec::new(),
    };
    if let Some(format) = asked.output {
        let mut object = json!(explained);
        object["pending"] = json!(pending);
        let change =
            |Change { path, from, to }: &Change| json!({"field": path, "planned": from, "running": to});
        object["podDiffers"] = in_pod.iter().map(change).collect();
        match &in_line {
            Ok(in_line) => object["commandLineDiffers"] = in_line.iter().map(change).collect(),
            Err(error) => eprintln!("QEMU's command line is not compared: {error:#}"),
        }
        print!("{}", format.text(&object)?);
        return Ok(());
    }
    print!("{}", print::text(&explained, &asked.show));
    if asked.show.is_empty() || asked.show.contains(&Section::Changes) {
        println!("\nWhat runs, compared with what would be started now:");
        match &vm {
            Some(_) => print!("{}", indented(&diff::text(&format!("VirtualMachine {name}"), &pending))),
            None => println!("  No virtual machine owns it."),
        }
        match &pod {
            None => println!("  It has no launcher pod."),
            Some(_) if in_pod.is_empty() => println!("  Launcher pod: as planned."),
            Some(_) => print_differences("Launcher pod", &in_pod),
        }
        match &in_line {
            Ok(in_line) if in_line.is_empty() => println!("  QEMU's command line: as planned."),
            Ok(in_line) => print_differences("QEMU's command line", in_line),
            Err(error) => println!("  QEMU's command line is not known: {error:#}"),
        }
    }
    Ok(())
}

fn print_differences(what: &str, differing: &[Change]) {
    println!("  {what}, planned -> running:");
    for Change { path, from, to } in differing {
        let path = path.trim_start_matches('.');
        println!("    {path}: {} -> {}", print::short(from), print::short(to));
    }
}

/// The arguments that QEMU was started with.
async fn line(session: &Session, vmi: &str) -> anyhow::Result<Vec<String>> {
    let mut report = debug::report(session, vmi).await?;
    serde_json::from_value(report["commandLine"].take()).context("read the launcher's report")
}

/// Applies the namespace's limits. Objects that the user may not read count as absent, and show up as a
/// difference of the pod.
async fn in_namespace(session: &Session, config: Config) -> Config {
    let namespaces: Api<Namespace> = Api::all(session.client.clone());
    let namespace = namespaces.get(&session.namespace).await.ok();
    let quotas: Api<ResourceQuota> = Api::namespaced(session.client.clone(), &session.namespace);
    let quotas = quotas.list(&ListParams::default()).await.map(|list| list.items).unwrap_or_default();
    let labels = namespace.and_then(|namespace| namespace.metadata.labels);
    config.in_namespace(labels.as_ref(), &quotas)
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

/// The launcher pod of the instance.
async fn launcher(session: &Session, vmi: &VirtualMachineInstance) -> anyhow::Result<Option<Pod>> {
    let uid = vmi.metadata.uid.as_deref().unwrap_or_default();
    let active = vmi.status.as_ref().map(|status| &status.active_pods);
    let pods: Api<Pod> = Api::namespaced(session.client.clone(), &session.namespace);
    let list = pods.list(&ListParams::default().labels(&format!("{CREATED_BY_LABEL}={uid}"))).await;
    let list = list.map_err(session::plain).context("list its launcher pods")?;
    Ok(list.items.into_iter().find(|pod| {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        active.is_some_and(|active| active.contains_key(uid))
    }))
}

fn image(pod: &Pod) -> Option<String> {
    let compute = pod.spec.as_ref()?.containers.iter().find(|container| container.name == "compute")?;
    compute.image.clone()
}

/// Where the running pod differs from the planned one. Fields that the cluster added do not count.
fn differing(planned: &Pod, running: &Pod) -> Vec<Change> {
    let value = |pod: &Pod| json!({ "spec": pod.spec });
    let changes = changed("", &value(planned), &value(running));
    let ours = |change: &Change| {
        let states_its_claim = change.path.contains("vm-state");
        !change.from.is_null() && !states_its_claim && change.from != Value::Array(Vec::new())
    };
    // The cluster only adds to lists without names, such as tolerations.
    let grew = |change: &Change| match (&change.from, &change.to) {
        (Value::Array(from), Value::Array(to)) => from.iter().all(|item| to.contains(item)),
        _ => false,
    };
    changes.into_iter().filter(|change| ours(change) && !grew(change)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launcher_says_whether_images_are_volumes_also_without_an_image() {
        let pod = |arguments: &[&str]| -> Pod {
            let compute = json!({ "name": "compute", "args": arguments });
            serde_json::from_value(json!({ "spec": { "containers": [{ "name": "sidecar" }, compute] } }))
                .unwrap()
        };
        assert!(has_image_volumes(&pod(&["--name", "vm", "--image-volumes"])));
        assert!(!has_image_volumes(&pod(&["--name", "vm"])));
    }

    #[test]
    fn fields_added_by_the_cluster_are_no_difference() {
        let pod = |spec: Value| -> Pod { serde_json::from_value(json!({ "spec": spec })).unwrap() };
        let planned = pod(json!({"hostname": "a", "containers": [{"name": "compute", "image": "i:1"}]}));
        let added = pod(json!({"hostname": "a", "nodeName": "n", "tolerations": [{"key": "k"}],
            "containers": [{"name": "compute", "image": "i:1", "terminationMessagePath": "/dev/log"}]}));
        assert_eq!(differing(&planned, &added), []);
        let other = pod(json!({"hostname": "a", "containers": [{"name": "compute", "image": "i:2"}]}));
        let found = differing(&planned, &other);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].path.as_str(), &found[0].to),
            (".spec.containers[compute].image", &json!("i:2"))
        );
    }
}
