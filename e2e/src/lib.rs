//! Black-box tests against a real cluster, with the tools of users: `kubectl`, `virtctl`, manifests, and for
//! some tests a shell on a node. Nothing here depends on how the components are made, so the tests that use
//! only the KubeVirt API also pass on KubeVirt itself.
//!
//! ```text
//!   tests/together/<area>.rs   one short function a behaviour, its name says which
//!     in_namespace("name", |namespace| ...)   a namespace of its own, Pod Security `restricted`, removed at the end;
//!                                             what went wrong is shown with all there is to know about it
//!     in_no_namespace(|namespace| ...)        for tests that only ask admission
//!       namespace.apply(&guest::instance("vm"))    manifests from one builder
//!       wait::until(...)                           every wait has a deadline and says what it waited for
//!       Console::open(...)                         a person at the serial console, on a pty
//!       Node::of(...)                              a shell on a node
//! ```
//!
//! Tests that do not disturb others are one program, several of whose tests run at once. Tests that disturb
//! others (killed daemons and nodes, other settings) are in their own file `tests/<area>.rs` and hold
//! [`alone`], so they run by themselves, since cargo runs one program after the other.

pub mod api_server;
pub mod bench;
pub mod binding_plugins;
pub mod cdi;
pub mod changes;
pub mod command;
pub mod components;
mod condition;
pub mod console;
pub mod container;
pub mod counting;
pub mod curl;
pub mod diagnosis;
pub mod exposed;
pub mod forward;
pub mod frames;
pub mod guest;
pub mod handlers;
pub mod harm;
pub mod held_connection;
pub mod hostile;
pub mod image;
pub mod installation;
pub mod local_volume;
pub mod module_circles;
pub mod moving_guest;
pub mod moving_volume;
pub mod namespace;
pub mod networks;
pub mod node;
pub mod pages;
pub mod pods;
pub mod policies;
pub mod questions;
pub mod rfb;
pub mod runner;
pub mod running;
pub mod sandboxes;
pub mod sending;
pub mod slow_moves;
pub mod ssh;
pub mod tpm;
pub mod upload_proxy;
pub mod wait;
pub mod weaken;

pub use condition::condition;
pub use console::Console;
pub use forward::Forward;
pub use namespace::{Namespace, in_namespace, in_namespace_within, in_no_namespace};
pub use node::Node;
pub use running::Running;

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The lock of one program: many tests may hold it undisturbed at once, but only one may disturb the others.
static DISTURBANCE: RwLock<()> = RwLock::new(());

/// Held by a test while it disturbs others in its program.
pub fn alone() -> RwLockWriteGuard<'static, ()> {
    // A failed test has been reported, so the lock can be used after its panic.
    DISTURBANCE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Held by a test of such a program while it must not be disturbed, for instance until its guest runs. A
/// thread that is [`alone`] must not take it.
pub fn undisturbed() -> RwLockReadGuard<'static, ()> {
    DISTURBANCE.read().unwrap_or_else(PoisonError::into_inner)
}
