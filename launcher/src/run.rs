//! `virt-launcher run`: a manifest on any Linux machine with QEMU, without Kubernetes and without root.
//!
//! It uses the same plan, supervisor and state machine as a pod. The handler's part is replaced by what a
//! user may do: QEMU's own network stack, images from local files, the terminal as console.

pub mod args;
pub mod exit;
pub mod images;
pub mod manifest;
pub mod save;
pub mod scratch;
pub mod terminal;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use barevirt_api::masquerade;
use barevirt_api::settings::Smbios;
use barevirt_api::sizing;
use barevirt_api::valid::ValidVmi;
use barevirt_machine::{Accelerator, Bytes, CpuQuestion, HostCpu, InterfaceFacts, NetBackend};
use barevirt_qmp::{Agent, Deadline, Options, Qmp};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};

use self::args::Args;
use self::scratch::Scratch;
use self::terminal::Left;
use crate::accelerator::processor_virtualises;
use crate::assembly::{Assembly, FromNode, Installation, Parts, assemble, usb_sockets};
use crate::console;
use crate::descriptors::Descriptors;
use crate::disk::claim;
use crate::firmware;
use crate::guest_end::GuestEnd;
use crate::host_cpu;
use crate::people;
use crate::process::Command;
use crate::serial_log::{DEFAULT_LIMIT, SerialLog};
use crate::signals::Stops;
use crate::status::Status;
use crate::supervisor::{Request, supervise};
use crate::volumes::{self, Base, Places};

/// Runs the manifest to its end. Must run within a `LocalSet`. Returns `None` if nothing was to be
/// started.
///
/// # Errors
/// If it cannot be started; the end of a started guest is returned.
pub async fn run(args: Args) -> anyhow::Result<Option<GuestEnd>> {
    let local: Vec<&str> = args.disks.iter().map(|disk| disk.volume.as_str()).collect();
    let vmi = manifest::load(&args.manifest, args.memory.as_deref(), &local)?;
    let (bases, found) = images::open_all(&vmi, &args.disks, &args.images)?;
    let scratch =
        Scratch::new(&std::env::temp_dir()).context("cannot make a directory for temporary files")?;
    let accelerator = accelerator(&args)?;
    let host_cpu = match CpuQuestion::of(&vmi, &accelerator) {
        Some(question) => Some(host_cpu::ask(&args.qemu, &accelerator, None, &question).await?),
        None => None,
    };
    let assembly = prepare(&vmi, bases, &args, &scratch, accelerator, host_cpu)?;
    if args.dry_run {
        print(&assembly.launch.command).context("cannot print")?;
        return Ok(None);
    }
    let saves = save::plan(&args.saves, &found, scratch.path())?;
    let end = boot(&vmi, assembly, &args).await?;
    // If one disk cannot be saved, the others still are.
    let mut failed = Vec::new();
    for one in &saves {
        match save::save(&args.qemu, one).await {
            Ok(()) => say(&format!("Volume {} is saved as {}.", one.volume, one.to.display())),
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    anyhow::ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(Some(end))
}

fn prepare(
    vmi: &ValidVmi,
    bases: BTreeMap<String, Base>,
    args: &Args,
    scratch: &Scratch,
    accelerator: Accelerator,
    host_cpu: Option<HostCpu>,
) -> anyhow::Result<Assembly> {
    let mut descriptors = Descriptors::default();
    let directory = scratch.path().to_owned();
    // Disks that are on claims in a cluster are files here, or refused.
    let claims = claim::Places {
        directories: directory.join("claims"),
        devices: directory.join("devices"),
        room: claim::Room::default(),
    };
    let (secrets, objects) = (directory.join("secrets"), directory.join("objects"));
    let places = Places {
        secrets,
        objects,
        directory,
        claims,
        comes: false,
        images_come: false,
        shares_kernel: false,
    };
    let volumes = volumes::prepare(vmi, bases, &places, &mut descriptors)?;
    let mut forwards: Vec<_> = args.publish.iter().map(|publish| publish.0.clone()).collect();
    if !forwards.is_empty() && vmi.interfaces().is_empty() {
        anyhow::bail!("ports cannot be published: the manifest has no interface");
    }
    let interfaces = vmi
        .interfaces()
        .iter()
        .map(|interface| {
            let pod = interface.network.pod.clone().unwrap_or_default();
            let ipv4 = masquerade::ipv4(&pod)
                .with_context(|| format!("network of interface {}", interface.interface.name))?;
            Ok(InterfaceFacts {
                name: interface.interface.name.clone(),
                mac: interface.mac.clone(),
                mtu: None,
                // Ports are forwarded to the first interface; the others only have outgoing connections.
                backend: NetBackend::User { ipv4, forwards: std::mem::take(&mut forwards) },
            })
        })
        .collect::<anyhow::Result<_>>()?;
    let installation = Installation {
        qemu: args.qemu.clone(),
        vnc_socket: scratch.path().join("vnc.sock"),
        disk_socket: scratch.path().join("disks.sock"),
        usb_sockets: usb_sockets(scratch.path()),
        smbios: Smbios::default(),
        free_page_reporting: true,
    };
    let firmware = firmware(vmi, args, scratch, &mut descriptors)?;
    let parts = Parts {
        accelerator,
        fd_sets: Vec::new(),
        volumes,
        interfaces,
        firmware,
        descriptors,
        layout: None,
        host_cpu,
        filesystems: Vec::new(),
        node: FromNode::default(),
        incoming: None,
        keys: scratch.path().join("migration"),
    };
    Ok(assemble(vmi, parts, &installation)?)
}

fn firmware(
    vmi: &ValidVmi,
    args: &Args,
    scratch: &Scratch,
    descriptors: &mut Descriptors,
) -> anyhow::Result<firmware::Prepared> {
    let spec = vmi.spec();
    if barevirt_api::firmware::needs_state(spec) && args.state.is_none() {
        anyhow::bail!("the manifest wants persistent state: say where it is kept with --state DIR");
    }
    if barevirt_api::firmware::kernel_boot(spec).is_none() && (args.kernel.is_some() || args.initrd.is_some())
    {
        anyhow::bail!(
            "--kernel and --initrd are for manifests with spec.domain.firmware.kernelBoot.container"
        );
    }
    let open = |path: &Option<PathBuf>| {
        let open = |path: &PathBuf| {
            File::open(path).map(OwnedFd::from).with_context(|| format!("cannot open {}", path.display()))
        };
        path.as_ref().map(open).transpose()
    };
    let kernel = firmware::Kernel { image: open(&args.kernel)?, initrd: open(&args.initrd)? };
    let private = scratch.path().to_owned();
    let claim = args.state.clone().unwrap_or_else(|| private.clone());
    let installation = firmware::Installation {
        ovmf: args.ovmf.clone(),
        swtpm: args.swtpm.clone(),
        places: crate::state::Places { private, claim },
        comes: false,
    };
    Ok(firmware::prepare(vmi, kernel, &installation, descriptors)?)
}

fn accelerator(args: &Args) -> anyhow::Result<Accelerator> {
    let tcg = Accelerator::Tcg { buffer: Bytes(sizing::TCG_BUFFER_BYTES) };
    if args.tcg {
        return Ok(tcg);
    }
    let device = OpenOptions::new().read(true).write(true).open("/dev/kvm");
    match device {
        Ok(_) if args.kvm || processor_virtualises() => Ok(Accelerator::Kvm { device: None }),
        Err(error) if args.kvm => Err(error).context("cannot open /dev/kvm"),
        Ok(_) => {
            tracing::warn!(
                "emulating: there is /dev/kvm, but the processor has neither vmx nor svm (--kvm insists)"
            );
            Ok(tcg)
        }
        Err(error) => {
            tracing::warn!(%error, "emulating: cannot open /dev/kvm");
            Ok(tcg)
        }
    }
}

/// Prints a line for the user. Errors are ignored, because the terminal may be gone. The terminal may be in
/// raw mode.
fn say(text: &str) {
    let _ = write!(std::io::stderr(), "\r{text}\r\n");
}

/// Prints one option with its value per line, quoted for a shell.
fn print(command: &Command) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    write!(out, "{}", quoted(&command.program.display().to_string()))?;
    for argument in &command.arguments {
        // A value is on the line of its option.
        let before = if argument.starts_with('-') { " \\\n  " } else { " " };
        write!(out, "{before}{}", quoted(argument))?;
    }
    writeln!(out)
}

fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=,./:+@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

async fn boot(vmi: &ValidVmi, assembly: Assembly, args: &Args) -> anyhow::Result<GuestEnd> {
    let Assembly { launch, ends, .. } = assembly;
    let stops = Stops::new().context("cannot wait for signals")?;
    let grace = Duration::from_secs(vmi.grace_period_seconds());
    let log = args.serial_log.as_deref().map(|path| SerialLog::create(path, DEFAULT_LIMIT)).transpose()?;
    let (seats, taken) = mpsc::channel(4);
    let hub = tokio::task::spawn_local(console::serve(ends.serial, log, taken));
    serve_people(ends.people, args.qmp.clone())?;
    // The channel is kept open and read, so that a guest that writes to it is not delayed.
    let _agent = Agent::new(ends.agent, Options::default());
    let person = if args.console {
        let (ours, theirs) = UnixStream::pair().context("cannot make the console's socket")?;
        seats.send(theirs).await.context("cannot take the console")?;
        say(&format!("Console of {}: ctrl-] leaves it.", vmi.name()));
        Some(tokio::task::spawn_local(terminal::attach(ours)))
    } else {
        say(&format!("Running {}. Ctrl-C shuts it down, a second one ends it at once.", vmi.name()));
        None
    };
    let (requests, asked) = mpsc::channel(4);
    let signals = tokio::task::spawn_local(stop_on_signals(stops, requests, grace));
    let (status, _watched) = watch::channel(Status::default());
    let supervised = supervise(std::future::ready(Ok(launch)), asked, &status);
    let end = with_console(supervised, person).await;
    signals.abort();
    // The guest's last output is delivered before this function returns.
    let _ = tokio::time::timeout(Duration::from_secs(3), hub).await;
    say(&format!("{}: {}", end.phase(), end.message));
    Ok(end)
}

/// The supervisor continues after the user has left the console; the console is read to its end after the
/// guest has ended.
async fn with_console(
    supervised: impl Future<Output = GuestEnd>,
    person: Option<tokio::task::JoinHandle<std::io::Result<Left>>>,
) -> GuestEnd {
    let Some(mut person) = person else { return supervised.await };
    let mut supervised = std::pin::pin!(supervised);
    let mut watching = true;
    loop {
        tokio::select! {
            end = &mut supervised => {
                if watching {
                    let _ = tokio::time::timeout(Duration::from_secs(3), person).await;
                }
                return end;
            }
            left = &mut person, if watching => {
                watching = false;
                match left {
                    Ok(Ok(Left::ByPerson)) => {
                        say("The console is left, the guest goes on. Ctrl-C shuts it down, a second one ends it at once.");
                    }
                    Ok(Ok(Left::ByGuest)) => {}
                    Ok(Err(error)) => say(&format!("The console failed ({error}), the guest goes on.")),
                    Err(_) => say("The console failed, the guest goes on."),
                }
            }
        }
    }
}

/// The first signal asks the guest to shut down; the second ends it at once.
async fn stop_on_signals(mut stops: Stops, requests: mpsc::Sender<Request>, grace: Duration) {
    let mut grace = grace;
    loop {
        let name = stops.next().await;
        if grace.is_zero() {
            say("Ending the guest.");
        } else {
            say("Shutting the guest down; once more ends it at once.");
        }
        if requests.send(Request::Stop { grace, why: name.to_owned() }).await.is_err() {
            return;
        }
        grace = Duration::ZERO;
    }
}

/// The monitor for users is opened even if no client can connect, because QEMU would otherwise keep all
/// unread output.
fn serve_people(stream: UnixStream, path: Option<PathBuf>) -> anyhow::Result<()> {
    let listen =
        |path: &PathBuf| people::listen(path).with_context(|| format!("cannot listen on {}", path.display()));
    let listener = path.as_ref().map(listen).transpose()?;
    tokio::task::spawn_local(async move {
        match Qmp::open(stream, Options::default(), Deadline::after(Duration::from_secs(300))).await {
            Ok((qmp, events)) => {
                drop(events);
                let (_none, sent) = mpsc::channel(1);
                people::serve(qmp, listener, sent).await;
            }
            Err(error) => tracing::debug!(%error, "no monitor for users"),
        }
        if let Some(path) = path {
            let _ = std::fs::remove_file(path);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_quoted_for_a_shell() {
        assert_eq!(quoted("-m"), "-m");
        assert_eq!(quoted(r#"{"driver":"VGA"}"#), r#"'{"driver":"VGA"}'"#);
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
