//! NetworkPolicies hold for guests, whatever their binding: the guest has its pod's address, or is hidden behind it.
//! The policy engine is the test bed's (`cluster-up/addons.sh policy`).

use anyhow::{Result, ensure};
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, guest, in_namespace, pods};
use serde_json::{Value, json};

/// The guests: name, binding, and node, so that they are on both.
const GUESTS: [(&str, &str, &str); 3] = [
    ("masquerade", "masquerade", "node01"),
    ("bridge", "bridge", "node02"),
    ("passt", "passtBinding", "node01"),
];

/// What their web servers answer: the name that a guest without cloud-init has.
const ANSWER: &str = "guest-tiny";

fn start(namespace: &Namespace) -> Result<()> {
    for (name, binding, node) in GUESTS {
        let mut manifest = guest::instance(name);
        let spec = guest::spec_of(&mut manifest);
        spec["nodeSelector"] = json!({ "kubernetes.io/hostname": node });
        let ports = json!([{ "port": 80 }, { "port": 22 }]);
        spec["domain"]["devices"]["interfaces"] = json!([{ "name": "default", binding: {}, "ports": ports }]);
        manifest["metadata"]["labels"]["policy"] = json!("yes");
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

#[test]
fn policies_for_both_directions_hold_for_guests_of_every_binding() {
    in_namespace("policies", |namespace| {
        start(namespace)?;
        for name in ["open", "closed"] {
            pods::server(namespace, name, name)?;
        }
        let (friend, stranger) = (pods::client(namespace, "friend")?, pods::client(namespace, "stranger")?);
        let [open, closed] = ["open", "closed"].map(|name| urls(&namespace.need("pod", name)?, 8080, ""));
        let (open, closed) = (open?, closed?);
        for (name, _, _) in GUESTS {
            namespace.wait_phase(name, "Running", RUNNING)?;
            let launcher = namespace.launcher(name)?;
            let web = urls(&launcher, 80, "hostname")?;
            let mut console = Console::open(namespace, name)?;
            console.login(BOOT)?;
            let gets = |client: &pods::Client<'_>, url: &String, answer: &str| {
                client.wait_answer(url, Some(answer), BOOT)
            };
            // Without a policy everybody is reached, so what is not reached afterwards is due to the policy.
            for url in &web {
                gets(&friend, url, ANSWER)?;
                gets(&stranger, url, ANSWER)?;
            }
            reaches(&mut console, &open, "open")?;
            reaches(&mut console, &closed, "closed")?;

            namespace.apply(&policy())?;
            for url in &web {
                gets(&stranger, url, "")?;
                gets(&friend, url, ANSWER)?;
            }
            // The policy names no other port.
            let address = launcher["status"]["podIP"].as_str().unwrap_or_default();
            let ssh = friend.sh(&format!("timeout 5 nc {address} 22 </dev/null"))?.stdout;
            ensure!(ssh.is_empty(), "{name} answers at port 22: {ssh}");
            reaches(&mut console, &closed, "")?;
            reaches(&mut console, &open, "open")?;

            namespace.delete("networkpolicy", "guests")?;
            for url in &web {
                gets(&stranger, url, ANSWER)?;
            }
            reaches(&mut console, &closed, "closed")?;
            console.leave()?;
        }
        Ok(())
    });
}
