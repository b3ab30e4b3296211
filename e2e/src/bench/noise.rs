//! Those who disturb: a tenant that floods virt-api, a launcher that lies, a guest that spams every channel it has.
//!
//! Guests that disturb, and with them the liar, which is in the control group of one, have a bound on processor time as tenants' pods
//! have; the flood gives way to all others. So it is not measured that processors are shared, but what others do for them: virt-api,
//! virt-handler, the API server.

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
/// Connections that say nothing, at one time: more than virt-api has places for one address.
const SILENT: usize = 600;
/// Bytes of a body that nobody has signed for.
const LARGE: usize = 1 << 20;
/// Such bodies that are sent at one time.
const BODIES: usize = 8;
/// Of a guest that disturbs.
const CPU: &str = "250m";

/// What a guest does that spams: its console, its agent's channel, its network.
const SPAM: &str = "#!/bin/sh
(while true; do yes spam-spam-spam | head -n 2000 >/dev/ttyS0; done) >/dev/null 2>&1 &
for port in /dev/virtio-ports/* /dev/vport*; do
    (while true; do head -c 65536 /dev/urandom >$port; done) >/dev/null 2>&1 &
done
(while true; do udhcpc -n -q -t 1 -T 1 -i eth0 -s /bin/true; done) >/dev/null 2>&1 &
(while true; do ping -q -c 1000 -A -s 1200 $(ip route | sed -n 's/^default via \\([^ ]*\\).*/\\1/p'); done) >/dev/null 2>&1 &
";

/// All three, until it is dropped.
pub(super) struct Noise {
    flood: Flood,
    liar: Liar,
    namespace: Namespace,
}

impl Noise {
    /// Starts them, and waits until each is heard.
    pub(super) fn start(namespace: &Namespace) -> Result<Self> {
        namespace.apply(&bounded(guest::instance("liar")))?;
        namespace.apply(&bounded(guest::with_user_data(guest::instance("spammer"), SPAM)))?;
        namespace.wait_phase("liar", "Running", RUNNING)?;
        let liar = Liar::start(namespace)?;
        namespace.wait_phase("spammer", "Running", RUNNING)?;
        let mut console = Console::open(namespace, "spammer")?;
        // It has a fraction of a processor.
        console.expect("spam-spam-spam", BOOT * 2)?;
        drop(console);
        let flood = Flood::start()?;
        wait::until_true("the flood to reach virt-api", SOON, || Ok(flood.rounds() > 0))?;
        wait::until_true("virt-handler to listen to the liar", SOON * 2, || Ok(liar.heard() > 0))?;
        Ok(Self { flood, liar, namespace: namespace.clone() })
    }

    /// Ends them; an error where one of them was not there to the end.
    pub(super) fn end(mut self) -> Result<()> {
        ensure!(self.flood.is_there()?, "the flood has dried up");
        ensure!(self.liar.is_there()?, "the liar has ended");
        let namespace = self.namespace.clone();
        drop(self);
        for name in ["liar", "spammer"] {
            namespace.kubectl(&["delete", "vmi", name, "--wait=false"])?;
        }
        for name in ["liar", "spammer"] {
            namespace.wait_gone("vmi", name, SOON * 2)?;
        }
        Ok(())
    }
}

/// An instance with a bound on its processor time.
fn bounded(mut manifest: Value) -> Value {
    guest::spec_of(&mut manifest)["domain"]["resources"]["limits"] = json!({"cpu": CPU});
    manifest
}

/// A program on a node, which ends with its input.
struct Remote {
    program: Running,
    /// How often it has said the word that counts.
    heard: Arc<AtomicUsize>,
}

impl Remote {
    /// Starts a script of bash there, and gives it its input.
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

    fn heard(&self) -> usize {
        self.heard.load(Ordering::Relaxed)
    }

    fn is_there(&mut self) -> Result<bool> {
        Ok(self.program.try_wait()?.is_none())
    }
}

/// A stranger before virt-api's port, at a node's address: silent connections, and large bodies of nobody.
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
            "while true; do \
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
        // It gives way to all others: it stands for a program elsewhere, which has other processors.
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

    /// How often both have come.
    fn rounds(&self) -> usize {
        self.silent.heard().min(self.bodies.heard())
    }

    fn is_there(&mut self) -> Result<bool> {
        Ok(self.silent.is_there()? && self.bodies.is_there()?)
    }
}

/// A program in the place of a launcher, in its container.
struct Liar {
    program: Remote,
    node: Node,
    /// The launcher, which stands still.
    launcher: u32,
    sockets: String,
}

impl Liar {
    fn start(namespace: &Namespace) -> Result<Self> {
        let pod = namespace.launcher("liar")?;
        let node = Node::of(&pod)?;
        let launcher = node.processes(&pod, "virt-launcher")?.first().copied().context("no launcher")?;
        let uid = pod["metadata"]["uid"].as_str().context("the pod has no uid")?;
        let sockets = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/sockets");
        let file = std::env::current_exe()?.with_file_name("liar");
        let size = file.metadata().with_context(|| format!("no {}", file.display()))?.len();
        // The node sees other files than we do, so it gets the program by its input. In its control groups it is in the launcher's
        // container, by which virt-handler tells who speaks.
        let script = format!(
            "set -e; cd {sockets}; head -c {size} >/run/liar; chmod 755 /run/liar; \
             while IFS=: read -r number names path; do \
               for place in /sys/fs/cgroup/$names$path /sys/fs/cgroup/${{names#name=}}$path; do \
                 if [ -w $place/cgroup.procs ]; then echo $$ >$place/cgroup.procs || true; break; fi; \
               done; \
             done </proc/{launcher}/cgroup; \
             kill -STOP {launcher}; mv launcher-sock launcher-sock.away; exec /run/liar launcher-sock"
        );
        Ok(Self {
            program: Remote::start(&node, &script, File::open(&file)?, "watch")?,
            node,
            launcher,
            sockets,
        })
    }

    /// How often virt-handler has begun to listen to it.
    fn heard(&self) -> usize {
        self.program.heard()
    }

    fn is_there(&mut self) -> Result<bool> {
        self.program.is_there()
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        // It ends with its input. What is in its place afterwards has to be as it was, so that the pod can go.
        drop(self.program.program.stdin.take());
        let script = format!(
            "cd {} && [ ! -e launcher-sock.away ] || mv -f launcher-sock.away launcher-sock; rm -f /run/liar; \
             kill -CONT {}; true",
            self.sockets, self.launcher
        );
        if let Err(problem) = self.node.sh(&script) {
            eprintln!("bench: {problem:#}");
        }
    }
}
