//! What a step holds: each engine family's rules, a file each.
//!
//! At a step boundary a policy looks at the replica and its queue, admits, preempts, and leaves the prompt chunks of the
//! coming step in `Replica::chunks`. It never moves time.

mod sglang;
mod static_batch;
mod vllm;

use std::rc::Rc;

use crate::engine::observe::{Limit, Observer};
use crate::engine::replica::{Queue, Replica};
use crate::engine::settings::{EngineSettings, PolicySettings};
use crate::error::Result;
use crate::units::SimTime;
use crate::workload::Request;

/// What a policy decided, apart from what it did to the replica.
#[derive(Clone, Copy, Debug, Default)]
pub struct Verdict {
    /// Why the next waiting request was not admitted; `None` when none waits.
    pub limit: Option<Limit>,
    /// True when decodes share the step with prefill.
    pub decodes_beside_prefill: bool,
    /// True when the next boundary must plan anew although nothing happens until then.
    pub replan: bool,
}

/// What policies remember between boundaries.
#[derive(Clone, Copy, Debug)]
pub struct PolicyState {
    /// Set when an admission failed: not tried again until a place or memory is given back.
    pub(super) full: Option<Limit>,
    /// The one sequence whose prompt is cut into chunks (SGLang).
    chunked: Option<u32>,
    /// New-token ratio and the decode counter it held at (SGLang).
    ratio: f64,
    ratio_step: u64,
    /// Longest prompt of the running batch (static).
    pub(super) padded_prompt: Option<u32>,
    /// Decode steps of the running batch (static).
    pub(super) batch_steps: Option<u64>,
    /// `max_tokens` that every request carries.
    max_new_tokens: Option<u64>,
    initial_ratio: f64,
}

impl PolicyState {
    /// At the start of a run.
    pub(super) fn new(settings: &EngineSettings) -> Self {
        let (initial_ratio, max_new_tokens) = match settings.policy {
            PolicySettings::Sglang(rules) => (rules.initial_ratio, rules.max_new_tokens),
            PolicySettings::Vllm(_) | PolicySettings::Static => (0.0, None),
        };
        PolicyState {
            full: None,
            chunked: None,
            ratio: initial_ratio,
            ratio_step: 0,
            padded_prompt: None,
            batch_steps: None,
            max_new_tokens,
            initial_ratio,
        }
    }

    /// The replica has nothing to do.
    pub(super) fn idle(&mut self, step: u64) {
        self.ratio = self.initial_ratio;
        self.ratio_step = step;
        self.full = None;
    }

    /// Output tokens that a request reserves.
    fn max_new_tokens(&self, request: &Request) -> u64 {
        self.max_new_tokens.unwrap_or(u64::from(request.output_tokens))
    }

    /// Context that a request would end with if it wrote all it may.
    pub(super) fn final_context_tokens(&self, request: &Request) -> u64 {
        u64::from(request.prompt_tokens) + self.max_new_tokens(request)
    }
}

/// Plans the coming step by the replica's own rules, from what its host knew at `known`.
#[inline]
pub(super) fn plan<O: Observer>(
    replica: &mut Replica,
    now: SimTime,
    known: SimTime,
    queue: &mut impl Queue,
    observer: &mut O,
) -> Result<Verdict> {
    replica.chunks.clear();
    let settings = Rc::clone(&replica.settings);
    match &settings.policy {
        PolicySettings::Sglang(rules) => sglang::plan(replica, rules, now, known, queue, observer),
        PolicySettings::Vllm(rules) => vllm::plan(replica, rules, now, known, queue, observer),
        PolicySettings::Static => static_batch::plan(replica, now, known, queue),
    }
}
