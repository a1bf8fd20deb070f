//! Descriptions of serving engines, as in `models/engine`: defaults, constants of their schedulers, host-time priors.
//!
//! Data only. What the numbers do is in `engine::memory` and in the policies.

use serde::Deserialize;

/// Release of an engine, as (major, minor, patch).
pub type Version = (u32, u32, u32);

/// One serving engine.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Engine {
    /// Name, as in `models/engine`.
    pub name: String,
    /// Release assumed when the scenario names none.
    pub version: String,
    /// How it batches.
    pub policy: Policy,
    /// What its scheduler does from step to step.
    pub scheduler: Scheduler,
    /// Admission by an expected share of future tokens; only for `prefill_first`.
    pub new_token_ratio: Option<NewTokenRatio>,
    /// Defaults of SGLang's memory arithmetic; required by `prefill_first`.
    pub sglang: Option<SglangDefaults>,
    /// Defaults of vLLM's memory arithmetic; required by `token_budget`.
    pub vllm: Option<VllmDefaults>,
    /// Time of the host that the GPU waits for: priors, to be calibrated.
    pub host: HostTimes,
}

impl Engine {
    /// The default release as numbers; `None` when it is not `major.minor.patch`.
    pub fn parsed_version(&self) -> Option<Version> {
        parse_version(&self.version)
    }
}

/// Reads `major.minor.patch`, a leading `v` and a suffix such as `.post1` or `rc2` allowed; a missing patch is 0.
pub fn parse_version(text: &str) -> Option<Version> {
    let mut parts = text.trim().trim_start_matches('v').split('.').map(|part| {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part[..digits].parse::<u32>().ok()
    });
    Some((parts.next()??, parts.next()??, parts.next().unwrap_or(Some(0))?))
}

/// How an engine batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// A step is all prefill or all decode; prefill goes first (SGLang).
    PrefillFirst,
    /// One token budget a step, shared by decode and prefill (vLLM).
    TokenBudget,
    /// Batches of fixed membership, padded to the longest (Transformers `generate`).
    StaticBatch,
    /// So many tokens a second, whatever runs: the back of an envelope.
    FixedRate,
}

/// What the scheduler does from step to step.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scheduler {
    /// Steps that planning runs ahead of the GPU.
    pub overlap_lag_steps: u32,
    /// Whether a request that has just reached its end is still computed in those steps.
    pub finished_row_computed_in_lag: bool,
    /// Tokens in a KV page or block, unless a hybrid model enlarges it.
    pub page_tokens: u64,
    /// Whether prefixes are kept and found again by default.
    pub prefix_cache: bool,
}

/// Constants of SGLang's new-token ratio, the share of remaining output that admission sets aside.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewTokenRatio {
    /// Ratio at start and after idling, at conservativeness 1.
    pub initial: f64,
    /// Lowest ratio, as a share of the initial one.
    pub minimum_share: f64,
    /// Decode steps in which it falls linearly from the initial to the lowest.
    pub decay_steps: u32,
    /// Remaining output of a request is counted up to this many tokens.
    pub future_tokens_at_most: u64,
    /// Tokens set aside for each remaining request when one is preempted.
    pub preempt_reserve_tokens: u64,
}

/// Defaults that SGLang derives its pools from.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SglangDefaults {
    /// New prompt tokens in one prefill batch.
    pub max_prefill_tokens: u64,
    /// Running requests when speculation is on and the flag is not given.
    pub max_running_with_drafts: u64,
    /// State memory over KV memory.
    pub mamba_full_memory_ratio: f64,
    /// Memory set aside for the multimodal cache, in bytes.
    pub multimodal_cache_bytes: f64,
    /// What a draft worker holds besides its weights when the pools are sized, in bytes.
    pub draft_worker_bytes: f64,
    /// Defaults by reported GPU memory, in rising order; the last has no upper end.
    pub tiers: Vec<SglangTier>,
    /// Batch sizes captured with speculation, in requests.
    pub graphs_with_drafts: GraphRule,
    /// Batch sizes captured without, in requests.
    pub graphs_without_drafts: GraphRule,
}

/// SGLang's defaults for one range of GPU memory.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SglangTier {
    /// The range ends below this, in GiB; missing: no end.
    pub below_gib: Option<f64>,
    /// Prompt tokens in one chunk.
    pub chunk_tokens: u64,
    /// Largest captured decode batch, in requests, below four-fold tensor parallelism.
    pub graph_max: u64,
    /// The same from four-fold tensor parallelism on.
    pub graph_max_tp4: u64,
    /// Before 0.5.13, where it differs: chunk, graph size, graph size at tensor parallelism 4.
    pub before_0_5_13: Option<[u64; 3]>,
}

/// Defaults that vLLM derives its pool and budget from.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VllmDefaults {
    /// Share of the GPU's total memory that the engine may use.
    pub gpu_memory_utilization: f64,
    /// Prior of memory besides weights and KV (CUDA context, captured graphs), in bytes.
    pub fixed_bytes: f64,
    /// Prior of the activation peak: widths of 2 · hidden bytes for each token of the budget.
    pub activation_widths_per_token: f64,
    /// Prior of the workspace of linear attention: states of one layer for each 64 tokens of the budget.
    pub state_workspaces: f64,
    /// Prior of what profiling a vision tower adds, in bytes.
    pub multimodal_bytes: f64,
    /// Defaults by reported GPU memory, in rising order; the last has no upper end.
    pub tiers: Vec<VllmTier>,
    /// Step sizes captured, in tokens.
    pub graphs: GraphRule,
    /// Largest captured step, in decode steps of all sequences.
    pub graph_max_decode_steps: u64,
    /// Largest captured step, in tokens.
    pub graph_max_tokens: u64,
}

/// vLLM's defaults for one range of GPU memory.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VllmTier {
    /// The range ends below this, in GiB; missing: no end.
    pub below_gib: Option<f64>,
    /// Token budget of a step behind an API server.
    pub step_tokens_server: u64,
    /// Token budget of a step offline.
    pub step_tokens_offline: u64,
    /// Running sequences.
    pub max_num_seqs: u64,
}

/// Which sizes get a captured graph.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphRule {
    /// The smallest sizes, one by one.
    pub first: Vec<u64>,
    /// Then from the size before, in steps.
    pub then: Vec<GraphStep>,
}

/// A stretch of evenly spaced sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphStep {
    /// Last size of the stretch.
    pub through: u64,
    /// Distance between sizes.
    pub step: u64,
}

impl GraphRule {
    /// The sizes up to `max`, which is always one of them; none when `max` is 0.
    pub fn sizes(&self, max: u64) -> Vec<u64> {
        let mut sizes = self.first.clone();
        for stretch in &self.then {
            let last = sizes.last().copied().unwrap_or(0);
            sizes.extend((last + stretch.step..=stretch.through).step_by(stretch.step.max(1) as usize));
        }
        sizes.retain(|size| *size <= max);
        if max > 0 && sizes.last() != Some(&max) {
            sizes.push(max);
        }
        sizes
    }
}

/// Time of the host that the GPU waits for. Priors: calibration moves them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostTimes {
    /// Prefill steps of at most this many tokens are covered by captured graphs; 0: none are.
    pub prefill_graph_max_tokens: u64,
    /// Host time to launch one layer of a prefill step that graphs cover, in seconds.
    pub prefill_launch_s_per_layer_in_graph: f64,
    /// Host time to launch one layer when every kernel is launched, in seconds.
    pub prefill_launch_s_per_layer_eager: f64,
    /// Gap that each operation of a decode step adds, in seconds.
    pub step_gap_s_per_operation: f64,
    /// Operations in a layer.
    pub operations_per_layer: f64,
    /// Host time for each running request in each step, in seconds.
    pub step_s_per_request: f64,
    /// Gap that each draft pass of a speculative step adds, in seconds.
    pub draft_pass_gap_s: f64,
}
