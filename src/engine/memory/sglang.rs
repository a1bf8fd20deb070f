//! SGLang's memory arithmetic: memory fraction, budget of the pools, state pool and KV pool, running requests.
//!
//! Sources: `arg_groups/memory_hook.py`, `mem_cache/kv_cache_configurator.py`, `model_executor/pool_configurator.py`,
//! `configs/mamba_utils.py` of SGLang; read at 0.5.10, 0.5.12 and 0.5.23. Where a change lies between two of these,
//! the boundary is noted beside its constant.

use super::limits::{CapturedGraphs, GraphUnit, Limit, Limits, Origin, StateLimits, running_cap};
use super::{MambaStrategy, MemoryQuestion, SglangFlags, VisionTower, gib, impossible, note_release, tier_for};
use crate::error::{InputError, Result};
use crate::model::engine::{SglangDefaults, Version};

/// First and last release that this arithmetic was checked against.
const READ_RELEASES: (Version, Version) = ((0, 5, 10), (0, 5, 23));
/// First release that solves slots and draft states together, and the first with today's tiers and reserve. (The
/// reserve changed at some release after 0.5.12 and by 0.5.23.)
const JOINT_SOLVE: Version = (0, 5, 13);
/// First release whose `auto` strategy buffers, and the first taken to load the draft worker before sizing the pools.
/// (The loading order changed after 0.5.12 and by 0.5.23.)
const AUTO_BUFFERS: Version = (0, 5, 14);
/// Memory above which the reserve has a floor, in MiB.
const LARGE_GPU_MIB: f64 = 60.0 * 1024.0;
/// That floor, in MiB.
const LARGE_GPU_RESERVE_MIB: f64 = 10_240.0;
/// What older releases add to the reserve under speculation, in MiB.
const OLD_DRAFT_RESERVE_MIB: f64 = 4096.0;
/// What prefill graphs of MLA models add to the reserve, in MiB.
const MLA_GRAPH_RESERVE_MIB: f64 = 1536.0;
/// Distance between captured prefill sizes up to each end, in tokens: 58 sizes for a chunk of 8192.
const PREFILL_GRAPH_STEPS: [(u64, u64); 6] = [(32, 4), (256, 16), (512, 32), (1024, 64), (4096, 256), (u64::MAX, 512)];

/// What is settled before any memory is counted.
struct Plan {
    chunk: Limit,
    graph_max: u64,
    /// Running requests as far as flags and speculation say; `None`: derived from the KV pool.
    max_running: Option<Limit>,
    overlap: bool,
    /// State slots set aside for each running request.
    slots_per_request: Limit,
}

/// The pools.
struct Pools {
    kv_tokens: u64,
    slots: Option<Limit>,
}

/// Limits under SGLang.
pub(super) fn limits(q: &MemoryQuestion<'_>, flags: &SglangFlags, defaults: &SglangDefaults) -> Result<Limits> {
    let plan = plan(q, flags, defaults)?;
    let mut trail = Vec::new();
    note_release(q.version, READ_RELEASES, &mut trail);
    let fraction = match flags.mem_fraction_static {
        Some(given) if !(given > 0.0 && given < 1.0) => {
            let error = InputError::new(given.to_string(), "a share of memory above 0 and below 1");
            return Err(error.key("mem_fraction_static").into());
        }
        Some(given) => Limit::new(given, Origin::Flag),
        None => Limit::new(default_fraction(q, &plan, &mut trail)?, Origin::Arithmetic),
    };
    let (kv_pool_tokens, slots) = match (q.log.kv_pool_tokens, q.state_bytes(), q.log.state_slots) {
        // Everything was read off the log: nothing is left to compute, and nothing that could contradict it.
        (Some(tokens), None, _) => (Limit::new(tokens, Origin::FromLog), None),
        (Some(tokens), Some(_), Some(slots)) => {
            (Limit::new(tokens, Origin::FromLog), Some(Limit::new(slots, Origin::FromLog)))
        }
        (tokens, _, _) => {
            let pools = pools(q, flags, defaults, &plan, fraction.value, &mut trail)?;
            let page = flags.page_size.unwrap_or(q.engine.scheduler.page_tokens).max(1);
            let computed = Limit::new(pools.kv_tokens / page * page, Origin::Arithmetic);
            (Limit::first(tokens, None, computed), pools.slots)
        }
    };
    if kv_pool_tokens.origin == Origin::FromLog {
        trail.push(format!("KV tokens = {kv_pool_tokens}: memory flags do not move them"));
    }
    let max_running = plan.max_running.unwrap_or_else(|| {
        let by_context = kv_pool_tokens.value as f64 / q.context_tokens.max(1) as f64 * 512.0;
        let requests = (by_context as u64).clamp(2048, 4096).min(kv_pool_tokens.value / 2);
        Limit::new(requests, Origin::Arithmetic)
    });
    let state = slots.map(|slots| state_limits(q, slots, plan.slots_per_request));
    let (running, limit) = running_cap(max_running.value, state.as_ref());
    if running == 0 {
        let (slots, each) = state.map_or((0, 0), |state| (state.slots.value, state.reserved_per_request.value));
        let reason = format!("no request may run: {slots} state slots, {each} set aside for each request");
        return Err(impossible(reason, Some("a larger mem_fraction_static or mamba_full_memory_ratio")));
    }
    let mut messages = Vec::new();
    if let Some(state) = &state {
        trail.push(format!(
            "running requests on states = {} = floor({} slots / {} set aside for each)",
            state.cap, state.slots, state.reserved_per_request
        ));
        if state.cap < max_running.value {
            messages.push(format!(
                "max_running_requests is capped to {running} by the mamba state cache (max_mamba_cache_size={}, {} state \
                 slots per request)",
                state.slots.value, state.reserved_per_request.value
            ));
        }
    }
    trail.push(format!("running requests = {running}, set by {}; max_running = {max_running}", limit.name()));
    let default_prefill = Limit::new(defaults.max_prefill_tokens, Origin::EngineDefault);
    let max_prefill = Limit::first(None, flags.max_prefill_tokens, default_prefill);
    messages.push(format!(
        "max_total_num_tokens={}, chunked_prefill_size={}, max_prefill_tokens={}, max_running_requests={running}, \
         context_len={}",
        kv_pool_tokens.value, plan.chunk.value, max_prefill.value, q.context_tokens
    ));
    let rule = if q.draft_steps.is_some() { &defaults.graphs_with_drafts } else { &defaults.graphs_without_drafts };
    Ok(Limits {
        max_running,
        kv_pool_tokens,
        state,
        running_cap: running,
        running_limit: limit,
        page_tokens: Limit::first(
            None,
            flags.page_size,
            Limit::new(q.engine.scheduler.page_tokens, Origin::EngineDefault),
        ),
        chunk_tokens: Some(plan.chunk),
        step_tokens: Some(max_prefill),
        mem_fraction: Some(fraction),
        overlap: plan.overlap,
        // No batch can exceed the running requests, so larger graphs are not captured.
        graphs: CapturedGraphs { unit: GraphUnit::Requests, sizes: rule.sizes(plan.graph_max.min(running)) },
        messages,
        trail,
    })
}

/// Chunk, graphs, buffering of states: what follows from flags, release and memory tier.
fn plan(q: &MemoryQuestion<'_>, flags: &SglangFlags, defaults: &SglangDefaults) -> Result<Plan> {
    let tier = tier_for(&defaults.tiers, |tier| tier.below_gib, q.gpu.reported_mib)?;
    let today = [tier.chunk_tokens, tier.graph_max, tier.graph_max_tp4];
    let [chunk, graph, graph_tp4] = tier.before_0_5_13.filter(|_| q.version < JOINT_SOLVE).unwrap_or(today);
    let tier_graph = if q.tensor_parallel < 4 { graph } else { graph_tp4 };
    let user_running = flags.max_running_requests.unwrap_or(u64::MAX);
    let by_drafts = q.draft_steps.map(|_| Limit::new(defaults.max_running_with_drafts, Origin::EngineDefault));
    let given = q.log.max_running.map(|value| Limit::new(value, Origin::FromLog));
    let given = given.or(flags.max_running_requests.map(|value| Limit::new(value, Origin::Flag)));
    let (slots, overlap) = slots_per_request(q, flags)?;
    let chosen = flags.mamba_scheduler_strategy.is_some_and(|strategy| strategy != MambaStrategy::Auto);
    let chosen = chosen || flags.disable_radix_cache || flags.disable_overlap_schedule;
    let origin = if chosen { Origin::Flag } else { Origin::EngineDefault };
    Ok(Plan {
        chunk: Limit::first(None, flags.chunked_prefill_size, Limit::new(chunk, Origin::EngineDefault)),
        graph_max: flags.cuda_graph_max_bs.unwrap_or(tier_graph.min(user_running)),
        max_running: given.or(by_drafts),
        overlap,
        slots_per_request: Limit::first(q.log.state_slots_per_request, None, Limit::new(slots, origin)),
    })
}

/// Slots set aside for one running request (`_calculate_mamba_ratio`), and whether overlap scheduling is on.
fn slots_per_request(q: &MemoryQuestion<'_>, flags: &SglangFlags) -> Result<(u64, bool)> {
    let overlap = !flags.disable_overlap_schedule;
    if q.model.state.is_none() || flags.disable_radix_cache {
        return Ok((1, overlap));
    }
    let strategy = match flags.mamba_scheduler_strategy.unwrap_or_default() {
        MambaStrategy::Auto if q.version >= AUTO_BUFFERS && overlap => MambaStrategy::ExtraBuffer,
        MambaStrategy::Auto => MambaStrategy::NoBuffer,
        named => named,
    };
    if strategy == MambaStrategy::NoBuffer && q.draft_steps.is_some() && q.version < AUTO_BUFFERS {
        let found = "speculation with a prefix cache and unbuffered states, which this release refuses";
        let remedy = "set mamba_scheduler_strategy to extra_buffer, or disable_radix_cache";
        return Err(InputError::new(found, remedy).key("mamba_scheduler_strategy").into());
    }
    Ok(match strategy {
        MambaStrategy::Auto | MambaStrategy::NoBuffer => (3, false),
        MambaStrategy::ExtraBuffer if overlap => (5, true),
        MambaStrategy::ExtraBuffer => (4, false),
        MambaStrategy::ExtraBufferLazy => (4, overlap),
    })
}

/// Slots reserved, held, and what they allow.
fn state_limits(q: &MemoryQuestion<'_>, slots: Limit, reserved: Limit) -> StateLimits {
    // Reported for a reservation of 5: one live, two tracked, one locked prefix are held and the fifth never is. For
    // other reservations nothing was observed, so that they count as held in full.
    let held = if reserved.value == 5 { 4 } else { reserved.value };
    StateLimits {
        slots,
        reserved_per_request: reserved,
        held_per_request: Limit::first(
            q.log.state_slots_held_per_request,
            None,
            Limit::new(held, Origin::EngineDefault),
        ),
        cap: slots.value / reserved.value.max(1),
        shares_token_pool: false,
    }
}

/// Default `mem_fraction_static`: what a reserve leaves of the memory, less for a vision tower.
fn default_fraction(q: &MemoryQuestion<'_>, plan: &Plan, trail: &mut Vec<String>) -> Result<f64> {
    let memory = q.gpu.reported_mib;
    let graphs =
        if q.model.kv.replicated { MLA_GRAPH_RESERVE_MIB } else { 8.0 * prefill_graph_sizes(plan.chunk.value) as f64 };
    let mut reserve = 512.0
        + 1.5 * plan.chunk.value.max(2048) as f64
        + 1024.0 * q.ranks() / 8.0
        + 2.0 * plan.graph_max as f64
        + graphs;
    if memory > LARGE_GPU_MIB {
        reserve = reserve.max(LARGE_GPU_RESERVE_MIB);
    }
    if q.version < JOINT_SOLVE && q.draft_steps.is_some() {
        reserve += OLD_DRAFT_RESERVE_MIB;
    }
    let share = ((memory - reserve) / memory * 1000.0).round() / 1000.0;
    let vision = q.vision.map_or(1.0, vision_factor);
    let fraction = share * vision;
    trail.push(format!(
        "mem_fraction_static = {fraction:.3} = ({memory:.0} - reserve {reserve:.0}) / {memory:.0} MiB{}",
        if q.vision.is_some() { format!(" · {vision:.4} for the vision tower") } else { String::new() }
    ));
    if fraction <= 0.0 {
        return Err(impossible(format!("the reserve of {reserve:.0} MiB exceeds the GPU's {memory:.0} MiB"), None));
    }
    Ok(fraction)
}

/// What a vision tower leaves of the memory fraction: 0.95 · clamp(1 − 0.1·(c − 1), 0.8, 1.05), c its size relative to
/// 24 layers of width 1024.
fn vision_factor(tower: VisionTower) -> f64 {
    let layers = f64::from(tower.num_hidden_layers.unwrap_or(24));
    let size = layers * f64::from(tower.hidden).powi(2) / (24.0 * 1024.0 * 1024.0);
    0.95 * (1.0 - 0.1 * (size - 1.0)).clamp(0.8, 1.05)
}

/// How many prefill sizes are captured up to `chunk` tokens.
fn prefill_graph_sizes(chunk: u64) -> u64 {
    let mut sizes = 0;
    let mut start = 0;
    for (end, step) in PREFILL_GRAPH_STEPS {
        sizes += (chunk.min(end) - start) / step;
        if chunk <= end {
            break;
        }
        start = end;
    }
    sizes
}

/// Memory for KV and states ("rest"), in bytes.
fn budget(
    q: &MemoryQuestion<'_>,
    flags: &SglangFlags,
    defaults: &SglangDefaults,
    fraction: f64,
    trail: &mut Vec<String>,
) -> Result<f64> {
    let free = q.gpu.free_bytes;
    let draft_first = q.draft_steps.is_some() && q.version >= AUTO_BUFFERS;
    let target = q.target_bytes();
    let draft = if draft_first { q.draft_bytes() } else { 0.0 };
    let worker = if draft_first { flags.draft_worker_bytes.unwrap_or(defaults.draft_worker_bytes) } else { 0.0 };
    // The draft worker loads its own embedding and head and drops them only after the pools are sized.
    let copies = if draft_first && !flags.draft_copies_shared.unwrap_or(false) {
        (q.model.embedding_bytes + q.model.head_bytes) / q.ranks()
    } else {
        0.0
    };
    let cache = if q.vision.is_some() { defaults.multimodal_cache_bytes } else { 0.0 };
    let outside = free * (1.0 - fraction);
    let rest = free - target - draft - copies - worker - outside - cache;
    let line = format!(
        "rest = {} = free {} - weights {} - draft layer {} - its copies of embedding and head {} - draft worker {} - \
         outside the static share {} - multimodal cache {}",
        gib(rest),
        gib(free),
        gib(target),
        gib(draft),
        gib(copies),
        gib(worker),
        gib(outside),
        gib(cache)
    );
    trail.push(line.clone());
    if rest <= 0.0 {
        return Err(impossible(format!("nothing is left for KV: {line}"), Some("a larger mem_fraction_static")));
    }
    Ok(rest)
}

/// Sizes the state pool, then the KV pool from what it leaves.
fn pools(
    q: &MemoryQuestion<'_>,
    flags: &SglangFlags,
    defaults: &SglangDefaults,
    plan: &Plan,
    fraction: f64,
    trail: &mut Vec<String>,
) -> Result<Pools> {
    q.check_weights_fit()?;
    let rest = budget(q, flags, defaults, fraction, trail)?;
    let (slots, states) = match q.state_bytes() {
        None => (None, 0.0),
        Some(slot_bytes) => {
            let ratio = flags.mamba_full_memory_ratio.unwrap_or(defaults.mamba_full_memory_ratio);
            let (slots, bytes) = state_pool(q, flags, plan, rest, slot_bytes, ratio, trail)?;
            (Some(slots), bytes)
        }
    };
    let kv_bytes = rest - states;
    let each = q.kv_bytes_per_token();
    if kv_bytes < each {
        let reason = format!("states take {} of {}, and nothing is left for KV", gib(states), gib(rest));
        return Err(impossible(reason, Some("fewer max_running_requests, a larger mem_fraction_static")));
    }
    let kv_tokens = (kv_bytes / each).floor() as u64;
    trail.push(format!("KV tokens = {kv_tokens} = {} / {each:.0} B", gib(kv_bytes)));
    Ok(Pools { kv_tokens, slots })
}

/// State slots, and the bytes that they and the draft states take from the budget.
fn state_pool(
    q: &MemoryQuestion<'_>,
    flags: &SglangFlags,
    plan: &Plan,
    rest: f64,
    slot_bytes: f64,
    ratio: f64,
    trail: &mut Vec<String>,
) -> Result<(Limit, f64)> {
    let drafts = q.draft_tokens() as f64;
    let per_request = plan.slots_per_request.value as f64;
    let wanted = plan.max_running.map(|limit| limit.value);
    // One intermediate state for each draft token of each running request.
    let draft_states = |requests: u64| requests as f64 * drafts * slot_bytes;
    let joint = q.version >= JOINT_SOLVE;
    let reserved_first = if joint { 0.0 } else { draft_states(wanted.unwrap_or(0)) };
    let given = q.log.state_slots.map(|slots| Limit::new(slots, Origin::FromLog));
    let given = given.or(flags.max_mamba_cache_size.map(|slots| Limit::new(slots, Origin::Flag)));
    let given = given.or(wanted.filter(|_| flags.disable_radix_cache).map(|n| Limit::new(n, Origin::Arithmetic)));
    let slots = match given {
        Some(slots) => slots,
        None => {
            let budget = (rest - reserved_first) * ratio / (1.0 + ratio);
            let count = if joint {
                (budget - slot_bytes * (1.0 + drafts)) / (slot_bytes * (1.0 + drafts / per_request))
            } else {
                budget / slot_bytes
            };
            let before = if joint { String::new() } else { format!(" - draft states {}", gib(reserved_first)) };
            let line = format!(
                "state slots = floor({count:.2}); share of states {} = (rest {}{before}) · {ratio} / (1 + {ratio}); slot \
                 {slot_bytes:.0} B, {drafts} draft states for every {per_request} slots",
                gib(budget),
                gib(rest)
            );
            trail.push(line.clone());
            if count < 1.0 {
                let help = "fewer max_running_requests, a larger mem_fraction_static or mamba_full_memory_ratio";
                return Err(impossible(format!("no state slot fits: {line}"), Some(help)));
            }
            Limit::new(count.floor() as u64, Origin::Arithmetic)
        }
    };
    let running = wanted.unwrap_or(u64::MAX).min(slots.value / plan.slots_per_request.value.max(1));
    let bytes = if joint {
        // A padding slot and a padding request come on top.
        draft_states(running + 1) + (slots.value as f64 + 1.0) * slot_bytes
    } else {
        reserved_first + slots.value as f64 * slot_bytes
    };
    trail.push(format!("state pool = {} for {} slots and the draft states", gib(bytes), slots));
    Ok((slots, bytes))
}
