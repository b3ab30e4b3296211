//! The first process of a VM pod: parent of exactly one QEMU.

use std::process::ExitCode;

use anyhow::Context as _;
use barevirt_confinement as confinement;
use clap::Parser;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use virt_launcher::{
    filesystem, node_capabilities, passt, pod, probe, run, serial_log, signals, unused, volume,
};

/// Parent of exactly one QEMU.
#[derive(Debug, Parser)]
#[command(name = "virt-launcher", disable_version_flag = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// More detailed log; twice for everything.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Pod(Box<pod::args::Args>),
    Run(Box<run::args::Args>),
    Probe(probe::client::Args),
    NodeCapabilities(node_capabilities::Args),
    Volume(volume::Args),
    Filesystem(filesystem::Args),
    Passt(passt::Args),
    /// Print the output of the guest of this pod on its serial console.
    SerialLog {
        /// File of the log.
        #[arg(long, value_name = "FILE", default_value = "/var/run/kubevirt-private/serial0.log")]
        file: std::path::PathBuf,
    },
    /// Wait for a signal to end. Keeps this image on a node.
    Hold,
    /// Print the version.
    Version,
}

fn main() -> ExitCode {
    let Cli { command, verbose } = Cli::parse();
    match start(command, verbose) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("virt-launcher: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(command: Command, verbose: u8) -> anyhow::Result<ExitCode> {
    let level = |usual: LevelFilter| match verbose {
        0 => usual,
        1 => usual.max(LevelFilter::INFO),
        2.. => usual.max(LevelFilter::DEBUG),
    };
    match command {
        Command::Pod(args) => {
            let ours = level(match args.log_verbosity {
                0..=2 => LevelFilter::INFO,
                3..=5 => LevelFilter::DEBUG,
                6.. => LevelFilter::TRACE,
            });
            // As in the other components, levels above the default apply only to our own code.
            let targets = Targets::new().with_default(LevelFilter::INFO);
            let targets = targets.with_target("virt_", ours).with_target("barevirt_", ours);
            let log = tracing_subscriber::fmt().json().flatten_event(true).with_max_level(ours);
            log.finish().with(targets).init();
            confinement::hide_memory().context("cannot hide the memory of this process")?;
            pod::confine::enter(&args)?;
            anyhow::ensure!(!args.simulate_crash, "the launcher ends at once: --simulate-crash is set");
            let end = block_on(pod::run(*args))??;
            Ok(if end.succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Command::Run(args) => {
            tracing_subscriber::fmt()
                .with_writer(std::io::stderr)
                .with_max_level(level(LevelFilter::WARN))
                .without_time()
                .with_target(false)
                .init();
            Ok(run::exit::code(block_on(run::run(*args))?))
        }
        Command::NodeCapabilities(args) => {
            log_as_json(level(LevelFilter::INFO));
            block_on(node_capabilities::run(args))??;
            Ok(ExitCode::SUCCESS)
        }
        Command::Volume(args) => {
            log_as_json(level(LevelFilter::INFO));
            confinement::hide_memory().context("cannot hide the memory of this process")?;
            block_on(volume::run(args))??;
            Ok(ExitCode::SUCCESS)
        }
        Command::Filesystem(args) => {
            log_as_json(level(LevelFilter::INFO));
            if let Some(listener) = block_on(filesystem::listen(&args))?? {
                filesystem::serve(&args, listener)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Passt(args) => {
            log_as_json(level(LevelFilter::INFO));
            if let Some(connection) = block_on(passt::listen(&args))?? {
                passt::serve(&args, connection)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Probe(args) => Ok(ExitCode::from(probe::client::run(args))),
        Command::SerialLog { file } => {
            let printed = serial_log::print(&file, &mut std::io::stdout().lock());
            printed.with_context(|| format!("cannot print {}", file.display()))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Hold => {
            block_on(hold())?.context("cannot wait for signals")?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Version => {
            println!("virt-launcher {}", barevirt_api::release::line());
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn log_as_json(level: LevelFilter) {
    tracing_subscriber::fmt().json().flatten_event(true).with_max_level(level).init();
}

async fn hold() -> std::io::Result<()> {
    signals::Stops::new()?.next().await;
    Ok(())
}

/// One thread, because children receive the parent-death signal when the thread that started them ends.
fn block_on<F: Future>(work: F) -> anyhow::Result<F::Output> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    unused::unmap_when_idle(&mut runtime);
    let runtime = runtime.enable_all().build().context("cannot start")?;
    Ok(tokio::task::LocalSet::new().block_on(&runtime, work))
}

#[cfg(test)]
mod tests {
    /// The helpers of the images do without `barevirt-api` and have their own copy of the constants.
    #[test]
    fn programs_without_the_types_of_the_api_report_the_same_build() {
        let line = barevirt_api::release::line();
        let (build, _) = line.split_once(", API of KubeVirt").unwrap();
        assert_eq!(container_disk::release::line(), format!("{build})"));
    }
}
