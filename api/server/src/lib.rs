//! virt-api: admission webhooks and the aggregated `subresources.kubevirt.io` API.
//!
//! ```text
//!              webhooks (no client certificate)            users, through the API server's aggregator
//!                        |                                                 |
//!                    server -----------> route (pure) <----------------- server
//!                        |                                                 |
//!                    admission                            front_proxy (who) -> authorize (may they)
//!                  (defaults, causes)                                      |
//!                                                     machine: start, stop, restart -> patches
//!                                                     volumes: addvolume, removevolume -> patches
//!                                                     instance: console, vnc -> to_handler -> virt-handler
//!                                                     qmp: class of each command, access review -> to_handler
//!                                                     port_forward: TCP and UDP --> the guest's address
//!                                                     object_graph: what the object names, and its pod
//!                                                     controls: pause, reset, freeze, ... -> to_handler
//! ```

pub mod admission;
pub mod answer;
pub mod authorize;
pub mod controls;
pub mod discovery;
pub mod endpoints;
pub mod expand;
pub mod front_proxy;
pub mod infer;
pub mod instance;
pub mod machine;
pub mod object_graph;
pub mod openapi;
pub mod port_forward;
pub mod qmp;
pub mod relay;
pub mod route;
pub mod server;
pub mod streams;
pub mod tls;
pub mod to_handler;
pub mod volumes;
