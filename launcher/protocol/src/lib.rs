//! What virt-handler and virt-launcher say to each other: gRPC, and descriptors on a second socket.
//!
//! The launcher listens on two unix sockets in the pod's `sockets` directory:
//!
//! | socket | kind | carries |
//! |---|---|---|
//! | [`names::GRPC_SOCKET`] | stream | gRPC: wanted state in, status out ([`v1`], `proto/launcher.proto`) |
//! | [`names::DESCRIPTOR_SOCKET`] | seqpacket | one JSON [`message::Request`] with its descriptors, one JSON [`message::Answer`] |
//!
//! gRPC cannot carry descriptors, hence the second socket. Both are level-triggered: whatever was sent may be sent
//! again. A launcher outlives the handler that started it, so both sides keep serving the previous version of the
//! other: fields are only added, unknown ones are ignored, and the golden tests in [`message`] and in
//! `tests/wire.rs` hold the bytes of version 1.
//!
//! ```text
//!  handler                                             launcher
//!  SocketsDirectory::connect_grpc ──► grpc::client ══► grpc::serve ──► v1::launcher_server::Launcher
//!  SocketsDirectory::connect_descriptors
//!        └► descriptors::Client  give / take ════════► descriptors::serve ──► mpsc of descriptors::Call
//! ```
//!
//! The handler trusts neither socket by its path: it looks at the peer's credentials (whose process listens) before it
//! says anything, and a connection that breaks is never made again behind its back.

pub mod capabilities;
pub mod descriptors;
pub mod directory;
pub mod grpc;
pub mod message;
pub mod names;
pub mod seqpacket;
mod system;

pub use system::readable;

/// The generated gRPC types, clients and servers of `proto/launcher.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod v1 {
    tonic::include_proto!("barevirt.launcher.v1");
}
