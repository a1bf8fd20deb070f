//! From a scenario to runs: what follows from it, one run, a sweep.

mod jobs;
mod reuse;
mod setup;
mod sweep;

pub use jobs::{JobSource, JobStream};
pub use setup::{Changes, Setup};
pub use sweep::{Sweep, SweepPoint, knee, measured_table, sweep};
