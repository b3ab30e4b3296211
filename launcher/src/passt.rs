//! `virt-launcher passt`: the program of a container that joins the guest to the pod network. It listens, and becomes passt once the
//! launcher has connected and asked its first question: a connection that nobody wants any more ends it, however the launcher ended.
//!
//! passt has the pod's network and its own program, by Landlock and seccomp. Its own sandbox are namespaces, which take privileges
//! that no pod here has, and passt ends where it has none. So it is answered that it has ([`Calls::AsIfSandboxed`]).

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use barevirt_api::networks::FIRST_LINK;
use barevirt_api::passt::{ALL_PORTS, SOCKET, SOCKETS};
use barevirt_api::resolver::Resolver;
use barevirt_confinement::{Calls, ConfinementError, Domain, Files, May, Plan, Rule};
use barevirt_protocol::readable;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::socket::{MsgFlags, recv};

use crate::awaited;
use crate::pod::confine;
use crate::signals::Stops;

/// The pod's resolver settings.
const RESOLVER: &str = "/etc/resolv.conf";
/// The range of ports that the system hands out itself, which passt leaves to it.
const OWN_PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// In the place of a frame's length: what follows says why there is no passt.
pub const REFUSAL: u32 = u32::MAX;
/// What passt opens beside its ports.
const OTHER_FILES: u64 = 256;

/// Join the guest of this pod to the pod network.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// TCP ports of the pod that are the guest's: numbers with commas between them, `all` or `none`.
    #[arg(long, value_name = "PORTS", default_value = ALL_PORTS)]
    pub tcp: String,

    /// UDP ports of the pod that are the guest's.
    #[arg(long, value_name = "PORTS", default_value = ALL_PORTS)]
    pub udp: String,

    /// The guest's host name.
    #[arg(long, value_name = "NAME")]
    pub hostname: String,

    /// Where the guest looks up names first, below the services of its namespace.
    #[arg(long, value_name = "NAME", default_value = "")]
    pub subdomain: String,

    /// Directory of the socket.
    #[arg(long, value_name = "DIR", default_value = SOCKETS)]
    pub sockets: PathBuf,

    /// Seconds until the launcher must have connected.
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    pub deadline_seconds: u64,

    /// passt.
    #[arg(long, value_name = "PROGRAM", default_value = "/usr/bin/passt")]
    pub passt: PathBuf,
}

/// Listens until the launcher has connected and asked something. None when told to end before, or when the launcher has ended.
///
/// # Errors
/// When the pod is not as it should be, or nobody connects in time.
pub async fn listen(args: &Args) -> anyhow::Result<Option<OwnedFd>> {
    let mut stops = Stops::new().context("cannot wait for signals")?;
    let socket = args.sockets.join(SOCKET);
    let Some(listener) = awaited::listen(&socket, args.deadline_seconds, &mut stops).await? else {
        return Ok(None);
    };
    let (connection, _) = listener.accept().context("cannot take the launcher's connection")?;
    let connection = tokio::select! {
        why = stops.next() => {
            tracing::info!(why, "told to end");
            return Ok(None);
        }
        asked = readable(connection.into()) => asked.context("cannot wait for the launcher's question")?,
    };
    let left = recv(connection.as_raw_fd(), &mut [0], MsgFlags::MSG_PEEK);
    let left = left.context("cannot look at the launcher's question")? == 0;
    if left {
        tracing::info!("the launcher has ended");
    }
    Ok((!left).then_some(connection))
}

/// Becomes passt. The launcher waits for an answer to its question: where there is no passt, it is told why.
///
/// # Errors
/// When it cannot be confined or is not there. Otherwise this does not return.
pub fn serve(args: &Args, connection: OwnedFd) -> anyhow::Result<()> {
    let failed = become_passt(args, &connection);
    if let Err(error) = &failed {
        refuse(connection.into(), &format!("{error:#}"));
    }
    failed
}

fn refuse(mut launcher: UnixStream, why: &str) {
    let refusal = [&REFUSAL.to_be_bytes()[..], why.as_bytes()].concat();
    // What is left in a connection makes its end an error at the other side.
    let refused = launcher.read(&mut [0; 64]).and_then(|_| launcher.write_all(&refusal));
    if let Err(error) = refused {
        tracing::warn!(%error, "the launcher is not told why there is no passt");
    }
}

fn become_passt(args: &Args, connection: &OwnedFd) -> anyhow::Result<()> {
    enough_files(args)?;
    fcntl(connection, FcntlArg::F_SETFD(FdFlag::empty())).context("cannot hand over the connection")?;
    let settings = fs::read_to_string(RESOLVER).unwrap_or_default();
    let mut command = Command::new(&args.passt);
    command.args(arguments(args, connection.as_raw_fd(), &settings));
    // A pod that is to end signals all of its containers, and the guest needs its network to end well. passt ends with QEMU.
    let mut signals = SigSet::empty();
    signals.extend([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
    signals.thread_block().context("cannot hold signals back")?;
    confinement(args)?.enter()?;
    let error: io::Error = command.exec();
    Err(error).with_context(|| format!("cannot run {}", args.passt.display()))
}

/// passt listens at each port, and ends where it may not open so many files.
fn enough_files(args: &Args) -> anyhow::Result<()> {
    let of_all = [&args.tcp, &args.udp].into_iter().filter(|ports| *ports == ALL_PORTS).count();
    let own = fs::read_to_string(OWN_PORTS).unwrap_or_default();
    let needed = files(u64::try_from(of_all).unwrap_or_default(), &own);
    let (_, limit) = getrlimit(Resource::RLIMIT_NOFILE).context("cannot read the limit of open files")?;
    anyhow::ensure!(
        needed <= limit,
        "passt listens at all ports where the interface lists none: that takes {needed} open files, and a container of this \
         node may have {limit}; list the ports that are to reach the guest"
    );
    Ok(())
}

/// How many files it takes to listen at all ports of so many protocols, where the system hands out `own`.
fn files(protocols: u64, own: &str) -> u64 {
    let mut bounds = own.split_whitespace().filter_map(|bound| bound.parse::<u16>().ok());
    let own = match (bounds.next(), bounds.next()) {
        (Some(first), Some(last)) if first <= last => u64::from(last - first) + 1,
        _ => 0,
    };
    protocols * (u64::from(u16::MAX) - own) + OTHER_FILES
}

/// What passt is told: `settings` are the pod's, of its resolver.
fn arguments(args: &Args, connection: i32, settings: &str) -> Vec<String> {
    let mut arguments = vec![
        "--foreground".to_owned(),
        // What it says of each question of the guest's would fill the log.
        "--quiet".to_owned(),
        format!("--fd={connection}"),
        format!("--interface={FIRST_LINK}"),
        format!("--tcp-ports={}", args.tcp),
        format!("--udp-ports={}", args.udp),
        // The guest reaches nothing that listens on the pod's loopback.
        "--map-host-loopback=none".to_owned(),
        format!("--hostname={}", args.hostname),
    ];
    if !args.subdomain.is_empty() {
        let search = Resolver::parse(settings).below(&args.subdomain).search;
        arguments.extend(search.iter().map(|domain| format!("--search={domain}")));
    }
    arguments
}

fn confinement(args: &Args) -> Result<Domain, ConfinementError> {
    let mut rules = confine::programs(&[&args.passt]);
    rules.extend(["/etc", "/proc"].map(|path| Rule::path(May::Read, Path::new(path))));
    rules.extend(confine::PLAIN.map(|path| Rule::path(May::Use, path)));
    let files = Some(Files { reads_all: false, tcp: true, rules });
    Domain::new("passt", Plan { files, calls: Calls::AsIfSandboxed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn args(directory: &Path) -> Args {
        Args {
            tcp: "80,22".to_owned(),
            udp: "none".to_owned(),
            hostname: "web".to_owned(),
            subdomain: String::new(),
            sockets: directory.to_owned(),
            deadline_seconds: 20,
            passt: "/usr/bin/passt".into(),
        }
    }

    async fn client(socket: &Path) -> UnixStream {
        while !socket.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        UnixStream::connect(socket).unwrap()
    }

    #[tokio::test]
    async fn it_waits_for_a_question_and_leaves_it_to_passt() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join(SOCKET);
        let args = args(directory.path());
        let (asked, _launcher) = tokio::join!(listen(&args), async {
            let mut launcher = client(&socket).await;
            launcher.write_all(b"who").unwrap();
            launcher
        });
        let mut question = [0; 3];
        UnixStream::from(asked.unwrap().unwrap()).read_exact(&mut question).unwrap();
        assert_eq!(&question, b"who");
        // A launcher that ends before it has asked wants no passt.
        let (asked, ()) = tokio::join!(listen(&args), async { drop(client(&socket).await) });
        assert!(asked.unwrap().is_none());
    }

    #[test]
    fn where_there_is_no_passt_the_launcher_is_told_why() {
        let (ours, mut launcher) = UnixStream::pair().unwrap();
        launcher.write_all(b"who").unwrap();
        refuse(ours, "there is none");
        let mut told = Vec::new();
        launcher.read_to_end(&mut told).unwrap();
        assert_eq!(told, [&[0xff; 4][..], b"there is none"].concat());
    }

    #[test]
    fn what_it_is_told_follows_from_the_interface() {
        let plain = args(Path::new("/s"));
        let settings = "nameserver 10.96.0.10\nsearch a.svc.cluster.local svc.cluster.local\n";
        let told = arguments(&plain, 7, settings).join(" ");
        assert_eq!(
            told,
            "--foreground --quiet --fd=7 --interface=eth0 --tcp-ports=80,22 --udp-ports=none --map-host-loopback=none \
             --hostname=web"
        );
        let below = Args { subdomain: "sites".to_owned(), ..plain };
        let told = arguments(&below, 7, settings).join(" ");
        let search =
            "--search=sites.a.svc.cluster.local --search=a.svc.cluster.local --search=svc.cluster.local";
        assert!(told.ends_with(search), "{told}");
    }

    #[test]
    fn all_ports_take_a_file_each() {
        assert_eq!(files(2, "32768\t60999\n"), 2 * (65535 - 28232) + OTHER_FILES);
        assert_eq!(files(0, "32768\t60999\n"), OTHER_FILES);
        assert_eq!(files(1, "nonsense"), 65535 + OTHER_FILES);
    }
}
