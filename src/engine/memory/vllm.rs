//! vLLM's memory arithmetic: what utilisation leaves after weights and activations, in blocks that KV and states share.
//!
//! Sources: `engine/arg_utils.py: get_batch_defaults`, `platforms/interface.py: _align_hybrid_block_size`,
//! `v1/kv_cache_interface.py: MambaSpec` of vLLM 0.33. Activation memory is profiled by the engine: here a prior.

use super::limits::{CapturedGraphs, GraphUnit, Limit, Limits, Origin, StateLimits, running_cap};
use super::{MIB, MemoryQuestion, VllmFlags, gib, impossible, note_release, tier_for};
use crate::error::{InputError, Result};
use crate::model::engine::{Version, VllmDefaults, VllmTier};

/// First and last release that this arithmetic was checked against.
const READ_RELEASES: (Version, Version) = ((0, 26, 0), (0, 33, 0));
/// Past inputs that a convolution state keeps: kernel 4 of every supported linear attention, less one.
const CONVOLUTION_INPUTS: f64 = 3.0;
/// Tokens in a chunk of linear attention: one state of workspace each.
const LINEAR_CHUNK_TOKENS: f64 = 64.0;

/// How the pool is cut into blocks.
struct Blocks {
    /// Tokens of full attention in a block.
    tokens: Limit,
    /// Bytes of one block on one GPU.
    bytes: f64,
    /// Blocks that the state of one running request takes; 0 for models without.
    state_blocks: u64,
}

/// Limits under vLLM.
pub(super) fn limits(q: &MemoryQuestion<'_>, flags: &VllmFlags, defaults: &VllmDefaults) -> Result<Limits> {
    let tier = tier_for(&defaults.tiers, |tier| tier.below_gib, q.gpu.reported_mib)?;
    let mut trail = Vec::new();
    note_release(q.version, READ_RELEASES, &mut trail);
    let default_seqs = Limit::new(tier.max_num_seqs, Origin::EngineDefault);
    let max_running = Limit::first(q.log.max_running, flags.max_num_seqs, default_seqs);
    let budget = Limit::first(None, flags.max_num_batched_tokens, default_budget(tier, flags.offline));
    let utilization = Limit::first(
        None,
        flags.gpu_memory_utilization,
        Limit::new(defaults.gpu_memory_utilization, Origin::EngineDefault),
    );
    if !(utilization.value > 0.0 && utilization.value <= 1.0) {
        let error = InputError::new(utilization.value.to_string(), "a share of memory above 0 and at most 1");
        return Err(error.key("gpu_memory_utilization").into());
    }
    let blocks = cut_blocks(q, flags, &mut trail)?;
    let count = match (q.log.state_slots, q.log.kv_pool_tokens, flags.num_gpu_blocks_override) {
        (Some(blocks), _, _) => Limit::new(blocks, Origin::FromLog),
        (None, Some(tokens), _) => Limit::new(blocks_of_logged_tokens(q, &blocks, tokens), Origin::FromLog),
        (None, None, Some(blocks)) => Limit::new(blocks, Origin::Flag),
        (None, None, None) => {
            let bytes = pool_bytes(q, flags, defaults, utilization.value, budget.value, &mut trail)?;
            let count = Limit::new((bytes / blocks.bytes).floor() as u64, Origin::Arithmetic);
            trail.push(format!("blocks = {count} = {} / {:.0} B", gib(bytes), blocks.bytes));
            count
        }
    };
    if count.origin != Origin::Arithmetic {
        trail.push(format!("blocks = {count}: memory flags do not move them"));
    }
    let state = (blocks.state_blocks > 0).then(|| state_limits(q, count, &blocks));
    check_sequences(max_running, count, state.is_some())?;
    let (running, limit) = running_cap(max_running.value, state.as_ref());
    if running == 0 || count.value == 0 {
        let reason =
            format!("no request may run: {} blocks, {} for the state of one", count.value, blocks.state_blocks);
        return Err(impossible(reason, Some("a larger gpu_memory_utilization")));
    }
    if let Some(state) = &state {
        trail.push(format!(
            "running requests on states = {} = floor({} blocks / ({} of state + 1 of KV))",
            state.cap, state.slots, state.reserved_per_request
        ));
    }
    trail.push(format!("running requests = {running}, set by {}; max_num_seqs = {max_running}", limit.name()));
    let logged = (count.value as f64 / blocks_for_longest(q, &blocks) as f64 * q.context_tokens as f64).floor();
    let graph_max = (defaults.graph_max_decode_steps * max_running.value * q.draft_tokens().max(1))
        .min(defaults.graph_max_tokens)
        .min(budget.value);
    Ok(Limits {
        max_running,
        kv_pool_tokens: Limit::new(count.value * blocks.tokens.value, count.origin),
        state,
        running_cap: running,
        running_limit: limit,
        page_tokens: blocks.tokens,
        chunk_tokens: Some(budget),
        step_tokens: Some(budget),
        mem_fraction: Some(utilization),
        overlap: q.engine.scheduler.overlap_lag_steps > 0,
        graphs: CapturedGraphs { unit: GraphUnit::Tokens, sizes: defaults.graphs.sizes(graph_max) },
        messages: vec![format!("GPU KV cache size: {} tokens", logged_tokens(q, &blocks, count.value, logged))],
        trail,
    })
}

/// Default token budget of a step.
fn default_budget(tier: &VllmTier, offline: bool) -> Limit {
    Limit::new(if offline { tier.step_tokens_offline } else { tier.step_tokens_server }, Origin::EngineDefault)
}

/// vLLM aborts at start-up when a hybrid model may run more sequences than there are blocks.
fn check_sequences(max_running: Limit, blocks: Limit, hybrid: bool) -> Result<()> {
    if !hybrid || max_running.value <= blocks.value {
        return Ok(());
    }
    let found = format!(
        "max_num_seqs {} exceeds the {} state blocks ({}): the engine aborts at start-up",
        max_running, blocks.value, blocks.origin
    );
    Err(InputError::new(found, format!("set max_num_seqs to at most {}", blocks.value)).key("max_num_seqs").into())
}

/// Block size and the blocks of a state. A hybrid's attention block grows until its page holds one layer's state.
fn cut_blocks(q: &MemoryQuestion<'_>, flags: &VllmFlags, trail: &mut Vec<String>) -> Result<Blocks> {
    let default = Limit::new(q.engine.scheduler.page_tokens, Origin::EngineDefault);
    let block = Limit::first(None, flags.block_size, default);
    if block.value == 0 {
        return Err(InputError::new("0 tokens", "at least 1").key("block_size").into());
    }
    let Some(state) = &q.model.state else {
        return Ok(Blocks { tokens: block, bytes: q.kv_bytes_per_token() * block.value as f64, state_blocks: 0 });
    };
    let drafts = f64::from(q.draft_steps.unwrap_or(0));
    let linear = f64::from(q.linear_layers);
    let attention = f64::from(q.model.layers - q.linear_layers);
    let layer_token_bytes = q.model.kv.stored_bytes_per_token / attention;
    // Each drafted token widens the convolution state by one input.
    let widened = state.conv_bytes_per_request * (1.0 + drafts / CONVOLUTION_INPUTS);
    let layer_state_bytes = (state.ssm_bytes_per_request + widened) / linear;
    let unit = block.value as f64;
    let tokens = (layer_state_bytes / layer_token_bytes / unit).ceil() * unit;
    // Layers of one kind form groups of equal size, so that every group's block has the same bytes.
    let draft_layers = if q.draft_steps.is_some() { 1.0 } else { 0.0 };
    let (fewer, more) = (linear.min(attention + draft_layers), linear.max(attention + draft_layers));
    let group_layers = if more < 1.25 * fewer { more } else { fewer };
    let groups = (linear / group_layers).ceil() as u64;
    let prefix_cache = flags.enable_prefix_caching.unwrap_or(q.engine.scheduler.prefix_cache);
    let per_group = if prefix_cache { 2 } else { 1 } + u64::from(q.draft_steps.unwrap_or(0));
    let bytes = group_layers * tokens * layer_token_bytes / q.ranks();
    trail.push(format!(
        "block = {tokens} tokens: a page of {layer_token_bytes:.0} B a token holds one layer's state of \
         {layer_state_bytes:.0} B; {group_layers} pages = {bytes:.0} B"
    ));
    trail.push(format!("state = {groups} groups of layers · {per_group} blocks for each running request"));
    let tokens = Limit::new(tokens as u64, Origin::Arithmetic);
    Ok(Blocks { tokens, bytes, state_blocks: groups * per_group })
}

/// Bytes of the pool: utilisation · total − weights − activations and graphs.
fn pool_bytes(
    q: &MemoryQuestion<'_>,
    flags: &VllmFlags,
    defaults: &VllmDefaults,
    utilization: f64,
    step_tokens: u64,
    trail: &mut Vec<String>,
) -> Result<f64> {
    q.check_weights_fit()?;
    let allowed = utilization * q.gpu.reported_mib * MIB;
    if allowed > q.gpu.free_bytes {
        let found = format!(
            "gpu_memory_utilization {utilization} asks for {} and {} are free: the engine refuses to start",
            gib(allowed),
            gib(q.gpu.free_bytes)
        );
        let most = (q.gpu.free_bytes / (q.gpu.reported_mib * MIB) * 100.0).floor() / 100.0;
        return Err(InputError::new(found, format!("at most {most}")).key("gpu_memory_utilization").into());
    }
    let weights = q.target_bytes() + q.draft_bytes();
    let (activations, origin) = match flags.activation_bytes {
        Some(bytes) => (bytes, "given"),
        None => (default_activations(q, defaults, step_tokens), "prior, not measured"),
    };
    let left = allowed - weights - activations;
    let line = format!(
        "pool = {} = {utilization} · {} - weights {} - activations and graphs {} ({origin})",
        gib(left),
        gib(q.gpu.reported_mib * MIB),
        gib(weights),
        gib(activations)
    );
    trail.push(line.clone());
    if left <= 0.0 {
        let help = "a larger gpu_memory_utilization, fewer max_num_batched_tokens";
        return Err(impossible(format!("nothing is left for KV: {line}"), Some(help)));
    }
    Ok(left)
}

/// Prior of what the engine finds when it profiles activations and captures graphs.
fn default_activations(q: &MemoryQuestion<'_>, defaults: &VllmDefaults, step_tokens: u64) -> f64 {
    let tokens = step_tokens as f64;
    let dense = defaults.activation_widths_per_token * tokens * 2.0 * f64::from(q.model.hidden);
    let state = q.model.state.as_ref().map_or(0.0, |state| {
        let layer = state.ssm_bytes_per_request / f64::from(q.linear_layers);
        defaults.state_workspaces * tokens / LINEAR_CHUNK_TOKENS * layer
    });
    let vision = if q.vision.is_some() { defaults.multimodal_bytes } else { 0.0 };
    defaults.fixed_bytes + (dense + state) / q.ranks() + vision
}

/// State blocks of a request and what they allow: each running request needs a block of KV besides.
fn state_limits(q: &MemoryQuestion<'_>, blocks: Limit, cut: &Blocks) -> StateLimits {
    let computed = Limit::new(cut.state_blocks, Origin::Arithmetic);
    let reserved = Limit::first(q.log.state_slots_per_request, None, computed);
    StateLimits {
        slots: blocks,
        reserved_per_request: reserved,
        held_per_request: Limit::first(q.log.state_slots_held_per_request, None, reserved),
        cap: blocks.value / (reserved.value + 1),
        shares_token_pool: true,
    }
}

/// Blocks of a request of the longest context.
fn blocks_for_longest(q: &MemoryQuestion<'_>, cut: &Blocks) -> u64 {
    q.context_tokens.div_ceil(cut.tokens.value).max(1) + cut.state_blocks
}

/// The engine's log counts a hybrid's pool in longest requests · context, not in blocks · tokens.
fn logged_tokens(q: &MemoryQuestion<'_>, cut: &Blocks, blocks: u64, hybrid_tokens: f64) -> u64 {
    if q.model.state.is_some() { hybrid_tokens as u64 } else { blocks * cut.tokens.value }
}

/// Blocks behind the token count of a log: the inverse of `logged_tokens`.
fn blocks_of_logged_tokens(q: &MemoryQuestion<'_>, cut: &Blocks, tokens: u64) -> u64 {
    if q.model.state.is_some() {
        let requests = tokens as f64 / q.context_tokens.max(1) as f64;
        (requests * blocks_for_longest(q, cut) as f64).round() as u64
    } else {
        tokens / cut.tokens.value
    }
}
