//! status: the installed version, its state, and the number of machines.
//!
//! ```text
//!   requests (each may be refused) -> Facts -> lines (pure), or JSON
//! ```

use std::fmt::Write as _;

use anyhow::bail;
use clap::{Args, ValueEnum};
use kube::Client;
use serde_json::{Value, json};

use crate::ask;
use crate::doctor::{condition, word};
use crate::session::Session;
use crate::waiting;

/// Objects that are read.
const WORKLOADS: &str = "/apis/apps/v1/namespaces/kubevirt";
const KUBEVIRT: &str = "/apis/kubevirt.io/v1";
/// Deployments of an installation.
const DEPLOYMENTS: [&str; 3] = ["virt-operator", "virt-api", "virt-controller"];
const HANDLER: &str = "virt-handler";
/// Conditions of the object, and how each should be.
const CONDITIONS: [(&str, &str); 4] =
    [("Available", "True"), ("Progressing", "False"), ("Degraded", "False"), ("Synchronized", "True")];

/// Arguments of `virtctl status`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    virtctl status\n\n  \
    # What is wrong, and what to do about it:\n  virtctl doctor")]
pub(crate) struct Status {
    /// How it is printed.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A line each.
    Text,
    /// An object.
    Json,
}

/// The API server's answers; an error holds the server's reason.
#[derive(Debug)]
struct Facts {
    kubevirts: Result<Vec<Value>, String>,
    deployments: Result<Vec<Value>, String>,
    daemon_sets: Result<Vec<Value>, String>,
    machines: Result<u64, String>,
    instances: Result<u64, String>,
}

impl Status {
    /// Prints the status; fails if nothing is installed.
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let facts = waiting::during("looking at the installation", gather(&session.client)).await;
        match self.output {
            Output::Text => print!("{}", text(&facts)),
            Output::Json => println!("{}", serde_json::to_string_pretty(&as_json(&facts))?),
        }
        if facts.kubevirts.as_ref().is_ok_and(Vec::is_empty) {
            bail!("nothing is installed; virtctl install does it");
        }
        Ok(())
    }
}

async fn gather(client: &Client) -> Facts {
    let list = async |path: String| ask::list(client, &path).await.map_err(|failure| failure.message);
    // The kind does not exist if nothing is installed.
    let kubevirts = ask::find(client, &format!("{KUBEVIRT}/kubevirts?limit=10")).await;
    let kubevirts =
        kubevirts.map(|list| list.and_then(|list| list["items"].as_array().cloned()).unwrap_or_default());
    Facts {
        kubevirts: kubevirts.map_err(|failure| failure.message),
        deployments: list(format!("{WORKLOADS}/deployments")).await,
        daemon_sets: list(format!("{WORKLOADS}/daemonsets")).await,
        machines: count(client, "virtualmachines").await,
        instances: count(client, "virtualmachineinstances").await,
    }
}

/// How many objects of a kind there are, without reading them all.
async fn count(client: &Client, plural: &str) -> Result<u64, String> {
    let answer = ask::find(client, &format!("{KUBEVIRT}/{plural}?limit=1")).await;
    let answer = answer.map_err(|failure| failure.message)?.ok_or("the API server does not know them yet")?;
    let first = answer["items"].as_array().map_or(0, Vec::len);
    let rest = answer["metadata"]["remainingItemCount"].as_u64().unwrap_or_default();
    Ok(rest + u64::try_from(first).unwrap_or_default())
}

/// A pod count of a component.
#[derive(Debug, PartialEq, Eq)]
struct Component {
    name: &'static str,
    ready: u64,
    wanted: u64,
    there: bool,
}

fn components(facts: &Facts) -> Result<Vec<Component>, String> {
    let (deployments, daemon_sets) = (facts.deployments.as_ref(), facts.daemon_sets.as_ref());
    let (deployments, daemon_sets) = (deployments.map_err(Clone::clone)?, daemon_sets.map_err(Clone::clone)?);
    let number = |object: Option<&Value>, at: &str| {
        object.and_then(|object| object.pointer(at)?.as_u64()).unwrap_or_default()
    };
    let one = |objects: &[Value], name: &'static str, ready: &str, wanted: &str| {
        let object = objects.iter().find(|object| object["metadata"]["name"] == name);
        Component {
            name,
            ready: number(object, ready),
            wanted: number(object, wanted),
            there: object.is_some(),
        }
    };
    let mut all: Vec<Component> = DEPLOYMENTS
        .map(|name| one(deployments, name, "/status/readyReplicas", "/spec/replicas"))
        .into_iter()
        .collect();
    all.push(one(daemon_sets, HANDLER, "/status/numberReady", "/status/desiredNumberScheduled"));
    Ok(all)
}

/// The version that runs, and the version that is being installed.
fn version(kubevirt: &Value) -> String {
    let (now, next) =
        (word(kubevirt, "/status/observedKubeVirtVersion"), word(kubevirt, "/status/targetKubeVirtVersion"));
    match (now, next) {
        ("", "") => "none yet".to_owned(),
        ("", next) => format!("{next} is being installed"),
        (now, next) if now == next || next.is_empty() => now.to_owned(),
        (now, next) => format!("{now}, on its way to {next}"),
    }
}

fn text(facts: &Facts) -> String {
    let mut text = String::new();
    let mut line = |head: &str, says: &str| {
        // Writing into a string cannot fail.
        let _ = writeln!(text, "{head:<14} {says}");
    };
    match &facts.kubevirts {
        Err(why) => line("Installation", &format!("unknown: {why}")),
        Ok(kubevirts) => match kubevirts.first() {
            None => line("Installation", "none: there is no KubeVirt object"),
            Some(kubevirt) => {
                let phase = word(kubevirt, "/status/phase");
                let phase = if phase.is_empty() { "it was not checked yet" } else { phase };
                let namespace = word(kubevirt, "/metadata/namespace");
                line("Installation", &format!("{namespace}/{}: {phase}", word(kubevirt, "/metadata/name")));
                line("Version", &version(kubevirt));
                let operator = word(kubevirt, "/status/operatorVersion");
                if !operator.is_empty() {
                    line("Operator", &format!("version {operator}"));
                }
                if kubevirts.len() > 1 {
                    line("", &format!("{} KubeVirt objects; the oldest counts", kubevirts.len()));
                }
            }
        },
    }
    match components(facts) {
        Err(why) => line("Components", &format!("unknown: {why}")),
        Ok(components) => {
            for (index, Component { name, ready, wanted, there }) in components.iter().enumerate() {
                let head = if index == 0 { "Components" } else { "" };
                let says = match there {
                    true => format!("{name:<15} {ready} of {wanted} pods are ready"),
                    false => format!("{name:<15} is not there"),
                };
                line(head, &says);
            }
        }
    }
    if let Some(kubevirt) = facts.kubevirts.as_ref().ok().and_then(|all| all.first()) {
        let mut head = "Conditions";
        for (name, good) in CONDITIONS {
            let Some(condition) = condition(kubevirt, name) else { continue };
            let is = condition["status"] == "True";
            let says = format!("{name:<15} {}", if is { "yes" } else { "no" });
            let message = word(condition, "/message");
            match condition["status"] == good || message.is_empty() {
                true => line(head, &says),
                false => line(head, &format!("{says}: {message}")),
            }
            head = "";
        }
    }
    match (&facts.machines, &facts.instances) {
        (Ok(machines), Ok(instances)) => {
            line("Machines", &format!("{machines}; instances that were started: {instances}"));
        }
        (Err(why), _) | (_, Err(why)) => line("Machines", &format!("unknown: {why}")),
    }
    if let Some(number) = outdated(facts).filter(|number| *number > 0) {
        line(
            "Outdated",
            &format!("{number} instances have a launcher of a former version until they are started again"),
        );
    }
    text
}

fn outdated(facts: &Facts) -> Option<u64> {
    facts.kubevirts.as_ref().ok()?.first()?["status"]["outdatedVirtualMachineInstanceWorkloads"].as_u64()
}

fn as_json(facts: &Facts) -> Value {
    let kubevirt = facts.kubevirts.as_ref().ok().and_then(|all| all.first());
    let components = components(facts).map(|components| {
        let one = |component: &Component| {
            json!({"name": component.name, "readyPods": component.ready, "pods": component.wanted})
        };
        components.iter().map(one).collect::<Value>()
    });
    json!({
        "installed": facts.kubevirts.as_ref().ok().map(|all| !all.is_empty()),
        "version": kubevirt.map(|kubevirt| word(kubevirt, "/status/observedKubeVirtVersion")),
        "targetVersion": kubevirt.map(|kubevirt| word(kubevirt, "/status/targetKubeVirtVersion")),
        "operatorVersion": kubevirt.map(|kubevirt| word(kubevirt, "/status/operatorVersion")),
        "phase": kubevirt.map(|kubevirt| word(kubevirt, "/status/phase")),
        "conditions": kubevirt.map(|kubevirt| kubevirt["status"]["conditions"].clone()),
        "components": components.unwrap_or_default(),
        "machines": facts.machines.as_ref().ok(),
        "instances": facts.instances.as_ref().ok(),
        "outdatedInstances": outdated(facts),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        let deployment = |name: &str| json!({"metadata": {"name": name}, "spec": {"replicas": 2}, "status": {"readyReplicas": 2}});
        Facts {
            kubevirts: Ok(vec![json!({
                "metadata": {"namespace": "kubevirt", "name": "kubevirt"},
                "status": {
                    "phase": "Deployed", "operatorVersion": "v1.1.0", "observedKubeVirtVersion": "v1.0.0",
                    "targetKubeVirtVersion": "v1.1.0", "outdatedVirtualMachineInstanceWorkloads": 1,
                    "conditions": [
                        {"type": "Available", "status": "True", "message": "All components are ready."},
                        {"type": "Degraded", "status": "True", "message": "pod a cannot be pulled"},
                    ],
                },
            })]),
            deployments: Ok(["virt-operator", "virt-api"].map(deployment).into()),
            daemon_sets: Ok(vec![json!({
                "metadata": {"name": HANDLER}, "status": {"numberReady": 1, "desiredNumberScheduled": 3},
            })]),
            machines: Ok(12),
            instances: Ok(9),
        }
    }

    #[test]
    fn the_status_is_printed_as_text() {
        assert_eq!(
            text(&facts()),
            "Installation   kubevirt/kubevirt: Deployed\n\
             Version        v1.0.0, on its way to v1.1.0\n\
             Operator       version v1.1.0\n\
             Components     virt-operator   2 of 2 pods are ready\n               \
             virt-api        2 of 2 pods are ready\n               \
             virt-controller is not there\n               \
             virt-handler    1 of 3 pods are ready\n\
             Conditions     Available       yes\n               \
             Degraded        yes: pod a cannot be pulled\n\
             Machines       12; instances that were started: 9\n\
             Outdated       1 instances have a launcher of a former version until they are started again\n"
        );
        let json = as_json(&facts());
        assert_eq!((&json["installed"], &json["components"][3]["readyPods"]), (&json!(true), &json!(1)));
    }

    #[test]
    fn forbidden_parts_are_unknown_and_a_missing_installation_is_reported() {
        let mut facts = facts();
        facts.machines = Err("forbidden".to_owned());
        facts.deployments = Err("forbidden too".to_owned());
        let told = text(&facts);
        assert!(told.contains("Machines       unknown: forbidden\n"), "{told}");
        assert!(told.contains("Components     unknown: forbidden too\n"), "{told}");
        facts.kubevirts = Ok(vec![]);
        assert!(text(&facts).starts_with("Installation   none"));
        assert_eq!(as_json(&facts)["installed"], false);
        facts.kubevirts = Ok(vec![json!({"metadata": {"namespace": "kubevirt", "name": "kubevirt"}})]);
        assert!(text(&facts).contains("it was not checked yet"));
    }

    #[test]
    fn a_version_says_where_it_goes() {
        let of = |now: &str, next: &str| {
            version(&json!({"status": {"observedKubeVirtVersion": now, "targetKubeVirtVersion": next}}))
        };
        assert_eq!(of("", ""), "none yet");
        assert_eq!(of("", "v1"), "v1 is being installed");
        assert_eq!(of("v1", "v1"), "v1");
    }
}
