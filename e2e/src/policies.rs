//! NetworkPolicies for both directions, and what has to be reached under them, and what not. They hold for guests that are
//! labelled `policy: "yes"`. The policy engine is the test bed's (`cluster-up/addons.sh policy`).

use crate::command::objects;
use crate::console::Console;
use crate::namespace::Namespace;
use crate::pods::{self, ECHO};
use crate::questions::fetches;
use crate::wait::{self, BOOT, SOON};
use anyhow::{Result, ensure};
use serde_json::{Value, json};

/// How often in a row there has to be no answer: one packet may be lost on a busy machine.
const SILENT: u32 = 2;

/// A guest with a web server at port 80 and SSH at port 22, that [answers datagrams](crate::questions::answer_datagrams).
pub struct Guarded<'g> {
    /// Its pod.
    pub pod: &'g Value,
    /// Its console, which is logged in.
    pub console: &'g mut Console,
    /// What its web server answers: the name of the host.
    pub answer: &'g str,
}

impl Guarded<'_> {
    /// Waits until that client reaches it by connections and datagrams, or by neither.
    fn wait_reached(&self, client: &pods::Client<'_>, is_reached: bool) -> Result<()> {
        let questions = questions(&pods::both_addresses(self.pod)?, "80/hostname", self.answer);
        wait_answers(&questions, is_reached, |question| Ok(client.sh(question)?.code == 0))
    }

    /// Waits until its SSH server answers that client, or does not.
    fn wait_ssh(&self, client: &pods::Client<'_>, is_reached: bool) -> Result<()> {
        let ask =
            |address: &String| format!("[ \"$(timeout 3 nc {address} 22 </dev/null | head -c 4)\" = SSH- ]");
        let questions = pods::both_addresses(self.pod)?.each_ref().map(ask);
        wait_answers(&questions, is_reached, |question| Ok(client.sh(question)?.code == 0))
    }
}

/// Commands that succeed if the servers at those addresses answer: one with that text, at the port and path, and one with a datagram.
fn questions(addresses: &[String; 2], port_and_path: &str, answer: &str) -> Vec<String> {
    let ask = |address: &String| {
        let url = format!("http://{}:{port_and_path}", pods::host(address));
        [fetches(3, &url, answer), format!("udp {address} {ECHO} question")]
    };
    addresses.iter().flat_map(ask).collect()
}

/// Waits until each question is answered, or until it is not several times in a row.
fn wait_answers(
    questions: &[String],
    is_answered: bool,
    mut ask: impl FnMut(&str) -> Result<bool>,
) -> Result<()> {
    for question in questions {
        let what = format!("{question} to {}", if is_answered { "succeed" } else { "fail" });
        let mut silent = 0;
        wait::until_true(&what, BOOT, || {
            let answered = ask(question)?;
            silent = if answered { 0 } else { silent + 1 };
            Ok(if is_answered { answered } else { silent >= SILENT })
        })?;
    }
    Ok(())
}

/// A guest may be reached at port 80, and by datagrams, by `friend` alone, and may itself reach `open` alone.
fn policy() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": "guests" },
        "spec": {
            "podSelector": { "matchLabels": { "policy": "yes" } },
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{
                "from": [{ "podSelector": { "matchLabels": { "app": "friend" } } }],
                "ports": [{ "port": 80 }, { "port": ECHO, "protocol": "UDP" }],
            }],
            "egress": [{ "to": [{ "podSelector": { "matchLabels": { "app": "open" } } }] }],
        },
    })
}

/// Nothing reaches a pod of the namespace, and no pod of it reaches anything.
pub fn nothing() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": "nothing" },
        "spec": { "podSelector": {}, "policyTypes": ["Ingress", "Egress"] },
    })
}

/// A server among the pods beside the guests.
struct Server {
    /// What a guest asks it.
    questions: Vec<String>,
}

impl Server {
    fn start(namespace: &Namespace, name: &str, node: &str) -> Result<Self> {
        pods::server_on(namespace, name, name, node)?;
        let addresses = pods::both_addresses(&namespace.need("pod", name)?)?;
        Ok(Self { questions: questions(&addresses, "8080/", name) })
    }

    /// Waits until a guest reaches it by connections and datagrams, or by neither.
    fn wait(&self, console: &mut Console, is_reached: bool) -> Result<()> {
        wait_answers(&self.questions, is_reached, |question| Ok(console.run(question, SOON)?.1 == 0))
    }
}

/// The pods beside the guests. The clients are on different nodes, and so are the servers: each guest has one of either on its own node.
pub struct Others<'a> {
    friend: pods::Client<'a>,
    stranger: pods::Client<'a>,
    open: Server,
    closed: Server,
}

impl<'a> Others<'a> {
    /// Starts them.
    ///
    /// # Errors
    /// When one does not run, or the cluster has no policy engine.
    pub fn start(namespace: &'a Namespace) -> Result<Self> {
        let engines = objects(&["daemonset", "-n", "test-bed"])?;
        let there = engines.iter().any(|engine| engine["metadata"]["name"] == "policy");
        ensure!(there, "there is no policy engine: make cluster-addons ADDONS=policy");
        Ok(Self {
            friend: pods::client_on(namespace, "friend", "node01")?,
            stranger: pods::client_on(namespace, "stranger", "node02")?,
            open: Server::start(namespace, "open", "node02")?,
            closed: Server::start(namespace, "closed", "node01")?,
        })
    }

    /// Waits until both are reached by the guest, and reach it, or do not.
    ///
    /// # Errors
    /// When it is not so in time.
    pub fn wait_all(&self, guest: &mut Guarded<'_>, is_reached: bool) -> Result<()> {
        for client in [&self.stranger, &self.friend] {
            guest.wait_reached(client, is_reached)?;
        }
        self.open.wait(guest.console, is_reached)?;
        self.closed.wait(guest.console, is_reached)
    }

    /// Checks that a policy holds for the guest: it may be reached at port 80, and by datagrams, by `friend` alone, and may itself
    /// reach `open` alone. Removes the policy.
    ///
    /// # Errors
    /// When it does not hold.
    pub fn policy_holds(&self, namespace: &Namespace, guest: &mut Guarded<'_>) -> Result<()> {
        // Without a policy everybody is reached, so what is not reached afterwards is due to the policy.
        self.wait_all(guest, true)?;
        guest.wait_ssh(&self.friend, true)?;
        namespace.apply(&policy())?;
        guest.wait_reached(&self.stranger, false)?;
        guest.wait_reached(&self.friend, true)?;
        // The policy names no other port.
        guest.wait_ssh(&self.friend, false)?;
        self.closed.wait(guest.console, false)?;
        self.open.wait(guest.console, true)?;
        namespace.delete("networkpolicy", "guests")?;
        self.wait_all(guest, true)
    }
}
