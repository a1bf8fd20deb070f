//! Static batches (Transformers `generate`): what is free after loading is the cache; the batch size is the user's.

use super::limits::{CapturedGraphs, GraphUnit, Limit, Limits, Origin, RunningLimit};
use super::{MemoryQuestion, gib, impossible};
use crate::error::{InputError, Result};

/// Limits of a static batch of `batch_size` rows.
pub(super) fn limits(question: &MemoryQuestion<'_>, batch_size: Option<u64>) -> Result<Limits> {
    let Some(batch_size) = question.log.max_running.or(batch_size).filter(|rows| *rows > 0) else {
        let remedy = "set the rows of a batch with engine.max_running: static batching has no default";
        return Err(InputError::new("no batch size", remedy).key("engine.max_running").into());
    };
    question.check_weights_fit()?;
    let weights = question.target_bytes() + question.draft_bytes();
    let states = question.state_bytes().unwrap_or(0.0) * batch_size as f64;
    let left = question.gpu.free_bytes - weights - states;
    let line = format!(
        "cache = {} = free {} - weights {} - states of {batch_size} rows {}",
        gib(left),
        gib(question.gpu.free_bytes),
        gib(weights),
        gib(states)
    );
    if left <= 0.0 {
        return Err(impossible(format!("nothing is left for KV: {line}"), Some("a smaller batch")));
    }
    let tokens = (left / question.kv_bytes_per_token()).floor() as u64;
    let kv_pool_tokens = Limit::first(question.log.kv_pool_tokens, None, Limit::new(tokens, Origin::Arithmetic));
    Ok(Limits {
        max_running: Limit::first(question.log.max_running, Some(batch_size), Limit::new(batch_size, Origin::Flag)),
        kv_pool_tokens,
        state: None,
        running_cap: batch_size,
        running_limit: RunningLimit::MaxRunning,
        page_tokens: Limit::new(question.engine.scheduler.page_tokens, Origin::EngineDefault),
        chunk_tokens: None,
        step_tokens: None,
        mem_fraction: None,
        overlap: false,
        graphs: CapturedGraphs { unit: GraphUnit::Requests, sizes: Vec::new() },
        messages: Vec::new(),
        trail: vec![line, format!("KV tokens = {kv_pool_tokens}, padding included")],
    })
}
