//! A request's life inside a replica.

use crate::cost::CONTEXT_UNIT_BITS;
use crate::engine::prefix_cache::NodeId;
use crate::units::SimTime;
use crate::workload::Request;

/// A request at the engine's door.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The request.
    pub request: Request,
    /// When it became known to the server.
    pub submitted_at: SimTime,
    /// What an earlier stay left behind; `None` for a new request. Few have one, so it is kept elsewhere.
    pub progress: Option<Box<Progress>>,
}

/// What survives a preemption by recompute: the tokens themselves, and the record of times.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Output tokens written so far.
    pub generated_tokens: u32,
    /// Context growth per step, context units; 0 before the first decode.
    pub growth: u64,
    /// When it was admitted first.
    pub admitted_at: SimTime,
    /// When its first token came.
    pub first_token_at: SimTime,
    /// Preemptions so far.
    pub preemptions: u32,
    /// Pages that wait on the host for it to go on; 0 when it has to be computed again.
    pub swapped_pages: u64,
    /// True when it must not begin with pages of the prefix cache.
    pub uncached: bool,
}

/// Where a sequence stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reading its prompt.
    Prefill,
    /// Writing tokens.
    Decode,
    /// Done; the host does not know yet.
    Finished,
}

/// A running request.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// The request.
    pub request: Request,
    /// Names this stay: rises with every admission.
    pub admission: u64,
    /// Where it stands.
    pub phase: Phase,
    /// Tokens to read before the next token can be written: prompt, and what it had written before a preemption.
    pub prefill_goal: u32,
    /// Tokens read so far.
    pub prefilled: u32,
    /// Output tokens written when the present decode phase began.
    pub generated_before: u32,
    /// Decode counter of the replica at that moment.
    pub start_step: u64,
    /// Decode counter after its last step.
    pub finish_step: u64,
    /// Context of its next step when the decode phase began, context units.
    pub context_start: u64,
    /// Context growth per step, context units.
    pub growth: u64,
    /// Attoseconds that its bounded attention adds to each step.
    pub window_attoseconds: u128,
    /// Pages of its own that it holds while it does not decode: reading its prompt, or finished.
    pub held_pages: u64,
    /// Pages of the prefix cache that stand for its first tokens.
    pub shared_pages: u64,
    /// Where those end, locked; `None` without a prefix cache.
    pub lock: Option<NodeId>,
    /// Pages of its prompt at which it keeps a state for others; 0 for none.
    pub branch_pages: u32,
    /// True when it neither takes pages of the prefix cache nor gives it any before it ends.
    pub uncached: bool,
    /// True while it waits for pages from the host and takes no part in steps.
    pub loading: bool,
    /// Submitted, admitted first, first token, last token.
    pub submitted_at: SimTime,
    /// When it was admitted first.
    pub admitted_at: SimTime,
    /// When its first token came; [`SimTime::NEVER`] before.
    pub first_token_at: SimTime,
    /// When its last token came.
    pub finished_at: SimTime,
    /// Preemptions so far.
    pub preemptions: u32,
}

impl Sequence {
    /// Context of the step that runs at decode counter `step`, context units.
    #[inline]
    pub fn context(&self, step: u64) -> u64 {
        self.context_start + self.growth * (step - self.start_step)
    }

    /// Output tokens written before decode counter `step`.
    #[inline]
    pub fn generated(&self, step: u64) -> u32 {
        if self.phase == Phase::Prefill {
            return self.generated_before;
        }
        let written = self.written(step) >> CONTEXT_UNIT_BITS;
        (u64::from(self.generated_before) + written).min(u64::from(self.request.output_tokens)) as u32
    }

    /// What its decode phase has written by decode counter `step`, context units.
    #[inline]
    pub fn written(&self, step: u64) -> u64 {
        self.growth * (step - self.start_step)
    }

    /// Pages of its own, of `page_tokens`, that the step at decode counter `step` needs, look-ahead included.
    pub fn pages(&self, step: u64, page_tokens: u32, lookahead_tokens: u32) -> u64 {
        let whole = (self.context(step) + (1 << CONTEXT_UNIT_BITS) - 1) >> CONTEXT_UNIT_BITS;
        (whole + u64::from(lookahead_tokens)).div_ceil(u64::from(page_tokens)) - self.shared_pages
    }

    /// True when it reads again what it had before a preemption.
    #[inline]
    pub fn recomputes(&self) -> bool {
        self.preemptions > 0
    }
}
