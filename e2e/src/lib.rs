//! Black-box tests against a real cluster, with what users have: `kubectl`, `virtctl`, manifests, and for some tests
//! a shell on a node. Nothing here knows how the components are made, so that the tests that ask for nothing but the
//! KubeVirt API also pass on KubeVirt itself.
//!
//! ```text
//!   tests/together/<area>.rs   one short function a behaviour, its name says which
//!     in_namespace("name", |namespace| ...)   a namespace of its own, Pod Security `restricted`, removed at the end;
//!                                             what went wrong is shown with all there is to know about it
//!       namespace.apply(&guest::instance("vm"))    manifests from one builder
//!       wait::until(...)                           every wait has a deadline and says what it waited for
//!       Console::open(...)                         a person at the serial console, on a pty
//!       Node::of(...)                              a shell on a node
//! ```
//!
//! What disturbs nobody is one program, of which several tests run at once. What disturbs others (killed daemons and nodes,
//! other settings) is a file `tests/<area>.rs` of its own, holds [`alone`] and so runs by itself, since cargo runs one program
//! after the other.

pub mod api_server;
pub mod bench;
pub mod cdi;
pub mod command;
pub mod console;
pub mod counting;
pub mod curl;
pub mod diagnosis;
pub mod forward;
pub mod guest;
pub mod handlers;
pub mod harm;
pub mod image;
pub mod installation;
pub mod namespace;
pub mod node;
pub mod pods;
pub mod rfb;
pub mod rooms;
pub mod runner;
pub mod running;
pub mod ssh;
pub mod wait;
pub mod weaken;

pub use console::Console;
pub use forward::Forward;
pub use namespace::{Namespace, in_namespace};
pub use node::Node;
pub use running::Running;

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Of all tests of one program: many may be undisturbed at once, one may disturb them.
static DISTURBANCE: RwLock<()> = RwLock::new(());

/// Held by a test while it disturbs others in its program.
pub fn alone() -> RwLockWriteGuard<'static, ()> {
    // A test that failed has said so; the next one may go on.
    DISTURBANCE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Held by a test of such a program while it does what may not be disturbed: until its guest runs, for instance. Not by a
/// thread that is [`alone`].
pub fn undisturbed() -> RwLockReadGuard<'static, ()> {
    DISTURBANCE.read().unwrap_or_else(PoisonError::into_inner)
}
