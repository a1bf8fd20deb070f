//! Serving engines: one replica, its limits and its steps.

pub mod memory;
