//! virtctl: the command line for virtual machines on Kubernetes. As `kubectl-virt` in the PATH it is `kubectl virt`.
//!
//! Commands, flags and what they print are KubeVirt's; `qmp` is our own.

mod console;
mod expose;
mod guest;
mod lifecycle;
mod port_forward;
mod qmp;
mod session;
mod ssh;
mod stream;
mod terminal;
mod version;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use session::Connection;

/// Controls virtual machines on Kubernetes.
#[derive(Debug, Parser)]
#[command(version, about, arg_required_else_help = true, disable_version_flag = true)]
struct Options {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a virtual machine.
    Start(lifecycle::Start),
    /// Stop a virtual machine.
    Stop(lifecycle::Stop),
    /// Restart a virtual machine.
    Restart(lifecycle::Restart),
    /// Pause a virtual machine.
    Pause(guest::Pause),
    /// Unpause a virtual machine.
    Unpause(guest::Pause),
    /// Soft reboot a virtual machine instance.
    SoftReboot(guest::Instance),
    /// Reset a virtual machine instance.
    Reset(guest::Instance),
    /// Return guest agent info about operating system.
    #[command(name = "guestosinfo")]
    GuestOsInfo(guest::Instance),
    /// Return full list of logged in users on the guest machine.
    #[command(name = "userlist")]
    UserList(guest::Instance),
    /// Return full list of filesystems available on the guest machine.
    #[command(name = "fslist")]
    FsList(guest::Instance),
    /// What the display of a virtual machine instance shows.
    Vnc(guest::Vnc),
    /// Connect to a console of a virtual machine instance.
    Console(console::Console),
    /// Expose a virtual machine or instance as a new service.
    Expose(expose::Expose),
    /// Forward local ports to a virtual machine or a virtual machine instance.
    PortForward(port_forward::PortForward),
    /// Open a SSH connection to a virtual machine instance.
    Ssh(ssh::Ssh),
    /// SCP files from/to a virtual machine instance.
    Scp(ssh::Scp),
    /// Send one command to QEMU's monitor and print the answer.
    Qmp(qmp::Qmp),
    /// Print the client and server version information.
    Version(version::Version),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Fails only where a provider is there already, which is as good.
        let _already_installed = rustls::crypto::ring::default_provider().install_default();
    }
    let options = Options::parse();
    match run(options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> anyhow::Result<()> {
    let connection = &options.connection;
    match options.command {
        Command::Start(start) => start.run(&connection.open().await?).await,
        Command::Stop(stop) => stop.run(&connection.open().await?).await,
        Command::Restart(restart) => restart.run(&connection.open().await?).await,
        Command::Pause(pause) => pause.pause(&connection.open().await?).await,
        Command::Unpause(pause) => pause.unpause(&connection.open().await?).await,
        Command::SoftReboot(vmi) => vmi.soft_reboot(&connection.open().await?).await,
        Command::Reset(vmi) => vmi.reset(&connection.open().await?).await,
        Command::GuestOsInfo(vmi) => vmi.guest_os_info(&connection.open().await?).await,
        Command::UserList(vmi) => vmi.user_list(&connection.open().await?).await,
        Command::FsList(vmi) => vmi.fs_list(&connection.open().await?).await,
        Command::Vnc(vnc) => vnc.run(&connection.open().await?).await,
        Command::Console(console) => console.run(&connection.open().await?).await,
        Command::Expose(expose) => expose.run(&connection.open().await?).await,
        Command::PortForward(forward) => forward.run(&connection.open().await?).await,
        Command::Ssh(ssh) => ssh.run(connection).await,
        Command::Scp(scp) => scp.run(connection).await,
        Command::Qmp(qmp) => qmp.run(&connection.open().await?).await,
        Command::Version(version) => version.run(connection).await,
    }
}
