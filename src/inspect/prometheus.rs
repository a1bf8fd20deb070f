//! Prometheus snapshots of vLLM and SGLang.

use std::collections::BTreeMap;

use super::log::{EngineReadings, LogPoint};
use crate::error::InputError;

/// Values of a snapshot by metric, summed over labels such as the replica; `place` keeps positions apart.
fn values(text: &str) -> BTreeMap<String, f64> {
    // A file may hold several snapshots: the last value of each series counts.
    let mut series: BTreeMap<&str, f64> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        // A time stamp may follow the value.
        let Some(end) = line.find('}').map(|end| end + 1).or_else(|| line.find(' ')) else { continue };
        let value = line[end..].split_whitespace().next().and_then(|value| value.parse::<f64>().ok());
        if let Some(value) = value.filter(|value| value.is_finite()) {
            series.insert(line[..end].trim(), value);
        }
    }
    let mut sums = BTreeMap::new();
    for (key, value) in series {
        let (name, labels) = key.split_once('{').unwrap_or((key, ""));
        if name.ends_with("_bucket") || name.ends_with("_created") {
            continue;
        }
        let name = name.strip_suffix("_total").unwrap_or(name);
        let place = labels.split_once("position=\"").and_then(|(_, rest)| rest.split('"').next());
        let name = place.map_or_else(|| name.to_owned(), |place| format!("{name}[{place}]"));
        *sums.entry(name).or_insert(0.0) += value;
    }
    sums
}

/// Whether `text` starts like a snapshot of a known engine.
pub(super) fn is_snapshot(head: &str) -> bool {
    head.lines().any(|line| {
        let line = line.trim_start_matches("# HELP ").trim_start_matches("# TYPE ");
        (line.starts_with("vllm:") || line.starts_with("sglang:")) && line.contains(['{', ' '])
    })
}

/// Reads a snapshot.
///
/// # Errors
///
/// When there is no value of a known engine.
pub fn read_metrics(text: &str) -> Result<EngineReadings, InputError> {
    let values = values(text);
    let engine = if values.keys().any(|key| key.starts_with("sglang:")) { "SGLang" } else { "vLLM" };
    let prefix = if engine == "SGLang" { "sglang:" } else { "vllm:" };
    let get = |name: &str| values.get(&format!("{prefix}{name}")).copied();
    if !values.keys().any(|key| key.starts_with(prefix)) {
        return Err(InputError::new("no metric of a known engine", "give a snapshot of vLLM's or SGLang's /metrics"));
    }
    let sglang = engine == "SGLang";
    let running = get(if sglang { "num_running_reqs" } else { "num_requests_running" });
    let queued = get(if sglang { "num_queue_reqs" } else { "num_requests_waiting" });
    let whole = |value: Option<f64>| value.filter(|value| *value >= 0.0).map(|value| value as u64);
    let states = ["mamba_available_tokens", "mamba_evictable_tokens", "mamba_used_tokens"].map(get);
    let state_total: f64 = states.iter().flatten().sum();
    let ratio = |above: Option<f64>, below: Option<f64>| Some(above? / below.filter(|below| *below > 0.0)?);
    let mut readings = EngineReadings {
        engine,
        lines: text.lines().count() as u64,
        kv_pool_tokens: whole(get("max_total_num_tokens")),
        context_tokens: whole(get("context_len")),
        state_slots: whole((state_total > 0.0).then_some(state_total)),
        preemptions: whole(get("num_preemptions").or_else(|| get("num_retracted_requests"))).unwrap_or(0),
        prefix_hit_share: get("cache_hit_rate")
            .or_else(|| ratio(get("prefix_cache_hits"), get("prefix_cache_queries"))),
        ..EngineReadings::default()
    };
    let accepted = ratio(get("spec_decode_num_accepted_tokens"), get("spec_decode_num_drafts")).map(|mean| 1.0 + mean);
    let acceptance = get("spec_accept_length").filter(|length| *length > 0.0).or(accepted);
    let by_place = (0..64).map_while(|place| {
        ratio(get(&format!("spec_decode_num_accepted_tokens_per_pos[{place}]")), get("spec_decode_num_drafts"))
    });
    readings.acceptance_by_place = by_place.collect();
    readings.acceptance = acceptance;
    if running.is_some() || queued.is_some() {
        readings.moment(LogPoint {
            line: 0,
            running: whole(running).unwrap_or(0) as u32,
            queued: whole(queued).unwrap_or(0) as u32,
            tok_per_s: get("gen_throughput"),
            acceptance,
            kv_used: get("full_token_usage").or_else(|| get("token_usage")).or_else(|| get("kv_cache_usage_perc")),
            state_used: get("mamba_usage"),
        });
    }
    readings.conclude();
    Ok(readings)
}
