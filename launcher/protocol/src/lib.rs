//! The protocol between virt-handler and virt-launcher: gRPC, and descriptors on a second socket.
//!
//! The launcher listens on two unix sockets in the pod's `sockets` directory:
//!
//! | socket | kind | carries |
//! |---|---|---|
//! | [`names::GRPC_SOCKET`] | stream | gRPC: wanted state in, status out ([`v1`], `proto/launcher.proto`) |
//! | [`names::DESCRIPTOR_SOCKET`] | seqpacket | one JSON [`message::Request`] with its descriptors, one JSON [`message::Answer`] |
//!
//! gRPC cannot carry descriptors, so there is a second socket. Both are level-triggered: every message may be
//! sent again. A launcher outlives the handler that started it, so each side keeps supporting the previous
//! version of the other: fields are only added, unknown fields are ignored, and the golden tests in
//! [`message`] and in `tests/wire.rs` contain the bytes of version 1.
//!
//! ```text
//!  handler                                             launcher
//!  SocketsDirectory::connect_grpc ──► grpc::client ══► grpc::serve ──► v1::launcher_server::Launcher
//!  SocketsDirectory::connect_descriptors
//!        └► descriptors::Client  give / take ════════► descriptors::serve ──► mpsc of descriptors::Call
//! ```
//!
//! The handler trusts neither socket by its path: it checks the peer's credentials (the process that listens)
//! before it sends anything, and a broken connection is never reopened implicitly.
//!
//! The modules, from the outside in. Each module uses only modules that are listed below it.
//!
//! - [`descriptors`]: both ends of the descriptor socket; [`grpc`]: both ends of the gRPC socket, whose generated
//!   types are in [`v1`].
//! - [`directory`]: how the handler connects to both sockets of a pod.
//! - [`seqpacket`]: packet sockets, which carry whole messages with descriptors; `bind`: the path of a listener.
//! - [`message`]: requests and answers of the descriptor socket as JSON. Pure.
//! - [`names`]: names that both sides use.
//! - `system`: system calls that return descriptors, the only unsafe code; `control`: parses what they received.
//! - [`pace`]: how often either side does what the other one, or its guest, causes. Pure.
//! - [`capabilities`]: the file in which a launcher tells a handler what guests of its node can have.

mod bind;
pub mod capabilities;
mod control;
pub mod descriptors;
pub mod directory;
pub mod grpc;
pub mod message;
pub mod names;
pub mod pace;
pub mod seqpacket;
mod system;

pub use system::readable;

/// The generated gRPC types, clients and servers of `proto/launcher.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod v1 {
    tonic::include_proto!("barevirt.launcher.v1");
}
