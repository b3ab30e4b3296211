//! What disturbs nobody, in one program: several tests run at once, and beside them all a rotation of the certificates, which
//! takes ten minutes, most of them waited.

mod bad_input;
mod controls;
mod credentials;
mod debian;
mod dedicated;
mod deletion;
mod ends;
mod events;
mod explain;
mod features;
mod firmware;
mod guest;
mod identity;
mod instancetypes;
mod kinds;
mod live_update;
mod machine;
mod metrics;
mod network;
mod nodes;
mod overhead;
mod pools;
mod probes;
mod qmp;
mod replica_sets;
mod roles;
mod rotation;
mod standalone;
mod strategies;
mod streams;
mod usb;
mod user_guide;
mod virtctl;
