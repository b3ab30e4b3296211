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

pub mod certificates;
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
