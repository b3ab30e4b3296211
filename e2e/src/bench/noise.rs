//! Disturbing neighbours: a tenant that floods virt-api, a launcher that sends false reports, a guest that
//! floods all its channels.
//!
//! Disturbing guests have a limit of processor time, as tenants' pods have; so has the false launcher, which
//! is in the control group of such a guest. The flood has the lowest priority. Calm guests are as many, with
//! the same limits. So the comparison with them does not show how processors are shared, but the work that
//! virt-api, virt-handler and the API server do for disturbing neighbours.

use super::pausing::{pause, unpause};
use super::start::remove;
use crate::Console;
use crate::command::{cluster_script, objects};
use crate::guest;
use crate::namespace::Namespace;
use crate::node::Node;
use crate::running::Running;
use crate::wait::{self, BOOT, RUNNING, SOON};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Port of virt-api for reviews and the aggregated API.
const API_PORT: u16 = 8444;
/// Silent connections at one time: more than virt-api allows for one address.
const SILENT: usize = 600;
/// Bytes of the body of an unauthenticated request.
const LARGE: usize = 1 << 20;
/// Number of such bodies at one time.
const BODIES: usize = 8;
/// CPU request and limit of a disturbing guest: the request that each guest with one CPU has. Twenty emulated guests under load
/// leave nothing of two processors. So what disturbing guests use over their own share is missing elsewhere, whatever they do.
const CPU: &str = "100m";

/// The script of a flooding guest: its console, its agent's channel, its network.
const SPAM: &str = "#!/bin/sh
(while true; do yes spam-spam-spam | head -n 2000 >/dev/ttyS0; done) >/dev/null 2>&1 &
for port in /dev/virtio-ports/* /dev/vport*; do
    (while true; do head -c 65536 /dev/urandom >$port; done) >/dev/null 2>&1 &
done
(while true; do udhcpc -n -q -t 1 -T 1 -i eth0 -s /bin/true; done) >/dev/null 2>&1 &
(while true; do ping -q -c 1000 -A -s 1200 $(ip route | sed -n 's/^default via \\([^ ]*\\).*/\\1/p'); done) >/dev/null 2>&1 &
";

/// The script of a guest that uses its processor time, and nothing else.
const COMPUTE: &str = "#!/bin/sh
(while true; do :; done) >/dev/null 2>&1 &
(while sleep 5; do echo computes-now >/dev/ttyS0; done) >/dev/null 2>&1 &
";
/// Names of such guests.
const CALM: [&str; 2] = ["calm-1", "calm-2"];
/// Name of the flooding guest.
const SPAMMER: [&str; 1] = ["spammer"];
/// Name of the guest with the false launcher.
const HOSTILE: &str = "hostile";

/// Guests that have booted and are paused while nothing is measured beside them: within their limit, a boot takes minutes.
pub(super) struct Neighbours {
    namespace: Namespace,
    names: &'static [&'static str],
}

impl Neighbours {
    /// Guests that use as much processor time as the disturbing ones may.
    pub(super) fn calm(namespace: &Namespace) -> Result<Self> {
        Self::start(namespace, &CALM, COMPUTE)
    }

    /// The guest that floods all its channels.
    pub(super) fn spammer(namespace: &Namespace) -> Result<Self> {
        Self::start(namespace, &SPAMMER, SPAM)
    }

    fn start(namespace: &Namespace, names: &'static [&'static str], script: &str) -> Result<Self> {
        for name in names {
            namespace.apply(&bounded(guest::with_user_data(guest::instance(name), script)))?;
        }
        Ok(Self { namespace: namespace.clone(), names })
    }

    /// Waits until each writes this to its console, and pauses them.
    pub(super) fn paused_after(self, words: &str) -> Result<Self> {
        for name in self.names {
            self.namespace.wait_phase(name, "Running", RUNNING)?;
            Console::open(&self.namespace, name)?.expect(words, BOOT * 2)?;
        }
        self.pause()?;
        Ok(self)
    }

    pub(super) fn pause(&self) -> Result<()> {
        self.names.iter().try_for_each(|name| pause(&self.namespace, name))
    }

    pub(super) fn unpause(&self) -> Result<()> {
        self.names.iter().try_for_each(|name| unpause(&self.namespace, name))
    }
}

/// All three neighbours, until this is dropped.
pub(super) struct Noise<'a> {
    flood: Flood,
    hostile_launcher: HostileLauncher,
    spammer: &'a Neighbours,
}

impl<'a> Noise<'a> {
    /// Starts them, and waits until each has an effect.
    pub(super) fn start(spammer: &'a Neighbours) -> Result<Self> {
        let namespace = &spammer.namespace;
        namespace.apply(&bounded(guest::instance(HOSTILE)))?;
        namespace.wait_phase(HOSTILE, "Running", RUNNING)?;
        let hostile_launcher = HostileLauncher::start(namespace)?;
        spammer.unpause()?;
        let flood = Flood::start()?;
        wait::until_true("the flood to reach virt-api", SOON, || Ok(flood.rounds() > 0))?;
        wait::until_true("virt-handler to listen to the hostile launcher", SOON * 2, || {
            Ok(hostile_launcher.count() > 0)
        })?;
        Ok(Self { flood, hostile_launcher, spammer })
    }

    /// Ends them; an error if one of them ended before.
    pub(super) fn end(mut self) -> Result<()> {
        ensure!(self.flood.is_there()?, "the flood has dried up");
        ensure!(self.hostile_launcher.is_there()?, "the hostile launcher has ended");
        let spammer = self.spammer;
        drop(self);
        spammer.pause()?;
        remove(&spammer.namespace, "vmi", HOSTILE)
    }
}

/// An instance with a limit of processor time, and the weight of every other guest.
fn bounded(mut manifest: Value) -> Value {
    guest::spec_of(&mut manifest)["domain"]["resources"] =
        json!({ "limits": { "cpu": CPU }, "requests": { "cpu": CPU } });
    manifest
}

/// A program on a node, which ends with its input.
struct Remote {
    program: Running,
    /// How often it has printed the counted word.
    heard: Arc<AtomicUsize>,
}

impl Remote {
    /// Starts a bash script there, with that input.
    fn start(node: &Node, script: &str, mut input: impl Read, counts: &'static str) -> Result<Self> {
        let mut command = cluster_script("cli.sh");
        command.args(["ssh", node.name(), "bash", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = Running(command.spawn().context("start a program on a node")?);
        let mut stdin = program.stdin.take().context("the program has no input")?;
        io::copy(&mut input, &mut stdin).context("give the program its input")?;
        program.stdin = Some(stdin);
        let lines = BufReader::new(program.stdout.take().context("the program has no output")?).lines();
        let heard = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&heard);
        thread::spawn(move || {
            for _ in lines.map_while(Result::ok).filter(|line| line == counts) {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        });
        Ok(Self { program, heard })
    }

    fn count(&self) -> usize {
        self.heard.load(Ordering::Relaxed)
    }

    fn is_there(&mut self) -> Result<bool> {
        Ok(self.program.try_wait()?.is_none())
    }
}

/// An unknown client of virt-api's port, at a node's address: silent connections, and large unauthenticated
/// bodies.
struct Flood {
    silent: Remote,
    bodies: Remote,
}

impl Flood {
    fn start() -> Result<Self> {
        let pods = objects(&["pod", "-n", "kubevirt", "-l", "kubevirt.io=virt-api"])?;
        let address = pods.iter().find_map(|pod| pod["status"]["podIP"].as_str()).context("no virt-api")?;
        let nodes = objects(&["node"])?;
        let node = nodes.iter().find_map(|node| node["metadata"]["name"].as_str()).context("no node")?;
        let node = Node::named(node);
        // `read` is the pause and the end: it fails with more than 128 where the time has passed, with 1 at the end of the input.
        let silent = format!(
            "renice -n 19 $$ >/dev/null; \
             while true; do \
               fds=(); \
               for ((n = 0; n < {SILENT}; n++)); do \
                 if ! {{ exec {{fd}}<>/dev/tcp/{address}/{API_PORT}; }} 2>/dev/null; then break; fi; fds+=($fd); \
               done; \
               echo silent; read -t 5; [ $? -gt 128 ] || exit 0; \
               for fd in \"${{fds[@]}}\"; do exec {{fd}}>&-; done; \
             done"
        );
        let host = crate::pods::host(address);
        let request = format!(
            "url = \"https://{host}:{API_PORT}/vmipreset-validate\"\ninsecure\nsilent\noutput = \"/dev/null\"\n\
             max-time = 10\nheader = \"Content-Type: application/json\"\ndata = \"{}\"\n",
            "7".repeat(LARGE)
        );
        let requests = vec![request; BODIES].join("next\n");
        // It has the lowest priority, since it stands for a program on another machine.
        let bodies = format!(
            "set -e; file=$(mktemp); trap 'rm -f $file' EXIT; head -c {} >$file; \
             while true; do \
               nice -n 19 curl --parallel --parallel-max {BODIES} --config $file </dev/null >/dev/null 2>&1 || true; \
               echo bodies; if read -t 0.1; then :; else [ $? -gt 128 ] || exit 0; fi; \
             done",
            requests.len()
        );
        Ok(Self {
            silent: Remote::start(&node, &silent, io::empty(), "silent")?,
            bodies: Remote::start(&node, &bodies, requests.as_bytes(), "bodies")?,
        })
    }

    /// How many rounds both have finished.
    fn rounds(&self) -> usize {
        self.silent.count().min(self.bodies.count())
    }

    fn is_there(&mut self) -> Result<bool> {
        Ok(self.silent.is_there()? && self.bodies.is_there()?)
    }
}

/// A program in place of a launcher, in its container.
struct HostileLauncher {
    program: Remote,
    node: Node,
    /// The launcher, which is stopped.
    launcher: u32,
    sockets: String,
}

impl HostileLauncher {
    fn start(namespace: &Namespace) -> Result<Self> {
        let pod = namespace.launcher(HOSTILE)?;
        let node = Node::of(&pod)?;
        let launcher = node.processes(&pod, "virt-launcher")?.first().copied().context("no launcher")?;
        let uid = pod["metadata"]["uid"].as_str().context("the pod has no uid")?;
        let sockets = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/sockets");
        let file = std::env::current_exe()?.with_file_name("hostile-launcher");
        let size = file.metadata().with_context(|| format!("no {}", file.display()))?.len();
        // The node has other files than this machine, so it gets the program as input. The program joins the
        // control groups of the launcher's container, by which virt-handler identifies its peer, and its network.
        let script = format!(
            "set -e; cd {sockets}; head -c {size} >/run/hostile-launcher; chmod 755 /run/hostile-launcher; \
             while IFS=: read -r number names path; do \
               for place in /sys/fs/cgroup/$names$path /sys/fs/cgroup/${{names#name=}}$path; do \
                 if [ -w $place/cgroup.procs ]; then echo $$ >$place/cgroup.procs || true; break; fi; \
               done; \
             done </proc/{launcher}/cgroup; \
             kill -STOP {launcher}; mv launcher-sock launcher-sock.away; \
             exec nsenter --net=/proc/{launcher}/ns/net /run/hostile-launcher launcher-sock"
        );
        Ok(Self {
            program: Remote::start(&node, &script, File::open(&file)?, "watch")?,
            node,
            launcher,
            sockets,
        })
    }

    /// How often virt-handler has connected to it.
    fn count(&self) -> usize {
        self.program.count()
    }

    fn is_there(&mut self) -> Result<bool> {
        self.program.is_there()
    }
}

impl Drop for HostileLauncher {
    fn drop(&mut self) {
        // The program ends with its input. Then the launcher's socket is restored, so that the pod can be
        // deleted.
        drop(self.program.program.stdin.take());
        let script = format!(
            "cd {} && [ ! -e launcher-sock.away ] || mv -f launcher-sock.away launcher-sock; rm -f /run/hostile-launcher; \
             kill -CONT {}; true",
            self.sockets, self.launcher
        );
        if let Err(problem) = self.node.sh(&script) {
            eprintln!("bench: {problem:#}");
        }
    }
}
