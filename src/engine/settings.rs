//! What one replica's engine is set to, checked and ready to run.

use std::sync::Arc;

use crate::engine::host_tier::HostTierSettings;
use crate::engine::link::LinkSettings;
use crate::engine::prefix_cache::Prompts;
use crate::engine::speculation::Speculation;

/// How time is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Stride {
    /// As many steps at once as the plan stays valid.
    #[default]
    Longest,
    /// One step at a time, by the same code: the check on `Longest`.
    Stepwise,
    /// One step at a time with the accepted tokens of each drawn: the reference for speculation.
    TokenExact,
}

/// Which of an engine's limits caps the running requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RunningCap {
    /// The configured or default maximum of running requests.
    MaxRunning,
    /// Recurrent-state slots over slots reserved per request.
    StateSlots,
    /// The batch of a static server.
    BatchSize,
}

/// Settings of one replica.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    /// The scheduling rules.
    pub policy: PolicySettings,
    /// Running requests at most, at least 1.
    pub running_cap: u32,
    /// What that cap comes from.
    pub cap_source: RunningCap,
    /// Tokens of key-value cache in the pool.
    pub kv_pool_tokens: u64,
    /// Tokens in one page (block) of the pool, at least 1.
    pub page_tokens: u32,
    /// Tokens that a decode step reserves beyond the ones it surely writes (speculation look-ahead).
    pub lookahead_tokens: u32,
    /// True when the host schedules a step while the one before it runs: what ends in a step is known one step later.
    pub overlap: bool,
    /// True when a finished request is still computed in the step that overlap has launched already.
    pub computes_finished_rows: bool,
    /// Speculative decoding; `None` is off.
    pub speculation: Option<Speculation>,
    /// How time is moved.
    pub stride: Stride,
    /// Pages that each running request holds beside its tokens: recurrent states of engines that keep them in blocks of
    /// the token pool.
    pub state_pages_per_request: u64,
    /// Prefix cache; `None` reads every prompt in full.
    pub prefix_cache: Option<PrefixCacheSettings>,
    /// Memory of the host and the link to it; `None` is not used.
    pub host: Option<HostSettings>,
}

/// A prefix cache over the token pool.
#[derive(Clone, Debug)]
pub struct PrefixCacheSettings {
    /// What prompts have in common.
    pub prompts: Arc<Prompts>,
    /// Pages between checkpoints of recurrent state; `None` for models without.
    pub checkpoint_pages: Option<u32>,
    /// State slots, and those that a running request holds outside the cache; checkpoints are kept in the others.
    pub state_slots: Option<(u64, u64)>,
}

/// The host side of one replica. Under tensor parallelism every GPU moves its own part over its own link: sizes are
/// those of one GPU.
#[derive(Clone, Copy, Debug)]
pub struct HostSettings {
    /// The link.
    pub link: LinkSettings,
    /// The pool behind the prefix cache, or, where requests are swapped, the room for them.
    pub tier: HostTierSettings,
}

/// What becomes of a preempted request's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Spill {
    /// They are dropped, and computed again as far as no cache has them.
    #[default]
    Recompute,
    /// They are copied to the host and back (vLLM before V1): steps wait for both copies. Needs [`EngineSettings::host`].
    Running,
}

/// The rules of one engine family, with their constants.
#[derive(Clone, Copy, Debug)]
pub enum PolicySettings {
    /// SGLang: prefill first, admission by the new-token ratio, retraction by recompute.
    Sglang(SglangSettings),
    /// vLLM: one token budget a step, prompt-only admission, the last admitted is preempted.
    Vllm(VllmSettings),
    /// Transformers `generate`: a padded batch runs until its longest request ends.
    Static,
}

/// Constants of SGLang's scheduler (engines' `managers/schedule_policy.py`, `new_token_ratio_tracker.py`).
#[derive(Clone, Copy, Debug)]
pub struct SglangSettings {
    /// Prompt tokens in one prefill step at most.
    pub max_prefill_tokens: u64,
    /// Tokens of one chunk; `None` never cuts a prompt.
    pub chunked_prefill_tokens: Option<u64>,
    /// New-token ratio at the start and after idling.
    pub initial_ratio: f64,
    /// The ratio it decays to.
    pub least_ratio: f64,
    /// Decode steps of that decay.
    pub decay_steps: u64,
    /// Output tokens that a request reserves at most.
    pub reserve_clip_tokens: u64,
    /// Tokens per remaining request that a retraction makes room for.
    pub retract_tokens: u64,
    /// `max_tokens` that requests carry; `None` where each carries its own length.
    pub max_new_tokens: Option<u64>,
    /// True when requests ignore end-of-sequence: they are charged in full.
    pub ignore_eos: bool,
}

/// Constants of vLLM's scheduler (`v1/core/sched/scheduler.py`).
#[derive(Clone, Copy, Debug)]
pub struct VllmSettings {
    /// Tokens in one step at most, decodes and prefill together.
    pub token_budget: u64,
    /// True when a request is admitted only if its whole prompt fits.
    pub reserve_full_prompt: bool,
    /// Share of the pool kept free when a new request is admitted.
    pub watermark: f64,
    /// What becomes of preempted requests.
    pub spill: Spill,
}
