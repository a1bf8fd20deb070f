//! Outcomes as text for people and as JSON for scripts. A report is one struct; both forms come from it.

mod calibrate;
mod decide;
mod diagnose;
mod forecast;
mod inspect;
mod page;
mod plan;
mod reuse;
mod scale;
mod setup;
mod simulate;
mod sweep;
mod timeline;
mod validate;

use std::io::{self, Write};

pub use crate::format;
pub use calibrate::CalibrateReport;
pub use decide::DecideReport;
pub use diagnose::DiagnoseReport;
pub use forecast::{ForecastReport, Run as ForecastRun};
pub use inspect::InspectReport;
pub use plan::PlanReport;
pub use scale::ScaleReport;
pub use setup::SetupReport;
pub use simulate::{SimulateReport, Tally};
pub use sweep::SweepReport;
pub use timeline::{SliceTrace, Timeline, TimelineScale};
pub use validate::ValidateReport;

/// Lines of what was read off the engine.
fn write_said(out: &mut impl Write, said: &[String]) -> io::Result<()> {
    said.iter().try_for_each(|line| writeln!(out, "read off the engine: {line}"))?;
    if said.is_empty() { Ok(()) } else { writeln!(out) }
}
