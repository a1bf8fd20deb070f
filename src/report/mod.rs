//! Outcomes as text for people and as JSON for scripts. A report is one struct; both forms come from it.

mod decide;
mod forecast;
pub mod format;
mod scale;
mod setup;
mod simulate;
mod sweep;

pub use decide::DecideReport;
pub use forecast::{ForecastReport, Run as ForecastRun};
pub use scale::ScaleReport;
pub use setup::SetupReport;
pub use simulate::{SimulateReport, Tally};
pub use sweep::SweepReport;
