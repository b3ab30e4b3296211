//! Controls of a running guest, and its reports.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::{cluster_script, run};
use barevirt_e2e::counting::Counting;
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, Node, guest, in_namespace};
use serde_json::{Value, json};
use std::thread::sleep;
use std::time::Duration;

/// The condition of that type, if there is one.
fn condition<'v>(vmi: &'v Value, wanted: &str) -> Option<&'v Value> {
    vmi["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == wanted)
}

fn wait_paused(namespace: &Namespace, reason: &str) -> Result<Value> {
    namespace.wait("vmi", "vm", "to be paused", SOON, |vmi| {
        condition(vmi, "Paused")
            .is_some_and(|paused| paused["status"] == "True" && paused["reason"] == reason)
    })
}

fn wait_unpaused(namespace: &Namespace) -> Result<Value> {
    namespace.wait("vmi", "vm", "not to be paused", SOON, |vmi| condition(vmi, "Paused").is_none())
}

/// The output of the guest's serial line since its power-on.
struct Log {
    node: Node,
    launcher: Value,
}

impl Log {
    fn of(namespace: &Namespace) -> Result<Self> {
        let launcher = namespace.launcher("vm")?;
        Ok(Self { node: Node::of(&launcher)?, launcher })
    }

    fn text(&self) -> Result<String> {
        self.node.serial_log(&self.launcher)
    }

    /// Ids of the boots, in their order.
    fn boots(&self) -> Result<Vec<String>> {
        let text = self.text()?;
        let mut boots: Vec<String> = Vec::new();
        for (_, rest) in text.lines().filter_map(|line| line.split_once("boot-id: ")) {
            let boot = rest.trim().to_owned();
            // An incomplete line is ignored.
            if boot.len() == 36 && boots.last() != Some(&boot) {
                boots.push(boot);
            }
        }
        Ok(boots)
    }

    fn wait_boots(&self, count: usize) -> Result<Vec<String>> {
        wait::until(&format!("boot {count} of the guest"), BOOT, || {
            Ok(Some(self.boots()?).filter(|boots| boots.len() >= count))
        })
    }
}

/// Calls a subresource of an instance, as KubeVirt's clients do.
pub(super) fn put(
    namespace: &Namespace,
    vmi: &str,
    what: &str,
    body: &Value,
) -> Result<barevirt_e2e::command::Output> {
    let path = format!(
        "/apis/subresources.kubevirt.io/v1/namespaces/{}/virtualmachineinstances/{vmi}/{what}",
        namespace.name()
    );
    run(cluster_script("kubectl.sh").args(["replace", "--raw", &path, "-f", "-"]), Some(&body.to_string()))
}

#[test]
fn a_paused_guest_stands_still_and_goes_on() {
    in_namespace("pause", |namespace| {
        namespace.apply(&guest::with_user_data(guest::instance("vm"), guest::COUNTING))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let counting = Counting::of(namespace, "vm")?;
        let refused = namespace.try_virtctl(&["unpause", "vmi", "vm"])?;
        ensure!(refused.code != 0 && refused.text().contains("VMI is not paused"), "{}", refused.text());
        namespace.virtctl(&["pause", "vmi", "vm", "--dry-run"])?;
        let said = namespace.virtctl(&["pause", "vmi", "vm"])?;
        ensure!(said.contains("VMI vm was scheduled to pause"), "{said}");
        let vmi = wait_paused(namespace, "PausedByUser")?;
        ensure!(vmi["status"]["phase"] == "Running");
        let refused = namespace.try_virtctl(&["pause", "vmi", "vm"])?;
        ensure!(refused.code != 0 && refused.text().contains("VMI is already paused"), "{}", refused.text());
        let refused = namespace.try_virtctl(&["soft-reboot", "vm"])?;
        ensure!(refused.code != 0 && refused.text().contains("VMI is paused"), "{}", refused.text());
        counting.stands_still()?;
        let said = namespace.virtctl(&["unpause", "vmi", "vm"])?;
        ensure!(said.contains("VMI vm was scheduled to unpause"), "{said}");
        wait_unpaused(namespace)?;
        counting.goes_on()?;
        ensure!(namespace.wait_event("vm", "Paused")?.contains("paused"));
        ensure!(namespace.wait_event("vm", "Unpaused")?.contains("unpaused"));
        Ok(())
    });
}

/// One guest that starts paused and boots three times. Each step is a behaviour of its own.
#[test]
fn a_guest_that_starts_paused_a_reset_and_a_soft_reboot_without_an_agent_boot_in_the_same_instance() {
    in_namespace("reset", |namespace| {
        let mut manifest = guest::instance("vm");
        manifest["spec"]["startStrategy"] = json!("Paused");
        namespace.apply(&manifest)?;
        let before = namespace.wait_phase("vm", "Running", RUNNING)?;
        let log = Log::of(namespace)?;
        boots_when_it_is_let_go(namespace, &log)?;
        reset_boots_again(namespace, &log)?;
        soft_reboot_goes_by_the_power_button(namespace, &log)?;
        let after = namespace.need("vmi", "vm")?;
        ensure!(
            after["metadata"]["uid"] == before["metadata"]["uid"] && after["status"]["phase"] == "Running"
        );
        // A later power-off counts as the guest's own.
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        console.send("poweroff\n")?;
        namespace.wait_phase("vm", "Succeeded", BOOT).map(drop)
    });
}

fn boots_when_it_is_let_go(namespace: &Namespace, log: &Log) -> Result<()> {
    wait_paused(namespace, "PausedByUser")?;
    sleep(Duration::from_secs(3));
    ensure!(log.text()?.is_empty(), "the guest ran: {}", log.text()?);
    namespace.virtctl(&["unpause", "vmi", "vm"])?;
    log.wait_boots(1)?;
    wait_unpaused(namespace).map(drop)
}

fn reset_boots_again(namespace: &Namespace, log: &Log) -> Result<()> {
    let said = namespace.virtctl(&["reset", "vm"])?;
    ensure!(said.contains("VMI vm was scheduled to reset"), "{said}");
    let boots = log.wait_boots(2)?;
    ensure!(boots[0] != boots[1], "{boots:?}");
    ensure!(!log.text()?.contains("power button"), "the guest was asked");
    namespace.wait_event("vm", "Reset").map(drop)
}

fn soft_reboot_goes_by_the_power_button(namespace: &Namespace, log: &Log) -> Result<()> {
    wait::until_true("the login prompt after the second boot", BOOT, || {
        let text = log.text()?;
        Ok(text.rsplit("boot-id: ").next().is_some_and(|rest| rest.contains("login: ")))
    })?;
    let said = namespace.virtctl(&["soft-reboot", "vm"])?;
    ensure!(said.contains("VMI vm was scheduled to soft-reboot"), "{said}");
    let boots = log.wait_boots(3)?;
    ensure!(boots[1] != boots[2], "{boots:?}");
    ensure!(log.text()?.contains("power button, shutting down"), "the guest was not asked");
    namespace.wait_event("vm", "SoftRebooted").map(drop)
}

#[test]
fn a_machine_is_started_paused() {
    in_namespace("vmpaused", |namespace| {
        namespace.apply(&guest::without_system(guest::machine("vm", "Halted")))?;
        namespace.virtctl(&["start", "vm", "--paused"])?;
        namespace.wait_status("vm", "Paused", RUNNING)?;
        let first = wait_paused(namespace, "PausedByUser")?["metadata"]["uid"].clone();
        namespace.virtctl(&["unpause", "vm", "vm"])?;
        namespace.wait_status("vm", "Running", SOON)?;
        // Only that one start is paused.
        namespace.virtctl(&["restart", "vm"])?;
        namespace.wait("vmi", "vm", "to be another, and Running", RUNNING + SOON, |vmi| {
            vmi["metadata"]["uid"] != first && vmi["status"]["phase"] == "Running"
        })?;
        let status: Value = serde_json::from_str(&namespace.virtctl(&["qmp", "vm", "query-status"])?)?;
        ensure!(status["running"] == true, "{status}");
        ensure!(condition(&namespace.need("vmi", "vm")?, "Paused").is_none(), "it was started paused again");
        Ok(())
    });
}

#[test]
fn a_screenshot_is_a_picture_of_the_display() {
    in_namespace("screenshot", |namespace| {
        namespace.apply(&guest::without_system(guest::instance("vm")))?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let file = std::env::temp_dir().join(format!("{}.png", namespace.name()));
        namespace.virtctl(&["vnc", "screenshot", "vm", "-f", &file.to_string_lossy()])?;
        let png = std::fs::read(&file).context("the picture was not written")?;
        std::fs::remove_file(&file)?;
        ensure!(png.starts_with(b"\x89PNG\r\n\x1a\n") && png.len() > 24, "it is not a PNG");
        let side = |at: usize| u32::from_be_bytes([png[at], png[at + 1], png[at + 2], png[at + 3]]);
        // Text mode, or what the guest's driver makes of it.
        let (width, height) = (side(16), side(20));
        ensure!((320..=4096).contains(&width) && (200..=4096).contains(&height), "{width} x {height}");

        let mut headless = guest::without_system(guest::instance("headless"));
        headless["spec"]["domain"]["devices"]["autoattachGraphicsDevice"] = json!(false);
        namespace.apply(&headless)?;
        namespace.wait_phase("headless", "Running", RUNNING)?;
        let refused = namespace.try_virtctl(&["vnc", "screenshot", "headless", "-f", "-"])?;
        let why = "No graphics devices are present.";
        ensure!(refused.code != 0 && refused.text().contains(why), "{}", refused.text());
        Ok(())
    });
}

#[test]
fn impossible_controls_are_refused_with_the_reason() {
    in_namespace("nocontrol", |namespace| {
        for command in [&["pause", "vmi", "nobody"][..], &["reset", "nobody"], &["guestosinfo", "nobody"]] {
            let refused = namespace.try_virtctl(command)?;
            ensure!(refused.code != 0 && refused.text().contains("not found"), "{}", refused.text());
        }
        namespace.apply(&guest::machine("vm", "Halted"))?;
        let refused = namespace.try_virtctl(&["pause", "vm", "vm"])?;
        let why = "VirtualMachine vm is not set to run";
        ensure!(refused.code != 0 && refused.text().contains(why), "{}", refused.text());
        namespace.apply(&guest::without_system(guest::instance("tiny")))?;
        namespace.wait_phase("tiny", "Running", RUNNING)?;
        for command in ["guestosinfo", "userlist", "fslist"] {
            let refused = namespace.try_virtctl(&[command, "tiny"])?;
            let why = "VMI does not have guest agent connected";
            ensure!(refused.code != 0 && refused.text().contains(why), "{}", refused.text());
        }
        let refused = put(namespace, "tiny", "freeze", &json!({ "unfreezeTimeout": "soon" }))?;
        ensure!(refused.code != 0 && refused.text().contains("unfreezeTimeout"), "{}", refused.text());
        let refused = put(namespace, "tiny", "freeze", &json!({}))?;
        let why = "command Freeze failed: ";
        ensure!(
            refused.text().contains(why) && refused.text().contains("not connected"),
            "{}",
            refused.text()
        );
        Ok(())
    });
}
