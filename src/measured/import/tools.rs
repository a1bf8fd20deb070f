//! What each tool calls its numbers, and in which unit.

use serde_json::{Map, Value};

use super::{Run, Tool};

type Object = Map<String, Value>;

fn number(value: Option<&Value>) -> Option<f64> {
    match value? {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// The first of `keys` that holds a number.
fn first(object: &Object, keys: &[&str]) -> Option<f64> {
    keys.iter().find_map(|key| number(object.get(*key)))
}

/// The first number below `value` whose key is one of `keys`, however deep.
fn deep(value: &Value, keys: &[&str]) -> Option<f64> {
    match value {
        Value::Object(object) => {
            let here = object.iter().find_map(|(key, value)| {
                keys.contains(&key.as_str()).then(|| number(Some(value)).or_else(|| number(value.get(0))))?
            });
            here.or_else(|| object.values().find_map(|value| deep(value, keys)))
        }
        Value::Array(items) => items.iter().find_map(|value| deep(value, keys)),
        _ => None,
    }
}

/// The runs in one object of `tool`.
pub(super) fn runs(tool: Tool, object: &Object) -> Vec<Run> {
    match tool {
        Tool::VllmBench | Tool::SglangBench => vec![serving(object)],
        Tool::SglangOffline => vec![offline(object)],
        Tool::SglangOneBatch => vec![one_batch(object)],
        Tool::Aiperf => vec![aiperf(object)],
        Tool::InferenceX => vec![inference_x(object)],
        Tool::LlamaBatchedBench => vec![batched(object)],
        Tool::LlamaBench => llama_bench(object).into_iter().collect(),
        Tool::Guidellm => guidellm(object),
    }
}

fn serving(object: &Object) -> Run {
    let get = |keys: &[&str]| first(object, keys);
    let requests = get(&["completed", "num_prompts"]);
    let seconds = get(&["duration"]);
    let per_request = |total: &str| Some(get(&[total])? / requests.filter(|count| *count > 0.0)?);
    let at_once = object.get("request_rate").is_none_or(|rate| rate.as_str() == Some("inf") || rate.is_null());
    // Without a limit the client sends everything at once when the request rate is infinite.
    let all =
        if at_once { get(&["num_prompts", "completed"]) } else { get(&["max_concurrent_requests", "concurrency"]) };
    let from_total = Some(get(&["total_output_tokens"]).unwrap_or(0.0) / seconds.unwrap_or(f64::NAN));
    Run {
        concurrency: get(&["max_concurrency"]).or(all),
        output_tok_per_s: get(&["output_throughput"]).or(from_total),
        total_tok_per_s: get(&["total_token_throughput", "total_throughput"]),
        input_tokens: per_request("total_input_tokens").or_else(|| get(&["random_input_len"])),
        output_tokens: per_request("total_output_tokens").or_else(|| get(&["random_output_len"])),
        requests,
        failed: get(&["failed"]),
        ttft_ms: get(&["mean_ttft_ms", "median_ttft_ms"]),
        tpot_ms: get(&["mean_tpot_ms", "median_tpot_ms"]),
        seconds,
        acceptance: get(&["accept_length", "spec_decode_acceptance_length"]),
        running_cap: object.get("server_info").and_then(|info| {
            let states = info.get("internal_states").unwrap_or(info);
            deep(states, &["effective_max_running_requests_per_dp", "max_running_requests"])
        }),
        mean_in_flight: get(&["concurrency"]),
    }
}

/// Everything is given to the engine at once.
fn offline(object: &Object) -> Run {
    let get = |keys: &[&str]| first(object, keys);
    let requests = get(&["successful_requests"]);
    let each = |total: &str| Some(get(&[total])? / requests.filter(|count| *count > 0.0)?);
    Run {
        concurrency: requests,
        output_tok_per_s: get(&["output_throughput"]),
        total_tok_per_s: get(&["total_throughput"]),
        input_tokens: each("total_input_tokens"),
        output_tokens: each("total_output_tokens"),
        requests,
        seconds: get(&["total_latency"]),
        ..Run::default()
    }
}

/// The output rate leaves the prefill out where the tool says its own time to first token; the whole latency gives
/// the rate with it.
fn one_batch(object: &Object) -> Run {
    let get = |keys: &[&str]| first(object, keys);
    let (batch, output, seconds) = (get(&["batch_size"]), get(&["output_len"]), get(&["latency"]));
    let whole = batch.zip(output).zip(seconds).map(|((batch, output), seconds)| batch * output / seconds);
    Run {
        concurrency: batch,
        output_tok_per_s: whole.or_else(|| get(&["output_throughput"])),
        total_tok_per_s: get(&["overall_throughput"]),
        input_tokens: get(&["input_len"]),
        output_tokens: output,
        requests: batch,
        ttft_ms: get(&["last_ttft"]).map(|seconds| seconds * 1e3),
        seconds,
        acceptance: get(&["acc_length"]),
        ..Run::default()
    }
}

fn aiperf(object: &Object) -> Run {
    let average = |keys: &[&str]| {
        keys.iter().find_map(|key| {
            let metric = object.get(*key)?;
            let value = number(metric.get("avg")).or_else(|| number(Some(metric)))?;
            let unit = metric.get("unit").and_then(Value::as_str).unwrap_or("");
            let scale = match unit {
                "ns" => 1e-6,
                "us" => 1e-3,
                // Only times to be given in ms are written in s.
                "s" | "sec" if key.contains("token") && !key.contains("throughput") => 1e3,
                _ => 1.0,
            };
            Some(value * scale)
        })
    };
    Run {
        concurrency: object
            .get("input_config")
            .and_then(|config| deep(config, &["concurrency"]))
            .or_else(|| number(object.get("concurrency"))),
        output_tok_per_s: average(&["output_token_throughput"]),
        total_tok_per_s: average(&["total_token_throughput"]),
        input_tokens: average(&["input_sequence_length"]),
        output_tokens: average(&["output_sequence_length"]),
        requests: average(&["request_count"]),
        failed: average(&["error_request_count"]),
        ttft_ms: average(&["time_to_first_token"]),
        tpot_ms: average(&["inter_token_latency"]),
        seconds: average(&["benchmark_duration"]),
        ..Run::default()
    }
}

/// Rates are per GPU, times in seconds.
fn inference_x(object: &Object) -> Run {
    let get = |keys: &[&str]| first(object, keys);
    let gpus = get(&["num_gpus"]).or_else(|| get(&["tp"])).unwrap_or(1.0);
    Run {
        concurrency: get(&["conc"]),
        output_tok_per_s: get(&["output_tput_per_gpu"]).map(|rate| rate * gpus),
        total_tok_per_s: get(&["tput_per_gpu"]).map(|rate| rate * gpus),
        input_tokens: get(&["isl"]),
        output_tokens: get(&["osl"]),
        ttft_ms: get(&["mean_ttft", "median_ttft"]).map(|seconds| seconds * 1e3),
        tpot_ms: get(&["mean_tpot", "median_tpot"]).map(|seconds| seconds * 1e3),
        ..Run::default()
    }
}

/// The rate of decoding alone: the step time is batch / rate.
fn batched(object: &Object) -> Run {
    let get = |keys: &[&str]| first(object, keys);
    let batch = get(&["pl"]);
    Run {
        concurrency: batch,
        output_tok_per_s: get(&["speed_tg"]),
        input_tokens: get(&["pp"]),
        requests: batch,
        ttft_ms: get(&["t_pp"]).map(|seconds| seconds * 1e3),
        tpot_ms: batch.zip(get(&["speed_tg"])).map(|(batch, rate)| 1e3 * batch / rate),
        seconds: get(&["t"]),
        ..Run::default()
    }
}

/// One stream; tests of the prompt alone are no points.
fn llama_bench(object: &Object) -> Option<Run> {
    let get = |keys: &[&str]| first(object, keys);
    let generated = get(&["n_gen"])?;
    (generated > 0.0 && get(&["n_prompt"]).unwrap_or(0.0) == 0.0).then(|| Run {
        concurrency: Some(1.0),
        output_tok_per_s: get(&["avg_ts"]),
        input_tokens: get(&["n_depth"]).filter(|depth| *depth > 0.0),
        tpot_ms: get(&["avg_ts"]).map(|rate| 1e3 / rate),
        ..Run::default()
    })
}

/// The strategy stands in blocks whose layout changed between versions; the measured concurrency is always there.
fn guidellm(object: &Object) -> Vec<Run> {
    let benchmarks = object.get("benchmarks").and_then(Value::as_array);
    let run = |benchmark: &Value| {
        let metrics = benchmark.get("metrics");
        let mean = |name: &str| {
            let metric = metrics?.get(name)?;
            let group = metric.get("successful").or_else(|| metric.get("total")).unwrap_or(metric);
            number(group.get("mean"))
        };
        let count = metrics
            .and_then(|metrics| metrics.get("request_latency")?.get("successful")?.get("count"))
            .and_then(|count| number(Some(count)));
        let measured = mean("request_concurrency");
        let asked = ["config", "args", "scheduler_state", "scheduler"]
            .iter()
            .find_map(|block| deep(benchmark.get(*block)?, &["streams", "max_concurrency", "concurrency"]));
        Run {
            concurrency: asked.or(measured),
            output_tok_per_s: mean("output_tokens_per_second"),
            total_tok_per_s: mean("tokens_per_second"),
            input_tokens: mean("prompt_token_count"),
            output_tokens: mean("output_token_count"),
            requests: count,
            ttft_ms: mean("time_to_first_token_ms"),
            tpot_ms: mean("inter_token_latency_ms").or_else(|| mean("time_per_output_token_ms")),
            mean_in_flight: measured,
            ..Run::default()
        }
    };
    benchmarks.into_iter().flatten().map(run).collect()
}
