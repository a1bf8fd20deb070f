//! Completion time as a distribution.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::experiment::{CONFIDENCE, Drivers, Forecast, Step, VARIATION};
use crate::model::scenario::Scenario;
use crate::report::format::{percent, thousands, tokens};

/// What `forecast` says.
#[derive(Clone, Debug, Serialize)]
pub struct ForecastReport {
    scenario: String,
    seed: u64,
    replications: u64,
    first_replication: u64,
    makespan_days: Map<String, Value>,
    intervals: Map<String, Value>,
    deadline_days: Option<f64>,
    p_deadline: Option<f64>,
    p_deadline_interval: Option<(f64, f64)>,
    truncated_share: f64,
    mean_output_tokens: f64,
    uncertain: Map<String, Value>,
    drivers: Vec<DriverReport>,
    drivers_about: Option<DriversAbout>,
    bridge: Vec<StepReport>,
    #[serde(skip)]
    title: String,
    #[serde(skip)]
    forecast: Forecast,
}

#[derive(Clone, Debug, Serialize)]
struct DriverReport {
    name: String,
    share: f64,
    share_error: f64,
    total: f64,
    total_error: f64,
}

#[derive(Clone, Debug, Serialize)]
struct DriversAbout {
    rows: u64,
    runs: u64,
    requests: u64,
    reproduced: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
struct StepReport {
    step: String,
    days: f64,
}

/// What was run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The seed.
    pub seed: u64,
    /// Number of the first replication.
    pub first: u64,
    /// When the job must be done, days.
    pub deadline_days: Option<f64>,
}

impl ForecastReport {
    /// The report of a forecast.
    pub fn new(scenario: &Scenario, run: Run, forecast: Forecast, drivers: Option<Drivers>, bridge: &[Step]) -> Self {
        let percentile = |p: f64| format!("p{:.0}", p * 100.0);
        let mut makespan_days = Map::from_iter([("mean".to_owned(), json!(forecast.mean_days))]);
        makespan_days.extend(forecast.quantiles.iter().map(|q| (percentile(q.p), json!(q.days))));
        let about = drivers.as_ref().map(|drivers| DriversAbout {
            rows: drivers.rows,
            runs: drivers.runs,
            requests: drivers.requests,
            reproduced: drivers.reproduced,
        });
        let driver = |driver: &crate::experiment::Driver| DriverReport {
            name: driver.name.clone(),
            share: driver.index.first,
            share_error: driver.index.first_error,
            total: driver.index.total,
            total_error: driver.index.total_error,
        };
        ForecastReport {
            scenario: scenario.name.clone(),
            seed: run.seed,
            replications: forecast.days.len() as u64,
            first_replication: run.first,
            makespan_days,
            intervals: forecast.quantiles.iter().map(|q| (percentile(q.p), json!(q.interval))).collect(),
            deadline_days: run.deadline_days,
            p_deadline: forecast.in_time.map(|(share, _)| share),
            p_deadline_interval: forecast.in_time.map(|(_, interval)| interval),
            truncated_share: forecast.truncated_share,
            mean_output_tokens: forecast.output_tokens,
            uncertain: scenario.unknowns.iter().map(|u| (u.name.clone(), json!(u.words()))).collect(),
            drivers: drivers.iter().flat_map(|drivers| &drivers.drivers).map(driver).collect(),
            drivers_about: about,
            bridge: bridge.iter().map(|step| StepReport { step: step.step.clone(), days: step.days }).collect(),
            title: scenario.tables.title.clone().unwrap_or_else(|| scenario.name.clone()),
            forecast,
        }
    }

    /// As JSON, one object.
    ///
    /// # Errors
    /// What writing gives.
    pub fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, self)?;
        writeln!(out)
    }

    /// As text.
    ///
    /// # Errors
    /// What writing gives.
    pub fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        let forecast = &self.forecast;
        writeln!(out, "{}\n", self.title)?;
        writeln!(
            out,
            "completes in {:.1} days (median); 90% between {:.1} and {:.1}; mean {:.1}",
            forecast.quantile(0.5),
            forecast.quantile(0.05),
            forecast.quantile(0.95),
            forecast.mean_days
        )?;
        if let (Some(days), Some((share, (low, high)))) = (self.deadline_days, forecast.in_time) {
            let range = format!("{} to {}", percent(low), percent(high));
            writeln!(out, "done within {days:.1} days: {} (95% interval {range})", percent(share))?;
        }
        let average = tokens(self.mean_output_tokens.round() as u64);
        writeln!(out, "{} of the answers are cut on average; {average} output tokens", percent(self.truncated_share))?;
        let last = self.first_replication + self.replications - 1;
        writeln!(
            out,
            "{} replications ({} to {last}) of the whole job, seed {}\n",
            thousands(self.replications),
            self.first_replication,
            self.seed
        )?;
        writeln!(out, "quantile     days   {:.0}% interval of it", CONFIDENCE * 100.0)?;
        for quantile in &forecast.quantiles {
            let interval = match quantile.interval {
                Some((low, high)) => format!("{low:.2} to {high:.2}"),
                None => "too few replications".to_owned(),
            };
            writeln!(out, "{:>7.0}% {:>8.2}   {interval}", quantile.p * 100.0, quantile.days)?;
        }
        self.write_unknowns(out)?;
        self.write_bridge(out)
    }

    fn write_unknowns(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out)?;
        if self.uncertain.is_empty() {
            return writeln!(out, "nothing is uncertain in this scenario: what spreads is the requests alone");
        }
        writeln!(out, "uncertain (one draw a replication)")?;
        for (name, words) in &self.uncertain {
            writeln!(out, "  {name:<34} {}", words.as_str().unwrap_or_default())?;
        }
        let Some(about) = &self.drivers_about else { return Ok(()) };
        writeln!(out, "\nwhat the spread comes from            alone   +-     with others   +-")?;
        for driver in &self.drivers {
            let shown = |share: f64| percent(share.clamp(0.0, 1.0));
            writeln!(
                out,
                "  {:<34} {:>6} {:>5} {:>13} {:>5}",
                driver.name,
                shown(driver.share),
                shown(driver.share_error),
                shown(driver.total),
                shown(driver.total_error)
            )?;
        }
        let checked = match about.reproduced {
            Some(share) => format!("{} of the variance of the whole jobs", percent(share.clamp(0.0, 1.0))),
            None => "nothing to compare with".to_owned(),
        };
        writeln!(
            out,
            "Sobol shares from {} runs of {} requests, which reproduce {checked}; \"{VARIATION}\" is what one draw a \
             request leaves",
            thousands(about.runs),
            thousands(about.requests)
        )
    }

    /// The bridge, a line for each step.
    pub(super) fn write_bridge(&self, out: &mut impl Write) -> io::Result<()> {
        if self.bridge.is_empty() {
            return Ok(());
        }
        writeln!(out, "\nfrom the napkin to the forecast             days   change")?;
        let mut before: Option<f64> = None;
        for step in &self.bridge {
            let change = before.map_or(String::new(), |before| format!("{:+.2}", step.days - before));
            let line = format!("  {:<60} {:>6.2}  {change:>7}", step.step, step.days);
            writeln!(out, "{}", line.trim_end())?;
            before = Some(step.days);
        }
        Ok(())
    }
}
