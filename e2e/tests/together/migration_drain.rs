//! A node is drained again and again: a guest that writes all the time moves there and back, and loses
//! nothing, and neither does a connection to it.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::node::drain;
use barevirt_e2e::wait::SOON;
use barevirt_e2e::{Console, Namespace, guest, held_connection, in_namespace};
use serde_json::json;
use std::time::Duration;

/// Twenty times there and back.
const ROUNDS: usize = 40;
const DRAINED: Duration = Duration::from_secs(300);
const COMMAND: Duration = Duration::from_secs(60);

/// Writes a number a tenth of a second onto its disk, each of them synced.
const WRITES: &str = "(n=0; while true; do n=$((n+1)); echo $n >>/root/numbers && sync && echo $n >/tmp/synced; sleep 0.1; \
                      done) >/dev/null 2>&1 &";

fn ask(namespace: &Namespace, command: &str) -> Result<String> {
    let mut console = Console::open(namespace, "vm")?;
    console.login(SOON)?;
    let answer = console.ok(command, COMMAND)?;
    console.leave()?;
    Ok(answer.trim().to_owned())
}

#[test]
fn a_guest_that_is_drained_twenty_times_loses_nothing_on_the_test_beds_delegates_network() {
    in_namespace("drain", |namespace| {
        let mut manifest = guest::machine("vm", "Always");
        manifest["spec"]["template"]["metadata"]["labels"]["drained"] = json!("again");
        guest::spec_of(&mut manifest)["evictionStrategy"] = json!("LiveMigrate");
        held_connection::with_card(namespace, &mut manifest)?;
        let mut console = Console::boot(namespace, &manifest)?;
        held_connection::begin(namespace, &mut console)?;
        console.ok(&format!("{{ {WRITES} }}"), COMMAND)?;
        let boot = console.ok("cat /proc/sys/kernel/random/boot_id", COMMAND)?;
        let make = "head -c 8388608 /dev/urandom >/root/content && sync && sha256sum </root/content";
        let content = console.ok(make, COMMAND)?;
        console.leave()?;
        let uid = namespace.need("vmi", "vm")?["metadata"]["uid"].clone();

        for round in 0..ROUNDS {
            let vmi = namespace.need("vmi", "vm")?;
            let home = vmi["status"]["nodeName"].as_str().context("it is on no node")?.to_owned();
            drain(&home, "drained=again", DRAINED).with_context(|| format!("round {round}, on {home}"))?;
            let vmi = namespace.need("vmi", "vm")?;
            ensure!(vmi["metadata"]["uid"] == uid && vmi["status"]["phase"] == "Running", "{round}: {vmi}");
            ensure!(vmi["status"]["nodeName"] != home.as_str(), "{round}: it is still there");
            let now = ask(namespace, "cat /proc/sys/kernel/random/boot_id")?;
            ensure!(now == boot.trim(), "{round}: it has booted again");
        }
        let after = ask(namespace, "echo 3 >/proc/sys/vm/drop_caches; sha256sum </root/content")?;
        ensure!(after == content.trim(), "the content is another one: {after}");
        // Every number occurs once, in order, up to the last synced one at least.
        let synced: u64 = ask(namespace, "cat /tmp/synced")?.parse()?;
        let wrong = ask(namespace, "awk '$1 != NR' /root/numbers | wc -l")?;
        let written: u64 = ask(namespace, "wc -l </root/numbers")?.parse()?;
        ensure!(wrong == "0" && written >= synced && synced > 100, "{wrong} of {written}, {synced} synced");
        let received = held_connection::received(namespace)?;
        println!(
            "{} numbers came over one connection, the longest gap {:?}",
            received.numbers, received.longest_gap
        );
        received.has_no_long_gap()?;
        Ok(())
    });
}
