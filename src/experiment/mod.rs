//! From a scenario to runs: what follows from it, one run, a sweep, many replications, options side by side.

mod account;
mod bridge;
mod decide;
mod drivers;
mod forecast;
mod jobs;
mod options;
mod pcie_root;
mod replicate;
mod reuse;
mod scale;
mod setup;
mod sweep;

pub use account::{Account, Thinking};
pub use bridge::{Step, bridge};
pub use decide::{
    Candidate, Comparison, Decision, Keep, Prices, Row, Solved, Stopped, Terms, Verdict, decide, decision, recommend,
    verdicts,
};
pub use drivers::{Driver, Drivers, VARIATION, drivers};
pub use forecast::{
    CHECKED_EVERY, CONFIDENCE, Extent, Forecast, Quantile, Replications, parse_days, run as run_forecast,
};
pub use jobs::{JobSource, JobStream};
pub use options::{Choice, choices};
pub use replicate::{Reduced, Replication, Truncated, check_unknowns, replicate, run_at, settled};
pub use scale::{Explained, Explanation, Mechanism, Point, explain, scale};
pub use setup::{Changes, Setup};
pub use sweep::{Benchmark, Sweep, SweepPoint, knee, measured_table};
