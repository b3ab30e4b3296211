//! The VMI's status: computed whole from what is seen ([`compute`]), compared, and patched in one go only if it differs
//! ([`patch`]); events tell the transitions ([`events`]).

pub mod compute;
pub mod events;
pub mod interfaces;
pub mod out_of_memory;
pub mod patch;
mod size;
pub mod volumes;
