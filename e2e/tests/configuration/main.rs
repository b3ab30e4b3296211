//! Settings of the `KubeVirt` object reach every component while it runs. Wrong settings are refused; if they
//! were stored anyway, the last good settings stay in force and the object says so.
//!
//! The tests change the `KubeVirt` object, and one removes the operator, so they have their own file.

mod guests;
mod hostile_plugins;
mod nodes;
mod plugins;
mod plugins_matrix;
mod reports;
mod settings;
