//! The outcome of the memory arithmetic: each limit with its origin, and the trail of how it was reached.

use std::fmt;

/// Where a number comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Given in the scenario, as read off the log of a running engine.
    FromLog,
    /// Set by a flag.
    Flag,
    /// The engine's own arithmetic.
    Arithmetic,
    /// The engine's default.
    EngineDefault,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::FromLog => "given",
            Origin::Flag => "flag",
            Origin::Arithmetic => "engine's arithmetic",
            Origin::EngineDefault => "engine's default",
        })
    }
}

/// A number with its origin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit<T = u64> {
    /// The number.
    pub value: T,
    /// Where it comes from.
    pub origin: Origin,
}

impl<T> Limit<T> {
    /// `value` from `origin`.
    pub fn new(value: T, origin: Origin) -> Self {
        Limit { value, origin }
    }

    /// The log's number, else the flag's, else `otherwise`.
    pub(super) fn first(log: Option<T>, flag: Option<T>, otherwise: Limit<T>) -> Limit<T> {
        match (log, flag) {
            (Some(value), _) => Limit::new(value, Origin::FromLog),
            (None, Some(value)) => Limit::new(value, Origin::Flag),
            (None, None) => otherwise,
        }
    }
}

impl<T: fmt::Display> fmt::Display for Limit<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.value, self.origin)
    }
}

/// Which limit sets the number of running requests, as far as it does not depend on the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunningLimit {
    /// The engine's maximum of running requests.
    MaxRunning,
    /// Slots or blocks for recurrent state.
    StateSlots,
}

impl RunningLimit {
    /// Name, as in results.
    pub fn name(self) -> &'static str {
        match self {
            RunningLimit::MaxRunning => "max_running",
            RunningLimit::StateSlots => "state_slots",
        }
    }
}

/// Room for recurrent states.
#[derive(Clone, Debug, PartialEq)]
pub struct StateLimits {
    /// Slots. For an engine whose states live in blocks of the token pool: all blocks of that pool.
    pub slots: Limit,
    /// Slots set aside for each running request: what admission counts.
    pub reserved_per_request: Limit,
    /// Slots that a running request really holds.
    pub held_per_request: Limit,
    /// Most running requests that the slots allow.
    pub cap: u64,
    /// True when states and KV share the blocks of one pool (vLLM).
    pub shares_token_pool: bool,
}

impl StateLimits {
    /// Slots that stay idle when `running` requests hold theirs; KV in a shared pool is not counted.
    pub fn idle_slots(&self, running: u64) -> u64 {
        self.slots.value.saturating_sub(running * self.held_per_request.value)
    }
}

/// What the size of a captured graph counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphUnit {
    /// Requests of a decode step (SGLang).
    Requests,
    /// Tokens of a step (vLLM).
    Tokens,
}

/// Step sizes that a captured graph replays; a step is padded up to the next one, and runs eagerly above the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedGraphs {
    /// What the sizes count.
    pub unit: GraphUnit,
    /// The sizes, rising.
    pub sizes: Vec<u64>,
}

impl CapturedGraphs {
    /// The largest captured size; 0 without graphs.
    pub fn max(&self) -> u64 {
        self.sizes.last().copied().unwrap_or(0)
    }

    /// The size that a step of `size` is padded to; `None` when it runs eagerly.
    pub fn padded(&self, size: u64) -> Option<u64> {
        self.sizes.get(self.sizes.partition_point(|captured| *captured < size)).copied()
    }
}

/// What an engine allows on one replica.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// The engine's maximum of running requests, before states cap it.
    pub max_running: Limit,
    /// Tokens that the KV pool holds. Where states share the pool: all its blocks, in tokens.
    pub kv_pool_tokens: Limit,
    /// Room for recurrent states; `None` without any, or when they are not pooled.
    pub state: Option<StateLimits>,
    /// Most running requests.
    pub running_cap: u64,
    /// Which limit that is.
    pub running_limit: RunningLimit,
    /// Tokens in a page or block of KV.
    pub page_tokens: Limit,
    /// Prompt tokens in a chunk; `None` where prompts are not split.
    pub chunk_tokens: Option<Limit>,
    /// New prompt tokens in a prefill step (SGLang) or all tokens of a step (vLLM); `None` where unbounded.
    pub step_tokens: Option<Limit>,
    /// Share of memory for weights and pools; `None` where the engine has no such thing.
    pub mem_fraction: Option<Limit<f64>>,
    /// Whether the host plans ahead of the GPU.
    pub overlap: bool,
    /// Captured step sizes.
    pub graphs: CapturedGraphs,
    /// What the engine would say at start-up, in short.
    pub messages: Vec<String>,
    /// The arithmetic, line by line.
    pub trail: Vec<String>,
}

/// The smaller of both caps, and which it is; states win a tie only when they are smaller.
pub(super) fn running_cap(max_running: u64, state: Option<&StateLimits>) -> (u64, RunningLimit) {
    match state {
        Some(state) if state.cap < max_running => (state.cap, RunningLimit::StateSlots),
        _ => (max_running, RunningLimit::MaxRunning),
    }
}
