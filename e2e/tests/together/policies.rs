//! NetworkPolicies hold for guests, whatever their binding: the guest has its pod's address, or is hidden behind it. A policy
//! that denies everything does not keep a guest from moving, and holds where it is then.
//! The policy engine is the test bed's (`cluster-up/addons.sh policy`).

use anyhow::{Context, Result, ensure};
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, guest, in_namespace, pods};
use serde_json::{Value, json};

/// The guests: name, binding, and node, so that they are on both.
const GUESTS: [(&str, &str, &str); 3] = [
    ("masquerade", "masquerade", "node01"),
    ("bridge", "bridge", "node02"),
    ("passt", "passtBinding", "node01"),
];

/// The guest that moves. A bridge on the pod network keeps a guest on its node.
const MOVES: &str = "masquerade";

/// What their web servers answer: the name that a guest without cloud-init has.
const ANSWER: &str = "guest-tiny";

fn start(namespace: &Namespace) -> Result<()> {
    for (name, binding, node) in GUESTS {
        let mut manifest = guest::machine(name, "Always");
        let spec = guest::spec_of(&mut manifest);
        let ports = json!([{ "port": 80 }, { "port": 22 }]);
        spec["domain"]["devices"]["interfaces"] = json!([{ "name": "default", binding: {}, "ports": ports }]);
        guest::prefer(&mut manifest, node);
        manifest["spec"]["template"]["metadata"]["labels"]["policy"] = json!("yes");
        namespace.apply(&manifest)?;
    }
    Ok(())
}

/// URLs of a pod's web server, one for each of its addresses.
fn urls(pod: &Value, port: u16, path: &str) -> Result<Vec<String>> {
    let addresses = pods::both_addresses(pod)?;
    Ok(addresses.iter().map(|address| format!("http://{}:{port}/{path}", pods::host(address))).collect())
}

/// Waits until a guest gets that answer; an empty text means that it gets none.
fn reaches(console: &mut Console, urls: &[String], answer: &str) -> Result<()> {
    for url in urls {
        let is_it = format!("[ \"$(timeout 5 wget -qO- {url} 2>/dev/null)\" = \"{answer}\" ]");
        let what = format!("{answer:?} from {url} in the guest");
        wait::until_true(&what, BOOT, || Ok(console.run(&is_it, SOON)?.1 == 0))?;
    }
    Ok(())
}

/// A guest may be reached at port 80 by `friend` alone, and may itself reach `open` alone.
fn policy() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": "guests" },
        "spec": {
            "podSelector": { "matchLabels": { "policy": "yes" } },
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{
                "from": [{ "podSelector": { "matchLabels": { "app": "friend" } } }],
                "ports": [{ "port": 80 }],
            }],
            "egress": [{ "to": [{ "podSelector": { "matchLabels": { "app": "open" } } }] }],
        },
    })
}

/// Nothing reaches a pod of the namespace, and no pod of it reaches anything.
fn nothing() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": "nothing" },
        "spec": { "podSelector": {}, "policyTypes": ["Ingress", "Egress"] },
    })
}

/// The pods beside the guests, and the URLs of the servers among them.
struct Others<'a> {
    friend: pods::Client<'a>,
    stranger: pods::Client<'a>,
    open: Vec<String>,
    closed: Vec<String>,
}

impl<'a> Others<'a> {
    fn start(namespace: &'a Namespace) -> Result<Self> {
        for name in ["open", "closed"] {
            pods::server(namespace, name, name)?;
        }
        let serves = |name: &str| urls(&namespace.need("pod", name)?, 8080, "");
        Ok(Self {
            friend: pods::client(namespace, "friend")?,
            stranger: pods::client(namespace, "stranger")?,
            open: serves("open")?,
            closed: serves("closed")?,
        })
    }

    /// Waits until both are reached by the guest of that pod, and reach it, or do not.
    fn wait_all(&self, pod: &Value, console: &mut Console, is_reached: bool) -> Result<()> {
        let says = |answer: &'static str| if is_reached { answer } else { "" };
        for url in urls(pod, 80, "hostname")? {
            self.friend.wait_answer(&url, Some(says(ANSWER)), BOOT)?;
            self.stranger.wait_answer(&url, Some(says(ANSWER)), BOOT)?;
        }
        reaches(console, &self.open, says("open"))?;
        reaches(console, &self.closed, says("closed"))
    }

    /// Checks that the [policy](policy) holds for the guest of that pod, and removes it.
    fn policy_holds(&self, namespace: &Namespace, pod: &Value, console: &mut Console) -> Result<()> {
        // Without a policy everybody is reached, so what is not reached afterwards is due to the policy.
        self.wait_all(pod, console, true)?;
        namespace.apply(&policy())?;
        for url in urls(pod, 80, "hostname")? {
            self.stranger.wait_answer(&url, Some(""), BOOT)?;
            self.friend.wait_answer(&url, Some(ANSWER), BOOT)?;
        }
        // The policy names no other port.
        let address = pod["status"]["podIP"].as_str().unwrap_or_default();
        let ssh = self.friend.sh(&format!("timeout 5 nc {address} 22 </dev/null"))?.stdout;
        ensure!(ssh.is_empty(), "{address} answers at port 22: {ssh}");
        reaches(console, &self.closed, "")?;
        reaches(console, &self.open, "open")?;
        namespace.delete("networkpolicy", "guests")?;
        self.wait_all(pod, console, true)
    }

    /// Checks that the guest moves where nothing may pass, and that policies hold for its new pod.
    fn policies_hold_after_a_move(&self, namespace: &Namespace, name: &str) -> Result<()> {
        namespace.apply(&nothing())?;
        let vmi = namespace.migrate(name)?;
        let target = vmi["status"]["migrationState"]["targetPod"].as_str().context("it names no pod")?;
        let pod = namespace.need("pod", target)?;
        let mut console = Console::open(namespace, name)?;
        console.login(SOON)?;
        self.wait_all(&pod, &mut console, false)?;
        namespace.delete("networkpolicy", "nothing")?;
        self.policy_holds(namespace, &pod, &mut console)?;
        console.leave().map(drop)
    }
}

#[test]
fn policies_for_both_directions_hold_for_guests_of_every_binding() {
    in_namespace("policies", |namespace| {
        start(namespace)?;
        let others = Others::start(namespace)?;
        for (name, _, _) in GUESTS {
            namespace.wait_phase(name, "Running", RUNNING)?;
            let mut console = Console::open(namespace, name)?;
            console.login(BOOT)?;
            others.policy_holds(namespace, &namespace.launcher(name)?, &mut console)?;
            console.leave()?;
            if name == MOVES {
                others.policies_hold_after_a_move(namespace, name)?;
            }
        }
        Ok(())
    });
}
