//! The requests of a job: laws of lengths, traces, arrivals, order.

pub mod arrivals;
pub mod finished;
pub mod law;
pub mod source;
pub mod trace;

pub use law::Law;
pub use source::{Cursor, Lengths, Limits, Rejected, RowDraw, Workload};
pub use trace::Trace;

/// One request, before any engine has seen it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// Position in the job file, from 0; names the request's random block.
    pub id: u64,
    /// Prompt length, tokens, at least 1.
    pub prompt_tokens: u32,
    /// Output length, tokens, at least 1: thinking and answer together, after `max_tokens` and the context limit.
    pub output_tokens: u32,
    /// The length it would have without cap, tokens.
    pub uncapped_output_tokens: u32,
    /// Uniform draw in (0, 1) that places the request in the law of acceptance between requests.
    pub acceptance_draw: f64,
    /// Uniform draw in (0, 1) that places the request in the law of its number of verify steps.
    pub steps_draw: f64,
}
