//! The Debian guest of `examples/vm-debian.yaml`: systemd, real cloud-init, the guest agent, sshd.

use super::controls::put;
use super::credentials;
use anyhow::{Result, ensure};
use barevirt_e2e::command::{cluster_script, repository};
use barevirt_e2e::ssh::Key;
use barevirt_e2e::wait::{self, RUNNING, SOON};
use barevirt_e2e::{Console, Forward, Namespace, guest, in_namespace};
use serde_json::{Value, json};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// systemd and cloud-init, emulated on a busy machine.
const BOOT: Duration = Duration::from_secs(480);
const COMMAND: Duration = Duration::from_secs(60);

fn condition<'v>(vmi: &'v Value, wanted: &str) -> Option<&'v str> {
    let conditions = vmi["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == wanted)?["status"].as_str()
}

/// The example, with one more port, and credentials that its agent puts into effect.
fn create(namespace: &Namespace) -> Result<()> {
    let example = repository().join("examples/vm-debian.yaml");
    let text =
        namespace.kubectl(&["create", "--dry-run=client", "-o", "json", "-f", &example.to_string_lossy()])?;
    let mut machine: Value = serde_json::from_str(&text)?;
    let interface = &mut guest::spec_of(&mut machine)["domain"]["devices"]["interfaces"][0];
    guest::push(&mut interface["ports"], json!({ "port": 5300, "protocol": "UDP" }));
    credentials::by_agent(namespace, &mut machine)?;
    // In the end it boots again, and would not notice the power button.
    namespace.apply(&guest::with_grace(machine, 0))
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
fn debian_makes_its_user_by_cloud_init_and_its_agent_does_the_rest() {
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
        let key = Key::make()?;
        credentials::are_in_effect(namespace, &mut console, &key.public)?;
        copies_files(namespace, &mut console, &key)?;
        echoes_datagrams(namespace, &mut console)?;
        reports(namespace)?;
        freezes(namespace)?;
        moves_and_has_the_right_time(namespace, &mut console)?;
        loses_and_finds_its_agent(namespace, &mut console)?;
        console.leave().map(drop)
    });
}

/// The agent's reports, in the instance and through `virtctl`.
fn reports(namespace: &Namespace) -> Result<()> {
    // The agent reports more values over time.
    let vmi = namespace.wait("vmi", "debian", "to say what it is", BOOT, |vmi| {
        vmi["status"]["guestOSInfo"]["id"] == "debian"
            && vmi["status"]["interfaces"][0]["infoSource"] == "domain, guest-agent"
    })?;
    let launcher = namespace.launcher("debian")?;
    let interface = &vmi["status"]["interfaces"][0];
    ensure!(interface["ipAddress"] == launcher["status"]["podIP"] && interface["interfaceName"].is_string());

    let json = |command: &str| -> Result<Value> {
        Ok(serde_json::from_str(&namespace.virtctl(&[command, "debian"])?)?)
    };
    let info = json("guestosinfo")?;
    ensure!(info["os"]["id"] == "debian" && info["guestAgentVersion"].is_string(), "{info}");
    let commands = info["supportedCommands"].as_array().cloned().unwrap_or_default();
    ensure!(commands.iter().any(|command| command["name"] == "guest-fsfreeze-freeze"), "{info}");
    let mounted = json("fslist")?;
    let root = |disk: &&Value| disk["mountPoint"] == "/" && disk["totalBytes"].as_i64() > Some(1 << 28);
    ensure!(mounted["items"].as_array().is_some_and(|all| all.iter().any(|disk| root(&disk))), "{mounted}");
    ensure!(json("userlist")?["items"].is_array());
    Ok(())
}

/// The guest's file systems are frozen for the requested time, or until they are thawed.
fn freezes(namespace: &Namespace) -> Result<()> {
    // Frozen until the time is over, without a request to thaw. The time begins at the latest with the answer.
    let begun = Instant::now();
    let frozen = put(namespace, "debian", "freeze", &json!({ "unfreezeTimeout": "20s" }))?;
    ensure!(frozen.code == 0, "{}", frozen.text());
    let is_frozen = |vmi: &Value| vmi["status"]["fsFreezeStatus"] == "frozen";
    namespace.wait("vmi", "debian", "to be frozen", Duration::from_secs(15), is_frozen)?;
    namespace.wait("vmi", "debian", "to be thawed", SOON, |vmi| !is_frozen(vmi))?;
    ensure!(begun.elapsed() > Duration::from_secs(15), "it was thawed after {:?}", begun.elapsed());
    // Thawed by request.
    put(namespace, "debian", "freeze", &json!({}))?;
    namespace.wait("vmi", "debian", "to be frozen", SOON, is_frozen)?;
    let thawed = put(namespace, "debian", "unfreeze", &json!({}))?;
    ensure!(thawed.code == 0, "{}", thawed.text());
    namespace.wait("vmi", "debian", "to be thawed", SOON, |vmi| !is_frozen(vmi))?;
    Ok(())
}

/// The guest moves with its agent, which sets the clock once the guest runs there.
fn moves_and_has_the_right_time(namespace: &Namespace, console: &mut Console) -> Result<()> {
    console.ok("sudo date -s 2001-02-03", COMMAND)?;
    namespace.migrate("debian")?;
    console.expect("Connected to debian console again.", SOON)?;
    wait::until_true("the guest to have the right time", SOON, || {
        let time: i64 = console.ok("date +%s", COMMAND)?.trim().parse()?;
        Ok(time.abs_diff(jiff::Timestamp::now().as_second()) < 60)
    })?;
    namespace.wait("vmi", "debian", "to have its agent connected", SOON, |vmi| {
        condition(vmi, "AgentConnected") == Some("True")
    })?;
    Ok(())
}

/// When the agent ends, the condition is removed, and it comes back with the agent. The test uses a soft
/// reboot: without an agent, that would press the power button and shut the guest down.
fn loses_and_finds_its_agent(namespace: &Namespace, console: &mut Console) -> Result<()> {
    let agent = |vmi: &Value| condition(vmi, "AgentConnected").is_some();
    console.ok("sudo systemctl stop qemu-guest-agent", COMMAND)?;
    namespace.wait("vmi", "debian", "to lose its agent", SOON, |vmi| !agent(vmi))?;
    console.ok("sudo systemctl start qemu-guest-agent", COMMAND)?;
    namespace.wait("vmi", "debian", "to have its agent again", SOON, agent)?;
    namespace.virtctl(&["soft-reboot", "debian"])?;
    namespace.wait("vmi", "debian", "to lose its agent", BOOT, |vmi| !agent(vmi))?;
    console.expect("Restarting system", BOOT).map(drop)
}

/// A program for the guest that echoes UDP datagrams.
const ECHO: &str = "import socket\n\
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
    s.bind((\"\", 5300))\n\
    while True:\n    s.sendto(*s.recvfrom(2048))\n";

/// `virtctl scp` in both directions, with this machine's client and the guest's sshd.
fn copies_files(namespace: &Namespace, console: &mut Console, key: &Key) -> Result<()> {
    let files = tempfile::tempdir()?;
    let path = |name: &str| files.path().join(name).display().to_string();
    std::fs::create_dir(path("dir"))?;
    std::fs::write(path("dir/echo.py"), ECHO)?;
    let options = key.options();
    let scp = |words: &[&str]| {
        let mut arguments = vec!["scp"];
        arguments.extend(words);
        arguments.extend(options.iter().map(String::as_str));
        namespace.virtctl(&arguments).map(drop)
    };
    scp(&["--recursive", &path("dir"), "debian@vmi/debian:there"])?;
    console.ok("grep -q recvfrom there/echo.py && cp there/echo.py back.py", COMMAND)?;
    scp(&["debian@vmi/debian:back.py", &path("back.py")])?;
    ensure!(std::fs::read_to_string(path("back.py"))? == ECHO, "it comes back as another");
    let missing = scp(&["debian@vmi/debian:no-such-file", &path("none")]);
    ensure!(missing.is_err(), "what is not there was copied");
    Ok(())
}

/// `virtctl port-forward` of a UDP port to the program that was copied: datagrams come back, each whole.
fn echoes_datagrams(namespace: &Namespace, console: &mut Console) -> Result<()> {
    console.ok("(python3 there/echo.py >/dev/null 2>&1 &)", COMMAND)?;
    let mut command = cluster_script("virtctl.sh");
    command.args(["port-forward", "-n", namespace.name(), "vmi/debian", "udp/0:5300"]);
    let forward = Forward::start(&mut command)?;
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(("127.0.0.1", forward.port))?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    for datagram in [b"one".to_vec(), vec![7; 1200]] {
        wait::until_true("the datagram to come back", COMMAND, || {
            socket.send(&datagram)?;
            let mut answer = [0; 2048];
            // There are no answers until the program listens; answers to earlier datagrams may arrive later.
            Ok(socket.recv(&mut answer).is_ok_and(|length| answer[..length] == datagram[..]))
        })?;
    }
    Ok(())
}
