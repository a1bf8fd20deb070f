//! A scenario: a job, a fleet, a model, an engine and a client put together, as in `models/scenario`.
//!
//! This module reads and checks; what follows from a scenario is derived in `experiment`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::{Table, Value};

use crate::error::{Error, InputError, Result};
use crate::model::builtin::{Kind, find};
use crate::model::parse::{TEXT_NEEDED, line_of, parse_toml};
use crate::model::uncertain::{self, Unknown, is_within};
use crate::random::Streams;

/// The scenario that every command uses when none is named.
pub const DEFAULT_SCENARIO: &str = "qwen3.6-27b-914k";

/// A scenario as read, overrides applied. Unset keys are `None`: defaults are the engine's, and are shown.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tables {
    /// What it is, in a line.
    pub title: Option<String>,
    /// The requests.
    pub job: Job,
    /// The machines.
    pub fleet: FleetTable,
    /// The LLM.
    pub model: Option<ModelTable>,
    /// The serving engine.
    pub engine: EngineTable,
    /// The client.
    #[serde(default)]
    pub client: Client,
    /// How the measured table was taken.
    pub benchmark: Option<Benchmark>,
    /// How far a forecast goes.
    #[serde(default)]
    pub forecast: ForecastTable,
    /// What `decide` compares.
    #[serde(default)]
    pub option: Vec<OptionTable>,
    /// Laws of keys whose value is not known (see `model::uncertain`).
    pub uncertain: Option<Table>,
}

/// `[forecast]`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForecastTable {
    /// Replications.
    pub replications: Option<u64>,
    /// Stop once the intervals of the 5%, 50% and 95% quantiles are no wider than this share of them, each way.
    pub precision: Option<f64>,
    /// When the job must be done, days.
    pub deadline_days: Option<f64>,
}

/// `[[option]]`: something to do, and the keys that it changes.
#[derive(Clone, Debug, Deserialize)]
pub struct OptionTable {
    /// Its name.
    pub name: String,
    /// The keys, as tables of the scenario.
    #[serde(flatten)]
    pub set: Table,
}

/// `[job]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Number of requests; with a trace: its rows unless given.
    pub requests: Option<u64>,
    /// Law of the prompt length, tokens.
    pub prompt_tokens: Option<Value>,
    /// Law of the uncapped output length, tokens.
    pub output_tokens: Option<Value>,
    /// Spearman's rank correlation of the two laws.
    pub rank_correlation: Option<f64>,
    /// A trace of whole rows in place of the two laws.
    pub trace: Option<PathBuf>,
    /// How rows of the trace become requests.
    pub rows: Option<Rows>,
    /// True: rows of the trace without output are skipped rather than refused.
    pub skip_empty_rows: Option<bool>,
    /// The model's tokenizer.json, which counts the texts of the trace; without it they are estimated.
    pub tokenizer: Option<PathBuf>,
    /// Cap on the output of a request, tokens.
    pub max_tokens: Option<u64>,
    /// Prompt and output together at most, tokens.
    pub context_tokens: Option<u64>,
    /// True when requests ignore end-of-sequence and write exactly their length (benchmarks). An engine may count on it:
    /// SGLang admits only what has room for all of it. vLLM and Transformers do not look ahead and act the same.
    pub ignore_eos: Option<bool>,
    /// In which order requests are sent.
    pub order: Option<String>,
    /// When they arrive.
    pub arrivals: Option<Value>,
    /// Tokens that prompts begin with in common.
    pub shared_prefix_tokens: Option<u64>,
    /// So many requests in a row share one prefix; all of them unless given.
    pub prompts_per_prefix: Option<u64>,
    /// Conversations whose prompts repeat the turns before.
    pub sessions: Option<SessionsTable>,
    /// What the napkin says.
    pub napkin: Option<Napkin>,
}

/// `[job.sessions]`: requests go round, turn 0 of all conversations, then turn 1 of each, and so on.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionsTable {
    /// Conversations at a time.
    pub sessions: u64,
    /// Turns of each.
    pub turns: u64,
    /// Tokens that all conversations begin with.
    pub system_tokens: Option<u64>,
    /// Tokens by which a turn, message and answer, lengthens the conversation.
    pub turn_tokens: u64,
}

/// How rows of a trace become requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rows {
    /// Row i is request i.
    InOrder,
    /// Each request is a row drawn at random.
    WithReplacement,
}

/// `[job.napkin]`: the estimate on the back of an envelope.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Napkin {
    /// Output tokens per second of one GPU.
    pub tok_per_s_per_gpu: f64,
    /// Mean output length, tokens.
    pub mean_output_tokens: f64,
}

/// `[fleet]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FleetTable {
    /// Name or path of the GPU.
    pub hardware: Option<String>,
    /// Cards.
    pub gpus: u32,
    /// Cards that share one replica.
    pub tensor_parallel: Option<u32>,
    /// How requests find their replica.
    pub dispatch: Option<DispatchWord>,
    /// Standard deviation of the replicas' speeds, as a share of it.
    pub speed_spread: Option<f64>,
    /// Time before any replica serves, seconds.
    pub startup_s: Option<f64>,
    /// Power limit of each card, W.
    pub power_limit_w: Option<f64>,
}

/// How requests find their replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DispatchWord {
    /// One queue for all.
    Shared,
    /// One contiguous part of the job each.
    Static,
    /// In turn.
    RoundRobin,
}

/// `[model]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelTable {
    /// Name or path of the LLM.
    pub llm: String,
    /// Name or path of the quantisation; the LLM's own unless given.
    pub weights: Option<String>,
    /// Dtype of the key-value cache; the quantisation's own unless given.
    pub kv: Option<crate::model::quantisation::KvDtype>,
    /// Dtype of recurrent states.
    pub state: Option<crate::model::quantisation::StateDtype>,
    /// False: served without its vision tower.
    pub vision: Option<bool>,
}

/// `[client]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// Requests in flight, or "all".
    pub concurrency: Option<Value>,
    /// Whether that counts each replica or all together.
    pub per: Option<Per>,
    /// Time between two requests that the client sends, seconds.
    pub submit_interval_s: Option<f64>,
}

/// What the concurrency counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// Each replica.
    Replica,
    /// All replicas together.
    Total,
}

/// `[benchmark]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Benchmark {
    /// Name or path of a measured table.
    pub table: Option<String>,
    /// Prompt length, tokens, where the table does not say.
    pub prompt_tokens: Option<u64>,
    /// Output length, tokens, where the table does not say.
    pub output_tokens: Option<u64>,
    /// Requests per point as a multiple of its concurrency, where the table does not say.
    pub waves: Option<u64>,
}

/// `[engine]`: numbers read off a log, and the engine's own flags by their own names.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineTable {
    /// Name or path.
    pub name: String,
    /// Release.
    pub version: Option<String>,
    /// Maximum of running requests, as the log shows it.
    pub max_running: Option<u64>,
    /// Tokens in the KV pool, as the log shows it.
    pub kv_pool_tokens: Option<u64>,
    /// Recurrent-state slots (blocks), as the log shows them.
    pub state_slots: Option<u64>,
    /// State slots reserved per request.
    pub state_slots_per_request: Option<u64>,
    /// State slots that a request really holds.
    pub state_slots_held_per_request: Option<u64>,
    /// Share of memory for weights and pools, under whatever name the engine has for it.
    pub mem_fraction: Option<f64>,
    /// Speculative decoding; absent is off.
    pub speculation: Option<SpeculationTable>,
    /// False: every prompt is read in full, whatever it shares. The engine's own flag unless given.
    pub prefix_cache: Option<bool>,
    /// What becomes of preempted requests (vLLM).
    pub spill: Option<SpillWord>,
    /// Host memory of one GPU for swapped requests, bytes.
    pub swap_space_bytes: Option<f64>,
    /// SGLang: the host tier.
    pub hicache: Option<HicacheTable>,
    /// vLLM: host memory of a replica behind its prefix cache, bytes.
    pub kv_offloading_bytes: Option<f64>,
    /// Efficiencies and fixed costs in place of the priors.
    pub cost: Option<CostTable>,
    /// A CSV file of measured decode steps (columns `batch`, `context_tokens` or `kv_tokens_resident`, `step_ms`) in
    /// place of the roofline.
    pub step_table: Option<PathBuf>,
    /// Output tokens per second of one GPU (engine `fixed-rate` only).
    pub tok_per_s_per_gpu: Option<f64>,

    /// SGLang.
    pub mem_fraction_static: Option<f64>,
    /// SGLang.
    pub chunked_prefill_size: Option<i64>,
    /// SGLang.
    pub max_prefill_tokens: Option<u64>,
    /// SGLang.
    pub cuda_graph_max_bs: Option<u64>,
    /// SGLang.
    pub max_running_requests: Option<u64>,
    /// SGLang.
    pub page_size: Option<u64>,
    /// SGLang.
    pub max_mamba_cache_size: Option<u64>,
    /// SGLang.
    pub mamba_full_memory_ratio: Option<f64>,
    /// SGLang.
    pub mamba_scheduler_strategy: Option<MambaWord>,
    /// SGLang.
    pub disable_radix_cache: Option<bool>,
    /// SGLang.
    pub disable_overlap_schedule: Option<bool>,
    /// SGLang.
    pub schedule_conservativeness: Option<f64>,
    /// SGLang: whether the drafter's own embedding and head are gone before pools are sized.
    pub draft_copies_shared: Option<bool>,

    /// vLLM.
    pub gpu_memory_utilization: Option<f64>,
    /// vLLM.
    pub max_num_seqs: Option<u64>,
    /// vLLM.
    pub max_num_batched_tokens: Option<u64>,
    /// vLLM.
    pub block_size: Option<u64>,
    /// vLLM.
    pub num_gpu_blocks_override: Option<u64>,
    /// vLLM.
    pub enable_prefix_caching: Option<bool>,
    /// vLLM: an offline engine rather than an API server.
    pub offline: Option<bool>,
    /// vLLM: memory besides weights and KV, bytes.
    pub activation_bytes: Option<f64>,
    /// vLLM.
    pub scheduler_reserve_full_isl: Option<bool>,
    /// vLLM: share of blocks kept free at admission.
    pub watermark: Option<f64>,
    /// vLLM.
    pub async_scheduling: Option<bool>,

    /// Transformers.
    pub batch_size: Option<u64>,
}

/// What becomes of a preempted request's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpillWord {
    /// Dropped and computed again.
    Recompute,
    /// Copied to the host and back, as vLLM did before V1.
    Running,
}

/// `[engine.hicache]`: SGLang's host tier.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HicacheTable {
    /// False: off, whatever else stands here.
    pub enabled: Option<bool>,
    /// Size of each host pool over that of the device pool (`--hicache-ratio`).
    pub ratio: Option<f64>,
    /// Bytes of each host pool (`--hicache-size`).
    pub bytes: Option<f64>,
    /// `--hicache-write-policy`.
    pub write_policy: Option<WriteWord>,
    /// `--hicache-io-backend`.
    pub io_backend: Option<IoBackend>,
}

/// When the host tier is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteWord {
    /// On insertion.
    WriteThrough,
    /// At the second use.
    WriteThroughSelective,
    /// On eviction.
    WriteBack,
}

/// What copies between host and GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IoBackend {
    /// Kernels on the multiprocessors.
    Kernel,
    /// The copy engine.
    Direct,
}

/// `--mamba-scheduler-strategy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MambaWord {
    /// The release decides.
    Auto,
    /// No buffer.
    NoBuffer,
    /// Extra buffer.
    ExtraBuffer,
    /// Lazy extra buffer.
    ExtraBufferLazy,
}

/// `[engine.speculation]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpeculationTable {
    /// False: off, whatever else stands here.
    pub enabled: Option<bool>,
    /// Tokens drafted per step.
    pub draft_tokens: u32,
    /// Mean acceptance of one position, given that all before it were accepted.
    pub acceptance: Option<f64>,
    /// Probability that positions 1..=i are all accepted, for each i.
    pub acceptance_marginal: Option<Vec<f64>>,
    /// Standard deviation of one position's acceptance between requests.
    pub acceptance_spread: Option<f64>,
}

/// `[engine.cost]`: see `cost::CostParameters`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostTable {
    /// Share of the memory bandwidth.
    pub bandwidth_share: Option<f64>,
    /// Share of the matrix rate in decode and verify passes.
    pub flops_share: Option<f64>,
    /// Share of the matrix rate in prefill.
    pub prefill_flops_share: Option<f64>,
    /// Exponent of the smooth maximum.
    pub smooth_exponent: Option<f64>,
    /// Fixed time of a step, seconds.
    pub step_gap_s: Option<f64>,
    /// Fixed time of a draft pass, seconds.
    pub draft_pass_gap_s: Option<f64>,
    /// Time per running request in a step, seconds.
    pub per_request_s: Option<f64>,
    /// Host time to launch a prefill step in captured pieces, seconds.
    pub prefill_launch_s: Option<f64>,
    /// Host time to launch a step kernel by kernel, seconds.
    pub eager_launch_s: Option<f64>,
    /// Factor on the bytes of touched experts.
    pub expert_bytes_scale: Option<f64>,
    /// Factor on the times of tensor-parallel communication.
    pub communication_scale: Option<f64>,
}

/// A scenario with the text it was read from.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name: that of the file without `.toml`.
    pub name: String,
    /// Its tables.
    pub tables: Tables,
    /// What relative paths in it start from.
    pub folder: PathBuf,
    /// What is not known about it, in the order of the file.
    pub unknowns: Vec<Unknown>,
    file: String,
    text: String,
    overrides: Vec<Override>,
    /// Those of the unknowns that do not stand in the file.
    added: Vec<Unknown>,
}

/// One `--set key=value`.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    key: String,
    value: Value,
    /// Where it comes from, for errors.
    origin: String,
}

impl Override {
    /// Reads `key=value`; the value is TOML, or else text.
    ///
    /// # Errors
    /// When there is no `=` or no key.
    pub fn parse(written: &str) -> Result<Override> {
        let remedy = "write --set job.max_tokens=2048 or --set client.concurrency=all";
        let Some((key, value)) = written.split_once('=') else {
            return Err(InputError::new(format!("no `=` in `{written}`"), remedy).file("--set").into());
        };
        let key = key.trim();
        if key.is_empty() || key.split('.').any(|part| part.trim().is_empty()) {
            return Err(InputError::new(format!("no key in `{written}`"), remedy).file("--set").into());
        }
        let value = format!("v = {value}")
            .parse::<Table>()
            .ok()
            .and_then(|mut table| if table.len() == 1 { table.remove("v") } else { None })
            .unwrap_or_else(|| Value::String(value.trim().to_owned()));
        Ok(Override { key: key.to_owned(), value, origin: format!("--set {written}") })
    }

    /// Sets `key` to `value`; `origin` is what errors about it name as its place.
    pub fn new(key: &str, value: Value, origin: &str) -> Override {
        Override { key: key.to_owned(), origin: format!("{origin} {key} = {value}"), value }
    }

    /// The key that it sets.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The value that it sets.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Puts the value into the tables, making tables on the way.
    fn apply(&self, tables: &mut Table) -> Result<()> {
        let mut parts: Vec<&str> = self.key.split('.').map(str::trim).collect();
        let Some(last) = parts.pop() else { return Ok(()) };
        let mut table = tables;
        for part in parts {
            let entry = table.entry(part).or_insert_with(|| Value::Table(Table::new()));
            table = match entry {
                Value::Table(inner) => inner,
                other => {
                    let found = format!("`{part}` is a {}, not a table", other.type_str());
                    return Err(InputError::new(found, "set it as a whole").key(&self.key).file("--set").into());
                }
            };
        }
        table.insert(last.to_owned(), self.value.clone());
        Ok(())
    }
}

/// Gives an error about tables with overrides in them its place: the override that caused it, else the file's line.
/// Lines of the rendered text mean nothing to the user.
fn place(mut error: InputError, text: &str, file: &str, overrides: &[Override]) -> InputError {
    error.line = None;
    let Some(key) = error.key.clone() else { return error.file(file) };
    let about = |over: &&Override| is_within(&key, &over.key) || is_within(&over.key, &key);
    if let Some(over) = overrides.iter().rev().find(about) {
        if error.remedy == TEXT_NEEDED {
            error.remedy = format!("{TEXT_NEEDED}: --set '{}=\"{}\"'", over.key, over.value);
        }
        return error.file(over.origin.clone());
    }
    let error = error.file(file);
    match line_of(text, &key) {
        Some(line) => error.line(line),
        None => error,
    }
}

/// Reads tables that are no longer the text of a file; errors name the place that a user knows.
fn read_rendered(tables: &Table, text: &str, file: &str, overrides: &[Override]) -> Result<Tables> {
    let rendered =
        toml::to_string(tables).map_err(|e| InputError::new(e.to_string(), "set plain values").file("--set"))?;
    parse_toml(&rendered, "").map_err(with_missing_table).map_err(|error| match error {
        Error::Input(mut input) => {
            input.file = None;
            Error::Input(place(input, text, file, overrides))
        }
        other => other,
    })
}

/// Says which table to add where a whole one is missing.
fn with_missing_table(error: Error) -> Error {
    match error {
        Error::Input(mut input) if input.key.is_none() => {
            if let Some(table) = ["job", "fleet", "engine"].iter().find(|table| input.found.contains(*table)) {
                input.remedy = format!("add a table `[{table}]`");
            }
            Error::Input(input)
        }
        other => other,
    }
}

impl Scenario {
    /// Finds a scenario by path or built-in name and applies overrides in order.
    ///
    /// # Errors
    /// What does not parse, unknown keys (naming the nearest known one), values out of range.
    pub fn load(name_or_path: &str, overrides: &[Override]) -> Result<Scenario> {
        if Path::new(name_or_path).is_dir() {
            let remedy = "name a TOML file in it, or a built-in scenario (`makespan list scenario`)";
            return Err(InputError::new("is a folder", remedy).file(name_or_path).into());
        }
        let found = find(Kind::Scenario, name_or_path)?;
        let folder = Path::new(&found.file).parent().map(Path::to_owned).unwrap_or_default();
        let folder = if found.built_in { PathBuf::new() } else { folder };
        Scenario::parse(found.text()?, &found.name, &found.file, folder, overrides)
    }

    /// Reads a scenario from text; `folder` is what relative paths in it start from.
    ///
    /// # Errors
    /// As [`Scenario::load`].
    pub fn parse(text: &str, name: &str, file: &str, folder: PathBuf, overrides: &[Override]) -> Result<Scenario> {
        let mut raw: Table = parse_toml(text, file)?;
        for over in overrides {
            over.apply(&mut raw)?;
            uncertain::settle(&mut raw, &over.key);
        }
        let accepts = |tables: &Table| read_rendered(tables, text, file, overrides).map(|_| ());
        let written = raw.clone();
        let unknowns = uncertain::take(&mut raw, &accepts).map_err(|error| match error {
            Error::Input(input) if input.file.is_none() => Error::Input(place(input, text, file, overrides)),
            other => other,
        })?;
        let tables = if overrides.is_empty() && raw == written {
            // Straight from the text, so that errors carry its lines.
            parse_toml(text, file).map_err(with_missing_table)?
        } else {
            read_rendered(&raw, text, file, overrides)?
        };
        let scenario = Scenario {
            name: name.to_owned(),
            tables,
            folder,
            unknowns,
            file: file.to_owned(),
            text: text.to_owned(),
            overrides: overrides.to_vec(),
            added: Vec::new(),
        };
        scenario.check()?;
        Ok(scenario)
    }

    /// A copy with further overrides.
    ///
    /// # Errors
    /// As [`Scenario::load`].
    pub fn with(&self, overrides: &[Override]) -> Result<Scenario> {
        let all: Vec<Override> = self.overrides.iter().chain(overrides).cloned().collect();
        let mut changed = Scenario::parse(&self.text, &self.name, &self.file, self.folder.clone(), &all)?;
        for unknown in &self.added {
            if !overrides.iter().any(|over| unknown.is_settled_by(&over.key)) {
                changed = changed.with_unknown(unknown.clone());
            }
        }
        Ok(changed)
    }

    /// A copy in which something more is not known, as from a fit: it takes the place of what the file says of its keys.
    #[must_use]
    pub fn with_unknown(mut self, unknown: Unknown) -> Scenario {
        self.unknowns.retain(|other| !other.is_settled_by(&unknown.name) && !unknown.is_settled_by(&other.name));
        self.unknowns.push(unknown.clone());
        self.added.push(unknown);
        self
    }

    /// The draws of one replication, one for each unknown.
    pub fn units(&self, streams: Streams) -> Vec<f64> {
        self.unknowns.iter().map(|unknown| unknown.unit(streams)).collect()
    }

    /// The scenario with every unknown settled at these draws. Without unknowns: itself.
    ///
    /// # Errors
    /// When a value that was drawn is out of range.
    pub fn resolve(&self, units: &[f64]) -> Result<Scenario> {
        let drawn = |(unknown, unit): (&Unknown, &f64)| -> Vec<Override> {
            unknown.at(*unit).into_iter().map(|(key, value)| Override::new(key, value, "drawn:")).collect()
        };
        let overrides: Vec<Override> = self.unknowns.iter().zip(units).flat_map(drawn).collect();
        if overrides.is_empty() { Ok(self.clone()) } else { self.with(&overrides) }
    }

    /// A number that changes with everything that a forecast depends on: the text, what was set, and added unknowns.
    pub fn fingerprint(&self) -> u64 {
        let set: Vec<String> = self.overrides.iter().map(|over| format!("{}={}", over.key, over.value)).collect();
        uncertain::fnv1a(&format!("{}\n{}\n{:?}", self.text, set.join("\n"), self.added))
    }

    /// An error about the value of `key`, at its place: the file's line, or the `--set` that put it there.
    pub fn error(&self, key: &str, found: impl Into<String>, remedy: impl Into<String>) -> Error {
        self.locate(InputError::new(found, remedy).key(key)).into()
    }

    /// Adds the place of its key to an error.
    pub fn locate(&self, error: InputError) -> InputError {
        let Some(key) = error.key.clone() else { return error.file(&self.file) };
        if let Some(set) = self.overrides.iter().rev().find(|over| is_within(&key, &over.key)) {
            return error.file(set.origin.clone());
        }
        let line = line_of(&self.text, &key);
        // A table that only an override made.
        if line.is_none()
            && let Some(set) = self.overrides.iter().rev().find(|over| is_within(&over.key, &key))
        {
            return error.file(set.origin.clone());
        }
        let error = error.file(&self.file);
        match line {
            Some(line) => error.line(line),
            None => error,
        }
    }

    fn positive(&self, key: &str, value: Option<f64>, most: f64) -> Result<()> {
        match value {
            Some(value) if !(value > 0.0 && value <= most) => {
                Err(self.error(key, format!("found {value}"), format!("give a number above 0 and at most {most}")))
            }
            _ => Ok(()),
        }
    }

    fn not_negative(&self, key: &str, value: Option<f64>, most: f64) -> Result<()> {
        match value {
            Some(value) if !(value >= 0.0 && value <= most) => {
                Err(self.error(key, format!("found {value}"), format!("give a number between 0 and {most}")))
            }
            _ => Ok(()),
        }
    }

    fn whole(&self, key: &str, value: Option<u64>, most: u64) -> Result<()> {
        match value {
            Some(value) if value == 0 || value > most => {
                Err(self.error(key, format!("found {value}"), format!("give a whole number between 1 and {most}")))
            }
            _ => Ok(()),
        }
    }

    /// Ranges of everything that does not depend on anything else.
    fn check(&self) -> Result<()> {
        const TOKENS: u64 = 1 << 30;
        let Tables { job, fleet, client, engine, benchmark, .. } = &self.tables;
        self.whole("job.requests", job.requests, 1_000_000_000)?;
        self.whole("job.max_tokens", job.max_tokens, TOKENS)?;
        self.whole("job.context_tokens", job.context_tokens, TOKENS)?;
        match (&job.trace, &job.prompt_tokens, &job.output_tokens) {
            (Some(_), None, None) | (None, Some(_), Some(_)) => {}
            (Some(_), ..) => {
                return Err(self.error(
                    "job.trace",
                    "a trace and a law of lengths",
                    "give either a trace, or prompt_tokens and output_tokens",
                ));
            }
            (None, prompt, _) => {
                let key = if prompt.is_none() { "job.prompt_tokens" } else { "job.output_tokens" };
                return Err(self.error(key, "missing", "give a law of lengths, a number, or a trace in job.trace"));
            }
        }
        if job.trace.is_some() {
            if let Some(correlation) = job.rank_correlation {
                return Err(self.error(
                    "job.rank_correlation",
                    format!("found {correlation} beside a trace"),
                    "rows of a trace keep their own correlation: leave it out",
                ));
            }
        } else {
            let belonging = [
                ("job.rows", job.rows.is_some()),
                ("job.skip_empty_rows", job.skip_empty_rows.is_some()),
                ("job.tokenizer", job.tokenizer.is_some()),
            ];
            if let Some((key, _)) = belonging.into_iter().find(|(_, given)| *given) {
                return Err(self.error(key, "found without a trace", "it belongs to job.trace: leave it out"));
            }
            if job.requests.is_none() {
                return Err(self.error("job.requests", "missing", "give the number of requests"));
            }
        }
        if let Some(napkin) = job.napkin {
            self.positive("job.napkin.tok_per_s_per_gpu", Some(napkin.tok_per_s_per_gpu), 1e9)?;
            self.positive("job.napkin.mean_output_tokens", Some(napkin.mean_output_tokens), 1e9)?;
        }
        self.whole("fleet.gpus", Some(u64::from(fleet.gpus)), 4096)?;
        self.whole("fleet.tensor_parallel", fleet.tensor_parallel.map(u64::from), 64)?;
        let ranks = fleet.tensor_parallel.unwrap_or(1);
        if fleet.gpus % ranks != 0 {
            return Err(self.error(
                "fleet.tensor_parallel",
                format!("{} GPUs do not divide into replicas of {ranks}", fleet.gpus),
                "gpus must be a multiple of tensor_parallel",
            ));
        }
        self.not_negative("fleet.speed_spread", fleet.speed_spread, 0.5)?;
        self.not_negative("fleet.startup_s", fleet.startup_s, 1e6)?;
        self.positive("fleet.power_limit_w", fleet.power_limit_w, 10_000.0)?;
        self.not_negative("client.submit_interval_s", client.submit_interval_s, 3600.0)?;
        if self.concurrency()?.is_none() && client.per.is_some() {
            let remedy = "leave it out, or give client.concurrency a number";
            return Err(self.error("client.per", "found without a limit on requests in flight", remedy));
        }
        if let Some(benchmark) = benchmark {
            self.whole("benchmark.prompt_tokens", benchmark.prompt_tokens, TOKENS)?;
            self.whole("benchmark.output_tokens", benchmark.output_tokens, TOKENS)?;
            self.whole("benchmark.waves", benchmark.waves, 10_000)?;
        }
        self.check_engine(engine)
    }

    fn check_engine(&self, engine: &EngineTable) -> Result<()> {
        const MANY: u64 = 1 << 40;
        let whole = [
            ("max_running", engine.max_running, 1 << 20),
            ("kv_pool_tokens", engine.kv_pool_tokens, MANY),
            ("state_slots", engine.state_slots, 1 << 20),
            ("state_slots_per_request", engine.state_slots_per_request, 1024),
            ("state_slots_held_per_request", engine.state_slots_held_per_request, 1024),
            ("max_prefill_tokens", engine.max_prefill_tokens, 1 << 24),
            ("cuda_graph_max_bs", engine.cuda_graph_max_bs, 1 << 16),
            ("max_running_requests", engine.max_running_requests, 1 << 20),
            ("page_size", engine.page_size, 1 << 16),
            ("max_mamba_cache_size", engine.max_mamba_cache_size, 1 << 20),
            ("max_num_seqs", engine.max_num_seqs, 1 << 20),
            ("max_num_batched_tokens", engine.max_num_batched_tokens, 1 << 24),
            ("block_size", engine.block_size, 1 << 16),
            ("num_gpu_blocks_override", engine.num_gpu_blocks_override, 1 << 32),
            ("batch_size", engine.batch_size, 1 << 16),
        ];
        for (key, value, most) in whole {
            self.whole(&format!("engine.{key}"), value, most)?;
        }
        let shares = [
            ("mem_fraction", engine.mem_fraction),
            ("mem_fraction_static", engine.mem_fraction_static),
            ("gpu_memory_utilization", engine.gpu_memory_utilization),
        ];
        for (key, value) in shares {
            self.positive(&format!("engine.{key}"), value, 1.0)?;
        }
        self.positive("engine.mamba_full_memory_ratio", engine.mamba_full_memory_ratio, 100.0)?;
        self.positive("engine.schedule_conservativeness", engine.schedule_conservativeness, 10.0)?;
        self.positive("engine.activation_bytes", engine.activation_bytes, 1e13)?;
        self.positive("engine.tok_per_s_per_gpu", engine.tok_per_s_per_gpu, 1e9)?;
        self.not_negative("engine.watermark", engine.watermark, 0.99)?;
        if let Some(size) = engine.chunked_prefill_size
            && (size == 0 || !(-1..=1 << 24).contains(&size))
        {
            return Err(self.error(
                "engine.chunked_prefill_size",
                format!("found {size}"),
                "give a whole number of tokens of at least 1, or -1 to read prompts whole",
            ));
        }
        if let (Some(reserved), Some(held)) = (engine.state_slots_per_request, engine.state_slots_held_per_request)
            && held > reserved
        {
            return Err(self.error(
                "engine.state_slots_held_per_request",
                format!("{held} held of {reserved} reserved"),
                "a request holds at most what is reserved for it",
            ));
        }
        Ok(())
    }

    /// Requests in flight: a number, or `None` for all.
    ///
    /// # Errors
    /// When it is neither a whole number of at least 1 nor "all".
    pub fn concurrency(&self) -> Result<Option<u32>> {
        let remedy = "give a whole number of requests of at least 1, or \"all\"";
        match &self.tables.client.concurrency {
            None => Ok(None),
            Some(Value::String(word)) if word == "all" => Ok(None),
            Some(Value::Integer(number)) if (1..=10_000_000).contains(number) => Ok(Some(*number as u32)),
            Some(other) => Err(self.error("client.concurrency", format!("found {other}"), remedy)),
        }
    }
}
