//! Flags and settings that would change nothing are refused, and errors get the keys of a scenario.

use crate::error::{InputError, Result};
use crate::model::engine::Policy;
use crate::model::scenario::{EngineTable, Scenario};
use crate::model::sizes::ModelSizes;

/// The memory arithmetic names flags; a scenario has them below `engine`.
pub(super) fn full_key(mut error: InputError, given: &EngineTable) -> InputError {
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

/// A flag that the engine does not have would be ignored in silence: refused.
pub(super) fn refuse_foreign_flags(scenario: &Scenario, policy: Policy) -> Result<()> {
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
pub(super) fn refuse_unused_state(scenario: &Scenario, sizes: &ModelSizes) -> Result<()> {
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
