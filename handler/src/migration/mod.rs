//! Guests that migrate between this node and others.
//!
//! ```text
//!  source's handler                                     target's handler                      target's launcher
//!   │                                                     │ ── Sync: a guest arrives ──────────> QEMU waits
//!   │ <── status.migrationState.targetNodeAddress ─────── │
//!   │ ── TLS: begin ────────────────────────────────────> │ makes key and ticket
//!   │ <── key, ticket ─────────────────────────────────── │
//!   │ ── TCP: ticket ───────────────────────────────────> │ ── connection, key ──────────────> QEMU receives
//!   │ ── connection, key ──> source's launcher: QEMU sends ═════════════════════════════════════>
//!   │ <── sent ───────────── source's launcher            │
//!   │ ── TLS: go ───────────────────────────────────────> │ ── go ───────────────────────────> guest runs
//!   │ <── status.nodeName ─────────────────────────────── │ <── arrived ──────────────────────
//!   │ ── result ──────────> source's launcher ends
//! ```
//!
//! If the connection breaks in post-copy, the source's handler asks for a ticket again (`rejoin`), and both launchers get
//! the two ends of a new connection.
//!
//! A handler that restarts finds all of this again in the status of the instance and of the launchers. Keys
//! are stored in no object: a handler that had a key and restarts no longer needs it.
//!
//! [`plan`] and [`status`] are pure: what has to be done, and what has to be written. [`control`] has the
//! messages between handlers, [`listen`] and [`call`] are the two sides of such a conversation,
//! [`arrivals`] has the guests that may arrive here, [`address`] the address at which they arrive, [`silence`] how long a
//! connection between QEMUs may be silent, and [`compression`] why memory is not compressed.

pub mod address;
pub mod arrivals;
pub mod call;
pub mod compression;
pub mod control;
pub mod limits;
pub mod listen;
pub mod plan;
pub mod recovery;
pub mod silence;
pub mod slow;
pub mod source_pod;
pub mod status;

/// Port of the target's handler, both for messages between handlers and for connections between QEMUs.
pub const PORT: u16 = 8187;
