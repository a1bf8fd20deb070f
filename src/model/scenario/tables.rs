//! The tables of a scenario as they are written.

use serde::Deserialize;
use std::path::PathBuf;
use toml::{Table, Value};

/// A scenario as read, overrides applied. Unset keys are `None`: defaults are the engine's, and are shown.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tables {
    /// What it is, in a line.
    pub title: Option<String>,
    /// The requests.
    pub job: Job,
    /// The machines.
    pub fleet: FleetTable,
    /// The LLM.
    pub model: Option<ModelTable>,
    /// The serving engine.
    pub engine: EngineTable,
    /// The client.
    #[serde(default)]
    pub client: Client,
    /// How the measured table was taken.
    pub benchmark: Option<Benchmark>,
    /// How far a forecast goes.
    #[serde(default)]
    pub forecast: ForecastTable,
    /// What `decide` compares.
    #[serde(default)]
    pub option: Vec<OptionTable>,
    /// Laws of keys whose value is not known (see `model::uncertain`).
    pub uncertain: Option<Table>,
}

/// `[forecast]`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForecastTable {
    /// Replications.
    pub replications: Option<u64>,
    /// Stop once the intervals of the 5%, 50% and 95% quantiles are no wider than this share of them, each way.
    pub precision: Option<f64>,
    /// When the job must be done, days.
    pub deadline_days: Option<f64>,
}

/// `[[option]]`: something to do, and the keys that it changes.
#[derive(Clone, Debug, Deserialize)]
pub struct OptionTable {
    /// Its name.
    pub name: String,
    /// The keys, as tables of the scenario.
    #[serde(flatten)]
    pub set: Table,
}

/// `[job]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Number of requests; with a trace: its rows unless given.
    pub requests: Option<u64>,
    /// Law of the prompt length, tokens.
    pub prompt_tokens: Option<Value>,
    /// Law of the uncapped output length, tokens.
    pub output_tokens: Option<Value>,
    /// Spearman's rank correlation of the two laws.
    pub rank_correlation: Option<f64>,
    /// A trace of whole rows in place of the two laws.
    pub trace: Option<PathBuf>,
    /// How rows of the trace become requests.
    pub rows: Option<Rows>,
    /// True: rows of the trace without output are skipped rather than refused.
    pub skip_empty_rows: Option<bool>,
    /// True: rows of the trace that cannot be requests are left out and counted rather than refused.
    pub skip_faulty_rows: Option<bool>,
    /// The model's tokenizer.json, which counts the texts of the trace; without it they are estimated.
    pub tokenizer: Option<PathBuf>,
    /// Cap on the output of a request, tokens.
    pub max_tokens: Option<u64>,
    /// Prompt and output together at most, tokens.
    pub context_tokens: Option<u64>,
    /// True when requests ignore end-of-sequence and write exactly their length (benchmarks). An engine may count on it:
    /// SGLang admits only what has room for all of it. vLLM and Transformers do not look ahead and act the same.
    pub ignore_eos: Option<bool>,
    /// In which order requests are sent.
    pub order: Option<String>,
    /// When they arrive.
    pub arrivals: Option<Value>,
    /// Tokens that prompts begin with in common.
    pub shared_prefix_tokens: Option<u64>,
    /// So many requests in a row share one prefix; all of them unless given.
    pub prompts_per_prefix: Option<u64>,
    /// Conversations whose prompts repeat the turns before.
    pub sessions: Option<SessionsTable>,
    /// What the napkin says.
    pub napkin: Option<Napkin>,
}

/// `[job.sessions]`: requests go round, turn 0 of all conversations, then turn 1 of each, and so on.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionsTable {
    /// Conversations at a time.
    pub sessions: u64,
    /// Turns of each.
    pub turns: u64,
    /// Tokens that all conversations begin with.
    pub system_tokens: Option<u64>,
    /// Tokens by which a turn, message and answer, lengthens the conversation.
    pub turn_tokens: u64,
}

/// How rows of a trace become requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// Row i is request i.
    InOrder,
    /// Each request is a row drawn at random.
    WithReplacement,
}

/// `[job.napkin]`: the estimate on the back of an envelope.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Napkin {
    /// Output tokens per second of one GPU.
    pub tok_per_s_per_gpu: f64,
    /// Mean output length, tokens.
    pub mean_output_tokens: f64,
}

/// `[fleet]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FleetTable {
    /// Name or path of the GPU.
    pub hardware: Option<String>,
    /// Cards.
    pub gpus: u32,
    /// Cards that share one replica.
    pub tensor_parallel: Option<u32>,
    /// How requests find their replica.
    pub dispatch: Option<DispatchWord>,
    /// Standard deviation of the replicas' speeds, as a share of it.
    pub speed_spread: Option<f64>,
    /// Time before any replica serves, seconds.
    pub startup_s: Option<f64>,
    /// Power limit of each card, W.
    pub power_limit_w: Option<f64>,
    /// A PCIe root (a switch or a CPU socket) that several cards copy through.
    pub pcie_root: Option<PcieRootTable>,
}

/// `[fleet.pcie_root]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcieRootTable {
    /// Cards behind each root.
    pub gpus: u32,
    /// What it lets through to them, bytes per second.
    pub h2d_bytes_per_s: f64,
    /// From them.
    pub d2h_bytes_per_s: f64,
    /// Both directions at once, added up.
    pub both_bytes_per_s: f64,
}

/// How requests find their replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DispatchWord {
    /// One queue for all.
    Shared,
    /// One contiguous part of the job each.
    Static,
    /// In turn.
    RoundRobin,
}

/// `[model]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelTable {
    /// Name or path of the LLM.
    pub llm: String,
    /// Name or path of the quantisation; the LLM's own unless given.
    pub weights: Option<String>,
    /// Dtype of the key-value cache; the quantisation's own unless given.
    pub kv: Option<crate::model::quantisation::KvDtype>,
    /// Dtype of recurrent states.
    pub state: Option<crate::model::quantisation::StateDtype>,
    /// False: served without its vision tower.
    pub vision: Option<bool>,
}

/// `[client]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// Requests in flight, or "all".
    pub concurrency: Option<Value>,
    /// Whether that counts each replica or all together.
    pub per: Option<Per>,
    /// Time between two requests that the client sends, seconds.
    pub submit_interval_s: Option<f64>,
}

/// What the concurrency counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// Each replica.
    Replica,
    /// All replicas together.
    Total,
}

/// `[benchmark]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Benchmark {
    /// Name or path of a measured table.
    pub table: Option<String>,
    /// Prompt length, tokens, where the table does not say.
    pub prompt_tokens: Option<u64>,
    /// Output length, tokens, where the table does not say.
    pub output_tokens: Option<u64>,
    /// Requests per point as a multiple of its concurrency, where the table does not say.
    pub waves: Option<u64>,
}

/// `[engine]`: numbers read off a log, and the engine's own flags by their own names.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineTable {
    /// Name or path.
    pub name: String,
    /// Release.
    pub version: Option<String>,
    /// Maximum of running requests, as the log shows it.
    pub max_running: Option<u64>,
    /// Tokens in the KV pool, as the log shows it.
    pub kv_pool_tokens: Option<u64>,
    /// Recurrent-state slots (blocks), as the log shows them.
    pub state_slots: Option<u64>,
    /// State slots reserved per request.
    pub state_slots_per_request: Option<u64>,
    /// State slots that a request really holds.
    pub state_slots_held_per_request: Option<u64>,
    /// Share of memory for weights and pools, under whatever name the engine has for it.
    pub mem_fraction: Option<f64>,
    /// Speculative decoding; absent is off.
    pub speculation: Option<SpeculationTable>,
    /// False: every prompt is read in full, whatever it shares. The engine's own flag unless given.
    pub prefix_cache: Option<bool>,
    /// What becomes of preempted requests (vLLM).
    pub spill: Option<SpillWord>,
    /// Host memory of one GPU for swapped requests, bytes.
    pub swap_space_bytes: Option<f64>,
    /// SGLang: the host tier.
    pub hicache: Option<HicacheTable>,
    /// vLLM: host memory of a replica behind its prefix cache, bytes.
    pub kv_offloading_bytes: Option<f64>,
    /// Efficiencies and fixed costs in place of the priors.
    pub cost: Option<CostTable>,
    /// A CSV file of measured decode steps (columns `batch`, `context_tokens` or `kv_tokens_resident`, `step_ms`) in
    /// place of the roofline.
    pub step_table: Option<PathBuf>,
    /// Output tokens per second of one GPU (engine `fixed-rate` only).
    pub tok_per_s_per_gpu: Option<f64>,

    /// SGLang.
    pub mem_fraction_static: Option<f64>,
    /// SGLang.
    pub chunked_prefill_size: Option<i64>,
    /// SGLang.
    pub max_prefill_tokens: Option<u64>,
    /// SGLang.
    pub cuda_graph_max_bs: Option<u64>,
    /// SGLang.
    pub max_running_requests: Option<u64>,
    /// SGLang.
    pub page_size: Option<u64>,
    /// SGLang.
    pub max_mamba_cache_size: Option<u64>,
    /// SGLang.
    pub mamba_full_memory_ratio: Option<f64>,
    /// SGLang.
    pub mamba_scheduler_strategy: Option<MambaWord>,
    /// SGLang.
    pub disable_radix_cache: Option<bool>,
    /// SGLang.
    pub disable_overlap_schedule: Option<bool>,
    /// SGLang.
    pub schedule_conservativeness: Option<f64>,
    /// SGLang: whether the drafter's own embedding and head are gone before pools are sized.
    pub draft_copies_shared: Option<bool>,

    /// vLLM.
    pub gpu_memory_utilization: Option<f64>,
    /// vLLM.
    pub max_num_seqs: Option<u64>,
    /// vLLM.
    pub max_num_batched_tokens: Option<u64>,
    /// vLLM.
    pub block_size: Option<u64>,
    /// vLLM.
    pub num_gpu_blocks_override: Option<u64>,
    /// vLLM.
    pub enable_prefix_caching: Option<bool>,
    /// vLLM: an offline engine rather than an API server.
    pub offline: Option<bool>,
    /// vLLM: memory besides weights and KV, bytes.
    pub activation_bytes: Option<f64>,
    /// vLLM.
    pub scheduler_reserve_full_isl: Option<bool>,
    /// vLLM: share of blocks kept free at admission.
    pub watermark: Option<f64>,
    /// vLLM.
    pub async_scheduling: Option<bool>,

    /// Transformers.
    pub batch_size: Option<u64>,
}

/// What becomes of a preempted request's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpillWord {
    /// Dropped and computed again.
    Recompute,
    /// Copied to the host and back, as vLLM did before V1.
    Running,
}

/// `[engine.hicache]`: SGLang's host tier.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HicacheTable {
    /// False: off, whatever else stands here.
    pub enabled: Option<bool>,
    /// Size of each host pool over that of the device pool (`--hicache-ratio`).
    pub ratio: Option<f64>,
    /// Bytes of each host pool (`--hicache-size`).
    pub bytes: Option<f64>,
    /// `--hicache-write-policy`.
    pub write_policy: Option<WriteWord>,
    /// `--hicache-io-backend`.
    pub io_backend: Option<IoBackend>,
}

/// When the host tier is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteWord {
    /// On insertion.
    WriteThrough,
    /// At the second use.
    WriteThroughSelective,
    /// On eviction.
    WriteBack,
}

/// What copies between host and GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IoBackend {
    /// Kernels on the multiprocessors.
    Kernel,
    /// The copy engine.
    Direct,
}

/// `--mamba-scheduler-strategy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MambaWord {
    /// The release decides.
    Auto,
    /// No buffer.
    NoBuffer,
    /// Extra buffer.
    ExtraBuffer,
    /// Lazy extra buffer.
    ExtraBufferLazy,
}

/// `[engine.speculation]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpeculationTable {
    /// False: off, whatever else stands here.
    pub enabled: Option<bool>,
    /// Tokens drafted per step.
    pub draft_tokens: u32,
    /// Mean acceptance of one position, given that all before it were accepted.
    pub acceptance: Option<f64>,
    /// Probability that positions 1..=i are all accepted, for each i.
    pub acceptance_marginal: Option<Vec<f64>>,
    /// Standard deviation of one position's acceptance between requests.
    pub acceptance_spread: Option<f64>,
}

/// `[engine.cost]`: see `cost::CostParameters`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostTable {
    /// Share of the memory bandwidth.
    pub bandwidth_share: Option<f64>,
    /// Share of the matrix rate in decode and verify passes.
    pub flops_share: Option<f64>,
    /// Share of the matrix rate in prefill.
    pub prefill_flops_share: Option<f64>,
    /// Exponent of the smooth maximum.
    pub smooth_exponent: Option<f64>,
    /// Fixed time of a step, seconds.
    pub step_gap_s: Option<f64>,
    /// Fixed time of a draft pass, seconds.
    pub draft_pass_gap_s: Option<f64>,
    /// Time per running request in a step, seconds.
    pub per_request_s: Option<f64>,
    /// Host time to launch a prefill step in captured pieces, seconds.
    pub prefill_launch_s: Option<f64>,
    /// Host time to launch a step kernel by kernel, seconds.
    pub eager_launch_s: Option<f64>,
    /// Factor on the bytes of touched experts.
    pub expert_bytes_scale: Option<f64>,
    /// Factor on the times of tensor-parallel communication.
    pub communication_scale: Option<f64>,
}
