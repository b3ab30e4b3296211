//! What disturbs nobody, in one program: several tests run at once, and beside them all a rotation of the certificates, which
//! takes ten minutes, most of them waited. Tests begin in the order of their names: `certificates` is among the first, so that
//! nothing waits for it in the end.

mod bad_input;
mod certificates;
mod claims;
mod controls;
mod credentials;
mod data_volumes;
mod debian;
mod dedicated;
mod deletion;
mod ends;
mod events;
mod explain;
mod features;
mod firmware;
mod guest;
mod hotplug_volumes;
mod identity;
mod image_upload;
mod instancetypes;
mod killed;
mod kinds;
mod live_update;
mod machine;
mod metrics;
mod migration;
mod migration_drain;
mod migration_firmware;
mod network;
mod nodes;
mod objects;
mod overhead;
mod pools;
mod probes;
mod qmp;
mod replica_sets;
mod roles;
mod squatter;
mod standalone;
mod stolen;
mod strategies;
mod streams;
mod usb;
mod user_guide;
mod virtctl;
