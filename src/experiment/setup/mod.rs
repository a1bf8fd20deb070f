//! What follows from a scenario: sizes, limits, engine settings, step costs. Nothing here is random but the speeds of
//! replicas.

mod engine;
mod fixed_rate;
mod refuse;
mod step_table;

use crate::cost::collective::AllReduce;
use crate::cost::{CapturedGraphs, CostParameters, StepCost, StepCostInputs, StepTable};
use crate::engine::memory::{GpuMemory, GraphUnit, Limits, MemoryQuestion, RunningLimit, VisionTower, limits};
use crate::engine::observe::Observer;
use crate::engine::prefix_cache::Prompts;
use crate::engine::replica::Replica;
use crate::engine::settings::{EngineSettings, PolicySettings, Stride};
use crate::engine::speculation::Speculation;
use crate::error::{Error, InputError, Result};
use crate::experiment::jobs::JobSource;
use crate::experiment::reuse::{Basis, ReusePlan, prompts};
use crate::inspect::{self, wrong_file};
use crate::model::Configured;
use crate::model::engine::{Engine, Policy, parse_version};
use crate::model::hardware::Hardware;
use crate::model::llm::Llm;
use crate::model::quantisation::{Quantisation, StateDtype};
use crate::model::scenario::{DispatchWord, Per, Scenario};
use crate::model::sizes::ModelSizes;
use crate::random::{Purpose, Streams};
use crate::simulation::{Dispatch, Fleet, InFlight, Outcome, simulate};
use crate::units::Span;
use statrs::distribution::{ContinuousCDF, Normal};
use std::sync::Arc;

use self::engine::{
    cost_parameters, engine_flags, engine_settings, log_readings, read_engine, read_speculation, relative,
};
use self::fixed_rate::fixed_rate;
use self::refuse::{full_key, refuse_foreign_flags, refuse_unused_state};
use self::step_table::read_step_table;

/// Free memory is less than the driver's total by the CUDA context: 1 GiB where no reading is known.
const CONTEXT_BYTES: f64 = 1_073_741_824.0;

/// Context that a server accepts when the scenario does not say, tokens.
const DEFAULT_CONTEXT_TOKENS: u64 = 32_768;

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
    /// Factors on the GPU times of the replicas, by number; those that are missing are 1.
    pub slowness: Vec<f64>,
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
            slowness: Vec::new(),
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
        let mut replicas: Vec<Replica> = (0..self.replicas)
            .map(|index| {
                let mut cost = self.step_cost();
                let mut slowness = self.slowness.get(index as usize).copied().unwrap_or(1.0);
                if spread > 0.0 {
                    // Lognormal speeds: never negative, and as likely to be faster as slower.
                    let score = Normal::standard().inverse_cdf(blocks.draws(u64::from(index))[0]);
                    slowness *= (spread * score).exp();
                }
                if slowness != 1.0 {
                    cost = cost.slowed(slowness);
                }
                Replica::new(index as usize, settings.clone(), cost, streams)
            })
            .collect();
        if let Some(root) = self.reuse.root {
            replicas.chunks_mut(root.replicas).for_each(|behind| Replica::share_root(behind, root.rates));
        }
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

/// Largest factor on experts' bytes or communication that is taken for meant.
const LARGEST_SCALE: f64 = 100.0;

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
