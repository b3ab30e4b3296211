//! virtctl: the command line for virtual machines on Kubernetes. As `kubectl-virt` in the PATH it is `kubectl virt`.
//!
//! Commands, flags and what they print are KubeVirt's; `qmp`, `explain`, `diff`, `debug`, `ui`, `install`, `upgrade`,
//! `status` and `doctor` are our own.
//!
//! ```text
//!   command line -> program (names, help, completion) -> main (this file) -> one module for each command
//!                                                                                    |
//!                         session (kubeconfig, namespace, client, refusals) <--------+
//! ```
//!
//! The modules, from the outside in:
//!
//! - `program`: the name under which virtctl was called, its help and shell completion; `main` parses and
//!   dispatches.
//! - Machines and guests: `lifecycle` (start, stop, restart), `migrate` (also its cancellation), `guest` (pause, reset, what the guest agent says), `volumes`
//!   (addvolume, removevolume), `credentials`, `permitted_devices`, `object_graph`, `expand`, `version`, `adm`, `expose`.
//! - Streams to a guest: `console`, `vnc`, `usbredir`, `port_forward`, `ssh` (ssh and scp), `qmp`.
//! - Manifests: `create` writes them; `explain` shows what they result in, `diff` what a change of them does.
//!   Both use the planning crates of virt-controller and virt-launcher.
//! - `ui`: a page in the browser for the same tasks.
//! - The installation: `install` (also upgrades), `status`, `doctor`: what is wrong with a cluster.
//! - `image_upload`: an image of this machine into a volume; `debug`: a bundle for bug reports; `missing`:
//!   commands of KubeVirt that are not supported yet.
//! - Below all of them: `session` connects to the cluster; `ask` sends a request with a deadline; `waiting`
//!   prints what the command waits for; `stream` and `visitor` carry bytes between a guest and a local
//!   program; `reconnect` finds a guest again whose stream has ended, because it moved; `terminal`, `yaml` and `random` are small helpers.

mod adm;
mod ask;
mod console;
mod create;
mod credentials;
mod debug;
mod diff;
mod doctor;
mod expand;
mod explain;
mod expose;
mod guest;
mod image_upload;
mod install;
mod lifecycle;
mod migrate;
mod missing;
mod object_graph;
mod permitted_devices;
mod port_forward;
mod program;
mod qmp;
mod random;
mod reconnect;
mod session;
mod ssh;
mod status;
mod stream;
mod terminal;
mod ui;
mod usbredir;
mod version;
mod visitor;
mod vnc;
mod volumes;
mod waiting;
mod yaml;

#[cfg(test)]
mod docs_tests;
#[cfg(test)]
mod kubevirt_tests;
#[cfg(test)]
mod reference_tests;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use missing::since;
use session::Connection;

/// Controls virtual machines on Kubernetes.
#[derive(Debug, Parser)]
#[command(version = barevirt_api::release::line(), about, arg_required_else_help = true, disable_version_flag = true)]
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
    /// Add a volume to a running virtual machine.
    #[command(name = "addvolume")]
    AddVolume(volumes::AddVolume),
    /// Remove a volume from a running virtual machine.
    #[command(name = "removevolume")]
    RemoveVolume(volumes::RemoveVolume),
    /// Return guest agent info about operating system.
    #[command(name = "guestosinfo")]
    GuestOsInfo(guest::Instance),
    /// Return full list of logged in users on the guest machine.
    #[command(name = "userlist")]
    UserList(guest::Instance),
    /// Return full list of filesystems available on the guest machine.
    #[command(name = "fslist")]
    FsList(guest::Instance),
    /// Open a vnc connection to a virtual machine instance.
    Vnc(vnc::Vnc),
    /// Redirect a USB device to a virtual machine instance.
    #[command(name = "usbredir")]
    UsbRedir(usbredir::UsbRedir),
    /// Connect to a console of a virtual machine instance.
    Console(console::Console),
    /// Create a manifest for the specified kind.
    Create(create::Create),
    /// Manipulate credentials on a virtual machine.
    Credentials(credentials::Credentials),
    /// Show which changes of a virtual machine are applied in place, and which need a restart.
    Diff(diff::Diff),
    /// Check the cluster before or after an installation, and say what is missing and how to correct it.
    Doctor(doctor::Doctor),
    /// Install Barevirt, and wait until everything runs.
    Install(install::Install),
    /// Change an installation to another version, and wait until everything runs.
    Upgrade(install::Upgrade),
    /// Show the installed version, its state, and the number of machines.
    Status(status::Status),
    /// Show what a manifest results in, or what a running virtual machine instance was made from.
    Explain(explain::Explain),
    /// Returns dependency graph related to a VM|VMI.
    #[command(name = "objectgraph")]
    ObjectGraph(object_graph::ObjectGraph),
    /// Administrate KubeVirt configuration.
    Adm(adm::Adm),
    /// Expose a virtual machine or instance as a new service.
    Expose(expose::Expose),
    /// Forward local ports to a virtual machine or a virtual machine instance.
    PortForward(port_forward::PortForward),
    /// Open a SSH connection to a virtual machine instance.
    Ssh(ssh::Ssh),
    /// SCP files from/to a virtual machine instance.
    Scp(ssh::Scp),
    /// Collect everything about a virtual machine instance in an archive, without secrets.
    Debug(debug::Debug),
    /// Talk to QEMU's monitor: one command, a shell, events, or a socket for other tools.
    Qmp(qmp::Qmp),
    /// Migrate a virtual machine.
    Migrate(migrate::Migrate),
    /// Cancel migration of a virtual machine.
    MigrateCancel(migrate::Cancel),
    /// Cancel evacuation of a virtual machine or a virtual machine instance.
    EvacuateCancel(migrate::CancelEvacuation),
    /// Dump the memory of a running virtual machine to a claim. Not supported yet.
    ///
    /// What is missing: nothing writes a guest's memory to a claim.
    #[command(name = "memory-dump", hide = true, after_help = missing::help(since::MEMORY_DUMP))]
    MemoryDump(missing::Missing),
    /// Upload a VM image to a DataVolume/PersistentVolumeClaim.
    #[command(name = "image-upload")]
    ImageUpload(Box<image_upload::ImageUpload>),
    /// Export volumes of a virtual machine. Not supported yet.
    ///
    /// What is missing: the server that hands out volumes, and the kind VirtualMachineExport. Copy the claim with a pod of your own.
    #[command(name = "vmexport", hide = true, after_help = missing::help(since::VM_EXPORT))]
    VmExport(missing::Missing),
    /// Start a shell with libguestfs on a claim. Not supported yet.
    ///
    /// What is missing: an image with libguestfs.
    #[command(name = "guestfs", hide = true, after_help = missing::help(since::GUESTFS))]
    Guestfs(missing::Missing),
    /// Work with templates of virtual machines. Not supported yet.
    ///
    /// What is missing: the kind VirtualMachineTemplate. Instance types and preferences are there.
    #[command(name = "template", hide = true, after_help = missing::help(since::TEMPLATE))]
    Template(missing::Missing),
    /// Generate the completion script of a shell.
    #[command(after_help = "Examples:\n  \
        # For this shell only:\n  source <(virtctl completion bash)\n\n  \
        # For good, where bash-completion is installed:\n  virtctl completion bash > /etc/bash_completion.d/virtctl")]
    Completion {
        /// bash, zsh, fish, elvish or powershell.
        shell: Shell,
    },
    /// Return the VirtualMachine object with expanded instancetype and preference.
    Expand(expand::Expand),
    /// List the permitted devices for vmis.
    PermittedDevices(permitted_devices::PermittedDevices),
    /// Show machines and nodes in the browser, with consoles, displays and manifests.
    Ui(ui::Ui),
    /// Print the list of flags inherited by all commands.
    #[command(hide = true)]
    Options,
    /// Print the client and server version information.
    Version(version::Version),
}

fn main() -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let code = runtime.block_on(whole());
    // A read of standard input cannot be cancelled. If the runtime were dropped, this would wait until the user types something,
    // or closes standard input.
    runtime.shutdown_background();
    code
}

/// The whole program.
async fn whole() -> ExitCode {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Fails only if a provider is installed already.
        let _already_installed = rustls::crypto::ring::default_provider().install_default();
    }
    let called = program::name(std::env::args_os().next().as_deref());
    let read =
        program::named(program::arranged(program::with_switches(Options::command()), &called), &called)
            .try_get_matches();
    let options = match read.and_then(|mut read| Options::from_arg_matches_mut(&mut read)) {
        Ok(options) => options,
        Err(error) => {
            // Help goes to standard output; a failure to print it cannot be reported.
            let _ = error.print();
            // Wrong usage has the same exit code as any other failure, as in KubeVirt's virtctl.
            return if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
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
        Command::AddVolume(add) => add.run(&connection.open().await?).await,
        Command::RemoveVolume(remove) => remove.run(&connection.open().await?).await,
        Command::GuestOsInfo(vmi) => vmi.guest_os_info(&connection.open().await?).await,
        Command::UserList(vmi) => vmi.user_list(&connection.open().await?).await,
        Command::FsList(vmi) => vmi.fs_list(&connection.open().await?).await,
        Command::Vnc(vnc) => vnc.run(&connection.open().await?).await,
        Command::UsbRedir(usb) => usb.run(&connection.open().await?).await,
        Command::Console(console) => console.run(&connection.open().await?).await,
        Command::Create(create) => create.run(connection.asked_namespace()),
        Command::Credentials(credentials) => credentials.run(&connection.open().await?).await,
        Command::Diff(diff) => diff.run(connection).await,
        Command::Doctor(doctor) => doctor.run(&connection.open().await?).await,
        Command::Install(install) => install.run(&connection.open().await?).await,
        Command::Upgrade(upgrade) => upgrade.run(&connection.open().await?).await,
        Command::Status(status) => status.run(&connection.open().await?).await,
        Command::Explain(explain) => explain.run(connection).await,
        Command::ObjectGraph(graph) => graph.run(&connection.open().await?).await,
        Command::Adm(adm) => adm.run(connection).await,
        Command::Expose(expose) => expose.run(&connection.open().await?).await,
        Command::PortForward(forward) => forward.run(&connection.open().await?).await,
        Command::Ssh(ssh) => ssh.run(connection).await,
        Command::Scp(scp) => scp.run(connection).await,
        Command::Debug(debug) => debug.run(&connection.open().await?).await,
        Command::Qmp(qmp) => qmp.run(&connection.open().await?).await,
        Command::Migrate(migrate) => migrate.run(&connection.open().await?).await,
        Command::MigrateCancel(cancel) => cancel.run(&connection.open().await?).await,
        Command::EvacuateCancel(cancel) => cancel.run(&connection.open().await?).await,
        Command::MemoryDump(missing) => {
            missing.run("memory-dump", "memory dumps are not there", since::MEMORY_DUMP)
        }
        Command::ImageUpload(upload) => {
            let (session, config) = connection.open_with_config().await?;
            upload.run(&session, &config).await
        }
        Command::VmExport(missing) => missing.run("vmexport", "exports are not there", since::VM_EXPORT),
        Command::Guestfs(missing) => {
            missing.run("guestfs", "there is no image with libguestfs", since::GUESTFS)
        }
        Command::Template(missing) => missing.run("template", "templates are not there", since::TEMPLATE),
        Command::Completion { shell } => {
            std::io::stdout().write_all(&program::completion(Options::command(), shell))?;
            Ok(())
        }
        Command::Expand(expand) => expand.run(&connection.open().await?).await,
        Command::Ui(ui) => ui.run(&connection.open().await?, connection.asked_namespace()).await,
        Command::PermittedDevices(devices) => devices.run(&connection.open().await?).await,
        Command::Options => {
            print!("{}", program::options(&Options::command()));
            Ok(())
        }
        Command::Version(version) => version.run(connection).await,
    }
}
