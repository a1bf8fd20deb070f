//! What a run came to.

use serde::{Deserialize, Serialize};

use crate::cost::{Cause, Ledger};
use crate::engine::observe::{LIMITS, Limit};
use crate::engine::replica::{Counters, Replica, ReuseOutcome};
use crate::units::{SimTime, Span};

/// Results of one run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// End of the last request, from the start of the run.
    pub makespan: SimTime,
    /// Requests that ended with their output.
    pub completed: u64,
    /// Requests that could never be served: their prompt fills the context.
    pub rejected: u64,
    /// Output tokens of completed requests.
    pub output_tokens: u64,
    /// Prompt tokens of completed requests.
    pub prompt_tokens: u64,
    /// Output tokens per second while every replica was at work and requests were left to admit; `None` when the job
    /// is too short to have such a time.
    pub steady_output_tok_per_s: Option<f64>,
    /// Until the last replica reached its working batch.
    pub ramp: Span,
    /// From the first replica's having nothing left to admit to the end.
    pub drain: Span,
    /// GPU time by cause; sums to GPUs × makespan.
    pub ledger: Ledger,
    /// Time by limit, summed over replicas while at work.
    pub limit_time: [Span; LIMITS],
    /// Requests running on a replica, averaged over makespan and replicas.
    pub mean_running: f64,
    /// Engine steps of all replicas.
    pub steps: u64,
    /// Preemptions of all replicas.
    pub preemptions: u64,
    /// Tokens read again after preemptions.
    pub recomputed_tokens: u64,
    /// Mean time to first token, seconds; `None` without requests.
    pub mean_ttft_s: Option<f64>,
    /// Mean time per output token after the first, seconds; `None` when no request has two.
    pub mean_tpot_s: Option<f64>,
    /// Mean sojourn time, seconds.
    pub mean_sojourn_s: Option<f64>,
    /// Tokens per verify step, over the requests; 1 without speculation.
    pub tokens_per_request_step: Option<f64>,
    /// Pages in use at most and on average while at work, as shares of the pool, over replicas.
    pub peak_pool_share: f64,
    /// Mean share of the pool in use over the makespan.
    pub mean_pool_share: f64,
    /// Each replica's part.
    pub replicas: Vec<ReplicaOutcome>,
}

/// One replica's part.
#[derive(Clone, Debug)]
pub struct ReplicaOutcome {
    /// End of its last request.
    pub finished: SimTime,
    /// Its counters.
    pub counters: Counters,
    /// What its prefix cache, host tier and link did; `None` without.
    pub reuse: Option<ReuseOutcome>,
}

/// Reuse and transfers of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReuseTotals {
    /// Prompt pages that new requests asked the cache for; 0 without one.
    pub asked_pages: f64,
    /// Bytes per second over the link of one GPU, to device and to host.
    pub bytes_per_s: [f64; 2],
    /// Share of the prompt pages of new requests that were found on the device.
    pub device_hit_share: f64,
    /// And on the host.
    pub host_hit_share: f64,
    /// Pages that preempted requests found again.
    pub resumed_pages: f64,
    /// Pages evicted from the device.
    pub evicted_pages: f64,
    /// Share of the time in which a replica waited for copies.
    pub stall_share: f64,
    /// Share of the time by which copies lengthened decode steps.
    pub slowed_share: f64,
}

impl Outcome {
    /// Adds up the replicas of a run that has ended.
    pub(super) fn new(replicas: &[Replica], gpus_per_replica: u32, rejected: u64) -> Self {
        let makespan = replicas.iter().map(Replica::idle_since).max().unwrap_or(SimTime::ZERO);
        let mut ledger = Ledger::default();
        let mut limit_time = [Span::ZERO; LIMITS];
        let mut total = Counters::default();
        let (mut running_time, mut page_share_time, mut peak_pool_share) = (0u128, 0.0, 0.0f64);
        let mut steady = Some(0.0);
        let mut ramp = Span::ZERO;
        let mut drain_start = makespan;
        for replica in replicas {
            let counters = replica.counters();
            let mut own = replica.ledger();
            own[Cause::Tail] += makespan.since(replica.idle_since());
            ledger.add_times(&own, u64::from(gpus_per_replica));
            for (sum, time) in limit_time.iter_mut().zip(&counters.limit_time) {
                *sum += *time;
            }
            total.completed += counters.completed;
            total.output_tokens += counters.output_tokens;
            total.prompt_tokens += counters.prompt_tokens;
            total.steps += counters.steps;
            total.preemptions += counters.preemptions;
            total.recomputed_tokens += counters.recomputed_tokens;
            total.request_steps += counters.request_steps;
            total.ttft_sum += counters.ttft_sum;
            total.sojourn_sum += counters.sojourn_sum;
            total.tpot_sum_s += counters.tpot_sum_s;
            total.tpot_requests += counters.tpot_requests;
            running_time += counters.running_time;
            let pool = replica.pool_pages().max(1) as f64;
            page_share_time += counters.page_time as f64 / pool;
            peak_pool_share = peak_pool_share.max(counters.peak_pages as f64 / pool);
            let (full, drained) = replica.milestones();
            ramp = ramp.max(full.map_or(Span::ZERO, |milestone| milestone.at.since(SimTime::ZERO)));
            drain_start = drain_start.min(drained.map_or(makespan, |milestone| milestone.at));
            steady = match (steady, full, drained) {
                (Some(rate), Some(full), Some(drained)) if drained.at > full.at && drained.written > full.written => {
                    let tokens =
                        (drained.written - full.written) as f64 / f64::from(1 << crate::cost::CONTEXT_UNIT_BITS);
                    Some(rate + tokens / drained.at.since(full.at).as_s())
                }
                _ => None,
            };
        }
        let per_request = |sum: f64| (total.completed > 0).then(|| sum / total.completed as f64);
        let replica_time = makespan.0 as f64 * replicas.len() as f64;
        let after_first = total.output_tokens - total.completed;
        Outcome {
            makespan,
            completed: total.completed,
            rejected,
            output_tokens: total.output_tokens,
            prompt_tokens: total.prompt_tokens,
            steady_output_tok_per_s: steady.filter(|rate| *rate > 0.0),
            ramp,
            drain: makespan.since(drain_start),
            ledger,
            limit_time,
            mean_running: if replica_time > 0.0 { running_time as f64 / replica_time } else { 0.0 },
            steps: total.steps,
            preemptions: total.preemptions,
            recomputed_tokens: total.recomputed_tokens,
            mean_ttft_s: per_request(total.ttft_sum.as_s()),
            mean_tpot_s: (total.tpot_requests > 0).then(|| total.tpot_sum_s / total.tpot_requests as f64),
            mean_sojourn_s: per_request(total.sojourn_sum.as_s()),
            tokens_per_request_step: (total.request_steps > 0).then(|| after_first as f64 / total.request_steps as f64),
            peak_pool_share,
            mean_pool_share: if replica_time > 0.0 { page_share_time / replica_time } else { 0.0 },
            replicas: replicas
                .iter()
                .map(|replica| ReplicaOutcome {
                    finished: replica.idle_since(),
                    counters: replica.counters().clone(),
                    reuse: replica.reuse(),
                })
                .collect(),
        }
    }

    /// Output tokens per second over the makespan; 0 for an empty run.
    pub fn output_tok_per_s(&self) -> f64 {
        let seconds = self.makespan.as_s();
        if seconds > 0.0 { self.output_tokens as f64 / seconds } else { 0.0 }
    }

    /// Reuse and transfers of all replicas together; `None` when no replica has a prefix cache or a host side.
    pub fn reuse(&self) -> Option<ReuseTotals> {
        let parts: Vec<&ReuseOutcome> = self.replicas.iter().filter_map(|replica| replica.reuse.as_ref()).collect();
        if parts.is_empty() {
            return None;
        }
        let time = self.makespan.as_s().max(f64::MIN_POSITIVE) * parts.len() as f64;
        let sum = |of: &dyn Fn(&ReuseOutcome) -> u64| parts.iter().map(|part| of(part) as f64).sum::<f64>();
        let asked_pages = sum(&|part| part.cache.asked_pages);
        let asked = asked_pages.max(1.0);
        let waited =
            |of: &dyn Fn(&Counters) -> Span| self.replicas.iter().map(|it| of(&it.counters).as_s()).sum::<f64>();
        Some(ReuseTotals {
            asked_pages,
            bytes_per_s: [0, 1].map(|way| sum(&|part| part.bytes[way]) / time),
            device_hit_share: sum(&|part| part.cache.device_hit_pages) / asked,
            host_hit_share: sum(&|part| part.cache.host_hit_pages) / asked,
            resumed_pages: sum(&|part| part.cache.resumed_pages),
            evicted_pages: sum(&|part| part.cache.evicted_pages),
            stall_share: waited(&|counters| counters.stall_time) / time,
            slowed_share: waited(&|counters| counters.slowed_time) / time,
        })
    }

    /// The limit that held for the longest time, with its share of the working time.
    pub fn main_limit(&self) -> Option<(Limit, f64)> {
        main_limit(&self.limit_time)
    }
}

/// The limit that held for the longest time, with its share of all; `None` when no time passed.
pub fn main_limit(limit_time: &[Span; LIMITS]) -> Option<(Limit, f64)> {
    let total: Span = limit_time.iter().copied().sum();
    Limit::ALL
        .into_iter()
        .map(|limit| (limit, limit_time[limit as usize]))
        .max_by_key(|(_, time)| *time)
        .filter(|(_, time)| *time > Span::ZERO)
        .map(|(limit, time)| (limit, time.as_s() / total.as_s()))
}
