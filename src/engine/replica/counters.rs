//! What a replica counts.

use crate::cost::Ledger;
use crate::engine::observe::LIMITS;
use crate::units::{SimTime, Span};

/// What one replica has counted.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Engine steps.
    pub steps: u64,
    /// Steps that held prefill.
    pub prefill_steps: u64,
    /// Prompt tokens read, recomputed ones included.
    pub prefill_tokens: u64,
    /// Tokens read again after a preemption.
    pub recomputed_tokens: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Requests ended.
    pub completed: u64,
    /// Output tokens of ended requests.
    pub output_tokens: u64,
    /// Prompt tokens of ended requests.
    pub prompt_tokens: u64,
    /// Verify or decode steps of ended requests, summed over requests.
    pub request_steps: u64,
    /// Most requests that ran at once.
    pub peak_running: u32,
    /// Most pages in use.
    pub peak_pages: u64,
    /// Pages in use, integrated over time (page-attoseconds).
    pub page_time: u128,
    /// Running requests, integrated over time (request-attoseconds).
    pub running_time: u128,
    /// Sum of times to first token over ended requests.
    pub ttft_sum: Span,
    /// Sum of sojourn times.
    pub sojourn_sum: Span,
    /// Sum over requests of two or more tokens of (last − first token) / (tokens − 1), seconds.
    pub tpot_sum_s: f64,
    /// How many requests that is.
    pub tpot_requests: u64,
    /// Time in which nothing ran because a copy was under way.
    pub stall_time: Span,
    /// Time by which copies lengthened decode steps.
    pub slowed_time: Span,
    /// Time by what limited the batch.
    pub limit_time: [Span; LIMITS],
    /// Decode steps by rows computed.
    pub(super) decode_steps: Vec<u64>,
    /// Everything that is not a per-step constant of the decode batch.
    pub(super) ledger: Ledger,
}

/// A moment of the run at which output was counted, for steady rates.
#[derive(Clone, Copy, Debug)]
pub struct Milestone {
    /// When.
    pub at: SimTime,
    /// Output tokens written on the replica so far, in context units.
    pub written: u128,
}
