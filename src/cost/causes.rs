//! The causes that GPU time is charged to, and the ledger that adds them up.

use std::ops::{Index, IndexMut};

use crate::units::Span;

/// What a stretch of GPU time was spent on. Every GPU-second has exactly one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// Reading the target model's weights in decode passes.
    Weights,
    /// Reading key-value cache in decode passes.
    Kv,
    /// Reading and writing recurrent state.
    State,
    /// Draft passes of speculation.
    Draft,
    /// Arithmetic of decode and verify passes beyond what weight reading hides.
    VerifyCompute,
    /// Prompts read for the first time.
    Prefill,
    /// Prompts and generated tokens read again after a preemption.
    Recompute,
    /// Collective communication of tensor parallelism in decode passes.
    Communication,
    /// Gaps between steps, per-request work, launches that nothing hides.
    StepGap,
    /// Waiting for transfers to or from the host.
    Transfer,
    /// Start-up, and waiting for the first request.
    Ramp,
    /// No request available while others were still to come.
    Starved,
    /// Nothing left to do while other replicas still worked.
    Tail,
    /// Out of service.
    Down,
}

/// How many causes there are.
pub const CAUSES: usize = 14;

impl Cause {
    /// All causes, in the order of reports.
    pub const ALL: [Cause; CAUSES] = [
        Cause::Weights,
        Cause::Kv,
        Cause::State,
        Cause::Draft,
        Cause::VerifyCompute,
        Cause::Prefill,
        Cause::Recompute,
        Cause::Communication,
        Cause::StepGap,
        Cause::Transfer,
        Cause::Ramp,
        Cause::Starved,
        Cause::Tail,
        Cause::Down,
    ];

    /// The key in JSON.
    pub fn key(self) -> &'static str {
        match self {
            Cause::Weights => "weights",
            Cause::Kv => "kv",
            Cause::State => "state",
            Cause::Draft => "draft",
            Cause::VerifyCompute => "verify_compute",
            Cause::Prefill => "prefill",
            Cause::Recompute => "recompute",
            Cause::Communication => "communication",
            Cause::StepGap => "step_gap",
            Cause::Transfer => "transfer",
            Cause::Ramp => "ramp",
            Cause::Starved => "starved",
            Cause::Tail => "tail",
            Cause::Down => "down",
        }
    }

    /// A few words for people.
    pub fn words(self) -> &'static str {
        match self {
            Cause::Weights => "reading weights",
            Cause::Kv => "reading KV cache",
            Cause::State => "recurrent state",
            Cause::Draft => "draft passes",
            Cause::VerifyCompute => "decode arithmetic",
            Cause::Prefill => "prefill",
            Cause::Recompute => "recomputed prefill",
            Cause::Communication => "all-reduce",
            Cause::StepGap => "step gaps, host",
            Cause::Transfer => "host transfers",
            Cause::Ramp => "ramp",
            Cause::Starved => "starved by client",
            Cause::Tail => "tail",
            Cause::Down => "down",
        }
    }
}

/// Time by cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger([Span; CAUSES]);

impl Default for Ledger {
    fn default() -> Self {
        Ledger([Span::ZERO; CAUSES])
    }
}

impl Ledger {
    /// Time over all causes.
    pub fn total(&self) -> Span {
        self.0.iter().copied().sum()
    }

    /// Adds another ledger, cause by cause.
    pub fn add(&mut self, other: &Ledger) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine += *theirs;
        }
    }

    /// Adds `times` times another ledger.
    pub fn add_times(&mut self, other: &Ledger, times: u64) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine += *theirs * times;
        }
    }

    /// Share of `cause` in the total, 0 for an empty ledger.
    pub fn share(&self, cause: Cause) -> f64 {
        let total = self.total().as_s();
        if total > 0.0 { self[cause].as_s() / total } else { 0.0 }
    }
}

impl Index<Cause> for Ledger {
    type Output = Span;
    fn index(&self, cause: Cause) -> &Span {
        &self.0[cause as usize]
    }
}

impl IndexMut<Cause> for Ledger {
    fn index_mut(&mut self, cause: Cause) -> &mut Span {
        &mut self.0[cause as usize]
    }
}
