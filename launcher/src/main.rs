//! The first process of a VM pod: parent of exactly one QEMU.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use tracing_subscriber::filter::LevelFilter;
use virt_launcher::{pod, run};

/// Parent of exactly one QEMU.
#[derive(Debug, Parser)]
#[command(name = "virt-launcher", disable_version_flag = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Say more in the log; twice says all.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Pod(Box<pod::args::Args>),
    Run(Box<run::args::Args>),
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
        2.. => LevelFilter::DEBUG,
    };
    match command {
        Command::Pod(args) => {
            tracing_subscriber::fmt()
                .json()
                .flatten_event(true)
                .with_max_level(level(LevelFilter::INFO))
                .init();
            let verdict = block_on(pod::run(*args))??;
            Ok(if verdict.succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Command::Run(args) => {
            tracing_subscriber::fmt()
                .with_writer(std::io::stderr)
                .with_max_level(level(LevelFilter::WARN))
                .without_time()
                .with_target(false)
                .init();
            match block_on(run::run(*args))?? {
                Some(verdict) if !verdict.succeeded => Ok(ExitCode::FAILURE),
                _ => Ok(ExitCode::SUCCESS),
            }
        }
        Command::Version => {
            println!("virt-launcher {}", env!("CARGO_PKG_VERSION"));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// One thread: children die with the thread that made them.
fn block_on<F: Future>(work: F) -> anyhow::Result<F::Output> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    Ok(tokio::task::LocalSet::new().block_on(&runtime, work))
}
