//! Outcomes as text for people and as JSON for scripts. A report is one struct; both forms come from it.

mod inspect;
mod setup;
mod simulate;
mod sweep;

pub use crate::format;
pub use inspect::InspectReport;
pub use setup::SetupReport;
pub use simulate::{SimulateReport, Tally};
pub use sweep::SweepReport;
