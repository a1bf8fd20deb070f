//! The engine of a scenario: its flags, speculation, costs and settings.

use crate::cost::CostParameters;
use crate::engine::memory::{EngineFlags, Limits, LogReadings, MambaStrategy, RunningLimit, SglangFlags, VllmFlags};
use crate::engine::settings::{EngineSettings, PolicySettings, RunningCap, SglangSettings, Stride, VllmSettings};
use crate::engine::speculation::Speculation;
use crate::error::{Error, Result};
use crate::experiment::reuse::ReusePlan;
use crate::model::builtin::{Kind, find};
use crate::model::engine::{Engine, Policy};
use crate::model::hardware::Hardware;
use crate::model::scenario::{EngineTable, MambaWord, Scenario};
use crate::model::sizes::ModelSizes;

/// Share of the matrix rate that prefill reaches: 0.61 was measured of an 8B on an H200, against 0.75 for single large
/// products; the difference is attention, norms and launches.
const PREFILL_OF_LARGE_PRODUCTS: f64 = 0.61 / 0.75;

/// Exponent of the smooth maximum: skinny products on an H200 (12288 to 24576 wide, 1 to 2048 rows) lie between 2.5 and
/// 3.5 around the ridge.
const SMOOTH_EXPONENT: f64 = 3.0;

pub(super) fn relative(scenario: &Scenario, name_or_path: &str) -> String {
    let joined = scenario.folder.join(name_or_path);
    if crate::files::is_file(&joined) { joined.display().to_string() } else { name_or_path.to_owned() }
}

pub(super) fn read_engine(scenario: &Scenario) -> Result<Engine> {
    let found = find(Kind::Engine, &relative(scenario, &scenario.tables.engine.name)).map_err(|error| match error {
        Error::Input(input) => Error::Input(scenario.locate(input.key("engine.name"))),
        other => other,
    })?;
    crate::model::parse::parse_toml(found.text()?, &found.file)
}

pub(super) fn log_readings(table: &EngineTable) -> LogReadings {
    LogReadings {
        kv_pool_tokens: table.kv_pool_tokens,
        state_slots: table.state_slots,
        state_slots_per_request: table.state_slots_per_request,
        state_slots_held_per_request: table.state_slots_held_per_request,
        max_running: table.max_running,
    }
}

pub(super) fn engine_flags(table: &EngineTable, policy: Policy) -> EngineFlags {
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

pub(super) fn read_speculation(scenario: &Scenario) -> Result<Option<Speculation>> {
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

pub(super) fn cost_parameters(
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

pub(super) fn engine_settings(
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

pub(super) fn running_cap(limit: RunningLimit) -> RunningCap {
    match limit {
        RunningLimit::MaxRunning => RunningCap::MaxRunning,
        RunningLimit::StateSlots => RunningCap::StateSlots,
    }
}
