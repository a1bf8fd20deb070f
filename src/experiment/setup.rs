//! What follows from a scenario: sizes, limits, engine settings, step costs. Nothing here is random but the speeds of
//! replicas.

use std::sync::Arc;

use statrs::distribution::{ContinuousCDF, Normal};

use crate::cost::collective::AllReduce;
use crate::cost::{CapturedGraphs, CostParameters, StepCost, StepCostInputs, StepTable};
use crate::engine::memory::{
    EngineFlags, GpuMemory, GraphUnit, Limits, LogReadings, MambaStrategy, MemoryQuestion, RunningLimit, SglangFlags,
    VisionTower, VllmFlags, limits,
};
use crate::engine::observe::Observer;
use crate::engine::prefix_cache::Prompts;
use crate::engine::replica::Replica;
use crate::engine::settings::{EngineSettings, PolicySettings, RunningCap, SglangSettings, Stride, VllmSettings};
use crate::engine::speculation::Speculation;
use crate::error::{Error, InputError, Result};
use crate::experiment::jobs::JobSource;
use crate::experiment::reuse::{Basis, ReusePlan, prompts, refuse_sharing_without_cache};
use crate::inspect::{self, wrong_file};
use crate::model::Configured;
use crate::model::builtin::{Kind, find};
use crate::model::engine::{Engine, Policy, parse_version};
use crate::model::hardware::Hardware;
use crate::model::llm::Llm;
use crate::model::quantisation::{Quantisation, StateDtype};
use crate::model::scenario::{DispatchWord, EngineTable, MambaWord, Per, Scenario};
use crate::model::sizes::{Arithmetic, KvSizes, ModelSizes};
use crate::random::{Purpose, Streams};
use crate::simulation::{Dispatch, Fleet, InFlight, Outcome, simulate};
use crate::units::Span;

/// Free memory is less than the driver's total by the CUDA context: 1 GiB where no reading is known.
const CONTEXT_BYTES: f64 = 1_073_741_824.0;

/// Context that a server accepts when the scenario does not say, tokens.
const DEFAULT_CONTEXT_TOKENS: u64 = 32_768;

/// Share of the matrix rate that prefill reaches: 0.61 was measured of an 8B on an H200, against 0.75 for single large
/// products; the difference is attention, norms and launches.
const PREFILL_OF_LARGE_PRODUCTS: f64 = 0.61 / 0.75;

/// Exponent of the smooth maximum: skinny products on an H200 (12288 to 24576 wide, 1 to 2048 rows) lie between 2.5 and
/// 3.5 around the ridge.
const SMOOTH_EXPONENT: f64 = 3.0;

/// States moved per request and step: read and written back without speculation; with it, read once, written for each
/// draft position and the accepted one copied (read and written).
const STATE_MOVES: (f64, f64) = (2.0, 3.0);

/// A scenario, ready to run.
#[derive(Clone)]
pub struct Setup {
    /// The scenario.
    pub scenario: Scenario,
    /// Description of the engine.
    pub engine: Engine,
    /// Description of the GPU; `None` for a fixed rate.
    pub hardware: Option<Hardware>,
    /// Sizes of the model.
    pub sizes: ModelSizes,
    /// How each size was found, where the model comes from its own config.json.
    pub derivation: Vec<String>,
    /// The engine's memory arithmetic; `None` for a fixed rate.
    pub limits: Option<Limits>,
    /// Efficiencies and fixed costs.
    pub parameters: CostParameters,
    /// Settings of every replica.
    pub settings: EngineSettings,
    /// GPUs that share one replica.
    pub tensor_parallel: u32,
    /// Replicas.
    pub replicas: u32,
    /// Factor on the measured times of tensor-parallel communication: other hosts are slower or faster.
    pub communication_scale: f64,
    flops_per_s: f64,
    graphs: CapturedGraphs,
    all_reduce: Option<AllReduce>,
    step_table: Option<StepTable>,
    draft_steps: u32,
    reuse: ReusePlan,
}

/// What to change in a setup before it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Running requests at most, in place of the setup's cap.
    pub running_cap: Option<u32>,
    /// Run as a benchmark: every request asks for exactly this many tokens and ignores end-of-sequence.
    pub benchmark_output_tokens: Option<u32>,
}

impl Setup {
    /// Derives everything from a scenario.
    ///
    /// # Errors
    /// Bad descriptions, flags of another engine, and jobs that cannot be done (weights that do not fit).
    pub fn new(scenario: &Scenario) -> Result<Setup> {
        let tables = &scenario.tables;
        let engine = read_engine(scenario)?;
        refuse_foreign_flags(scenario, engine.policy)?;
        if engine.policy == Policy::FixedRate {
            return fixed_rate(scenario, engine);
        }
        let Some(model) = &tables.model else {
            return Err(scenario.error("model", "missing", "give [model] llm = \"…\" (see `makespan list llm`)"));
        };
        let Some(hardware_name) = &tables.fleet.hardware else {
            return Err(scenario.error("fleet.hardware", "missing", "name a GPU (see `makespan list hardware`)"));
        };
        let located = |error: Error, key: &str| match error {
            Error::Input(input) if input.file.is_none() => {
                Error::Input(scenario.locate(InputError { key: Some(key.to_owned()), ..input }))
            }
            other => other,
        };
        let hardware = Hardware::find(&relative(scenario, hardware_name)).map_err(|e| located(e, "fleet.hardware"))?;
        let llm_name = relative(scenario, &model.llm);
        let of_model = |error| {
            let path = std::path::Path::new(&llm_name);
            wrong_file(error, path, "a model", &[inspect::Kind::ModelConfig, inspect::Kind::Description])
        };
        let Configured { llm, derivation } =
            Llm::configured(&llm_name).map_err(of_model).map_err(|e| located(e, "model.llm"))?;
        let weights = model.weights.clone().unwrap_or_else(|| llm.default_weights.clone());
        let quantisation =
            Quantisation::find(&relative(scenario, &weights)).map_err(|e| located(e, "model.weights"))?;
        let kv = model.kv.unwrap_or(quantisation.kv);
        let sizes = llm
            .sizes(&quantisation, kv, model.state.unwrap_or(StateDtype::Float32))
            .map_err(|e| located(e, "model.weights"))?;
        refuse_unused_state(scenario, &sizes)?;
        let tensor_parallel = tables.fleet.tensor_parallel.unwrap_or(1);
        let speculation = read_speculation(scenario)?;
        let draft_steps = speculation.as_ref().map_or(0, Speculation::draft_tokens);
        if speculation.is_some() && sizes.draft.is_none() {
            return Err(scenario.error(
                "engine.speculation",
                format!("{} has no MTP layer to draft with", llm.name),
                "leave speculation out, or name an LLM that has one",
            ));
        }
        let version = match &tables.engine.version {
            None => engine.parsed_version(),
            Some(text) => parse_version(text),
        };
        let Some(version) = version else {
            let found = tables.engine.version.clone().unwrap_or_else(|| engine.version.clone());
            return Err(scenario.error("engine.version", format!("found `{found}`"), "write it as \"0.5.23\""));
        };
        let with_vision = model.vision.unwrap_or(true) && llm.vision.is_some();
        let question = MemoryQuestion {
            engine: &engine,
            version,
            model: &sizes,
            linear_layers: llm.linear_attention.as_ref().map_or(0, |linear| linear.layers),
            // Hidden width of the Qwen towers; their configurations call the depth `depth`.
            vision: with_vision.then_some(VisionTower { hidden: 1152, num_hidden_layers: None }),
            gpu: GpuMemory {
                reported_mib: hardware.memory_bytes / (1024.0 * 1024.0),
                free_bytes: hardware.free_memory_bytes.unwrap_or(hardware.memory_bytes - CONTEXT_BYTES),
            },
            tensor_parallel,
            draft_steps: (draft_steps > 0).then_some(draft_steps),
            context_tokens: tables.job.context_tokens.unwrap_or(DEFAULT_CONTEXT_TOKENS),
            log: log_readings(&tables.engine),
            flags: engine_flags(&tables.engine, engine.policy),
        };
        let found = limits(&question).map_err(|error| match error {
            Error::Input(input) => Error::Input(scenario.locate(full_key(input, &tables.engine))),
            other => other,
        })?;
        let (nominal, _) = hardware.flops_per_s(sizes.arithmetic);
        let power_share = match tables.fleet.power_limit_w {
            None => 1.0,
            Some(watts) => hardware.flops_share_at(watts).ok_or_else(|| {
                scenario.error(
                    "fleet.power_limit_w",
                    format!("{} has no measured power curve that covers {watts} W", hardware.name),
                    "leave it out and set engine.cost.flops_share instead",
                )
            })?,
        };
        let all_reduce = if tensor_parallel > 1 {
            Some(AllReduce::new(&hardware, tensor_parallel, None).map_err(|e| located(e, "fleet.tensor_parallel"))?)
        } else {
            None
        };
        let parameters = cost_parameters(scenario, &engine, &hardware, &sizes)?;
        let width = u64::from(draft_steps) + 1;
        let decode_sizes = match found.graphs.unit {
            GraphUnit::Requests => found.graphs.sizes.clone(),
            GraphUnit::Tokens => found.graphs.sizes.iter().map(|tokens| tokens / width).filter(|n| *n > 0).collect(),
        };
        let decode_sizes = decode_sizes.into_iter().map(|n| n.min(u64::from(u32::MAX)) as u32).collect();
        let graphs = CapturedGraphs::new(decode_sizes, engine.host.prefill_graph_max_tokens as u32);
        let basis = Basis {
            policy: engine.policy,
            limits: &found,
            sizes: &sizes,
            linear_layers: llm.linear_attention.as_ref().map_or(0, |linear| linear.layers),
            hardware: &hardware,
            tensor_parallel,
            drafts: draft_steps > 0,
        };
        let reuse = ReusePlan::new(scenario, &basis)?;
        let settings = engine_settings(scenario, &engine, &found, speculation, &reuse)?;
        let step_table = read_step_table(scenario)?;
        let mut setup = Setup {
            scenario: scenario.clone(),
            engine,
            flops_per_s: nominal * power_share,
            hardware: Some(hardware),
            sizes,
            derivation,
            limits: Some(found),
            parameters,
            settings,
            tensor_parallel,
            replicas: tables.fleet.gpus / tensor_parallel,
            communication_scale: 1.0,
            graphs,
            all_reduce,
            step_table,
            draft_steps,
            reuse,
        };
        setup.apply_scales()?;
        Ok(setup)
    }

    /// Applies the factors of `[engine.cost]` that belong to no price of their own.
    fn apply_scales(&mut self) -> Result<()> {
        let Some(table) = self.scenario.tables.engine.cost.clone() else { return Ok(()) };
        let refuse = |key: &str, found: String, remedy: &str| self.scenario.error(key, found, remedy);
        let given =
            [("expert_bytes_scale", table.expert_bytes_scale), ("communication_scale", table.communication_scale)];
        for (name, value) in given {
            if value.is_some_and(|value| !(value > 0.0 && value <= LARGEST_SCALE)) {
                let found = format!("found {}", value.unwrap_or_default());
                let remedy = format!("give a number above 0 and at most {LARGEST_SCALE}");
                return Err(refuse(&format!("engine.cost.{name}"), found, &remedy));
            }
        }
        if table.expert_bytes_scale.is_some() && self.sizes.experts.is_none() {
            let found = format!("{} has no experts", self.sizes.name);
            return Err(refuse("engine.cost.expert_bytes_scale", found, "leave it out"));
        }
        if table.communication_scale.is_some() && self.tensor_parallel == 1 {
            let found = "one GPU a replica communicates with no other".to_owned();
            return Err(refuse("engine.cost.communication_scale", found, "leave it out"));
        }
        if let Some(scale) = table.expert_bytes_scale {
            self.scale_experts(scale);
        }
        self.communication_scale = table.communication_scale.unwrap_or(1.0);
        Ok(())
    }

    /// Multiplies the bytes of touched experts, those of the draft layer included.
    pub fn scale_experts(&mut self, scale: f64) {
        let draft = self.sizes.draft.as_mut().and_then(|draft| draft.experts.as_mut());
        for experts in self.sizes.experts.iter_mut().chain(draft) {
            experts.bytes *= scale;
        }
    }

    /// The price list of one replica.
    pub fn step_cost(&self) -> StepCost {
        let sizes = &self.sizes;
        let communication = |tokens: f64, rows: f64| {
            self.all_reduce.as_ref().map_or(0.0, |all_reduce| {
                let pass = all_reduce.pass(sizes.layers, sizes.hidden, tokens, rows, sizes.vocab);
                self.communication_scale * (pass.all_reduce_s + pass.gather_s)
            })
        };
        StepCost::new(StepCostInputs {
            sizes,
            hbm_bytes_per_s: self.hardware.as_ref().map_or(1.0, |hardware| hardware.hbm_bytes_per_s),
            flops_per_s: self.flops_per_s,
            tensor_parallel: self.tensor_parallel,
            communication_s: Box::new(communication),
            parameters: &self.parameters,
            draft_steps: self.draft_steps,
            state_moves: STATE_MOVES,
            graphs: self.graphs.clone(),
            draft_prefill: true,
            step_table: self.step_table.as_ref(),
        })
    }

    /// The fleet of the scenario.
    ///
    /// # Errors
    /// When the concurrency is neither a number nor "all".
    pub fn fleet(&self, streams: Streams, stride: Stride, change: Changes) -> Result<Fleet> {
        // The prompts of a benchmark are taken to be distinct.
        let prompts =
            if change.benchmark_output_tokens.is_some() { Prompts::Distinct } else { prompts(&self.scenario, None)? };
        self.fleet_for(Arc::new(prompts), streams, stride, change)
    }

    fn fleet_for(&self, prompts: Arc<Prompts>, streams: Streams, stride: Stride, change: Changes) -> Result<Fleet> {
        let tables = &self.scenario.tables;
        let mut settings = self.settings.clone();
        settings.prefix_cache = self.reuse.cache(prompts);
        settings.stride = stride;
        if let Some(cap) = change.running_cap {
            settings.running_cap = cap;
        }
        if let (Some(tokens), PolicySettings::Sglang(rules)) = (change.benchmark_output_tokens, &mut settings.policy) {
            rules.max_new_tokens = Some(u64::from(tokens));
            rules.ignore_eos = true;
        }
        let spread = tables.fleet.speed_spread.unwrap_or(0.0);
        let mut blocks = streams.blocks(Purpose::Replica);
        let replicas = (0..self.replicas)
            .map(|index| {
                let mut cost = self.step_cost();
                if spread > 0.0 {
                    // Lognormal speeds: never negative, and as likely to be faster as slower.
                    let score = Normal::standard().inverse_cdf(blocks.draws(u64::from(index))[0]);
                    cost = cost.slowed((spread * score).exp());
                }
                Replica::new(index as usize, settings.clone(), cost, streams)
            })
            .collect();
        let in_flight = match (self.scenario.concurrency()?, tables.client.per) {
            (None, _) => InFlight::All,
            (Some(requests), Some(Per::Total)) => InFlight::Total(requests),
            (Some(requests), Some(Per::Replica) | None) => InFlight::PerReplica(requests),
        };
        let dispatch = match tables.fleet.dispatch {
            None | Some(DispatchWord::Shared) => Dispatch::Shared,
            Some(DispatchWord::Static) => Dispatch::Static,
            Some(DispatchWord::RoundRobin) => Dispatch::RoundRobin,
        };
        let seconds = |value: Option<f64>| value.and_then(Span::from_s).unwrap_or(Span::ZERO);
        Ok(Fleet {
            replicas,
            gpus_per_replica: self.tensor_parallel,
            dispatch,
            in_flight,
            submit_interval: seconds(tables.client.submit_interval_s),
            startup: seconds(tables.fleet.startup_s),
        })
    }

    /// Runs the whole job once.
    ///
    /// # Errors
    /// [`Error::Impossible`] when a request can never be served.
    pub fn run<O: Observer>(
        &self,
        job: &JobSource,
        streams: Streams,
        stride: Stride,
        observer: &mut O,
    ) -> Result<Outcome> {
        let workload = job.workload(streams)?;
        let prompts = Arc::new(prompts(&self.scenario, job.trace.as_deref())?);
        let fleet = self.fleet_for(prompts, streams, stride, Changes::default())?;
        let outcome = simulate(fleet, job.stream(&workload, streams), observer)?;
        if outcome.completed == 0 {
            let context = self.scenario.tables.job.context_tokens.unwrap_or_default();
            return Err(Error::Impossible(format!(
                "every one of the {} requests is rejected, because its prompt fills the context of {context} tokens; \
                 raise job.context_tokens or shorten the prompts",
                outcome.rejected
            )));
        }
        Ok(outcome)
    }
}

/// The memory arithmetic names flags; a scenario has them below `engine`.
fn full_key(mut error: InputError, given: &EngineTable) -> InputError {
    error.key = error.key.map(|key| match key.as_str() {
        _ if key.contains('.') => key,
        "tensor_parallel" => format!("fleet.{key}"),
        "max_num_seqs" if given.max_running.is_some() => "engine.max_running".to_owned(),
        "gpu_memory_utilization" | "mem_fraction_static" if given.mem_fraction.is_some() => {
            "engine.mem_fraction".to_owned()
        }
        _ => format!("engine.{key}"),
    });
    error
}

fn relative(scenario: &Scenario, name_or_path: &str) -> String {
    let joined = scenario.folder.join(name_or_path);
    if crate::files::is_file(&joined) { joined.display().to_string() } else { name_or_path.to_owned() }
}

fn read_engine(scenario: &Scenario) -> Result<Engine> {
    let found = find(Kind::Engine, &relative(scenario, &scenario.tables.engine.name)).map_err(|error| match error {
        Error::Input(input) => Error::Input(scenario.locate(input.key("engine.name"))),
        other => other,
    })?;
    crate::model::parse::parse_toml(found.text()?, &found.file)
}

/// A flag that the engine does not have would be ignored in silence: refused.
fn refuse_foreign_flags(scenario: &Scenario, policy: Policy) -> Result<()> {
    let table = &scenario.tables.engine;
    let sglang = "SGLang";
    let vllm = "vLLM";
    let given = [
        ("mem_fraction_static", table.mem_fraction_static.is_some(), sglang),
        ("chunked_prefill_size", table.chunked_prefill_size.is_some(), sglang),
        ("max_prefill_tokens", table.max_prefill_tokens.is_some(), sglang),
        ("cuda_graph_max_bs", table.cuda_graph_max_bs.is_some(), sglang),
        ("max_running_requests", table.max_running_requests.is_some(), sglang),
        ("page_size", table.page_size.is_some(), sglang),
        ("max_mamba_cache_size", table.max_mamba_cache_size.is_some(), sglang),
        ("mamba_full_memory_ratio", table.mamba_full_memory_ratio.is_some(), sglang),
        ("mamba_scheduler_strategy", table.mamba_scheduler_strategy.is_some(), sglang),
        ("disable_radix_cache", table.disable_radix_cache.is_some(), sglang),
        ("disable_overlap_schedule", table.disable_overlap_schedule.is_some(), sglang),
        ("schedule_conservativeness", table.schedule_conservativeness.is_some(), sglang),
        ("draft_copies_shared", table.draft_copies_shared.is_some(), sglang),
        ("hicache", table.hicache.is_some(), sglang),
        ("kv_offloading_bytes", table.kv_offloading_bytes.is_some(), vllm),
        ("spill", table.spill.is_some(), vllm),
        ("swap_space_bytes", table.swap_space_bytes.is_some(), vllm),
        ("gpu_memory_utilization", table.gpu_memory_utilization.is_some(), vllm),
        ("max_num_seqs", table.max_num_seqs.is_some(), vllm),
        ("max_num_batched_tokens", table.max_num_batched_tokens.is_some(), vllm),
        ("block_size", table.block_size.is_some(), vllm),
        ("num_gpu_blocks_override", table.num_gpu_blocks_override.is_some(), vllm),
        ("enable_prefix_caching", table.enable_prefix_caching.is_some(), vllm),
        ("offline", table.offline.is_some(), vllm),
        ("activation_bytes", table.activation_bytes.is_some(), vllm),
        ("scheduler_reserve_full_isl", table.scheduler_reserve_full_isl.is_some(), vllm),
        ("watermark", table.watermark.is_some(), vllm),
        ("async_scheduling", table.async_scheduling.is_some(), vllm),
        ("batch_size", table.batch_size.is_some(), "Transformers"),
        ("tok_per_s_per_gpu", table.tok_per_s_per_gpu.is_some(), "fixed-rate"),
    ];
    let own = match policy {
        Policy::PrefillFirst => sglang,
        Policy::TokenBudget => vllm,
        Policy::StaticBatch => "Transformers",
        Policy::FixedRate => "fixed-rate",
    };
    if let Some((key, _, owner)) = given.iter().find(|(_, given, owner)| *given && *owner != own) {
        return Err(scenario.error(
            &format!("engine.{key}"),
            format!("this is a flag of {owner}, and the engine is {}", table.name),
            "leave it out: it would change nothing",
        ));
    }
    if table.mem_fraction.is_some() && (table.mem_fraction_static.is_some() || table.gpu_memory_utilization.is_some()) {
        return Err(scenario.error(
            "engine.mem_fraction",
            "the memory fraction is given twice",
            "keep mem_fraction, or the engine's own name for it",
        ));
    }
    let unused = match policy {
        Policy::PrefillFirst | Policy::TokenBudget => None,
        Policy::StaticBatch => [
            ("prefix_cache", table.prefix_cache.is_some()),
            ("max_running", table.max_running.is_some()),
            ("state_slots", table.state_slots.is_some()),
            ("state_slots_per_request", table.state_slots_per_request.is_some()),
            ("state_slots_held_per_request", table.state_slots_held_per_request.is_some()),
            ("mem_fraction", table.mem_fraction.is_some()),
            ("speculation", table.speculation.is_some()),
        ]
        .into_iter()
        .find(|(_, given)| *given),
        Policy::FixedRate => [
            ("prefix_cache", table.prefix_cache.is_some()),
            ("max_running", table.max_running.is_some()),
            ("kv_pool_tokens", table.kv_pool_tokens.is_some()),
            ("state_slots", table.state_slots.is_some()),
            ("state_slots_per_request", table.state_slots_per_request.is_some()),
            ("mem_fraction", table.mem_fraction.is_some()),
            ("speculation", table.speculation.is_some()),
            ("cost", table.cost.is_some()),
            ("step_table", table.step_table.is_some()),
            ("version", table.version.is_some()),
        ]
        .into_iter()
        .find(|(_, given)| *given),
    };
    match unused {
        None => Ok(()),
        Some((key, _)) => Err(scenario.error(
            &format!("engine.{key}"),
            format!("the engine {} has no such setting", table.name),
            "leave it out: it would change nothing",
        )),
    }
}

/// Settings of recurrent state, for a model that has none.
fn refuse_unused_state(scenario: &Scenario, sizes: &ModelSizes) -> Result<()> {
    let tables = &scenario.tables;
    let engine = &tables.engine;
    let given = [
        ("engine.state_slots", engine.state_slots.is_some()),
        ("engine.state_slots_per_request", engine.state_slots_per_request.is_some()),
        ("engine.state_slots_held_per_request", engine.state_slots_held_per_request.is_some()),
        ("engine.max_mamba_cache_size", engine.max_mamba_cache_size.is_some()),
        ("engine.mamba_full_memory_ratio", engine.mamba_full_memory_ratio.is_some()),
        ("engine.mamba_scheduler_strategy", engine.mamba_scheduler_strategy.is_some()),
        ("model.state", tables.model.as_ref().is_some_and(|model| model.state.is_some())),
    ];
    match given.iter().find(|(_, given)| *given) {
        Some((key, _)) if sizes.state.is_none() => Err(scenario.error(
            key,
            format!("{} has no recurrent state", sizes.name),
            "leave it out: it would change nothing",
        )),
        _ => Ok(()),
    }
}

fn log_readings(table: &EngineTable) -> LogReadings {
    LogReadings {
        kv_pool_tokens: table.kv_pool_tokens,
        state_slots: table.state_slots,
        state_slots_per_request: table.state_slots_per_request,
        state_slots_held_per_request: table.state_slots_held_per_request,
        max_running: table.max_running,
    }
}

fn engine_flags(table: &EngineTable, policy: Policy) -> EngineFlags {
    match policy {
        Policy::PrefillFirst => EngineFlags::Sglang(SglangFlags {
            mem_fraction_static: table.mem_fraction_static.or(table.mem_fraction),
            chunked_prefill_size: table.chunked_prefill_size.and_then(|size| u64::try_from(size).ok()),
            max_prefill_tokens: table.max_prefill_tokens,
            cuda_graph_max_bs: table.cuda_graph_max_bs,
            max_running_requests: table.max_running_requests,
            page_size: table.page_size,
            max_mamba_cache_size: table.max_mamba_cache_size,
            mamba_full_memory_ratio: table.mamba_full_memory_ratio,
            mamba_scheduler_strategy: table.mamba_scheduler_strategy.map(|word| match word {
                MambaWord::Auto => MambaStrategy::Auto,
                MambaWord::NoBuffer => MambaStrategy::NoBuffer,
                MambaWord::ExtraBuffer => MambaStrategy::ExtraBuffer,
                MambaWord::ExtraBufferLazy => MambaStrategy::ExtraBufferLazy,
            }),
            disable_radix_cache: table.disable_radix_cache.unwrap_or(false),
            disable_overlap_schedule: table.disable_overlap_schedule.unwrap_or(false),
            draft_copies_shared: table.draft_copies_shared,
            draft_worker_bytes: None,
        }),
        Policy::TokenBudget => EngineFlags::Vllm(VllmFlags {
            gpu_memory_utilization: table.gpu_memory_utilization.or(table.mem_fraction),
            max_num_seqs: table.max_num_seqs,
            max_num_batched_tokens: table.max_num_batched_tokens,
            block_size: table.block_size,
            num_gpu_blocks_override: table.num_gpu_blocks_override,
            enable_prefix_caching: table.enable_prefix_caching,
            offline: table.offline.unwrap_or(false),
            activation_bytes: table.activation_bytes,
        }),
        Policy::StaticBatch | Policy::FixedRate => EngineFlags::Static { batch_size: table.batch_size },
    }
}

fn read_speculation(scenario: &Scenario) -> Result<Option<Speculation>> {
    let Some(table) = &scenario.tables.engine.speculation else { return Ok(None) };
    if table.enabled == Some(false) {
        return Ok(None);
    }
    let key = "engine.speculation.draft_tokens";
    if !(1..=64).contains(&table.draft_tokens) {
        return Err(scenario.error(key, format!("found {}", table.draft_tokens), "draft 1 to 64 tokens a step"));
    }
    let marginal = match (table.acceptance, &table.acceptance_marginal) {
        (Some(acceptance), None) => {
            if !(0.0..=1.0).contains(&acceptance) {
                let found = format!("found {acceptance}");
                return Err(scenario.error("engine.speculation.acceptance", found, "a probability between 0 and 1"));
            }
            (1..=table.draft_tokens as i32).map(|position| acceptance.powi(position)).collect()
        }
        (None, Some(marginal)) => {
            if marginal.len() != table.draft_tokens as usize {
                return Err(scenario.error(
                    "engine.speculation.acceptance_marginal",
                    format!("{} probabilities for {} drafted tokens", marginal.len(), table.draft_tokens),
                    "give one for each drafted position",
                ));
            }
            marginal.clone()
        }
        _ => {
            return Err(scenario.error(
                "engine.speculation.acceptance",
                "give one of acceptance and acceptance_marginal",
                "acceptance is the mean of one position; acceptance_marginal lists P(positions 1..=i all accepted)",
            ));
        }
    };
    Speculation::new(&marginal, table.acceptance_spread.unwrap_or(0.0)).map(Some).map_err(|error| {
        let key = match error.key.as_deref() {
            Some("acceptance") if table.acceptance_marginal.is_some() => "acceptance_marginal".to_owned(),
            key => key.unwrap_or_default().to_owned(),
        };
        scenario.locate(error.key(format!("engine.speculation.{key}"))).into()
    })
}

/// Largest factor on experts' bytes or communication that is taken for meant.
const LARGEST_SCALE: f64 = 100.0;

fn cost_parameters(
    scenario: &Scenario,
    engine: &Engine,
    hardware: &Hardware,
    sizes: &ModelSizes,
) -> Result<CostParameters> {
    let table = scenario.tables.engine.cost.clone().unwrap_or_default();
    let host = &engine.host;
    let layers = f64::from(sizes.layers);
    let flops_share = table.flops_share.unwrap_or(hardware.priors.flops_share);
    let parameters = CostParameters {
        bandwidth_share: table.bandwidth_share.unwrap_or(hardware.priors.bandwidth_share),
        flops_share,
        prefill_flops_share: table.prefill_flops_share.unwrap_or(flops_share * PREFILL_OF_LARGE_PRODUCTS),
        smooth_exponent: table.smooth_exponent.unwrap_or(SMOOTH_EXPONENT),
        step_gap_s: table.step_gap_s.unwrap_or(host.step_gap_s_per_operation * host.operations_per_layer * layers),
        draft_pass_gap_s: table.draft_pass_gap_s.unwrap_or(host.draft_pass_gap_s),
        per_request_s: table.per_request_s.unwrap_or(host.step_s_per_request),
        prefill_launch_s: table.prefill_launch_s.unwrap_or(host.prefill_launch_s_per_layer_in_graph * layers),
        eager_launch_s: table.eager_launch_s.unwrap_or(host.prefill_launch_s_per_layer_eager * layers),
    };
    parameters.check().map_err(|error| {
        let key = error.key.clone().unwrap_or_default();
        Error::Input(scenario.locate(error.key(format!("engine.cost.{key}"))))
    })?;
    Ok(parameters)
}

fn engine_settings(
    scenario: &Scenario,
    engine: &Engine,
    limits: &Limits,
    speculation: Option<Speculation>,
    reuse: &ReusePlan,
) -> Result<EngineSettings> {
    let table = &scenario.tables.engine;
    let job = &scenario.tables.job;
    let width = speculation.as_ref().map_or(1, |speculation| speculation.draft_tokens() + 1);
    let mut lookahead_tokens = 0;
    let (policy, cap_source) = match engine.policy {
        Policy::PrefillFirst => {
            let Some(ratio) = &engine.new_token_ratio else {
                let remedy = "add [new_token_ratio] as in the built-in description";
                return Err(scenario.error("engine.name", "its description has no new-token ratio", remedy));
            };
            if width > 1 {
                // mem_cache/allocation_sizing.py: KV is allocated up to twice the verified window ahead.
                lookahead_tokens = 2 * width;
            }
            let conservative = table.schedule_conservativeness.unwrap_or(1.0);
            let initial = (ratio.initial * conservative).min(1.0);
            let whole_prompts = table.chunked_prefill_size == Some(-1);
            let rules = SglangSettings {
                max_prefill_tokens: limits.step_tokens.map_or(u64::MAX, |limit| limit.value),
                chunked_prefill_tokens: limits.chunk_tokens.map(|limit| limit.value).filter(|_| !whole_prompts),
                initial_ratio: initial,
                least_ratio: initial * ratio.minimum_share,
                decay_steps: u64::from(ratio.decay_steps),
                reserve_clip_tokens: ratio.future_tokens_at_most,
                retract_tokens: ratio.preempt_reserve_tokens,
                max_new_tokens: job.max_tokens,
                ignore_eos: job.ignore_eos.unwrap_or(false),
            };
            (PolicySettings::Sglang(rules), running_cap(limits.running_limit))
        }
        Policy::TokenBudget => {
            lookahead_tokens = width - 1;
            let token_budget = limits.step_tokens.map_or(u64::MAX, |limit| limit.value);
            if token_budget < limits.running_cap * u64::from(width) {
                return Err(scenario.error(
                    "engine.max_num_batched_tokens",
                    format!("{token_budget} tokens a step for {} sequences of {width}", limits.running_cap),
                    format!("at least {} tokens, or fewer sequences", limits.running_cap * u64::from(width)),
                ));
            }
            let rules = VllmSettings {
                token_budget,
                reserve_full_prompt: table.scheduler_reserve_full_isl.unwrap_or(true),
                watermark: table.watermark.unwrap_or(0.0),
                spill: reuse.spill,
            };
            (PolicySettings::Vllm(rules), running_cap(limits.running_limit))
        }
        Policy::StaticBatch | Policy::FixedRate => (PolicySettings::Static, RunningCap::BatchSize),
    };
    let overlap = match engine.policy {
        Policy::TokenBudget => table.async_scheduling.unwrap_or(limits.overlap),
        _ => limits.overlap,
    };
    Ok(EngineSettings {
        policy,
        running_cap: u32::try_from(limits.running_cap).unwrap_or(u32::MAX),
        cap_source,
        kv_pool_tokens: limits.kv_pool_tokens.value,
        page_tokens: u32::try_from(limits.page_tokens.value).unwrap_or(u32::MAX),
        lookahead_tokens,
        overlap,
        computes_finished_rows: overlap && engine.scheduler.finished_row_computed_in_lag,
        speculation,
        stride: Stride::Longest,
        state_pages_per_request: reuse.state_pages_per_request,
        prefix_cache: None,
        host: reuse.host,
    })
}

fn running_cap(limit: RunningLimit) -> RunningCap {
    match limit {
        RunningLimit::MaxRunning => RunningCap::MaxRunning,
        RunningLimit::StateSlots => RunningCap::StateSlots,
    }
}

/// The back of an envelope: one request at a time on each GPU, each token the same time, prompts for nothing.
fn fixed_rate(scenario: &Scenario, engine: Engine) -> Result<Setup> {
    let tables = &scenario.tables;
    let Some(rate) = tables.engine.tok_per_s_per_gpu else {
        return Err(scenario.error("engine.tok_per_s_per_gpu", "missing", "give the tokens per second of one GPU"));
    };
    refuse_sharing_without_cache(scenario, engine.policy)?;
    let unused = [
        ("model", tables.model.is_some()),
        ("fleet.hardware", tables.fleet.hardware.is_some()),
        ("fleet.power_limit_w", tables.fleet.power_limit_w.is_some()),
    ];
    if let Some((key, _)) = unused.iter().find(|(_, given)| *given) {
        return Err(scenario.error(key, "found beside a fixed rate", "leave it out: it would change nothing"));
    }
    let parameters = CostParameters {
        bandwidth_share: 1.0,
        flops_share: 1.0,
        prefill_flops_share: 1.0,
        smooth_exponent: 1.0,
        step_gap_s: 1.0 / (rate * f64::from(tables.fleet.tensor_parallel.unwrap_or(1))),
        draft_pass_gap_s: 0.0,
        per_request_s: 0.0,
        prefill_launch_s: 0.0,
        eager_launch_s: 0.0,
    };
    let sizes = ModelSizes {
        name: "fixed-rate".to_owned(),
        layers: 0,
        hidden: 0,
        vocab: 0,
        total_parameters: 0.0,
        resident_bytes: 0.0,
        draft_resident_bytes: 0.0,
        vision_resident_bytes: 0.0,
        embedding_bytes: 0.0,
        head_bytes: 0.0,
        head_parameters: 0.0,
        body_read_bytes: 0.0,
        replicated_bytes: 0.0,
        body_parameters: 0.0,
        experts: None,
        kv: KvSizes {
            stored_bytes_per_token: 0.0,
            read_bytes_per_token: 0.0,
            stored_bytes_per_request: 0.0,
            windows: Vec::new(),
            replicated: false,
            heads: 1,
        },
        state: None,
        attention_flops_per_pair: 0.0,
        prefill_attention_flops_per_pair: 0.0,
        draft: None,
        table: None,
        arithmetic: Arithmetic::Bf16,
    };
    let settings = EngineSettings {
        policy: PolicySettings::Static,
        running_cap: 1,
        cap_source: RunningCap::BatchSize,
        kv_pool_tokens: u64::MAX >> 8,
        page_tokens: 1,
        lookahead_tokens: 0,
        overlap: false,
        computes_finished_rows: false,
        speculation: None,
        stride: Stride::Longest,
        state_pages_per_request: 0,
        prefix_cache: None,
        host: None,
    };
    let tensor_parallel = tables.fleet.tensor_parallel.unwrap_or(1);
    Ok(Setup {
        scenario: scenario.clone(),
        engine,
        hardware: None,
        sizes,
        derivation: Vec::new(),
        limits: None,
        parameters,
        settings,
        tensor_parallel,
        replicas: tables.fleet.gpus / tensor_parallel,
        communication_scale: 1.0,
        flops_per_s: 1.0,
        graphs: CapturedGraphs::new(vec![1], 0),
        all_reduce: None,
        step_table: None,
        draft_steps: 0,
        reuse: ReusePlan::NOTHING,
    })
}

/// Reads a measured step table: one row a point, columns matched by name.
fn read_step_table(scenario: &Scenario) -> Result<Option<StepTable>> {
    let Some(path) = &scenario.tables.engine.step_table else { return Ok(None) };
    let path = scenario.folder.join(path);
    let file = path.display().to_string();
    let text = crate::files::read_to_string(&path)
        .map_err(|error| scenario.error("engine.step_table", error.to_string(), ""))?;
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let bad = |error: csv::Error| {
        let line = error.position().map_or(1, csv::Position::line);
        Error::Input(InputError::new(error.to_string(), "write it as CSV with a header").file(&file).line(line))
    };
    let headers = reader.headers().map_err(bad)?.clone();
    let column = |names: &[&str]| headers.iter().position(|header| names.contains(&header));
    let missing = |names: &str| {
        let found = format!("no column {names} among {}", headers.iter().collect::<Vec<_>>().join(", "));
        Error::Input(
            InputError::new(found, "give batch, context_tokens (per request) or kv_tokens_resident, step_ms")
                .file(&file)
                .line(1),
        )
    };
    let batch = column(&["batch"]).ok_or_else(|| missing("batch"))?;
    let total = column(&["kv_tokens_resident", "total_context_tokens"]);
    let each = column(&["context_tokens"]);
    if total.is_none() && each.is_none() {
        return Err(missing("context_tokens or kv_tokens_resident"));
    }
    let step = column(&["step_ms", "step_ms_median"]).ok_or_else(|| missing("step_ms"))?;
    let mut points = Vec::new();
    for record in reader.records() {
        let record = record.map_err(bad)?;
        let line = record.position().map_or(0, csv::Position::line);
        let value = |at: usize| -> Result<f64> {
            let text = record.get(at).unwrap_or("");
            text.parse::<f64>().map_err(|_| {
                let key = headers.get(at).unwrap_or("");
                InputError::new(format!("found `{text}`"), "a number").file(&file).line(line).key(key).into()
            })
        };
        let rows = value(batch)?;
        let context = match (total, each) {
            (Some(total), _) => value(total)?,
            (None, Some(each)) => rows * value(each)?,
            (None, None) => 0.0,
        };
        points.push((rows, context, value(step)? / 1000.0));
    }
    StepTable::new(&points).map(Some).map_err(|error| error.file(&file).into())
}

impl Setup {
    /// Where the cap on running requests comes from, in words.
    pub fn cap_note(&self) -> String {
        let cap = self.settings.running_cap;
        let Some(limits) = &self.limits else { return format!("{cap} request at a time on each GPU") };
        match (limits.running_limit, &limits.state) {
            (RunningLimit::StateSlots, Some(state)) => format!(
                "{} slots ({}), {} reserved per request, so {cap} run at once",
                state.slots.value, state.slots.origin, state.reserved_per_request.value
            ),
            _ => format!("at most {cap} run at once ({})", limits.max_running.origin),
        }
    }
}
