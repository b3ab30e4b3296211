//! Commands of virtctl without a separate area: manifests, credentials, displays, consoles that connect
//! again.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::{cluster_script, repository, succeed, try_virtctl};
use barevirt_e2e::rfb::Screen;
use barevirt_e2e::wait::{self, BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, Running, guest, in_namespace};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// `virtctl vnc --proxy-only`, until it is dropped.
pub(crate) struct Proxy {
    _program: Running,
    pub(crate) port: u16,
}

impl Proxy {
    fn start(namespace: &Namespace, arguments: &[&str]) -> Result<Self> {
        Self::start_telling(namespace, arguments, Stdio::null())
    }

    /// The same, with that standard error.
    pub(crate) fn start_telling(namespace: &Namespace, arguments: &[&str], stderr: Stdio) -> Result<Self> {
        let mut command: Command = cluster_script("virtctl.sh");
        command.args(["vnc", "vm", "--proxy-only", "-n", namespace.name()]).args(arguments);
        let mut program = Running(command.stdout(Stdio::piped()).stderr(stderr).spawn()?);
        let mut line = String::new();
        BufReader::new(program.stdout.take().context("it has no output")?).read_line(&mut line)?;
        let said: Value = serde_json::from_str(&line).with_context(|| format!("it says {line:?}"))?;
        let port = said["port"].as_u64().and_then(|port| port.try_into().ok()).context("no port")?;
        Ok(Self { _program: program, port })
    }
}

/// Width and height in the head of a PNG.
fn png_size(bytes: &[u8]) -> Result<(u16, u16)> {
    let number = |at: usize| -> Result<u16> {
        let bytes: [u8; 4] = bytes.get(at..at + 4).context("the picture is too short")?.try_into()?;
        Ok(u32::from_be_bytes(bytes).try_into()?)
    };
    Ok((number(16)?, number(20)?))
}

/// Runs another project's VNC client. It waits until the screen has more than one colour, and saves a
/// picture.
fn looked_at_by_another_program(proxy: &Proxy) -> Result<()> {
    let folder = repository().join("target/screens");
    std::fs::create_dir_all(&folder)?;
    let picture = folder.join("vnc.jpg");
    let mut client = Command::new("vncsnapshot");
    client.arg("-quiet").arg(format!("127.0.0.1::{}", proxy.port)).arg(&picture);
    succeed(&mut client, None)?;
    let bytes = std::fs::read(&picture)?;
    // A screen with the firmware's text has some 100 KiB in this format, a screen of one colour 5.
    ensure!(bytes.starts_with(&[0xff, 0xd8]) && bytes.len() > 20_000, "{} bytes", bytes.len());
    Ok(())
}

#[test]
fn a_viewer_sees_the_guests_screen_and_the_next_one_takes_it() {
    in_namespace("vnc", |namespace| {
        // With an empty disk: the firmware says so on the screen, which then does not change.
        let mut vmi = guest::instance("vm");
        vmi["spec"]["volumes"] = json!([{ "name": "root", "emptyDisk": { "capacity": "1Mi" } }]);
        namespace.apply(&vmi)?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        looked_at_by_another_program(&Proxy::start(namespace, &[])?)?;
        let proxy = Proxy::start(namespace, &[])?;
        let mut screen = Screen::connect(proxy.port)?;
        ensure!(screen.name.contains("vm"), "{}", screen.name);
        ensure!(screen.update()? > 0);
        // The size is the same as in a screenshot; the guest may change the mode in between.
        let file = tempfile::NamedTempFile::new()?;
        let path = file.path().to_str().context("the path is text")?;
        wait::until_true("a screenshot of the screen's size", SOON, || {
            namespace.virtctl(&["vnc", "screenshot", "vm", "--file", path])?;
            let size = png_size(&std::fs::read(path)?)?;
            if size != screen.size {
                let again = Proxy::start(namespace, &[])?;
                screen = Screen::connect(again.port)?;
            }
            Ok(size == screen.size)
        })?;
        let first = Proxy::start(namespace, &[])?;
        let mut seen = Screen::connect(first.port)?;
        // With `--preserve-session` the second viewer is refused, without it takes the display.
        let refused = namespace.try_virtctl(&["vnc", "vm", "--proxy-only", "--preserve-session"])?;
        ensure!(refused.code == 1 && refused.text().contains("Active VNC connection"), "{refused:?}");
        ensure!(seen.update()? == usize::from(seen.size.0) * usize::from(seen.size.1));
        let second = Proxy::start(namespace, &["--port", "0"])?;
        let mut next = Screen::connect(second.port)?;
        ensure!(next.update()? > 0);
        ensure!(seen.has_ended());
        Ok(())
    });
}

#[test]
fn a_manifest_made_by_virtctl_boots_and_a_console_follows_its_machine_into_the_next_run() {
    in_namespace("createvm", |namespace| {
        let image = format!("src:{},bootorder:1", guest::tiny_image());
        let manifest = namespace.virtctl(&[
            "create",
            "vm",
            "--name=vm",
            "--memory=128Mi",
            "--termination-grace-period=0",
            "--volume-containerdisk",
            &image,
            "--user=root",
        ])?;
        let vm: Value = serde_saphyr::from_str(&manifest)?;
        ensure!(vm["metadata"]["namespace"] == namespace.name(), "{manifest}");
        namespace.apply(&vm)?;
        namespace.wait_phase("vm", "Running", RUNNING)?;
        let mut console = Console::open(namespace, "vm")?;
        console.login(BOOT)?;
        // The data for cloud-init is on a second disk.
        console.ok("test -b /dev/sdb || test -b /dev/vdb", SOON)?;
        namespace.virtctl(&["restart", "vm"])?;
        console.expect("Connected to vm console again", RUNNING)?;
        console.login(BOOT)?;
        ensure!(console.leave()? == 0);
        for words in [
            &["instancetype", "--name=small", "--cpu=1", "--memory=128Mi"][..],
            &["preference", "--name=plain", "--cpu-topology=cores"],
        ] {
            let made = namespace.virtctl(&[&["create"], words].concat())?;
            let object: Value = serde_saphyr::from_str(&made)?;
            namespace.apply(&object)?;
        }
        let wrong = try_virtctl(&["create", "vm", "--volume-import=type:x"])?;
        ensure!(wrong.code == 1 && wrong.text().contains("invalid volume import type \"x\""), "{wrong:?}");
        Ok(())
    });
}

#[test]
fn credentials_are_written_to_the_secrets_of_a_machine() {
    in_namespace("credentials", |namespace| {
        let mut vm = guest::machine("vm", "Halted");
        guest::spec_of(&mut vm)["accessCredentials"] = json!([{"userPassword": {
            "source": {"secret": {"secretName": "passwords"}}, "propagationMethod": {"qemuGuestAgent": {}}}}]);
        namespace.apply(&vm)?;
        namespace.apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "passwords"}}))?;
        let key = |command: &str, more: &[&str]| {
            let all = ["credentials", command, "vm", "--user=jdoe", "--value=ssh-ed25519 AAAA"];
            namespace.try_virtctl(&[&all[..], more].concat())
        };
        // The first key makes a secret that the machine owns and names; the second is found there.
        ensure!(key("add-ssh-key", &[])?.code == 0);
        let again = key("add-ssh-key", &[])?;
        ensure!(again.text().contains("already contains this SSH key"), "{again:?}");
        let vm = namespace.need("vm", "vm")?;
        let credentials = &vm["spec"]["template"]["spec"]["accessCredentials"];
        let named =
            credentials[1]["sshPublicKey"]["source"]["secret"]["secretName"].as_str().context("no secret")?;
        let secret = namespace.need("secret", named)?;
        ensure!(secret["metadata"]["ownerReferences"][0]["uid"] == vm["metadata"]["uid"], "{secret}");
        ensure!(secret["data"].to_string().contains("c3NoLWVkMjU1MTkgQUFBQQ=="), "{secret}");
        ensure!(key("remove-ssh-key", &[])?.code == 0);
        ensure!(namespace.need("secret", named)?["data"].is_null());
        // A secret that the machine does not own is changed only with --force.
        let password = ["credentials", "set-password", "vm", "--user=jdoe", "--password=secret"];
        let refused = namespace.try_virtctl(&password)?;
        ensure!(
            refused.code == 1 && refused.text().contains("does not have an owner reference"),
            "{refused:?}"
        );
        namespace.virtctl(&[&password[..], &["--force"]].concat())?;
        ensure!(namespace.need("secret", "passwords")?["data"] == json!({"jdoe": "c2VjcmV0"}));
        Ok(())
    });
}

#[test]
fn missing_commands_are_named_and_usage_errors_fail() {
    in_namespace("virtctlmissing", |namespace| {
        namespace.apply(&guest::machine("vm", "Halted"))?;
        let expanded = namespace.virtctl(&["expand", "--vm=vm", "-o", "json"])?;
        for words in [&["memory-dump", "get", "vm"][..], &["vmexport", "create", "vm"]] {
            let output = namespace.try_virtctl(words)?;
            ensure!(output.code == 1 && output.text().contains("not supported yet"), "{words:?}: {output:?}");
        }
        let output = namespace.try_virtctl(&["start"])?;
        ensure!(output.code == 1 && output.text().contains("Usage"), "{output:?}");
        let completion = namespace.virtctl(&["completion", "bash"])?;
        ensure!(completion.contains("_virtctl"), "{completion}");
        let expanded: Value = serde_json::from_str(&expanded)?;
        ensure!(expanded["spec"]["template"]["spec"]["domain"]["memory"]["guest"] == "128Mi", "{expanded}");
        Ok(())
    });
}
