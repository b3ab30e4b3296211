//! Fills one claim, then ends. The job is in the environment variable `IMPORT`; the outcome is the termination message.
//!
//! ```text
//! virt-importer                                                              the import
//! virt-importer keys [NAME]                                                  makes a key; its certificate is the message
//! virt-importer look                                                         reports the digest of the source
//! virt-importer send                                                         sends a claim to the importer of another namespace
//! virt-importer limited --memory N --seconds N [--read F] [--write F] -- P   executes P, within limits
//! virt-importer --version                                                    version, commit and time of this build
//! ```
//!
//! Exit status: 0 when the claim is filled, 1 when a retry may help, 2 when no retry can help.

use anyhow::Context;
use barevirt_import_job::copy::{KEYS, MAKE_KEYS, PEER, RECEIVER, SEND, SEND_PORT};
use barevirt_import_job::{
    AUTHORITIES, CREDENTIALS, DATA, DEVICE, EXIT_FINAL, EXIT_PASSING, HEADERS, JOB, Job, LOOK, METRICS_PORT,
    NETWORK, Network, Outcome, PASSWORD, SCRATCH, SOURCE, SOURCE_DEVICE, Source, TERMINATION_LOG,
    UPLOAD_PORT, USER,
};
use nix::sys::resource::{Resource, setrlimit};
use std::ffi::{OsStr, OsString};
use std::future::Future;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info, warn};
use virt_importer::address::Addresses;
use virt_importer::convert::Tools;
use virt_importer::failure::Failure;
use virt_importer::keys;
use virt_importer::limits::Limited;
use virt_importer::progress::{self, Progress};
use virt_importer::proxy::Proxies;
use virt_importer::run::Importer;
use virt_importer::send::Sender;
use virt_importer::target::Places;
use virt_importer::trust;
use virt_importer::upload::{self, Upload};
use virt_importer::web::{RetryPolicy, Web};

/// Longest secret that is read, in bytes.
const LONGEST_SECRET: u64 = 64 << 10;
/// How long an upload may send nothing.
const STALL: Duration = Duration::from_secs(5 * 60);
/// How long a sender waits for a request.
const IDLE: Duration = Duration::from_secs(15 * 60);

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next() {
        Some(command) if command == "limited" => {
            let error = Limited::parse(arguments).map_or_else(|error| error, Limited::execute);
            eprintln!("{error}");
            return ExitCode::from(126);
        }
        Some(command) if command == SEND => return run(send()),
        Some(command) if command == LOOK => return run(look()),
        Some(command) if command == MAKE_KEYS => return make_keys(arguments.next()),
        Some(command) if command == "version" || command == "--version" => {
            println!("virt-importer {}", container_disk::release::line());
            return ExitCode::SUCCESS;
        }
        Some(other) => {
            eprintln!("virt-importer: {other:?} is not known");
            return ExitCode::from(EXIT_FINAL);
        }
        None => {}
    }
    run(import())
}

/// Does the work, and writes its outcome.
fn run(work: impl Future<Output = Result<Outcome, Failure>>) -> ExitCode {
    tracing_subscriber::fmt().json().with_writer(std::io::stderr).init();
    // Memory may contain secrets and disks: no core file is written.
    if let Err(error) = setrlimit(Resource::RLIMIT_CORE, 0, 0) {
        warn!(%error, "core files could not be disabled");
    }
    let result = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => {
            let result = runtime.block_on(work);
            // Requests in progress are not waited for.
            runtime.shutdown_background();
            result
        }
        Err(error) => Err(Failure::Passing(format!("start: {error}"))),
    };
    let (outcome, code) = match result {
        Ok(outcome) => (outcome, ExitCode::SUCCESS),
        Err(failure) => {
            error!(last = failure.is_final(), "{failure}");
            let code = if failure.is_final() { EXIT_FINAL } else { EXIT_PASSING };
            (Outcome::failed(failure.is_final(), &failure.to_string()), ExitCode::from(code))
        }
    };
    if let Err(error) = std::fs::write(TERMINATION_LOG, outcome.to_message()) {
        warn!(%error, "could not write the outcome");
    }
    code
}

fn asked(error: anyhow::Error) -> Failure {
    Failure::Final(format!("{error:#}"))
}

fn job() -> Result<Job, Failure> {
    let text = std::env::var(JOB).context("read the job").map_err(asked)?;
    serde_json::from_str(&text).context("read the job").map_err(asked)
}

/// How the server is reached.
fn network() -> Result<Network, Failure> {
    let Some(text) = std::env::var_os(NETWORK) else { return Ok(Network::default()) };
    let text = text.to_str().context("read the settings of the network").map_err(asked)?;
    serde_json::from_str(text).context("read the settings of the network").map_err(asked)
}

fn importer(progress: Arc<Progress>) -> Result<Importer, Failure> {
    let network = network()?;
    let tls = trust::tls(Path::new(trust::USUAL), Path::new(AUTHORITIES), &network.authorities)?;
    Ok(Importer {
        web: Web {
            tls: Arc::new(tls),
            addresses: Addresses { public_only: network.public_only, ..Addresses::default() },
            proxies: Arc::new(Proxies::of(&network)?),
            policy: RetryPolicy::default(),
            name: None,
        },
        places: places(),
        tools: tools(),
        login: login()?,
        headers: headers()?,
        progress,
    })
}

/// Reports the digest of the source.
async fn look() -> Result<Outcome, Failure> {
    let (job, importer) = (job()?, importer(Arc::new(Progress::default()))?);
    let mut stop = signal(SignalKind::terminate()).context("listen for signals").map_err(asked)?;
    tokio::select! {
        result = importer.look(&job.source) => result.map(|digest| Outcome::Found { digest }),
        _ = stop.recv() => Err(Failure::Passing("the look at the source was stopped by SIGTERM".to_owned())),
    }
}

async fn import() -> Result<Outcome, Failure> {
    let job = job()?;
    if let Source::Upload { .. } = job.source {
        return upload(job).await.map(|size| Outcome::Done { size });
    }
    let progress = Arc::new(Progress::default());
    match TcpListener::bind(("::", METRICS_PORT)).await {
        Ok(listener) => {
            tokio::spawn(progress::serve(listener, progress.clone(), job.owner.clone()));
        }
        // Then only the end is reported.
        Err(error) => warn!(%error, "the progress is not served"),
    }
    let importer = importer(progress)?;
    let mut stop = signal(SignalKind::terminate()).context("listen for signals").map_err(asked)?;
    info!(source = ?shown(&job), size = job.size, "the import begins");
    tokio::select! {
        result = importer.run(&job) => result.map(|size| Outcome::Done { size }),
        _ = stop.recv() => Err(Failure::Passing("the import was stopped by SIGTERM".to_owned())),
    }
}

/// Receives an upload.
async fn upload(job: Job) -> Result<u64, Failure> {
    let tls = Arc::new(upload::tls(&job.source, Path::new(KEYS))?);
    let listener = TcpListener::bind(("::", UPLOAD_PORT)).await;
    let listener = listener.map_err(|error| Failure::Passing(format!("listen for uploads: {error}")))?;
    let mut stop = signal(SignalKind::terminate()).context("listen for signals").map_err(asked)?;
    info!(size = job.size, "waiting for an upload");
    let upload = Upload { places: places(), tools: tools(), job, stall: STALL };
    tokio::select! {
        result = upload.serve(listener, tls) => result,
        _ = stop.recv() => Err(Failure::Passing("the upload was stopped by SIGTERM".to_owned())),
    }
}

fn places() -> Places {
    Places {
        data: DATA.into(),
        device: DEVICE.into(),
        scratch: SCRATCH.into(),
        source: SOURCE.into(),
        source_device: SOURCE_DEVICE.into(),
        keys: KEYS.into(),
        receiver: RECEIVER.into(),
    }
}

fn tools() -> Tools {
    Tools { importer: "/proc/self/exe".into(), qemu_img: "/usr/bin/qemu-img".into(), seconds: None }
}

/// Makes the pod's key, with a certificate for that name, which becomes part of the pod's status.
fn make_keys(name: Option<OsString>) -> ExitCode {
    let name = name.as_deref().map_or(Some(PEER), OsStr::to_str);
    let name = name.ok_or_else(|| Failure::Final("the name of a certificate is no text".to_owned()));
    let made = name.and_then(|name| keys::make(Path::new(KEYS), name)).and_then(|certificate| {
        std::fs::write(TERMINATION_LOG, certificate)
            .map_err(|error| Failure::Passing(format!("write the certificate: {error}")))
    });
    match made {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::from(EXIT_PASSING)
        }
    }
}

/// Serves until it is stopped, or no request comes.
async fn send() -> Result<Outcome, Failure> {
    let sender = Sender::open(&places())?;
    let listener = TcpListener::bind(("::", SEND_PORT)).await;
    let listener = listener.map_err(|error| Failure::Passing(format!("listen: {error}")))?;
    let mut stop = signal(SignalKind::terminate()).context("listen for signals").map_err(asked)?;
    tokio::select! {
        ended = sender.serve(listener, IDLE) => ended.map(|()| Outcome::Done { size: 0 }),
        _ = stop.recv() => Ok(Outcome::Done { size: 0 }),
    }
}

/// The kind of source for the log; addresses can be secret.
fn shown(job: &Job) -> &'static str {
    match &job.source {
        Source::Http { .. } => "http",
        Source::Registry { .. } => "registry",
        Source::S3 { .. } => "s3",
        Source::Blank {} => "blank",
        Source::Claim {} => "claim",
        Source::Image {} => "image of the node",
        Source::Upload { .. } => "upload",
        Source::Sender { .. } => "claim of another namespace",
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    use std::io::Read;
    let failed = |error: std::io::Error| {
        Failure::Final(format!(
            "read key {} of a secret: {error}",
            path.file_name().unwrap_or_default().display()
        ))
    };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(LONGEST_SECRET).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

fn login() -> Result<Option<(String, String)>, Failure> {
    let directory = Path::new(CREDENTIALS);
    if !directory.is_dir() {
        return Ok(None);
    }
    Ok(Some((read(&directory.join(USER))?, read(&directory.join(PASSWORD))?)))
}

fn headers() -> Result<Vec<String>, Failure> {
    let mut directories: Vec<_> =
        std::fs::read_dir(HEADERS).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    directories.sort();
    let files = directories.iter().flat_map(|directory| trust::files(directory));
    files.map(|file| read(&file)).collect()
}
