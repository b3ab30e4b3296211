//! Kills everything that can be killed, at random and for minutes, while guests move between the nodes. In the end every
//! machine is in the state of its specification, no migration is left, and no guest has noticed a move, or a death except that
//! of its own QEMU, launcher or node.
//!
//! `CHAOS_SECONDS` (60), `CHAOS_MACHINES` (6) and `CHAOS_SEED` (the time) choose another run; the test prints
//! what it does.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::{objects, try_kubectl};
use barevirt_e2e::counting::Counting;
use barevirt_e2e::harm::{component_is_ready, kill_daemon, kill_kubernetes_api};
use barevirt_e2e::wait::{self, BOOT, MOVED, RUNNING, SOON};
use barevirt_e2e::{Namespace, Node, alone, guest, in_namespace, installation};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::thread;
use std::time::{Duration, Instant};

/// How often the QEMU of one machine is killed: the pause before the next start grows with each crash.
const CRASHES: u32 = 2;
/// The longest pause before a machine with that many crashes starts again, and its start.
const SETTLED: Duration = Duration::from_secs(300);
const COMPONENTS: [&str; 4] = ["virt-api", "virt-controller", "virt-handler", "virt-operator"];

fn number(name: &str, default: u64) -> u64 {
    env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// One machine, and what the test did to it.
struct Machine {
    name: String,
    /// Whether its specification asks for it to run.
    runs: bool,
    crashes: u32,
    /// The first instance and its boot, until the test harms this machine or its node.
    untouched: Option<(String, String)>,
}

impl Machine {
    fn of(namespace: &Namespace, name: String) -> Result<Self> {
        let vmi = namespace.wait_phase(&name, "Running", RUNNING + BOOT)?;
        let boot = Counting::of(namespace, &name)?.boot()?;
        Ok(Self { name, runs: true, crashes: 0, untouched: Some((uid(&vmi), boot)) })
    }

    /// Changes whether it is to run; virt-api may be away for a moment.
    fn switch(&mut self, namespace: &Namespace) -> Result<()> {
        self.runs = !self.runs;
        self.untouched = None;
        let strategy = if self.runs { "Always" } else { "Halted" };
        let patch = json!({ "spec": { "runStrategy": strategy } }).to_string();
        wait::until_true(&format!("{} to be {strategy}", self.name), RUNNING, || {
            let answer = namespace.try_kubectl(&["patch", "vm", &self.name, "--type=merge", "-p", &patch])?;
            Ok(answer.code == 0)
        })
    }

    /// Asks for a migration, which goes on while others are harmed. virt-api may be away, the machine may be stopped, or its
    /// guest may be on its way already.
    fn begin_to_move(&self, namespace: &Namespace) -> Result<()> {
        let asked = namespace.try_virtctl(&["migrate", &self.name])?;
        println!("  {}", asked.text().trim());
        Ok(())
    }

    /// Checks that its guest has noticed nothing, if that is to be so.
    fn has_noticed_nothing(&self, namespace: &Namespace) -> Result<()> {
        let Some((instance, boot)) = &self.untouched else { return Ok(()) };
        let vmi = namespace.need("vmi", &self.name)?;
        ensure!(uid(&vmi) == *instance, "{} was restarted, and no test did that", self.name);
        // A pod that it has moved to has its count from there on.
        let counting = Counting::of(namespace, &self.name)?;
        counting.goes_on().with_context(|| self.name.clone())?;
        ensure!(counting.boot()? == *boot, "{} has booted again", self.name);
        Ok(())
    }

    /// Kills a program of its pod, if it has one.
    fn kill(&mut self, namespace: &Namespace, program: &str) -> Result<()> {
        self.crashes += 1;
        self.untouched = None;
        let Ok(launcher) = namespace.launcher(&self.name) else { return Ok(()) };
        let Ok(node) = Node::of(&launcher) else { return Ok(()) };
        for process in node.processes(&launcher, program)? {
            node.sh(&format!("kill -KILL {process} || true"))?;
        }
        Ok(())
    }

    /// Whether it is in the state that its specification asks for.
    fn is_settled(&self, namespace: &Namespace) -> Result<bool> {
        let vmi = namespace.get("vmi", &self.name)?;
        if !self.runs {
            return Ok(vmi.is_none());
        }
        let Some(vmi) = vmi else { return Ok(false) };
        let conditions = vmi["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let ready = conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True");
        Ok(ready && vmi["status"]["phase"] == "Running" && vmi["metadata"]["deletionTimestamp"].is_null())
    }
}

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

/// A kill, or a change by a user.
#[derive(Debug)]
enum Harm {
    Component(&'static str),
    KubernetesApi,
    Daemon(String, &'static str),
    Node(String),
    Qemu(usize),
    Launcher(usize),
    Switch(usize),
    Move(usize),
}

impl Harm {
    fn any(random: &mut fastrand::Rng, nodes: &[String], machines: &[Machine]) -> Option<Self> {
        let node = nodes.get(random.usize(..nodes.len()))?.clone();
        // The other half is not harmed directly: its guests must not notice anything except the loss of their
        // node.
        let machine = random.usize(..machines.len().div_ceil(2));
        let killable = machines.get(machine)?.crashes < CRASHES;
        // A move is no harm.
        let moved = random.usize(..machines.len());
        Some(match random.u8(..24) {
            0..=8 => Self::Component(COMPONENTS.get(random.usize(..COMPONENTS.len()))?),
            9..=10 => Self::KubernetesApi,
            11..=12 => Self::Daemon(node, if random.bool() { "kubelet" } else { "containerd" }),
            13 => Self::Node(node),
            14..=15 if killable => Self::Qemu(machine),
            16 if killable => Self::Launcher(machine),
            20.. => Self::Move(moved),
            _ => Self::Switch(machine),
        })
    }

    fn apply(&self, namespace: &Namespace, machines: &mut [Machine]) -> Result<()> {
        match self {
            // A component that is still down from the last kill cannot be killed.
            Self::Component(name) => installation::kill(name).or_else(|error| {
                println!("  {error:#}");
                Ok(())
            }),
            Self::KubernetesApi => kill_kubernetes_api(),
            Self::Daemon(node, program) => kill_daemon(&Node::named(node), program),
            Self::Node(name) => {
                let node = Node::named(name);
                let (placed, moving) = (instances_by_node(namespace)?, moving(namespace)?);
                for machine in machines {
                    // A machine without a node may have been about to start there, and a guest that moves may be there by now.
                    let is_there = placed.get(&machine.name).is_none_or(|on| on.is_empty() || on == name);
                    if is_there || moving.contains(&machine.name) {
                        machine.untouched = None;
                    }
                }
                node.cut_power()?;
                thread::sleep(Duration::from_secs(5));
                node.start()?;
                wait::until_true(&format!("{name} to be ready again"), RUNNING, || is_ready(name))
            }
            Self::Qemu(index) => with(machines, *index, |one| one.kill(namespace, "qemu-system-x86_64")),
            Self::Launcher(index) => with(machines, *index, |one| one.kill(namespace, "virt-launcher")),
            Self::Switch(index) => with(machines, *index, |one| one.switch(namespace)),
            Self::Move(index) => with(machines, *index, |one| one.begin_to_move(namespace)),
        }
    }
}

fn with(machines: &mut [Machine], index: usize, act: impl FnOnce(&mut Machine) -> Result<()>) -> Result<()> {
    act(machines.get_mut(index).context("no such machine")?)
}

fn instances_by_node(namespace: &Namespace) -> Result<BTreeMap<String, String>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let instances = namespace.list("vmi")?;
    Ok(instances
        .iter()
        .map(|vmi| (text(&vmi["metadata"]["name"]), text(&vmi["status"]["nodeName"])))
        .collect())
}

/// Machines with a migration that has not ended.
fn moving(namespace: &Namespace) -> Result<BTreeSet<String>> {
    let all = namespace.list("vmim")?;
    let open =
        all.iter().filter(|one| !matches!(one["status"]["phase"].as_str(), Some("Succeeded" | "Failed")));
    Ok(open.filter_map(|one| one["spec"]["vmiName"].as_str().map(str::to_owned)).collect())
}

/// Waits until every migration has ended, and says how.
fn all_moves_end(namespace: &Namespace) -> Result<()> {
    wait::until_true("all migrations to end", SETTLED + MOVED, || Ok(moving(namespace)?.is_empty()))?;
    for one in namespace.list("vmim")? {
        let (name, phase) = (&one["spec"]["vmiName"], &one["status"]["phase"]);
        println!("a migration of {name}: {phase} {}", one["status"]["migrationState"]["failureReason"]);
    }
    Ok(())
}

fn is_ready(node: &str) -> Result<bool> {
    let nodes = objects(&["node"])?;
    let found = nodes.iter().find(|one| one["metadata"]["name"] == node).context("the node is gone")?;
    let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
    Ok(conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
}

/// None of our programs has panicked, neither before its last death nor after it.
fn nobody_panicked() -> Result<()> {
    for pod in objects(&["pod", "-n", installation::NAMESPACE])? {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        for previous in ["--previous=false", "--previous=true"] {
            let log = try_kubectl(&["logs", "-n", installation::NAMESPACE, &name, previous])?.stdout;
            let errors: Vec<&str> = log.lines().filter(|line| line.contains("\"level\":\"ERROR\"")).collect();
            println!("{name} {previous}: {} lines, {} errors", log.lines().count(), errors.len());
            for line in errors {
                println!("  {line}");
            }
            ensure!(!log.contains("panicked at"), "{name} has panicked: {log}");
        }
    }
    Ok(())
}

#[test]
fn every_machine_ends_as_it_should_whatever_dies() {
    in_namespace("chaos", |namespace| {
        let _alone = alone();
        let seed = number("CHAOS_SEED", jiff::Timestamp::now().as_millisecond().unsigned_abs());
        let length = Duration::from_secs(number("CHAOS_SECONDS", 60));
        println!("seed {seed}, {} s", length.as_secs());
        let mut random = fastrand::Rng::with_seed(seed);
        let nodes: Vec<String> = objects(&["node"])?
            .iter()
            .filter_map(|node| node["metadata"]["name"].as_str().map(str::to_owned))
            .collect();
        let names: Vec<String> = (0..number("CHAOS_MACHINES", 6)).map(|n| format!("vm{n}")).collect();
        // Some at a time: many emulated guests that boot at once take minutes to print anything.
        let mut machines = Vec::new();
        for names in names.chunks(4) {
            for name in names {
                let mut manifest = guest::machine(name, "Always");
                guest::spec_of(&mut manifest)["domain"]["resources"] =
                    json!({ "requests": { "cpu": "10m" } });
                namespace.apply(&guest::with_user_data(manifest, guest::COUNTING))?;
            }
            for name in names {
                machines.push(Machine::of(namespace, name.clone())?);
            }
        }

        let began = Instant::now();
        while began.elapsed() < length {
            let harm = Harm::any(&mut random, &nodes, &machines).context("nothing to harm")?;
            println!("{:>4} s: {harm:?}", began.elapsed().as_secs());
            harm.apply(namespace, &mut machines)?;
            thread::sleep(Duration::from_millis(random.u64(500..4000)));
        }

        for component in COMPONENTS {
            component_is_ready(component)?;
        }
        all_moves_end(namespace)?;
        for machine in &machines {
            let what = format!("{} to be {}", machine.name, if machine.runs { "running" } else { "gone" });
            wait::until_true(&what, SETTLED + RUNNING, || machine.is_settled(namespace))?;
        }
        let untouched = machines.iter().filter(|machine| machine.untouched.is_some()).count();
        println!("{untouched} of {} machines were never touched themselves", machines.len());
        // There is one launcher for each running machine, and no pod that cannot end.
        let running = machines.iter().filter(|machine| machine.runs).count();
        wait::until_true("launchers of former instances to be gone", SOON, || {
            let pods = namespace.list("pod")?;
            let live = pods.iter().filter(|pod| pod["status"]["phase"] == "Running").count();
            Ok(live == running && pods.iter().all(|pod| pod["metadata"]["deletionTimestamp"].is_null()))
        })?;
        machines.iter().try_for_each(|machine| machine.has_noticed_nothing(namespace))?;
        nobody_panicked()
    });
}
