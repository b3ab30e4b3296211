//! virt-api: admission webhooks and the aggregated `subresources.kubevirt.io` API.
//!
//! ```text
//!              webhooks (no client certificate)            users, through the API server's aggregator
//!                        |                                                 |
//!                        +-------------------> server <--------------------+
//!                                                |
//!                                            dispatch -----> route (pure)
//!                                                |
//!                        +-----------------------+-------------------------+
//!                    admission                            front_proxy (user) -> authorize (permission)
//!                  (defaults, causes)                                      |
//!                                                     machine: start, stop, restart -> patches
//!                                                     volumes: addvolume, removevolume -> patches
//!                                                     migrations: migrate -> a migration; evacuate/cancel -> a patch
//!                                                     instance: console, vnc -> to_handler -> virt-handler
//!                                                     qmp: class of each command, access review -> to_handler
//!                                                     port_forward: TCP and UDP --> the guest's address
//!                                                     object_graph: what the object names, and its pod
//!                                                     controls: pause, reset, freeze, ... -> to_handler
//! ```
//!
//! The modules, from the outside in. Each module uses only modules that are listed below it.
//!
//! - [`server`] accepts connections; `dispatch` finds the call of a request, the user and the user's
//!   permission, and calls one of the following modules.
//! - Webhooks: [`admission`] answers reviews with the rules of `barevirt_api`; [`infer`] reads the instance
//!   type of a machine from the labels of a volume.
//! - Machines: [`machine`] and [`volumes`] change them by patches; [`migrations`] moves them and cancels
//!   moves; [`expand`] shows them with their instance type; [`object_graph`] shows the objects that belong to
//!   them.
//! - Guests: [`instance`] (console, VNC, USB), [`qmp`], [`controls`] and [`port_forward`] lead to a running guest.
//! - Images: [`uploads`] has its own listener and uploads images into claims.
//! - Discovery: [`discovery`] and [`openapi`] describe the served calls to the API server.
//! - Users and permissions: [`front_proxy`] and [`authorize`].
//! - Outgoing calls: [`to_handler`] calls virt-handler, [`relay`] copies bytes between two connections.
//! - Shared by all: [`state`] holds the values that every request may use (clients, certificates, settings,
//!   open streams); [`streams`] counts the streams of each guest; [`tls`] keeps the certificates; [`route`]
//!   and [`endpoints`] define the paths; [`answer`] makes answers and refusals.

pub mod admission;
pub mod answer;
pub mod authorize;
pub mod controls;
pub mod discovery;
mod dispatch;
pub mod endpoints;
pub mod expand;
pub mod front_proxy;
#[cfg(test)]
mod fuzz_targets;
pub mod infer;
pub mod instance;
pub mod machine;
pub mod migrations;
pub mod object_graph;
pub mod openapi;
pub mod port_forward;
pub mod qmp;
pub mod relay;
pub mod route;
pub mod server;
pub mod state;
pub mod streams;
pub mod tls;
pub mod to_handler;
pub mod uploads;
pub mod volumes;

// Names that the fuzz targets import from.
#[cfg(test)]
extern crate self as libfuzzer_sys;
#[cfg(test)]
extern crate self as virt_api;
