//! Outcomes as text for people and as JSON for scripts. A report is one struct; both forms come from it.

mod calibrate;
mod diagnose;
mod inspect;
mod reuse;
mod setup;
mod simulate;
mod sweep;
mod timeline;
mod validate;

pub use crate::format;
pub use calibrate::CalibrateReport;
pub use diagnose::DiagnoseReport;
pub use inspect::InspectReport;
pub use setup::SetupReport;
pub use simulate::{SimulateReport, Tally};
pub use sweep::SweepReport;
pub use timeline::{SliceTrace, Timeline, TimelineScale};
pub use validate::ValidateReport;
