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
//!                    admission                            front_proxy (who) -> authorize (may they)
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
//! The modules, from the outside in; each names only what stands below it.
//!
//! - [`server`] accepts connections; `dispatch` finds out what a request asks for, who asks and whether they may, and calls
//!   one of the following.
//! - Webhooks: [`admission`] answers reviews with the rules of `barevirt_api`; [`infer`] reads what a volume says about the
//!   instance type of its machine.
//! - Machines: [`machine`] and [`volumes`] change them by patches; [`migrations`] has them move and stay; [`expand`] shows what they are with their instance type;
//!   [`object_graph`] shows what belongs to them.
//! - Guests: [`instance`] (console, VNC, USB), [`qmp`], [`controls`] and [`port_forward`] lead to a running guest.
//! - Images: [`uploads`] has a listener of its own, where they are taken into claims.
//! - What the API server asks: [`discovery`] and [`openapi`] describe what is served.
//! - Who and whether: [`front_proxy`] and [`authorize`].
//! - Ways out: [`to_handler`] calls virt-handler, [`relay`] passes bytes between two connections.
//! - Below all of them: [`state`] holds what every request may use (clients, certificates, settings, open streams); [`streams`]
//!   counts the streams of each guest; [`tls`] keeps the certificates; [`route`] and [`endpoints`] say which paths there
//!   are; [`answer`] makes answers and refusals.

pub mod admission;
pub mod answer;
pub mod authorize;
pub mod controls;
pub mod discovery;
mod dispatch;
pub mod endpoints;
pub mod expand;
pub mod front_proxy;
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
