//! The launcher on its own: `virt-launcher run`, without a cluster.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::Console;
use barevirt_e2e::command::{repository, run};
use barevirt_e2e::wait::{BOOT, SHUTDOWN, SOON};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::PathBuf;
use std::process::Command;

/// The most recently built launcher, and the folder of the guests' disks.
fn places() -> Result<(PathBuf, PathBuf)> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), PathBuf::from);
    let candidates = [
        "release",
        "debug",
        "x86_64-unknown-linux-musl/image",
        "x86_64-unknown-linux-musl/release",
        "x86_64-unknown-linux-musl/debug",
    ];
    let programs = candidates.iter().map(|profile| target.join(profile).join("virt-launcher"));
    let newest = programs.filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path))).max();
    let (_, program) = newest.context("virt-launcher is not built: cargo build -p virt-launcher")?;
    Ok((program, target.join("images")))
}

fn launcher(arguments: &[&str]) -> Result<Command> {
    let (program, images) = places()?;
    let mut command = Command::new(program);
    command.args(["run", "examples/vmi-tiny.yaml", "--images"]).arg(images).args(arguments);
    command.current_dir(repository());
    Ok(command)
}

#[test]
fn a_manifest_boots_to_a_prompt_in_a_terminal() -> Result<()> {
    let mut console = Console::start(&mut launcher(&["--console"])?)?;
    console.login(BOOT)?;
    let name = console.ok("hostname", SOON)?;
    ensure!(name == "tiny", "cloud-init should have named the guest tiny, not {name:?}");
    let addresses = console.ok("ip address show dev eth0", SOON)?;
    ensure!(addresses.contains("10.0.2.2/"), "not the address of masquerade: {addresses}");
    console.send("poweroff\n")?;
    ensure!(console.wait(SHUTDOWN)? == 0, "{}", console.output());
    Ok(())
}

#[test]
fn an_interrupt_shuts_the_guest_down() -> Result<()> {
    let mut console = Console::start(&mut launcher(&["--console"])?)?;
    console.login(BOOT)?;
    let launcher = Pid::from_raw(i32::try_from(console.pid())?);
    kill(launcher, Signal::SIGINT)?;
    console.expect("power button, shutting down", SHUTDOWN)?;
    ensure!(console.wait(SHUTDOWN)? == 0, "{}", console.output());
    Ok(())
}

#[test]
fn two_interrupts_end_the_guest_at_once() -> Result<()> {
    let mut console = Console::start(&mut launcher(&["--console"])?)?;
    console.expect("boot-id: ", BOOT)?;
    let launcher = Pid::from_raw(i32::try_from(console.pid())?);
    kill(launcher, Signal::SIGINT)?;
    std::thread::sleep(std::time::Duration::from_millis(300));
    kill(launcher, Signal::SIGINT)?;
    console.wait(std::time::Duration::from_secs(15))?;
    ensure!(!console.output().contains("Power down"), "the guest had time to shut down");
    Ok(())
}

#[test]
fn a_dry_run_prints_the_command_line_and_starts_nothing() -> Result<()> {
    let output = run(&mut launcher(&["--dry-run"])?, None)?;
    ensure!(output.code == 0, "{}", output.text());
    for words in ["qemu-system-x86_64", "-nodefaults", "-sandbox", "virtio-blk-pci"] {
        ensure!(output.stdout.contains(words), "{words} is missing in {}", output.stdout);
    }
    Ok(())
}

#[test]
fn a_manifest_that_is_wrong_is_refused_by_field() -> Result<()> {
    let (program, _) = places()?;
    let directory = tempfile::tempdir()?;
    let manifest = directory.path().join("vmi.yaml");
    let text = std::fs::read_to_string(repository().join("examples/vmi-tiny.yaml"))?;
    std::fs::write(&manifest, text.replace("bus: virtio", "bus: punched-tape"))?;
    let output = run(Command::new(program).arg("run").arg(&manifest), None)?;
    ensure!(
        output.code != 0 && output.text().contains("spec.domain.devices.disks[0].disk.bus"),
        "{}",
        output.text()
    );
    Ok(())
}
