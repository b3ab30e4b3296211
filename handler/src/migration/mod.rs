//! Guests that move between this node and others.
//!
//! ```text
//!  source's handler                                     target's handler                      target's launcher
//!   │                                                     │ ── Sync: a guest comes ────────────> QEMU waits
//!   │ <── status.migrationState.targetNodeAddress ─────── │
//!   │ ── TLS: begin ────────────────────────────────────> │ makes key and ticket
//!   │ <── key, ticket ─────────────────────────────────── │
//!   │ ── TCP: ticket ───────────────────────────────────> │ ── connection, key ──────────────> QEMU receives
//!   │ ── connection, key ──> source's launcher: QEMU sends ═════════════════════════════════════>
//!   │ <── sent ───────────── source's launcher            │
//!   │ ── TLS: go ───────────────────────────────────────> │ ── go ───────────────────────────> guest runs
//!   │ <── status.nodeName ─────────────────────────────── │ <── arrived ──────────────────────
//!   │ ── verdict ──────────> source's launcher ends
//! ```
//!
//! All of it is found again from the instance's status and the launchers' by a handler that starts anew. Keys are in no
//! object: a handler that had one and starts anew has no more use for it.
//!
//! [`plan`] and [`status`] are pure: what is to be done, and what is to be written. [`control`] is what handlers say to each other,
//! [`listen`] and [`call`] are both ends of it, [`arrivals`] the guests that may come here, [`address`] where this handler is reached.

pub mod address;
pub mod arrivals;
pub mod call;
pub mod control;
pub mod limits;
pub mod listen;
pub mod plan;
pub mod source_pod;
pub mod status;

/// Port of the target's handler for both: what handlers say to each other, and connections between QEMUs.
pub const PORT: u16 = 8187;
