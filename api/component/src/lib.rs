//! The parts that all servers of Barevirt share.
//!
//! ```text
//!   KubeVirt object --> installation --> log level, rate of requests, TLS policy, and further settings of the component
//!                            |
//!   files or requests --> certificates --> TLS of its servers and calls
//!                            |
//!                         server: one loop for all of them --> probes: /healthz, /metrics on 8443
//!
//!   a request for a stream --> websocket <--> a guest's port or line
//! ```
//!
//! The modules, from the outside in. Each module uses only modules that are listed below it.
//!
//! **A process**
//!
//! - [`process`]: start and end of a process that works behind a lease; [`lease`]: which of several processes acts.
//! - [`probes`]: health and metrics of a component, over TLS.
//! - [`log`]: the log, whose level follows the installation.
//!
//! **Its clients**
//!
//! - [`client`]: clients of the API server, which are counted and limited; [`data_volumes`]: whether DataVolumes are ours or
//!   CDI's; [`changes`]: when to look at objects again; [`notes`]: events for users; [`request`]: requests with a deadline and
//!   a named failure.
//! - [`websocket_client`] and [`websocket`]: streams between our own servers, and between a user and a guest.
//!
//! **Its servers**
//!
//! - [`tls`]: TLS settings of the installation; [`certificates`]: certificates that change while the process runs.
//! - [`server`]: the accept loop; [`query`]: queries of requests.
//!
//! **Shared by all**
//!
//! - [`installation`]: the `KubeVirt` object as it is now; [`metrics`]: metrics and their names; [`error`]: texts of errors.

pub mod certificates;
pub mod changes;
pub mod client;
pub mod data_volumes;
pub mod error;
pub mod installation;
pub mod lease;
pub mod log;
pub mod metrics;
pub mod notes;
pub mod probes;
pub mod process;
pub mod query;
pub mod request;
pub mod server;
pub mod tls;
pub mod websocket;
pub mod websocket_client;
