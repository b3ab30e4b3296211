//! The VMI's status: computed as a whole from observations ([`compute`]), compared, and patched at once only
//! if it differs ([`patch`]). Events report transitions ([`events`]).

pub mod compute;
pub mod events;
pub mod interfaces;
pub mod out_of_memory;
pub mod patch;
mod size;
pub mod volumes;
