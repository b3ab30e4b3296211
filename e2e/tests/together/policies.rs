//! NetworkPolicies hold for guests, whatever their binding: the guest has its pod's address, or is hidden behind it. A policy
//! that denies everything does not keep a guest from moving, and holds where it is then.
//! The policy engine is the test bed's (`cluster-up/addons.sh policy`).

use anyhow::{Context, Result};
use barevirt_e2e::pods::ECHO;
use barevirt_e2e::policies::{Guarded, Others, nothing};
use barevirt_e2e::questions::answer_datagrams;
use barevirt_e2e::wait::SOON;
use barevirt_e2e::{Console, Namespace, guest, in_namespace};
use serde_json::json;

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
        let ports = json!([{ "port": 80 }, { "port": 22 }, { "port": ECHO, "protocol": "UDP" }]);
        spec["domain"]["devices"]["interfaces"] = json!([{ "name": "default", binding: {}, "ports": ports }]);
        guest::prefer(&mut manifest, node);
        manifest["spec"]["template"]["metadata"]["labels"]["policy"] = json!("yes");
        namespace.apply(&manifest)?;
    }
    Ok(())
}

/// Checks that the guest moves where nothing may pass, and that policies hold for its new pod.
fn policies_hold_after_a_move(others: &Others<'_>, namespace: &Namespace, name: &str) -> Result<()> {
    namespace.apply(&nothing())?;
    let vmi = namespace.migrate(name)?;
    let target = vmi["status"]["migrationState"]["targetPod"].as_str().context("it names no pod")?;
    let pod = namespace.need("pod", target)?;
    let mut console = Console::open(namespace, name)?;
    console.login(SOON)?;
    let mut guest = Guarded { pod: &pod, console: &mut console, answer: ANSWER };
    others.wait_all(&mut guest, false)?;
    namespace.delete("networkpolicy", "nothing")?;
    others.policy_holds(namespace, &mut guest)?;
    console.leave().map(drop)
}

#[test]
fn policies_for_both_directions_hold_for_guests_of_every_binding() {
    in_namespace("policies", |namespace| {
        start(namespace)?;
        let others = Others::start(namespace)?;
        for (name, _, _) in GUESTS {
            let mut console = Console::booted(namespace, name)?;
            answer_datagrams(&mut console)?;
            let pod = namespace.launcher(name)?;
            let mut guest = Guarded { pod: &pod, console: &mut console, answer: ANSWER };
            others.policy_holds(namespace, &mut guest)?;
            console.leave()?;
            if name == MOVES {
                policies_hold_after_a_move(&others, namespace, name)?;
            }
        }
        Ok(())
    });
}
