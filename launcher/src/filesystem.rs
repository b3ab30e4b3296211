//! `virt-launcher filesystem`: the program of a container that shares a directory with the guest. It listens,
//! and becomes virtiofsd as soon as the launcher has connected. When the connection is closed, virtiofsd
//! ends, in whichever way the launcher ended.
//!
//! Like QEMU, virtiofsd is confined by Landlock and seccomp to its directory and its programs. Its own
//! sandboxes need privileges that no pod here has.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;
use barevirt_api::filesystem::{self, CONTAINER_PATH, SOCKETS};
use barevirt_api::names::LAUNCHER_UID;
use barevirt_confinement::{Calls, Domain, Files, May, Plan, Rule};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use crate::awaited;
use crate::pod::confine;
use crate::signals::Stops;

/// Share a directory with the guest of this pod.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The volume.
    #[arg(long, value_name = "NAME")]
    pub volume: String,

    /// The directory.
    #[arg(long, value_name = "DIR")]
    pub directory: PathBuf,

    /// The directory of the container `compute` that this directory is.
    #[arg(long, env = CONTAINER_PATH, value_name = "DIR")]
    pub container_path: Option<PathBuf>,

    /// Whether the guest may only read.
    #[arg(long)]
    pub read_only: bool,

    /// Whether the guest sees this user's files as root's.
    #[arg(long)]
    pub as_root: bool,

    /// Directory of the socket.
    #[arg(long, value_name = "DIR", default_value = SOCKETS)]
    pub sockets: PathBuf,

    /// Seconds until the launcher must have connected.
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    pub deadline_seconds: u64,

    /// virtiofsd.
    #[arg(long, value_name = "PROGRAM", default_value = "/usr/libexec/virtiofsd")]
    pub virtiofsd: PathBuf,
}

/// Listens until the launcher has connected. `None` if it is stopped before.
///
/// # Errors
/// If the pod is not set up as expected, or the launcher does not connect in time.
pub async fn listen(args: &Args) -> anyhow::Result<Option<UnixListener>> {
    let mut stops = Stops::new().context("cannot wait for signals")?;
    let found = fs::metadata(&args.directory);
    let found = found.with_context(|| match &args.container_path {
        Some(path) => {
            format!("nothing that can be shared is mounted at {} of container compute", path.display())
        }
        None => format!("cannot find {}", args.directory.display()),
    })?;
    anyhow::ensure!(found.is_dir(), "{} is not a directory", args.directory.display());
    let socket = args.sockets.join(filesystem::socket(&args.volume));
    awaited::listen(&socket, args.deadline_seconds, &mut stops).await
}

/// Becomes virtiofsd.
///
/// # Errors
/// If it cannot be confined or does not exist. Otherwise this function does not return.
pub fn serve(args: &Args, listener: UnixListener) -> anyhow::Result<()> {
    let listener = OwnedFd::from(listener);
    let number = listener.as_raw_fd();
    fcntl(&listener, FcntlArg::F_SETFD(FdFlag::empty())).context("cannot hand over the socket")?;
    let mut command = Command::new(&args.virtiofsd);
    command.args(arguments(args, number));
    confinement(args)?.enter()?;
    let error: io::Error = command.exec();
    Err(error).with_context(|| format!("cannot run {}", args.virtiofsd.display()))
}

/// virtiofsd's arguments, as in KubeVirt.
fn arguments(args: &Args, socket: i32) -> Vec<String> {
    let mut arguments = vec![
        format!("--fd={socket}"),
        format!("--shared-dir={}", args.directory.display()),
        // The pod has no privileges for namespaces and capabilities.
        "--sandbox=none".to_owned(),
        "--cache=auto".to_owned(),
        // A file that is not found on the target node is an error for the guest, but does not end the
        // migration.
        "--migration-on-error=guest-error".to_owned(),
        "--migration-mode=find-paths".to_owned(),
    ];
    if args.read_only {
        arguments.push("--readonly".to_owned());
    }
    if args.as_root {
        arguments.push(format!("--translate-uid=host:{LAUNCHER_UID}:0:1"));
    }
    arguments
}

fn confinement(args: &Args) -> Result<Domain, barevirt_confinement::ConfinementError> {
    let may = if args.read_only { May::Read } else { May::Write };
    let mut rules = confine::helper(&args.virtiofsd);
    rules.push(Rule::path(may, &args.directory));
    let files = Some(Files { reads_all: false, tcp: false, rules });
    Domain::new("virtiofsd", Plan { files, calls: Calls::Connected })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::time::Duration;
    use tokio::time::Instant;

    fn args(directory: &Path) -> Args {
        Args {
            volume: "data".to_owned(),
            directory: directory.to_owned(),
            container_path: None,
            read_only: false,
            as_root: false,
            sockets: directory.to_owned(),
            deadline_seconds: 20,
            virtiofsd: "/usr/libexec/virtiofsd".into(),
        }
    }

    #[tokio::test]
    async fn it_waits_for_a_connection_and_leaves_it_to_virtiofsd() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("data.sock");
        let args = args(directory.path());
        let deadline = Instant::now() + Duration::from_secs(20);
        let (listener, client) =
            tokio::join!(listen(&args), awaited::call(&socket, deadline, "nothing listens"));
        let (listener, client) = (listener.unwrap().unwrap(), client.unwrap());
        assert!(!socket.exists());
        listener.accept().unwrap();
        drop(client);
        let none = Args { directory: directory.path().join("none"), ..args };
        assert!(listen(&none).await.unwrap_err().to_string().starts_with("cannot find"));
        let unmounted = Args { container_path: Some("/var/run/secrets/cloud".into()), ..none };
        assert_eq!(
            listen(&unmounted).await.unwrap_err().to_string(),
            "nothing that can be shared is mounted at /var/run/secrets/cloud of container compute"
        );
    }

    #[test]
    fn virtiofsds_arguments_follow_from_the_volume() {
        let plain = args(Path::new("/d"));
        let told = arguments(&plain, 7).join(" ");
        assert_eq!(
            told,
            "--fd=7 --shared-dir=/d --sandbox=none --cache=auto --migration-on-error=guest-error --migration-mode=find-paths"
        );
        let token = Args { read_only: true, as_root: true, ..plain };
        let told = arguments(&token, 7).join(" ");
        assert!(told.ends_with("--readonly --translate-uid=host:107:0:1"), "{told}");
    }
}
