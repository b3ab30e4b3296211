//! What TLS outside of QEMU would cost: two QEMUs send in plain to a proxy each, which encrypt between them, against QEMU's own TLS
//! and against none.
//!
//! ```text
//!   QEMU ── socket pair ── proxy ══ TLS over TCP ══ proxy ── socket pair ── QEMU
//! ```
//!
//! A proxy is what a handler would do for each guest: one thread, with the TLS of our servers.

use super::filler::{self, FILLED_MIB};
use super::migrate::{Pair, connection};
use super::raw_move::{self, Moved};
use super::{Figure, Figures, median};
use anyhow::Result;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rustls::crypto::ring;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::net;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as Pipe;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// What a proxy reads at most before it writes, in each direction.
const BUFFER: usize = 256 << 10;
/// Longest time of a proxy, with the time until its guest has filled its memory.
const LONGEST: Duration = Duration::from_secs(600);
/// The name in the certificate of the target's proxy.
const NAME: &str = "proxy";
const MIB_OF_GIB: f64 = 1024.0;

/// Measures `proxies_*` and `plain_move_*`, each against QEMU's own TLS.
pub fn measure(launcher: &Path, rounds: usize, figures: &mut Figures) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let folder = tempfile::tempdir()?;
        let disk = filler::disk(folder.path())?;
        // The launchers end here, and nothing disturbs the QEMUs.
        let (source, target) = Pair::start(launcher, &disk).await?.by_hand(&disk)?;
        let (mut own, mut proxied, mut plain) = (Runs::default(), Runs::default(), Runs::default());
        let mut alone = Vec::new();
        for _ in 0..rounds {
            let keys = raw_move::keys()?;
            own.add(&raw_move::go_over(&source, &target, connection()?, Some(keys.path())).await?);
            let (proxies, ends) = Proxies::start()?;
            let mut moved = raw_move::go_over(&source, &target, ends, None).await?;
            let (at_source, at_target) = proxies.used()?;
            moved.at_source += at_source;
            moved.at_target += at_target;
            proxied.add(&moved);
            alone.push(per_gib(at_source + at_target));
            plain.add(&raw_move::go_over(&source, &target, connection()?, None).await?);
        }
        proxied.figures("proxies", &own, figures);
        plain.figures("plain_move", &own, figures);
        figures.insert("proxies_alone_cpu".to_owned(), Figure::plain(median(&alone), "s/GiB", rounds));
        Ok(())
    })
}

/// Figures of several guests that moved in the same way.
#[derive(Default)]
struct Runs {
    rates: Vec<f64>,
    downtimes: Vec<f64>,
    at_source: Vec<f64>,
    at_target: Vec<f64>,
}

impl Runs {
    fn add(&mut self, moved: &Moved) {
        self.rates.push(f64::from(FILLED_MIB) / moved.trip.sent.as_secs_f64());
        self.downtimes.push(moved.trip.silent.as_secs_f64() * 1000.0);
        self.at_source.push(per_gib(moved.at_source));
        self.at_target.push(per_gib(moved.at_target));
    }

    fn figures(&self, name: &str, own: &Self, figures: &mut Figures) {
        for (figure, values, raws, unit) in [
            ("rate", &self.rates, &own.rates, "MiB/s"),
            ("downtime", &self.downtimes, &own.downtimes, "ms"),
            ("source_cpu", &self.at_source, &own.at_source, "s/GiB"),
            ("target_cpu", &self.at_target, &own.at_target, "s/GiB"),
        ] {
            figures.insert(format!("{name}_{figure}"), Figure::compared(values, raws, unit));
        }
    }
}

/// Seconds for each GiB, if so much was used for the guest's memory.
fn per_gib(used: Duration) -> f64 {
    used.as_secs_f64() * MIB_OF_GIB / f64::from(FILLED_MIB)
}

/// Both proxies of one guest. Each ends when its QEMU closes its connection.
struct Proxies {
    at_source: JoinHandle<Result<Duration>>,
    at_target: JoinHandle<Result<Duration>>,
}

impl Proxies {
    /// Starts them; also returns the ends of both QEMUs.
    fn start() -> Result<(Self, (OwnedFd, OwnedFd))> {
        let (connector, acceptor) = settings()?;
        let (near, far) = connection()?;
        let (source, from) = Pipe::pair()?;
        let (to, target) = Pipe::pair()?;
        let at_source = spawn(async move { dial(asynchronous(from)?, remote(near)?, connector).await });
        let at_target = spawn(async move { accept(asynchronous(to)?, remote(far)?, acceptor).await });
        Ok((Self { at_source, at_target }, (source.into(), target.into())))
    }

    /// Waits until both have ended, and returns the processor time that each used.
    fn used(self) -> Result<(Duration, Duration)> {
        let of =
            |proxy: JoinHandle<Result<Duration>>| proxy.join().unwrap_or_else(|panic| resume_unwind(panic));
        Ok((of(self.at_source)?, of(self.at_target)?))
    }
}

/// Runs a proxy in a thread of its own, and returns the processor time of this thread.
fn spawn(proxy: impl Future<Output = Result<()>> + Send + 'static) -> JoinHandle<Result<Duration>> {
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async { tokio::time::timeout(LONGEST, proxy).await })??;
        let used = getrusage(UsageWho::RUSAGE_THREAD)?;
        let microseconds = used.user_time().num_microseconds() + used.system_time().num_microseconds();
        Ok(Duration::from_micros(u64::try_from(microseconds)?))
    })
}

/// The source's proxy. As with QEMU's own TLS, the handshake is part of the migration.
async fn dial(qemu: UnixStream, peer: TcpStream, connector: TlsConnector) -> Result<()> {
    qemu.readable().await?;
    let mut tls = connector.connect(ServerName::try_from(NAME)?, peer).await?;
    tls.get_mut().1.set_buffer_limit(Some(BUFFER));
    copy(qemu, tls).await;
    Ok(())
}

/// The target's.
async fn accept(qemu: UnixStream, peer: TcpStream, acceptor: TlsAcceptor) -> Result<()> {
    let mut tls = acceptor.accept(peer).await?;
    tls.get_mut().1.set_buffer_limit(Some(BUFFER));
    copy(qemu, tls).await;
    Ok(())
}

async fn copy(mut qemu: UnixStream, mut tls: impl AsyncRead + AsyncWrite + Unpin) {
    // A QEMU that closes its end before it has read everything causes an error. If one comes earlier, the guest does not arrive, and
    // the move fails.
    let _ = copy_bidirectional_with_sizes(&mut qemu, &mut tls, BUFFER, BUFFER).await;
}

fn asynchronous(end: Pipe) -> Result<UnixStream> {
    end.set_nonblocking(true)?;
    Ok(UnixStream::from_std(end)?)
}

fn remote(end: OwnedFd) -> Result<TcpStream> {
    let end = net::TcpStream::from(end);
    end.set_nonblocking(true)?;
    end.set_nodelay(true)?;
    Ok(TcpStream::from_std(end)?)
}

/// The TLS of both proxies, with a certificate for this guest only.
fn settings() -> Result<(TlsConnector, TlsAcceptor)> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(ring::default_provider());
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)?;
    let mut roots = RootCertStore::empty();
    roots.add(certificate)?;
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok((TlsConnector::from(Arc::new(client)), TlsAcceptor::from(Arc::new(server))))
}
