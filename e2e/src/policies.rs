//! NetworkPolicies for both directions, and what has to be reached under them, and what not. They hold for guests that are
//! labelled `policy: "yes"`. The policy engine is the test bed's (`cluster-up/addons.sh policy`).

use crate::console::Console;
use crate::namespace::Namespace;
use crate::pods;
use crate::wait::{self, BOOT, SOON};
use anyhow::{Result, ensure};
use serde_json::{Value, json};

/// A guest with a web server at port 80 and SSH at port 22.
pub struct Guarded<'g> {
    /// Its pod.
    pub pod: &'g Value,
    /// Its console, which is logged in.
    pub console: &'g mut Console,
    /// What its web server answers: the name of the host.
    pub answer: &'g str,
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
pub fn nothing() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": "nothing" },
        "spec": { "podSelector": {}, "policyTypes": ["Ingress", "Egress"] },
    })
}

/// The pods beside the guests, and the URLs of the servers among them.
pub struct Others<'a> {
    friend: pods::Client<'a>,
    stranger: pods::Client<'a>,
    open: Vec<String>,
    closed: Vec<String>,
}

impl<'a> Others<'a> {
    /// Starts them.
    ///
    /// # Errors
    /// When one does not run.
    pub fn start(namespace: &'a Namespace) -> Result<Self> {
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

    /// Waits until both are reached by the guest, and reach it, or do not.
    ///
    /// # Errors
    /// When it is not so in time.
    pub fn wait_all(&self, guest: &mut Guarded<'_>, is_reached: bool) -> Result<()> {
        let [answer, open, closed] = if is_reached { [guest.answer, "open", "closed"] } else { [""; 3] };
        for url in urls(guest.pod, 80, "hostname")? {
            self.friend.wait_answer(&url, Some(answer), BOOT)?;
            self.stranger.wait_answer(&url, Some(answer), BOOT)?;
        }
        reaches(guest.console, &self.open, open)?;
        reaches(guest.console, &self.closed, closed)
    }

    /// Checks that a policy holds for the guest: it may be reached at port 80 by `friend` alone, and may itself reach `open`
    /// alone. Removes the policy.
    ///
    /// # Errors
    /// When it does not hold.
    pub fn policy_holds(&self, namespace: &Namespace, guest: &mut Guarded<'_>) -> Result<()> {
        // Without a policy everybody is reached, so what is not reached afterwards is due to the policy.
        self.wait_all(guest, true)?;
        namespace.apply(&policy())?;
        for url in urls(guest.pod, 80, "hostname")? {
            self.stranger.wait_answer(&url, Some(""), BOOT)?;
            self.friend.wait_answer(&url, Some(guest.answer), BOOT)?;
        }
        // The policy names no other port.
        let address = guest.pod["status"]["podIP"].as_str().unwrap_or_default();
        let ssh = self.friend.sh(&format!("timeout 5 nc {address} 22 </dev/null"))?.stdout;
        ensure!(ssh.is_empty(), "{address} answers at port 22: {ssh}");
        reaches(guest.console, &self.closed, "")?;
        reaches(guest.console, &self.open, "open")?;
        namespace.delete("networkpolicy", "guests")?;
        self.wait_all(guest, true)
    }
}
