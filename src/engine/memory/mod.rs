//! The engines' own memory arithmetic: how many requests may run and how many tokens and states there is room for.
//!
//! Each number comes, in this order, from the engine's log, from a flag, from the engine's arithmetic or its default,
//! and says which. Whether one request fits the pools depends on the request and is left to the caller.

mod limits;
mod sglang;
mod static_batch;
mod vllm;

pub use limits::{CapturedGraphs, GraphUnit, Limit, Limits, Origin, RunningLimit, StateLimits};

use crate::error::{Error, InputError, Result};
use crate::model::engine::{Engine, Version};
use crate::model::sizes::ModelSizes;

/// Bytes in a GiB.
pub const GIB: f64 = 1_073_741_824.0;

/// Bytes in a MiB.
pub const MIB: f64 = 1_048_576.0;

/// What the arithmetic needs to know.
#[derive(Clone, Debug)]
pub struct MemoryQuestion<'a> {
    /// Description of the engine.
    pub engine: &'a Engine,
    /// Release of the engine.
    pub version: Version,
    /// Sizes of the LLM.
    pub model: &'a ModelSizes,
    /// Linear-attention layers, which hold a state in place of KV; 0 for models without.
    pub linear_layers: u32,
    /// The vision tower, when it is loaded; `None` for text models and text-only serving.
    pub vision: Option<VisionTower>,
    /// Memory of one GPU.
    pub gpu: GpuMemory,
    /// GPUs that hold one replica.
    pub tensor_parallel: u32,
    /// Draft steps s of a built-in MTP layer (s + 1 tokens verified); `None`: speculation off.
    pub draft_steps: Option<u32>,
    /// Longest context that the server accepts, in tokens.
    pub context_tokens: u64,
    /// Numbers read off the engine's log: they replace the arithmetic.
    pub log: LogReadings,
    /// The engine's flags.
    pub flags: EngineFlags,
}

/// Shape of a vision tower, as an engine's arithmetic sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VisionTower {
    /// Hidden width.
    pub hidden: u32,
    /// Layers, if its configuration calls them `num_hidden_layers`; engines miss other names.
    pub num_hidden_layers: Option<u32>,
}

/// Memory of one GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuMemory {
    /// Total as the driver reports it, in MiB.
    pub reported_mib: f64,
    /// Free before anything is loaded, in bytes.
    pub free_bytes: f64,
}

/// Numbers read off the log of a running engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogReadings {
    /// KV pool, in tokens (SGLang `max_total_num_tokens`, vLLM `GPU KV cache size`).
    pub kv_pool_tokens: Option<u64>,
    /// State slots (SGLang `max_mamba_cache_size`) or, of vLLM, GPU blocks.
    pub state_slots: Option<u64>,
    /// Slots set aside for one running request.
    pub state_slots_per_request: Option<u64>,
    /// Slots that a running request really holds.
    pub state_slots_held_per_request: Option<u64>,
    /// Running requests (SGLang `max_running_requests`, vLLM `max_num_seqs`).
    pub max_running: Option<u64>,
}

/// Flags of one engine, by its own names. `None`: not given.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineFlags {
    /// SGLang.
    Sglang(SglangFlags),
    /// vLLM.
    Vllm(VllmFlags),
    /// Transformers `generate`.
    Static {
        /// Rows in a batch: the user's choice.
        batch_size: Option<u64>,
    },
}

/// SGLang's flags that move its pools.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SglangFlags {
    /// Share of free memory for weights and pools.
    pub mem_fraction_static: Option<f64>,
    /// Prompt tokens in a chunk.
    pub chunked_prefill_size: Option<u64>,
    /// New prompt tokens in a prefill batch.
    pub max_prefill_tokens: Option<u64>,
    /// Largest captured decode batch.
    pub cuda_graph_max_bs: Option<u64>,
    /// Running requests.
    pub max_running_requests: Option<u64>,
    /// Tokens in a page.
    pub page_size: Option<u64>,
    /// State slots.
    pub max_mamba_cache_size: Option<u64>,
    /// State memory over KV memory.
    pub mamba_full_memory_ratio: Option<f64>,
    /// How states of running requests are buffered.
    pub mamba_scheduler_strategy: Option<MambaStrategy>,
    /// No prefix cache.
    pub disable_radix_cache: bool,
    /// No overlap of host and GPU.
    pub disable_overlap_schedule: bool,
    /// Whether the draft worker's own embedding and head are gone before the pools are sized. `None`: as the release
    /// does.
    pub draft_copies_shared: Option<bool>,
    /// What the draft worker holds besides weights when the pools are sized, in bytes. `None`: the description's.
    pub draft_worker_bytes: Option<f64>,
}

/// `--mamba-scheduler-strategy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MambaStrategy {
    /// The release decides.
    #[default]
    Auto,
    /// Three slots; no overlap scheduling.
    NoBuffer,
    /// Three slots and a buffer of two under overlap scheduling.
    ExtraBuffer,
    /// Four slots.
    ExtraBufferLazy,
}

/// vLLM's flags that move its pool and budget.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VllmFlags {
    /// Share of total memory that the engine may use.
    pub gpu_memory_utilization: Option<f64>,
    /// Running sequences.
    pub max_num_seqs: Option<u64>,
    /// Token budget of a step.
    pub max_num_batched_tokens: Option<u64>,
    /// Tokens in a block; hybrid models enlarge it.
    pub block_size: Option<u64>,
    /// GPU blocks.
    pub num_gpu_blocks_override: Option<u64>,
    /// Prefix caching (for hybrids: state mode `align` or `none`).
    pub enable_prefix_caching: Option<bool>,
    /// Offline engine and not an API server: another default budget.
    pub offline: bool,
    /// Memory besides weights and KV, in bytes. `None`: the description's prior.
    pub activation_bytes: Option<f64>,
}

/// The limits that the engine sets itself.
///
/// # Errors
/// `Error::Impossible` when the weights or one request's state do not fit; `Error::Input` when the engine refuses the
/// flags, or when engine, description and flags do not belong together.
pub fn limits(question: &MemoryQuestion<'_>) -> Result<Limits> {
    if question.tensor_parallel == 0 {
        return Err(InputError::new("0 GPUs", "at least 1").key("tensor_parallel").into());
    }
    let hybrid = question.linear_layers > 0;
    if hybrid != question.model.state.is_some() || question.linear_layers >= question.model.layers {
        let found = format!("{} linear-attention layers of {}", question.linear_layers, question.model.layers);
        return Err(InputError::new(found, "0 without recurrent state, and with it more than 0 and fewer than all")
            .key("model.llm")
            .into());
    }
    if question.draft_steps.is_some() && question.model.draft.is_none() {
        let found = format!("speculation with {}, which has no MTP layer", question.model.name);
        return Err(InputError::new(found, "turn speculation off").key("engine.speculation").into());
    }
    match (&question.flags, &question.engine.sglang, &question.engine.vllm) {
        (EngineFlags::Sglang(flags), Some(defaults), _) => sglang::limits(question, flags, defaults),
        (EngineFlags::Vllm(flags), _, Some(defaults)) => vllm::limits(question, flags, defaults),
        (EngineFlags::Static { batch_size }, _, _) => static_batch::limits(question, *batch_size),
        _ => {
            let found =
                format!("the description of {} lacks the defaults of its memory arithmetic", question.engine.name);
            Err(InputError::new(found, "add a [sglang] or [vllm] table as in the built-in ones")
                .key("engine.name")
                .into())
        }
    }
}

impl MemoryQuestion<'_> {
    /// Tensor parallelism as a divisor.
    fn ranks(&self) -> f64 {
        f64::from(self.tensor_parallel)
    }

    /// Tokens that one request adds to a verify pass: s + 1, or 0 without speculation.
    fn draft_tokens(&self) -> u64 {
        self.draft_steps.map_or(0, |steps| u64::from(steps) + 1)
    }

    /// Weights of the target on one GPU, in bytes: text model and, when loaded, vision tower.
    fn target_bytes(&self) -> f64 {
        let vision = if self.vision.is_some() { self.model.vision_resident_bytes } else { 0.0 };
        (self.model.resident_bytes + vision) / self.ranks()
    }

    /// Weights of the MTP layer on one GPU, in bytes; 0 without speculation.
    fn draft_bytes(&self) -> f64 {
        if self.draft_steps.is_some() { self.model.draft_resident_bytes / self.ranks() } else { 0.0 }
    }

    /// KV of one token on one GPU, in bytes, with the MTP layer's own under speculation.
    fn kv_bytes_per_token(&self) -> f64 {
        let draft = self.model.draft.as_ref().filter(|_| self.draft_steps.is_some());
        let all = self.model.kv.stored_bytes_per_token + draft.map_or(0.0, |draft| draft.kv_bytes_per_token);
        // KV heads beyond which ranks hold copies; MLA latents are copied to every rank.
        let split = if self.model.kv.replicated { 1 } else { self.tensor_parallel.min(self.model.kv.heads.max(1)) };
        all / f64::from(split)
    }

    /// State of one slot on one GPU, in bytes; `None` for models without.
    fn state_bytes(&self) -> Option<f64> {
        self.model.state.as_ref().map(|state| state.bytes_per_request / self.ranks())
    }

    /// Fails when the weights alone exceed what is free.
    fn check_weights_fit(&self) -> Result<()> {
        let weights = self.target_bytes() + self.draft_bytes();
        if weights <= self.gpu.free_bytes {
            return Ok(());
        }
        let (weights, free) = (gib(weights), gib(self.gpu.free_bytes));
        Err(impossible(
            format!("the weights of {} take {weights} on each GPU and {free} are free", self.model.name),
            None,
        ))
    }
}

/// An answer that it cannot be done, with what would help; `flag` is the engine's own way to more memory.
fn impossible(reason: String, flag: Option<&str>) -> Error {
    let flag = flag.map_or(String::new(), |flag| format!(", {flag}"));
    Error::Impossible(format!("{reason}; what would help: more GPUs with tensor_parallel, quantised weights{flag}"))
}

/// Bytes as GiB with two decimals.
fn gib(bytes: f64) -> String {
    format!("{:.2} GiB", bytes / GIB)
}

/// The first tier whose end lies above the GPU's memory.
fn tier_for<T>(tiers: &[T], below_gib: impl Fn(&T) -> Option<f64>, reported_mib: f64) -> Result<&T> {
    let memory_gib = reported_mib / 1024.0;
    tiers.iter().find(|tier| below_gib(tier).is_none_or(|end| memory_gib < end)).ok_or_else(|| {
        let found = format!("no tier of defaults covers a GPU of {memory_gib:.1} GiB");
        InputError::new(found, "let the last tier have no below_gib").key("engine.tiers").into()
    })
}

/// Says so when a release lies outside those that the arithmetic was checked against.
fn note_release(version: Version, (first, last): (Version, Version), trail: &mut Vec<String>) {
    let text = |(major, minor, patch): Version| format!("{major}.{minor}.{patch}");
    if version < first || version > last {
        let nearest = if version < first { first } else { last };
        trail.push(format!(
            "release {} was not checked: its arithmetic is taken to be that of {}",
            text(version),
            text(nearest)
        ));
    }
}
