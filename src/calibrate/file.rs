//! A fit on disk: what was fitted, to which table, by which program, and the values that the other commands take.

use std::path::Path;

use serde::{Deserialize, Serialize};
use toml::Value;

use crate::error::{Error, InputError, Result};
use crate::experiment::{Setup, measured_table};
use crate::measured::Table;
use crate::model::parse::parse_toml;
use crate::model::scenario::{Override, Scenario, Tables};
use crate::model::uncertain::{Unknown, is_within};

use super::fit::Fit;
use super::model::Model;
use super::posterior::weighted_quantiles;
use super::prior::{Parameter, Prior, widest_spread};

/// A saved fit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FitFile {
    /// The scenario.
    pub scenario: String,
    /// The table.
    pub table: String,
    /// FNV-1a of the table's rows, hexadecimal.
    pub table_hash: String,
    /// The program's version.
    pub version: String,
    /// Seed of the fit.
    pub seed: u64,
    /// Root mean square of ln(measured ÷ fitted) over the rates.
    pub rms_log_error: f64,
    /// Why the fit must not be trusted, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unexplained: Option<String>,
    /// The running cap, where it was looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_cap: Option<CapQuantiles>,
    /// What was fitted, as the scenario names it: a fit holds for nothing else.
    pub fitted: Fitted,
    /// Keys of a scenario that the draws give values for.
    pub keys: Vec<String>,
    /// Equally likely draws of the posterior, a value for each key.
    pub draws: Vec<Vec<f64>>,
    /// Draws of the running cap, where it was looked for and the likelier answer is that there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caps: Vec<u32>,
    /// Parameters that no key of a scenario can hold: they concern single streams or the benchmark.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without_key: Vec<String>,
    /// Values by parameter.
    pub parameter: Vec<Quantiles>,
}

/// The parts of a scenario that a fit belongs to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fitted {
    /// The LLM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llm: Option<String>,
    /// Its weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    /// The hardware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardware: Option<String>,
    /// The engine.
    pub engine: String,
}

/// Quantiles of one parameter, in its unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quantiles {
    /// Its key.
    pub name: String,
    /// 5% quantile.
    pub p5: f64,
    /// Median.
    pub p50: f64,
    /// 95% quantile.
    pub p95: f64,
    /// How much the table narrowed the prior.
    pub learned: f64,
}

/// Quantiles of the running cap; a missing one is no cap.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CapQuantiles {
    /// 5% quantile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p5: Option<u32>,
    /// Median.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50: Option<u32>,
    /// 95% quantile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p95: Option<u32>,
    /// How much the table narrowed the prior: 1 − posterior ÷ prior deviation of the logarithm.
    pub learned: f64,
}

/// FNV-1a, 64 bits.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// FNV-1a of the rows of a table, as hexadecimal digits.
pub fn table_hash(table: &Table) -> String {
    let row = |row: &crate::measured::Row| {
        format!(
            "{},{},{},{:?},{:?},{:?},{:?}",
            row.concurrency,
            row.tok_per_s,
            row.kind.name(),
            row.shape,
            row.num_requests,
            row.ttft_ms,
            row.tpot_ms
        )
    };
    format!("{:016x}", hash(&table.rows.iter().map(row).collect::<Vec<_>>().join("\n")))
}

impl FitFile {
    /// What to keep of a fit.
    pub fn new(fit: &Fit, name: &str, table: &Table) -> FitFile {
        let parameter = fit
            .summaries()
            .into_iter()
            .map(|(prior, summary)| {
                let [p5, p50, p95] = summary.quantiles;
                Quantiles { name: prior.parameter.key().to_owned(), p5, p50, p95, learned: summary.learned }
            })
            .collect();
        let running_cap = fit.cap_searched().then(|| cap_quantiles(fit));
        let capped = running_cap.is_some_and(|cap| cap.p50.is_some());
        let chosen = fit.posterior.resample(KEPT_DRAWS);
        let kept: Vec<Vec<(&str, f64)>> = chosen.iter().map(|draw| scenario_values(&fit.model, &draw.scores)).collect();
        let keys = kept.first().map_or(Vec::new(), |row| row.iter().map(|(key, _)| (*key).to_owned()).collect());
        let tables = &fit.model.setup.scenario.tables;
        FitFile {
            scenario: fit.model.setup.scenario.name.clone(),
            table: name.to_owned(),
            table_hash: table_hash(table),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            seed: fit.model.seed,
            rms_log_error: fit.rms_log_error,
            unexplained: fit.unexplained(),
            running_cap,
            fitted: Fitted::of(tables),
            keys,
            draws: kept.iter().map(|row| row.iter().map(|(_, value)| *value).collect()).collect(),
            caps: if capped {
                chosen.iter().filter_map(|draw| draw.structure.running_cap).collect()
            } else {
                Vec::new()
            },
            without_key: fit.model.priors.iter().filter(|prior| !has_key(prior.parameter)).map(key_of).collect(),
            parameter,
        }
    }

    /// Reads a fit file.
    ///
    /// # Errors
    /// When it cannot be read, or holds what this program does not know.
    pub fn load(path: &Path) -> Result<FitFile> {
        let text = crate::files::read_to_string(path)?;
        parse_toml(&text, &path.display().to_string())
    }

    /// Writes it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let text = toml::to_string(self)
            .map_err(|error| InputError::new(error.to_string(), "a bug: please report it").file("fit file"))?;
        crate::files::write(path, text)
    }

    /// Puts the fit into the scenario `name_or_path`: one run takes the medians, replications take a draw each. What
    /// `overrides` set stays as they set it.
    ///
    /// # Errors
    /// When the fit is of another version, table, model, hardware or engine, when its table is not explained by the model
    /// and it is to be distrusted, and as [`Scenario::load`].
    pub fn scenario(&self, name_or_path: &str, overrides: &[Override], distrust: bool) -> Result<Scenario> {
        let bare = Scenario::load(name_or_path, overrides)?;
        self.check(&bare)?;
        if let (Some(why), true) = (&self.unexplained, distrust) {
            let why = format!("the fit to {} is {why}; --accept-faults uses it all the same", self.table);
            return Err(Error::Impossible(why));
        }
        let settled = |key: &str| overrides.iter().any(|over| is_within(key, over.key()));
        let free: Vec<usize> = (0..self.keys.len()).filter(|index| !settled(&self.keys[*index])).collect();
        let rows: Vec<Vec<f64>> = self.draws.iter().map(|row| free.iter().map(|index| row[*index]).collect()).collect();
        let keys: Vec<String> = free.iter().map(|index| self.keys[*index].clone()).collect();
        let whole = |key: &str, value: f64| {
            if key.ends_with("_tokens") { Value::Integer(value as i64) } else { Value::Float(value) }
        };
        let mut set: Vec<Override> = Vec::new();
        for (index, key) in keys.iter().enumerate() {
            set.push(Override::new(key, whole(key, median(rows.iter().map(|row| row[index]).collect())), ORIGIN));
        }
        // Where the scenario counts state slots, they are what caps: a flag above them would change nothing.
        let engine = &bare.tables.engine;
        let slots = engine.state_slots.and(engine.state_slots_per_request);
        let (cap_key, each) = slots.map_or((CAP_KEY, 1), |each| ("engine.state_slots", each as i64));
        let caps_free = !CAP_KEYS.iter().any(|key| settled(key)) && !self.caps.is_empty();
        if caps_free {
            let cap = median(self.caps.iter().map(|cap| f64::from(*cap)).collect());
            set.push(Override::new(cap_key, Value::Integer(cap as i64 * each), ORIGIN));
        }
        // What the command line says comes last, so that it wins.
        set.extend(overrides.iter().cloned());
        let mut scenario = Scenario::load(name_or_path, &set)?;
        if !keys.is_empty() {
            let values = |row: &Vec<f64>| keys.iter().zip(row).map(|(key, value)| whole(key, *value)).collect();
            let rows = rows.iter().map(values).collect();
            scenario = scenario.with_unknown(Unknown::joint("fit", keys.clone(), rows)?);
        }
        if caps_free && self.caps.iter().any(|cap| *cap != self.caps[0]) {
            let rows = self.caps.iter().map(|cap| vec![Value::Integer(i64::from(*cap) * each)]).collect();
            scenario = scenario.with_unknown(Unknown::joint("fitted running cap", vec![cap_key.to_owned()], rows)?);
        }
        Ok(scenario)
    }

    /// Refuses a fit that belongs to something else.
    fn check(&self, scenario: &Scenario) -> Result<()> {
        let wrong = |found: String, remedy: &str| Err(InputError::new(found, remedy).file("--fit").into());
        let again = "run `makespan calibrate --out` again";
        let version = env!("CARGO_PKG_VERSION");
        if self.version != version {
            return wrong(format!("a fit by version {}, this is {version}: costs may differ", self.version), again);
        }
        let rows_differ =
            self.draws.iter().any(|row| row.len() != self.keys.len() || row.iter().any(|v| !v.is_finite()));
        if rows_differ || self.draws.is_empty() {
            return wrong("a draw without a finite value for each key".to_owned(), again);
        }
        let own = Fitted::of(&scenario.tables);
        if self.fitted != own {
            let found = format!("a fit of {}, the scenario has {}", self.fitted.words(), own.words());
            return wrong(found, "calibrate this scenario, or name the fit that belongs to it");
        }
        let Some((name, table)) = measured_table(&Setup::new(scenario)?)? else { return Ok(()) };
        if table_hash(&table) != self.table_hash {
            return wrong(format!("a fit to {}, but {name} has other rows", self.table), again);
        }
        Ok(())
    }
}

impl Fitted {
    fn of(tables: &Tables) -> Fitted {
        Fitted {
            llm: tables.model.as_ref().map(|model| model.llm.clone()),
            weights: tables.model.as_ref().and_then(|model| model.weights.clone()),
            hardware: tables.fleet.hardware.clone(),
            engine: tables.engine.name.clone(),
        }
    }

    fn words(&self) -> String {
        let parts = [self.llm.as_ref(), self.weights.as_ref(), self.hardware.as_ref(), Some(&self.engine)];
        parts.into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join(", ")
    }
}

/// Draws that a fit file keeps.
const KEPT_DRAWS: usize = 128;

/// Where errors say that a value comes from.
const ORIGIN: &str = "--fit:";

/// The key of the running cap, and the keys that say what it is in another way.
const CAP_KEY: &str = "engine.max_running";
const CAP_KEYS: [&str; 7] = [
    CAP_KEY,
    "engine.max_running_requests",
    "engine.max_num_seqs",
    "engine.state_slots",
    "engine.state_slots_per_request",
    "engine.max_mamba_cache_size",
    "engine.mamba_full_memory_ratio",
];

fn key_of(prior: &Prior) -> String {
    prior.parameter.key().to_owned()
}

/// Whether a scenario has a place for a parameter.
fn has_key(parameter: Parameter) -> bool {
    !matches!(parameter, Parameter::SingleToken | Parameter::Transfer)
}

/// The values of a scenario's keys at some scores.
fn scenario_values(model: &Model, scores: &[f64]) -> Vec<(&'static str, f64)> {
    let (setup, _) = model.setup_at(scores);
    let own = &setup.parameters;
    let mut all = Vec::new();
    for (prior, score) in model.priors.iter().zip(scores) {
        let value = prior.value(*score);
        match prior.parameter {
            Parameter::BandwidthShare => all.push(("engine.cost.bandwidth_share", own.bandwidth_share)),
            Parameter::FlopsShare => all.push(("engine.cost.flops_share", own.flops_share)),
            Parameter::PrefillShare => all.push(("engine.cost.prefill_flops_share", own.prefill_flops_share)),
            Parameter::SmoothExponent => all.push(("engine.cost.smooth_exponent", own.smooth_exponent)),
            Parameter::StepGap => all.push(("engine.cost.step_gap_s", own.step_gap_s)),
            Parameter::PerRequest => all.push(("engine.cost.per_request_s", own.per_request_s)),
            Parameter::Launch => {
                all.push(("engine.cost.prefill_launch_s", own.prefill_launch_s));
                all.push(("engine.cost.eager_launch_s", own.eager_launch_s));
            }
            Parameter::Acceptance => all.push(("engine.speculation.acceptance", value)),
            Parameter::AcceptanceSpread => {
                all.push(("engine.speculation.acceptance_spread", allowed_spread(model, scores, value)));
            }
            Parameter::ExpertBytes => all.push(("engine.cost.expert_bytes_scale", value)),
            Parameter::Communication => all.push(("engine.cost.communication_scale", value)),
            Parameter::KvPool => all.push(("engine.kv_pool_tokens", setup.settings.kv_pool_tokens as f64)),
            Parameter::SingleToken | Parameter::Transfer => {}
        }
    }
    all
}

/// The spread that the acceptance of the same scores allows.
fn allowed_spread(model: &Model, scores: &[f64], spread: f64) -> f64 {
    let acceptance = model.priors.iter().position(|prior| prior.parameter == Parameter::Acceptance);
    acceptance.map_or(spread, |at| spread.min(widest_spread(model.priors[at].value(scores[at]))))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn cap_quantiles(fit: &Fit) -> CapQuantiles {
    let most = fit.model.points.iter().map(|point| point.concurrency).max().unwrap_or(1);
    // No cap counts as one that just does not bind.
    let number = |cap: Option<u32>| f64::from(cap.unwrap_or(2 * most));
    let prior: Vec<(f64, f64)> =
        fit.model.structures.iter().map(|(structure, share)| (number(structure.running_cap).ln(), *share)).collect();
    let mean: f64 = prior.iter().map(|(value, share)| value * share).sum();
    let deviation = prior.iter().map(|(value, share)| share * (value - mean).powi(2)).sum::<f64>().sqrt();
    let draws: Vec<(f64, f64)> =
        fit.posterior.draws.iter().map(|draw| (number(draw.structure.running_cap), draw.weight)).collect();
    let (_, posterior) = fit.posterior.moments(|draw| number(draw.structure.running_cap).ln());
    let [p5, p50, p95] =
        weighted_quantiles(draws, [0.05, 0.5, 0.95]).map(|value| (value < f64::from(2 * most)).then_some(value as u32));
    CapQuantiles { p5, p50, p95, learned: (1.0 - posterior / deviation.max(1e-12)).max(0.0) }
}
