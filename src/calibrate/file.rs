//! A fit on disk: what was fitted, to which table, by which program, and the values that the other commands take.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{Error, InputError, Result};
use crate::measured::Table;
use crate::model::parse::parse_toml;
use crate::model::scenario::Override;

use super::fit::Fit;
use super::posterior::weighted_quantiles;
use super::prior::Parameter;

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
    /// Values by parameter.
    pub parameter: Vec<Quantiles>,
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
        FitFile {
            scenario: fit.model.setup.scenario.name.clone(),
            table: name.to_owned(),
            table_hash: table_hash(table),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            seed: fit.model.seed,
            rms_log_error: fit.rms_log_error,
            unexplained: fit.unexplained(),
            running_cap: fit.cap_searched().then(|| cap_quantiles(fit)),
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

    /// The medians as changes of a scenario, and the parameters that no key of a scenario can hold.
    ///
    /// # Errors
    /// When the file names a parameter that this program does not know.
    pub fn overrides(&self) -> Result<(Vec<Override>, Vec<String>)> {
        let (mut set, mut without_key) = (Vec::new(), Vec::new());
        for value in &self.parameter {
            let Some(parameter) = Parameter::from_key(&value.name) else {
                let found = format!("unknown parameter `{}`", value.name);
                return Err(Error::Input(InputError::new(found, "fit again with this version")));
            };
            let key = match parameter {
                Parameter::Acceptance => "engine.speculation.acceptance",
                Parameter::AcceptanceSpread => "engine.speculation.acceptance_spread",
                Parameter::BandwidthShare
                | Parameter::FlopsShare
                | Parameter::PrefillShare
                | Parameter::SmoothExponent
                | Parameter::StepGap
                | Parameter::PerRequest => {
                    set.push(Override::parse(&format!("engine.cost.{}={}", value.name, value.p50))?);
                    continue;
                }
                _ => {
                    without_key.push(value.name.clone());
                    continue;
                }
            };
            set.push(Override::parse(&format!("{key}={}", value.p50))?);
        }
        if let Some(cap) = self.running_cap.and_then(|cap| cap.p50) {
            set.push(Override::parse(&format!("engine.max_running={cap}"))?);
        }
        Ok((set, without_key))
    }
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
