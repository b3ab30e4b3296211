//! `virt-launcher passt`: the program of the container that joins the guest to the pod network. It listens, and
//! becomes passt as soon as the launcher has connected and sent its first request. When the connection is closed,
//! it ends, in whichever way the launcher ended.
//!
//! Landlock and seccomp confine passt to its own program; it can use the pod's network. Its own sandbox consists
//! of namespaces, which need privileges that no pod here has, and passt ends if it cannot make them. So the calls
//! that make the sandbox succeed without an effect ([`Calls::AsIfSandboxed`]).

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;
use barevirt_api::networks::FIRST_LINK;
use barevirt_api::passt::{ALL_PORTS, SOCKET, SOCKETS, are_all};
use barevirt_api::resolver::Resolver;
use barevirt_confinement::{Calls, ConfinementError, Domain, Files, Plan};
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
/// The range of ports that the kernel assigns to outgoing connections. passt does not listen at them.
const OWN_PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// Sent in place of a frame's length: the text that follows says why passt was not started.
pub const REFUSAL: u32 = u32::MAX;
/// Upper limit of the files that passt opens besides the sockets of its ports.
const OTHER_FILES: u64 = 256;

/// Join the guest of this pod to the pod network.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// TCP ports of the pod that are forwarded to the guest: numbers separated by commas, `all` or `none`. Numbers after `~` are
    /// those that are not.
    #[arg(long, value_name = "PORTS", default_value = ALL_PORTS)]
    pub tcp: String,

    /// UDP ports of the pod that are forwarded to the guest, in the same form.
    #[arg(long, value_name = "PORTS", default_value = ALL_PORTS)]
    pub udp: String,

    /// The guest's host name.
    #[arg(long, value_name = "NAME")]
    pub hostname: String,

    /// Subdomain of the guest's namespace in which the guest looks up names first.
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

/// Listens until the launcher has connected and sent a request. `None` if this program is stopped before, or the
/// launcher has ended.
///
/// # Errors
/// If the pod is not set up as expected, or the launcher does not connect in time.
pub async fn listen(args: &Args) -> anyhow::Result<Option<OwnedFd>> {
    let mut stops = Stops::new().context("cannot wait for signals")?;
    let socket = args.sockets.join(SOCKET);
    let Some(listener) = awaited::listen(&socket, args.deadline_seconds, &mut stops).await? else {
        return Ok(None);
    };
    let (connection, _) = listener.accept().context("cannot accept the launcher's connection")?;
    let connection = tokio::select! {
        why = stops.next() => {
            tracing::info!(why, "the container is being stopped");
            return Ok(None);
        }
        asked = readable(connection.into()) => asked.context("cannot wait for the launcher's request")?,
    };
    let left = recv(connection.as_raw_fd(), &mut [0], MsgFlags::MSG_PEEK);
    let left = left.context("cannot read the launcher's request")? == 0;
    if left {
        tracing::info!("the launcher has ended");
    }
    Ok((!left).then_some(connection))
}

/// Becomes passt. The launcher waits for an answer to its request: if passt cannot be started, the answer says why.
///
/// # Errors
/// If passt cannot be confined or does not exist. Otherwise this function does not return.
pub fn serve(args: &Args, connection: OwnedFd) -> anyhow::Result<()> {
    let failed = become_passt(args, &connection);
    if let Err(error) = &failed {
        refuse(connection.into(), &format!("{error:#}"));
    }
    failed
}

fn refuse(mut launcher: UnixStream, why: &str) {
    let refusal = [&REFUSAL.to_be_bytes()[..], why.as_bytes()].concat();
    // Unread data in a connection makes its end an error at the other side, so the request is read first.
    let refused = launcher.read(&mut [0; 64]).and_then(|_| launcher.write_all(&refusal));
    if let Err(error) = refused {
        tracing::warn!(%error, "cannot tell the launcher why passt was not started");
    }
}

fn become_passt(args: &Args, connection: &OwnedFd) -> anyhow::Result<()> {
    enough_files(args)?;
    fcntl(connection, FcntlArg::F_SETFD(FdFlag::empty())).context("cannot hand over the connection")?;
    let settings = fs::read_to_string(RESOLVER).unwrap_or_default();
    let mut command = Command::new(&args.passt);
    command.args(arguments(args, connection.as_raw_fd(), &settings));
    // When a pod ends, all its containers get a signal, but the guest needs its network to shut down. passt ends with
    // QEMU.
    let mut signals = SigSet::empty();
    signals.extend([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
    signals.thread_block().context("cannot block signals")?;
    confinement(args)?.enter()?;
    let error: io::Error = command.exec();
    Err(error).with_context(|| format!("cannot run {}", args.passt.display()))
}

/// Checks the limit of open files: passt opens a socket for each port, and ends if it may not open that many.
fn enough_files(args: &Args) -> anyhow::Result<()> {
    let of_all = [&args.tcp, &args.udp].into_iter().filter(|ports| are_all(ports)).count();
    let own = fs::read_to_string(OWN_PORTS).unwrap_or_default();
    let needed = files(u64::try_from(of_all).unwrap_or_default(), &own);
    let (_, limit) = getrlimit(Resource::RLIMIT_NOFILE).context("cannot read the limit of open files")?;
    anyhow::ensure!(
        needed <= limit,
        "the interface lists no ports, so passt listens at all of them: that needs {needed} open files, and a container of this \
         node may have {limit}; list the ports of the guest"
    );
    Ok(())
}

/// The number of files that are open when passt listens at all ports of this many protocols, except the range `own` of
/// the kernel.
fn files(protocols: u64, own: &str) -> u64 {
    let mut bounds = own.split_whitespace().filter_map(|bound| bound.parse::<u16>().ok());
    let own = match (bounds.next(), bounds.next()) {
        (Some(first), Some(last)) if first <= last => u64::from(last - first) + 1,
        _ => 0,
    };
    protocols * (u64::from(u16::MAX) - own) + OTHER_FILES
}

/// passt's arguments. `settings` are the pod's resolver settings.
fn arguments(args: &Args, connection: i32, settings: &str) -> Vec<String> {
    let mut arguments = vec![
        "--foreground".to_owned(),
        // Messages about each DHCP request of the guest would fill the log.
        "--quiet".to_owned(),
        format!("--fd={connection}"),
        format!("--interface={FIRST_LINK}"),
        format!("--tcp-ports={}", args.tcp),
        format!("--udp-ports={}", args.udp),
        // The guest must not reach servers on the pod's loopback.
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
    let rules = confine::helper(&args.passt);
    let files = Some(Files { reads_all: false, tcp: true, rules });
    Domain::new("passt", Plan { files, calls: Calls::AsIfSandboxed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::time::Duration;
    use tokio::time::Instant;

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
        let deadline = Instant::now() + Duration::from_secs(20);
        awaited::call(socket, deadline, "nothing listens").await.unwrap().into()
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
        // A launcher that ends before its request needs no passt.
        let (asked, ()) = tokio::join!(listen(&args), async { drop(client(&socket).await) });
        assert!(asked.unwrap().is_none());
    }

    #[test]
    fn where_there_is_no_passt_the_launcher_gets_the_reason() {
        let (ours, mut launcher) = UnixStream::pair().unwrap();
        launcher.write_all(b"who").unwrap();
        refuse(ours, "there is none");
        let mut told = Vec::new();
        launcher.read_to_end(&mut told).unwrap();
        assert_eq!(told, [&[0xff; 4][..], b"there is none"].concat());
    }

    #[test]
    fn passts_arguments_follow_from_the_interface() {
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
