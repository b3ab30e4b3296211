//! What is open to a guest when it moves: displays and monitors are reached again by themselves, and forwarded connections end and can
//! be opened again. That a console stays open is in `migration`.

use crate::virtctl::Proxy;
use anyhow::{Context, Result, ensure};
use barevirt_e2e::command::cluster_script;
use barevirt_e2e::moving_guest::{machine, node};
use barevirt_e2e::rfb::Screen;
use barevirt_e2e::wait::{self, SOON};
use barevirt_e2e::{Console, Forward, Namespace, Running, in_namespace};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::{NamedTempFile, TempDir};

#[test]
fn displays_monitors_and_ports_of_a_guest_that_moves_are_reached_again() {
    in_namespace("movestreams", |namespace| {
        let mut console = Console::boot(namespace, &machine("vm"))?;
        console.ok("{ nc -ll -p 1500 -e cat >/dev/null 2>&1 & }", SOON)?;
        console.leave()?;
        let display = Display::open(namespace)?;
        let shell = open_shell(namespace)?;
        let watch = Watch::open(namespace)?;
        let proxy = MonitorProxy::open(namespace)?;
        let port = Port::open(namespace)?;
        let there = node(&namespace.migrate("vm")?);
        display.shows_again(&there)?;
        answers_again(shell, &there)?;
        watch.goes_on(namespace, &there)?;
        proxy.serves_again(&there)?;
        port.answers_again()
    });
}

fn virtctl(namespace: &Namespace, words: &[&str]) -> Command {
    let mut command = cluster_script("virtctl.sh");
    command.args(["-n", namespace.name()]).args(words);
    command
}

/// A file with what a program writes.
struct Written(NamedTempFile);

impl Written {
    fn new() -> Result<Self> {
        Ok(Self(NamedTempFile::new()?))
    }

    fn file(&self) -> Result<Stdio> {
        Ok(self.0.reopen()?.into())
    }

    fn text(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.0.path())?)
    }

    fn wait_for(&self, words: &str) -> Result<()> {
        wait::until_true(&format!("{words:?} to be said"), SOON, || Ok(self.text()?.contains(words)))
    }
}

/// `virtctl vnc --proxy-only` with a viewer.
struct Display {
    said: Written,
    proxy: Proxy,
    screen: Screen,
}

impl Display {
    fn open(namespace: &Namespace) -> Result<Self> {
        let said = Written::new()?;
        let proxy = Proxy::start_telling(namespace, &[], said.file()?)?;
        let mut screen = Screen::connect(proxy.port)?;
        ensure!(screen.update()? > 0, "the first picture is empty");
        Ok(Self { said, proxy, screen })
    }

    /// A viewer does not expect a handshake in the middle of its connection, so that ends. The port stays.
    fn shows_again(mut self, there: &str) -> Result<()> {
        let port = self.proxy.port;
        self.said
            .wait_for(&format!("vm has moved to node {there}: connect the viewer to port {port} again."))?;
        ensure!(self.screen.has_ended(), "the first viewer is still connected");
        let mut screen = Screen::connect(port)?;
        ensure!(screen.update()? > 0, "the picture on the new node is empty");
        Ok(())
    }
}

fn open_shell(namespace: &Namespace) -> Result<Console> {
    let mut shell = Console::start(&mut virtctl(namespace, &["qmp", "vm"]))?;
    shell.expect("vm> ", SOON)?;
    Ok(shell)
}

fn answers_again(mut shell: Console, there: &str) -> Result<()> {
    shell.expect(&format!("vm has moved to node {there}, and its monitor is connected again."), SOON)?;
    shell.send("query-status\r")?;
    shell.expect("\"status\": \"running\"", SOON)?;
    // What is typed before the prompt is there is lost.
    shell.expect("vm> ", SOON)?;
    // QEMU's own default is 2: the guest came over as many further connections as handlers make.
    shell.send("query-migrate-parameters\r")?;
    shell.expect("\"multifd-channels\": 4", SOON)?;
    shell.expect("vm> ", SOON)?;
    shell.send("\u{4}")?;
    ensure!(shell.wait(SOON)? == 0, "the shell ends well");
    Ok(())
}

/// `virtctl qmp --watch`.
struct Watch {
    said: Written,
    events: Written,
    _program: Running,
}

impl Watch {
    fn open(namespace: &Namespace) -> Result<Self> {
        let (said, events) = (Written::new()?, Written::new()?);
        let mut command = virtctl(namespace, &["qmp", "vm", "--watch", "RESUME"]);
        let program = Running(command.stdout(events.file()?).stderr(said.file()?).spawn()?);
        let watch = Self { said, events, _program: program };
        watch.wait_for_another(namespace, 0)?;
        Ok(watch)
    }

    /// Lets the guest go on until an event says so: the first ones may come before the watch begins.
    fn wait_for_another(&self, namespace: &Namespace, before: usize) -> Result<()> {
        wait::until_true("another event", SOON, || {
            for command in ["stop", "cont"] {
                namespace.virtctl(&["qmp", "vm", command])?;
            }
            Ok(self.events.text()?.matches("RESUME").count() > before)
        })
    }

    fn goes_on(&self, namespace: &Namespace, there: &str) -> Result<()> {
        self.said.wait_for(&format!("vm has moved to node {there}: its events are watched there"))?;
        self.wait_for_another(namespace, self.events.text()?.matches("RESUME").count())
    }
}

/// `virtctl qmp --proxy` with a tool.
struct MonitorProxy {
    said: Written,
    folder: TempDir,
    tool: BufReader<UnixStream>,
    _program: Running,
}

impl MonitorProxy {
    fn open(namespace: &Namespace) -> Result<Self> {
        let (said, folder) = (Written::new()?, tempfile::tempdir()?);
        let socket = folder.path().join("qmp");
        let mut command = virtctl(namespace, &["qmp", "vm", "--proxy"]);
        let program = Running(command.arg(&socket).stdout(Stdio::null()).stderr(said.file()?).spawn()?);
        said.wait_for("QMP on ")?;
        let tool = greeted(&socket)?;
        Ok(Self { said, folder, tool, _program: program })
    }

    /// A tool would wait for answers for ever, so its session ends. The socket stays.
    fn serves_again(mut self, there: &str) -> Result<()> {
        self.said.wait_for(&format!("vm has moved to node {there}: connect to "))?;
        self.tool.read_to_end(&mut Vec::new())?;
        greeted(&self.folder.path().join("qmp")).map(drop)
    }
}

/// A session of a tool, after QEMU's greeting.
fn greeted(socket: &Path) -> Result<BufReader<UnixStream>> {
    let mut tool = BufReader::new(UnixStream::connect(socket)?);
    tool.get_ref().set_read_timeout(Some(SOON))?;
    let mut line = String::new();
    tool.read_line(&mut line)?;
    ensure!(line.contains("\"QMP\""), "no greeting: {line}");
    Ok(tool)
}

/// `virtctl port-forward` with a connection to a program of the guest that echoes.
struct Port {
    forward: Forward,
    connection: TcpStream,
}

impl Port {
    fn open(namespace: &Namespace) -> Result<Self> {
        let forward = Forward::start(&mut virtctl(namespace, &["port-forward", "vmi/vm", "0:1500"]))?;
        let connection = wait::until("the guest's program to echo", SOON, || Ok(echoing(forward.port).ok()))?;
        Ok(Self { forward, connection })
    }

    /// The guest's new address is not the old connection's, so that ends, and does not hang. The port stays.
    fn answers_again(mut self) -> Result<()> {
        let read = self.connection.read(&mut [0]).context("wait for the end of the former connection")?;
        ensure!(read == 0, "the former connection says something");
        wait::until("the guest's program to echo on the new node", SOON, || {
            Ok(echoing(self.forward.port).ok())
        })?;
        Ok(())
    }
}

/// A connection that has come back with what was sent.
fn echoing(port: u16) -> Result<TcpStream> {
    let mut connection = TcpStream::connect(("127.0.0.1", port))?;
    connection.set_read_timeout(Some(SOON))?;
    connection.write_all(b"echo")?;
    let mut answer = [0; 4];
    connection.read_exact(&mut answer)?;
    ensure!(&answer == b"echo", "{answer:?}");
    Ok(connection)
}
