//! version.

use barevirt_api::release;
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
        println!(
            "Client Version: {} (commit {}, built {}, {}/{})",
            release::tag(),
            release::COMMIT,
            release::DATE,
            std::env::consts::OS,
            std::env::consts::ARCH
        );
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
            "Server Version: {} (commit {}, built {}, {})",
            word("gitVersion"),
            word("gitCommit"),
            word("buildDate"),
            word("platform")
        );
        // KubeVirt's own server has no such field.
        if let Some(kubevirt) = version["kubevirtVersion"].as_str() {
            println!("API of KubeVirt: {kubevirt}");
        }
        Ok(())
    }
}
