//! The Debian guest of `examples/vm-debian.yaml`: systemd, real cloud-init, the guest agent, sshd.

use anyhow::{Result, ensure};
use barevirt_e2e::command::repository;
use barevirt_e2e::wait::RUNNING;
use barevirt_e2e::{Console, Namespace, in_namespace};
use serde_json::Value;
use std::time::{Duration, Instant};

/// systemd and cloud-init, emulated on a busy machine.
const BOOT: Duration = Duration::from_secs(300);
const COMMAND: Duration = Duration::from_secs(60);

fn condition<'v>(vmi: &'v Value, wanted: &str) -> Option<&'v str> {
    let conditions = vmi["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == wanted)?["status"].as_str()
}

fn create(namespace: &Namespace) -> Result<()> {
    let example = repository().join("examples/vm-debian.yaml");
    namespace.kubectl(&["create", "-f", &example.to_string_lossy()]).map(drop)
}

/// The prompt is there before cloud-init has made the user: until then the login is incorrect.
fn login(console: &mut Console) -> Result<()> {
    let deadline = Instant::now() + BOOT;
    loop {
        match console.login_as("debian", Some("debian"), COMMAND) {
            Err(_) if Instant::now() < deadline => {}
            end => return end,
        }
    }
}

#[test]
fn debian_makes_its_user_by_cloud_init_and_its_agent_connects() {
    in_namespace("debian", |namespace| {
        create(namespace)?;
        namespace.wait_phase("debian", "Running", RUNNING)?;
        let mut console = Console::open(namespace, "debian")?;
        login(&mut console)?;
        let who = console.ok("id -un; hostname; sudo -n true && echo may-sudo", COMMAND)?;
        for word in ["debian", "may-sudo"] {
            ensure!(who.contains(word), "the user from cloud-init is not as asked for: {who}");
        }
        let disks = console.ok("lsblk -dno SERIAL,SIZE", COMMAND)?;
        ensure!(disks.contains("SCRATCH"), "the empty disk with its serial is missing: {disks}");
        namespace.wait("vmi", "debian", "to have its agent connected", BOOT, |vmi| {
            condition(vmi, "AgentConnected") == Some("True")
        })?;
        console.leave()?;
        Ok(())
    });
}
