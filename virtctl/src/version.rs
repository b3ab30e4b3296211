//! version.

use clap::Args;
use http::Method;

use crate::session::Connection;

/// Arguments of `virtctl version`.
#[derive(Debug, Args)]
pub(crate) struct Version {
    /// Client version only (no server required).
    #[arg(short, long)]
    client: bool,
}

impl Version {
    pub(crate) async fn run(&self, connection: &Connection) -> anyhow::Result<()> {
        println!("Client Version: v{} ({})", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
        if self.client {
            return Ok(());
        }
        let session = connection.open().await?;
        let path = "/apis/subresources.kubevirt.io/v1/version".to_owned();
        let version = session
            .call_json(Method::GET, path, &())
            .await
            .map_err(|error| error.context("failed to get server version"))?;
        let word = |key: &str| version[key].as_str().unwrap_or("unknown").to_owned();
        println!(
            "Server Version: {} (commit {}, {})",
            word("gitVersion"),
            word("gitCommit"),
            word("platform")
        );
        Ok(())
    }
}
