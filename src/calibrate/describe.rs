//! From the description of a measured table to a scenario: names of the source's own words, found among `models/`.

use crate::error::{InputError, Result};
use crate::experiment::Setup;
use crate::measured::{About, Table};
use crate::model::builtin::{Kind, names};
use crate::model::scenario::Scenario;

use super::prior::{Known, position_acceptance};

/// A table as a setup, with what had to be assumed.
#[derive(Clone)]
pub struct Described {
    /// The setup of one replica.
    pub setup: Setup,
    /// What is known besides.
    pub known: Known,
    /// What was assumed or replaced, in words.
    pub assumed: Vec<String>,
}

/// Sequences to try in turn where an engine refuses its default for want of state blocks.
const SEQUENCES: [u64; 6] = [256, 128, 64, 32, 16, 8];

/// A prompt of unknown length, tokens: "short".
const SHORT_PROMPT: u64 = 128;

/// Acceptance of one position where nothing is known of it: the middle of the published range.
const ACCEPTANCE: f64 = 0.72;

/// The setup of a table's description.
///
/// # Errors
/// What this program cannot express (pipeline and expert parallelism, unknown names), with the reason.
pub fn describe(table: &Table) -> Result<Described> {
    let Some(about) = &table.about else {
        return Err(not_covered("a table without a description", "write its .toml beside it"));
    };
    if about.pp.is_some_and(|stages| stages > 1) {
        return Err(not_covered("pipeline parallelism", "the simulator has no pipeline stages"));
    }
    if about.ep.is_some_and(|ranks| ranks > 1) && about.dp.is_some_and(|replicas| replicas > 1) {
        return Err(not_covered("expert parallelism over replicas", "its replicas step together"));
    }
    let mut assumed = Vec::new();
    let mut last = None;
    // The engine's default of sequences first, then fewer: hybrids hold a state block each.
    for sequences in std::iter::once(None).chain(SEQUENCES.into_iter().map(Some)) {
        let text = scenario_text(about, table, sequences, &mut assumed)?;
        let scenario = Scenario::parse(&text, &table.file, &table.file, Default::default(), &[])?;
        match Setup::new(&scenario) {
            Ok(mut setup) => {
                setup.replicas = 1;
                assumed.sort();
                assumed.dedup();
                if let Some(sequences) = sequences {
                    assumed.push(format!("at most {sequences} sequences: the engine refuses its default"));
                }
                return Ok(Described { setup, known: known(about), assumed });
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| not_covered("nothing fits", "")))
}

fn not_covered(found: &str, remedy: &str) -> crate::error::Error {
    InputError::new(format!("not covered: {found}"), remedy).into()
}

fn known(about: &About) -> Known {
    Known {
        acceptance: tokens_per_step(about).map(|(tokens, drafted)| position_acceptance(tokens, drafted)),
        kv_pool: about.kv_capacity_tokens_per_replica.is_some(),
        kv_dtype_unknown: about.kv_dtype.as_deref().is_none_or(|text| text.starts_with("not")),
        ..Known::default()
    }
}

fn scenario_text(about: &About, table: &Table, sequences: Option<u64>, assumed: &mut Vec<String>) -> Result<String> {
    let (llm, weights) = model(about, assumed)?;
    let (hardware, power_w) = hardware(about)?;
    let engine = engine(about, assumed)?;
    let ranks = about.tp.unwrap_or(1);
    // TensorRT-LLM's FP8 checkpoints declare an fp8 cache.
    let declared = about.engine.as_deref().is_some_and(|name| name.contains("TensorRT"))
        && about.quantisation.as_deref() == Some("FP8");
    if declared && !about.kv_dtype.as_deref().is_some_and(|text| text.starts_with("fp8")) {
        assumed.push("fp8 KV".to_owned());
    }
    let given = about.kv_dtype.as_deref().is_some_and(|text| text.starts_with("fp8"));
    let kv = if given || declared { "kv = \"fp8\"\n" } else { "" };
    let mut text = format!(
        "[job]\nrequests = 1\nprompt_tokens = 1\noutput_tokens = 1\ncontext_tokens = {}\n\n[fleet]\nhardware = \"{hardware}\"\ngpus = {ranks}\n\
         tensor_parallel = {ranks}\n",
        about.max_model_len.unwrap_or(8192).max(longest(table))
    );
    if let Some(watts) = power_w {
        text += &format!("power_limit_w = {watts}\n");
    }
    text += &format!("\n[model]\nllm = \"{llm}\"\nweights = \"{weights}\"\n{kv}\n[engine]\nname = \"{engine}\"\n");
    if let Some(version) = about.engine_version.as_deref().and_then(version) {
        text += &format!("version = \"{version}\"\n");
    }
    let cap = about.max_running_requests.as_ref().and_then(|given| given.number()).map(|cap| cap as u64);
    match (cap, sequences) {
        (Some(cap), None) => text += &format!("max_running = {cap}\n"),
        (cap, Some(sequences)) => text += &format!("max_running = {}\n", cap.unwrap_or(sequences).min(sequences)),
        (None, None) => {}
    }
    if let Some(tokens) = about.kv_capacity_tokens_per_replica {
        text += &format!("kv_pool_tokens = {tokens}\n");
    }
    let memory = about.memory.as_deref().unwrap_or("");
    let vllm = engine == "vllm";
    let fraction_key = if vllm { "gpu-memory-utilization" } else { "mem-fraction-static" };
    let fraction = about.gpu_memory_utilization.filter(|_| vllm).or_else(|| number_after(memory, fraction_key));
    if let Some(fraction) = fraction {
        text += &format!("mem_fraction = {fraction}\n");
    }
    let budget = about.max_num_batched_tokens.map(|tokens| tokens as f64);
    match (vllm, budget.or_else(|| number_after(memory, "max-num-batched-tokens"))) {
        (true, Some(tokens)) => text += &format!("max_num_batched_tokens = {tokens:.0}\n"),
        // Releases since 2025 take more than the tier of 70 GiB does for sequences of speculation.
        (true, None) if sequences.is_none() => text += "max_num_batched_tokens = 8192\n",
        _ => {}
    }
    if let (false, Some(chunk)) = (vllm, number_after(memory, "chunked prefill")) {
        text += &format!("chunked_prefill_size = {chunk:.0}\n");
    }
    if let Some(drafted) = drafted(about) {
        if !vllm && about.speculation.as_deref().is_some_and(|method| !method.contains("extra_buffer")) {
            // Releases before 0.5.14 refuse the default beside speculation, so it was set.
            text += "mamba_scheduler_strategy = \"extra_buffer\"\n";
        }
        let measured = tokens_per_step(about).map(|(tokens, drafted)| position_acceptance(tokens, drafted));
        let acceptance = measured.unwrap_or(ACCEPTANCE);
        if measured.is_none() {
            assumed.push(format!("acceptance of one position near {ACCEPTANCE}"));
        }
        // Synthetic acceptance is alike for every request.
        let spread = if about.acceptance_marginal.is_some() { 0.0 } else { 0.05 };
        text += &format!(
            "\n[engine.speculation]\ndraft_tokens = {drafted}\nacceptance = {acceptance:.4}\nacceptance_spread = {spread}\n"
        );
    }
    if table.rows.iter().any(|row| row.shape.input_tokens.is_none()) {
        assumed.push(format!("prompts of {SHORT_PROMPT} tokens"));
        text += &format!("\n[benchmark]\nprompt_tokens = {SHORT_PROMPT}\n");
    }
    Ok(text)
}

fn longest(table: &Table) -> u64 {
    let tokens = |row: &crate::measured::Row| {
        row.shape.input_tokens.unwrap_or(0.0) + row.shape.output_tokens.unwrap_or(4096.0) + 64.0
    };
    table.rows.iter().map(tokens).fold(0.0, f64::max) as u64
}

/// LLM and quantisation.
fn model(about: &About, assumed: &mut Vec<String>) -> Result<(String, String)> {
    let Some(model) = &about.model else { return Err(not_covered("a model without a name", "")) };
    let word = model.to_lowercase();
    let llm = if word.starts_with("27b hybrid") {
        Some("qwen3.6-27b".to_owned())
    } else {
        names(Kind::Llm).into_iter().filter(|name| word.starts_with(name.as_str())).max_by_key(String::len)
    };
    let llm = llm.ok_or_else(|| not_covered(&format!("no description of {model}"), "add it to models/llm"))?;
    let given = about.quantisation.clone().unwrap_or_default();
    let format = given.to_lowercase();
    let experts = crate::model::llm::Llm::find(&llm)?.experts.is_some();
    let weights = match format.as_str() {
        _ if llm == "deepseek-v4-flash" && format.contains("nvfp4") => "deepseek-v4-flash-nvfp4",
        _ if llm == "deepseek-v4-flash" => "deepseek-v4-flash-mxfp4",
        _ if llm == "glm-5.3-flash" && format.contains("nvfp4") => "nvfp4-nvidia-glm-5.3-flash",
        _ if llm == "qwen3.6-27b" && format.contains("nvfp4") => "nvfp4-nvidia-qwen3.6-27b",
        _ if llm.starts_with("gpt-oss") && format == "fp4" => "mxfp4-w4a8",
        _ if llm.starts_with("gpt-oss") => "mxfp4",
        text if text.contains("bf16 output head") || text.contains("w4a4") => "nvfp4-w4a4",
        text if text.contains("w4a16") => "nvfp4-experts",
        text if text.contains("nvfp4") && experts => "nvfp4-experts",
        text if text.contains("nvfp4") => "nvfp4-w4a4",
        text if text.starts_with("fp8") => "fp8",
        text if text.starts_with("bf16") => "bf16",
        text if text.starts_with("awq") && experts => "awq-experts",
        text if text.starts_with("awq") => "awq",
        text if text.starts_with("4-bit") => "int4-autoround",
        text if text.contains("q6_k") => "q6_k",
        _ => {
            assumed.push(format!("bf16 weights (the source says `{given}`)"));
            "bf16"
        }
    };
    Ok((llm, weights.to_owned()))
}

/// Hardware, and its power limit where a measured curve covers it.
fn hardware(about: &About) -> Result<(String, Option<f64>)> {
    let gpu = about.gpu.to_lowercase();
    let known = [
        ("pro 6000", "rtx-pro-6000"),
        ("gb300", "gb300"),
        ("b200", "b200"),
        ("h100", "h100"),
        ("h200", "h200"),
        ("3090 ti", "rtx-3090-ti"),
        ("3090", "rtx-3090"),
        ("4090", "rtx-4090"),
        ("5090", "rtx-5090"),
    ];
    let Some((_, name)) = known.iter().find(|(word, _)| gpu.contains(word)) else {
        return Err(not_covered(&format!("no description of {}", about.gpu), "add it to models/hardware"));
    };
    let server = *name == "rtx-pro-6000" && gpu.contains("server");
    let power_w = (*name == "rtx-pro-6000" && gpu.contains("400 w")).then_some(400.0);
    Ok((if server { "rtx-pro-6000-server".to_owned() } else { (*name).to_owned() }, power_w))
}

/// The engine, or the nearest that the simulator has.
fn engine(about: &About, assumed: &mut Vec<String>) -> Result<&'static str> {
    let name = about.engine.clone().unwrap_or_default();
    match name.to_lowercase() {
        word if word.contains("sglang") => Ok("sglang"),
        word if word.contains("vllm") => Ok("vllm"),
        word if word.contains("tensorrt") || word.contains("llama.cpp") => {
            assumed.push(format!("vLLM's scheduler in place of {name}'s"));
            Ok("vllm")
        }
        _ => Err(not_covered(&format!("no engine like {name}"), "add it to models/engine")),
    }
}

/// Tokens drafted a step; `None` without speculation. SGLang counts the token that is verified anyway.
fn drafted(about: &About) -> Option<u32> {
    let method = about.speculation.as_deref().unwrap_or("none").to_lowercase();
    if method.starts_with("none") {
        return None;
    }
    let sglang = about.engine.as_deref().is_some_and(|name| name.to_lowercase().contains("sglang"));
    match (about.draft_tokens, number_before(&method, " steps")) {
        (_, Some(steps)) => Some(steps as u32),
        (Some(tokens), None) if sglang => Some(tokens.saturating_sub(1).max(1)),
        (Some(tokens), None) => Some(tokens.max(1)),
        (None, None) => Some(if sglang { 3 } else { 2 }),
    }
}

/// Mean tokens of a step where the source gives them, and how many were drafted.
fn tokens_per_step(about: &About) -> Option<(f64, u32)> {
    let drafted = drafted(about)?;
    if let Some(marginal) = &about.acceptance_marginal {
        return Some((1.0 + marginal.iter().sum::<f64>(), drafted));
    }
    let text = about.acceptance.as_deref()?;
    let after = text.split("accepted length").nth(1)?;
    let numbers: Vec<f64> =
        after.split(|c: char| !(c.is_ascii_digit() || c == '.')).filter_map(|word| word.parse().ok()).collect();
    let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
    (mean > 1.0).then_some((mean, drafted))
}

/// `0.5.15` of a version in words; `None` for builds without a release number.
fn version(text: &str) -> Option<String> {
    let word: String = text.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    let word = word.trim_end_matches('.').to_owned();
    (word.split('.').count() == 3 && word.split('.').all(|part| part.parse::<u32>().is_ok())).then_some(word)
}

/// The first number after a phrase.
fn number_after(text: &str, phrase: &str) -> Option<f64> {
    let rest = text.split(phrase).nth(1)?.trim_start();
    let number: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    number.trim_end_matches('.').parse().ok()
}

/// The number right before a phrase.
fn number_before(text: &str, phrase: &str) -> Option<f64> {
    let before = text.split_once(phrase)?.0;
    before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_versions_in_words() {
        assert_eq!(number_after("mem-fraction-static 0.93, decode graph", "mem-fraction-static"), Some(0.93));
        assert_eq!(number_before("nextn (mtp), 2 steps", " steps"), Some(2.0));
        assert_eq!(version("0.17.0rc1").as_deref(), Some("0.17.0"));
        assert_eq!(version("nightly, September 2026"), None);
    }
}
