//! What a run shows to whoever watches. Observers never steer.

use serde::{Deserialize, Serialize};

use crate::engine::sequence::Sequence;
use crate::units::SimTime;

/// What keeps a replica from running more requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The maximum of running requests.
    MaxRunning,
    /// Recurrent-state slots.
    StateSlots,
    /// Key-value pool.
    KvPool,
    /// Tokens of prefill in a step.
    PrefillBudget,
    /// The client keeps too few requests in flight, or they have not arrived yet.
    Client,
    /// Nothing is left to admit: the job runs dry.
    Drain,
    /// The batch of a static server.
    BatchSize,
    /// Copies between host and GPU: the GPU waits for them for most of a step.
    HostLink,
}

/// How many limits there are.
pub const LIMITS: usize = 8;

impl Limit {
    /// All limits, in the order of reports.
    pub const ALL: [Limit; LIMITS] = [
        Limit::MaxRunning,
        Limit::StateSlots,
        Limit::KvPool,
        Limit::PrefillBudget,
        Limit::Client,
        Limit::Drain,
        Limit::BatchSize,
        Limit::HostLink,
    ];

    /// The key in JSON.
    pub fn key(self) -> &'static str {
        match self {
            Limit::MaxRunning => "max_running",
            Limit::StateSlots => "state_slots",
            Limit::KvPool => "kv_pool",
            Limit::PrefillBudget => "prefill_budget",
            Limit::Client => "client",
            Limit::Drain => "drain",
            Limit::BatchSize => "batch_size",
            Limit::HostLink => "host_link",
        }
    }

    /// A few words for people.
    pub fn words(self) -> &'static str {
        match self {
            Limit::MaxRunning => "maximum of running requests",
            Limit::StateSlots => "recurrent-state slots",
            Limit::KvPool => "KV pool",
            Limit::PrefillBudget => "prefill budget of a step",
            Limit::Client => "requests in flight from the client",
            Limit::Drain => "nothing left to admit",
            Limit::BatchSize => "static batch size",
            Limit::HostLink => "copies between host and GPU",
        }
    }
}

/// A stretch of equal steps on one replica.
#[derive(Clone, Copy, Debug)]
pub struct StrideView {
    /// The replica.
    pub replica: usize,
    /// When it began.
    pub start: SimTime,
    /// When it ended.
    pub end: SimTime,
    /// Steps in it.
    pub steps: u64,
    /// Requests in the batch, decoding or reading prompts.
    pub running: u32,
    /// Prompt tokens read.
    pub prefill_tokens: u64,
    /// Output tokens written.
    pub output_tokens: u64,
    /// Requests waiting at the server.
    pub waiting: u64,
    /// Pages of the pool in use at its end.
    pub used_pages: u64,
    /// What kept it from running more.
    pub limit: Limit,
    /// Bytes that its link has moved by its end, to device and to host.
    pub link_bytes: [u64; 2],
}

/// Watches a run. Every method does nothing unless overridden.
pub trait Observer {
    /// A stretch of steps ended.
    fn stride(&mut self, _stride: &StrideView) {}
    /// A request ended on `replica`.
    fn completed(&mut self, _replica: usize, _sequence: &Sequence) {}
    /// A request lost its place on `replica`.
    fn preempted(&mut self, _replica: usize, _sequence: &Sequence, _at: SimTime) {}
    /// True when strides are worth reporting, so that nobody prepares them in vain.
    fn wants_strides(&self) -> bool {
        false
    }
}

/// Watches nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl Observer for Unobserved {}
