//! adm: administration of the installation.

mod log_verbosity;

use clap::{Args, Subcommand};

use crate::session::Connection;

/// Arguments of `virtctl adm`.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Adm {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show, set or reset how much the components log: 0 to 9, normally 2.
    #[command(name = "log-verbosity")]
    LogVerbosity(log_verbosity::LogVerbosity),
}

impl Adm {
    pub(crate) async fn run(&self, connection: &Connection) -> anyhow::Result<()> {
        match &self.what {
            What::LogVerbosity(verbosity) => verbosity.run(connection).await,
        }
    }
}
