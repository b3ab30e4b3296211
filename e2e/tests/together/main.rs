//! What disturbs nobody, in one program: several tests run at once, and beside them all a rotation of the certificates, which
//! takes ten minutes, most of them waited.

mod bad_input;
mod controls;
mod debian;
mod deletion;
mod ends;
mod guest;
mod identity;
mod instancetypes;
mod kinds;
mod machine;
mod network;
mod pools;
mod replica_sets;
mod roles;
mod rotation;
mod standalone;
mod strategies;
mod user_guide;
