//! The kubevirt.io API: types, defaults, validation, sizing and names. Pure.
