//! What one engine step costs, by cause, from the model's sizes and the GPU's rates.
//!
//! Everything here is a pure function of what the step holds. Seconds (`f64`) inside formulas, whole attoseconds at the
//! border, so that sums over any number of steps are exact.

mod causes;
pub mod collective;
mod decode;
mod graphs;
mod step_table;

pub use causes::{CAUSES, Cause, Ledger};
pub use decode::{CONTEXT_UNIT_BITS, DecodeCost, Segment, StepCost, StepCostInputs};
pub use graphs::CapturedGraphs;
pub use step_table::StepTable;

use crate::error::InputError;

/// Efficiencies and fixed costs of the cost model. Every one is a prior until it is calibrated to a table.
#[derive(Clone, Debug, PartialEq)]
pub struct CostParameters {
    /// Share of the nominal memory bandwidth that decode passes reach, in (0, 1].
    pub bandwidth_share: f64,
    /// Share of the nominal matrix rate that decode and verify passes reach, in (0, 1].
    pub flops_share: f64,
    /// Share of the nominal matrix rate that prefill reaches, in (0, 1].
    pub prefill_flops_share: f64,
    /// Exponent p of the smooth maximum (wᵖ + cᵖ)^(1/p) of weight reading and compute, at least 1.
    pub smooth_exponent: f64,
    /// Time of a step that no byte or FLOP explains (kernel gaps, scheduler), seconds.
    pub step_gap_s: f64,
    /// The same for each draft pass of a speculative step, seconds.
    pub draft_pass_gap_s: f64,
    /// Time that each running request adds to a step (sampling, host work), seconds.
    pub per_request_s: f64,
    /// Host time to launch a prefill step while piecewise captured graphs cover it, seconds.
    pub prefill_launch_s: f64,
    /// Host time to launch a step kernel by kernel, seconds.
    pub eager_launch_s: f64,
}

impl CostParameters {
    /// Checks every range.
    pub fn check(&self) -> Result<(), InputError> {
        let shares = [
            ("bandwidth_share", self.bandwidth_share),
            ("flops_share", self.flops_share),
            ("prefill_flops_share", self.prefill_flops_share),
        ];
        for (key, share) in shares {
            if !(share > 0.0 && share <= 1.0) {
                return Err(InputError::new(format!("found {share}"), "a share lies above 0 and at most at 1").key(key));
            }
        }
        if !(self.smooth_exponent >= 1.0 && self.smooth_exponent <= 64.0) {
            return Err(InputError::new(
                format!("found {}", self.smooth_exponent),
                "the exponent of the smooth maximum lies between 1 (sum) and 64 (sharp maximum)",
            )
            .key("smooth_exponent"));
        }
        let times = [
            ("step_gap_s", self.step_gap_s),
            ("draft_pass_gap_s", self.draft_pass_gap_s),
            ("per_request_s", self.per_request_s),
            ("prefill_launch_s", self.prefill_launch_s),
            ("eager_launch_s", self.eager_launch_s),
        ];
        for (key, seconds) in times {
            if !(0.0..=60.0).contains(&seconds) {
                return Err(InputError::new(format!("found {seconds}"), "a time between 0 and 60 seconds").key(key));
            }
        }
        Ok(())
    }
}
