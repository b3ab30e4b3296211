//! ui: a page in the browser, served on this machine's loopback with the user's own kubeconfig. Nothing is installed in the
//! cluster.
//!
//! ```text
//!   browser --(token of the address; Host and Origin)-----> gate -> route -> one module for each kind of request
//!      |                                                                       |
//!      |  live:    machines, instances and nodes, a line of JSON each <--------+--- watch ---- API server
//!      |  streams: console and display over websockets <-----------------------+--- stream ---
//!      |  machine, manifest, monitor, metrics: question and answer <-----------+--- requests -
//! ```
//!
//! - `gate` decides which requests are answered, and `route` what they mean: both are pure. Names in
//!   addresses are checked before they become part of a request.
//! - `assets` are the files of the page, compressed, a fixed table: no request reads a file of this machine.
//! - `answer` makes answers; `ask` asks the API server, each time with a deadline.
//! - `serve` accepts connections and passes each request to its module.

mod answer;
mod ask;
mod assets;
mod gate;
mod live;
mod machine;
mod manifest;
mod metrics;
mod monitor;
mod route;
mod serve;
mod streams;

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::{anyhow, bail};
use clap::Args;

use self::ask::Cluster;
use self::gate::Gate;
use self::serve::Server;
use crate::session::Session;
use crate::visitor::{self, until_interrupted};

/// Arguments of `virtctl ui`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # A page with all machines that you may see; open the address that is printed:\n  virtctl ui\n\n  \
    # Only the machines of one namespace, on a port of your choice:\n  virtctl ui -n shop --port 8080")]
pub(crate) struct Ui {
    /// The port on 127.0.0.1; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
}

impl Ui {
    /// Serves until it is interrupted. `asked` is the namespace of the command line.
    pub(crate) async fn run(&self, session: &Session, asked: Option<&str>) -> anyhow::Result<()> {
        if assets::find("/").is_none() {
            bail!(
                "this virtctl was compiled without its page: run `make ui`, which needs node and npm, \
                 and compile virtctl again (`make virtctl`)"
            );
        }
        let cluster = Cluster::of(session, asked).await?;
        let listener = visitor::listen(Ipv4Addr::LOCALHOST.into(), self.port).await?;
        let gate = Gate::new(listener.local_addr()?.port(), secret()?);
        println!("{}", gate.address());
        eprintln!("Open it in a browser. The page acts with your rights on the cluster; ctrl-c ends it.");
        until_interrupted(serve::run(listener, Arc::new(Server::new(gate, cluster)))).await
    }
}

/// 32 random bytes, in hexadecimal.
fn secret() -> anyhow::Result<String> {
    let mut bytes = [0; 32];
    let random = rustls::crypto::ring::default_provider().secure_random;
    random.fill(&mut bytes).map_err(|_| anyhow!("this machine gives no random numbers"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests;
