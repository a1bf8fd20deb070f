//! The fit of one table: modes, posterior, residuals, and what the table did not teach.

use std::sync::Arc;
use std::time::Instant;

use crate::error::{Error, InputError, Result};
use crate::experiment::Setup;
use crate::format::significant;
use crate::measured::{Finding, Table};
use crate::model::engine::Policy;

use super::caps::{UNCAPPED, arithmetic_caps, cap_prior, structures, without_assumed_caps};
use super::mode::{Mode, find_modes};
use super::model::{Model, NOISE_FLOOR, rms_log_error};
use super::moves::explore;
use super::points::{Point, Points};
use super::posterior::{Posterior, sample};
use super::predict::{Prediction, Structure};
use super::prior::{Known, Prior, base_priors};

/// How a fit is made.
#[derive(Clone, Copy, Debug)]
pub struct FitOptions {
    /// Seed of simulations and draws.
    pub seed: u64,
    /// Draws of the posterior.
    pub draws: usize,
    /// Rounds of Markov moves from those draws; 0 leaves them as they are, for what needs only modes.
    pub moves: usize,
    /// What is known besides the table.
    pub known: Known,
}

impl FitOptions {
    /// The usual number of draws and moves.
    pub fn new(seed: u64) -> FitOptions {
        FitOptions { seed, draws: 600, moves: 200, known: Known::default() }
    }
}

/// A fitted table.
#[derive(Clone)]
pub struct Fit {
    /// The model, with its priors.
    pub model: Model,
    /// Modes, the best first.
    pub modes: Vec<Mode>,
    /// The posterior.
    pub posterior: Posterior,
    /// What the check of the table found.
    pub findings: Vec<Finding>,
    /// Every row: used ones first.
    pub residuals: Vec<RowResidual>,
    /// Root mean square of ln(measured ÷ predicted) over the rates of the rows used.
    pub rms_log_error: f64,
    /// Simulations of a point.
    pub simulations: u64,
    /// Seconds of wall time.
    pub wall_s: f64,
}

/// A row against the fit.
#[derive(Clone, Debug)]
pub struct RowResidual {
    /// The row.
    pub point: Point,
    /// What the best fit gives.
    pub prediction: Prediction,
    /// ln(measured ÷ predicted) of the rate.
    pub error: f64,
    /// False when the row was left out of the fit.
    pub used: bool,
}

/// A mode far from every row is no explanation: beyond this the program says so, as a share.
pub const UNEXPLAINED: f64 = 0.08;

/// A single row this far off that the noise does not allow is named.
const ROW_UNEXPLAINED: f64 = 0.15;

/// Scores beyond this are no values to believe.
const STRAINED: f64 = 3.0;

/// The model of a table: the setup's unknowns, and the caps that its engine may have.
///
/// # Errors
/// As [`Setup::new`].
pub fn table_model(setup: &Setup, points: &[Point], known: Known, seed: u64) -> Result<Model> {
    let engine = &setup.scenario.tables.engine;
    let cap_known = engine.max_running.is_some() || engine.max_running_requests.is_some();
    let mut own = without_assumed_caps(setup)?;
    // Points are those of one replica.
    own.replicas = 1;
    let searched = setup.engine.policy == Policy::PrefillFirst || own.sizes.state.is_some();
    let most_in_flight = points.iter().map(|point| point.concurrency).max().unwrap_or(1);
    let caps = if let Some(cap) = known.evidence.running_cap.filter(|_| !cap_known) {
        own.settings.running_cap = UNCAPPED;
        vec![(Some(cap), 1.0)]
    } else if cap_known || !searched || most_in_flight < 2 {
        vec![(None, 1.0)]
    } else {
        let arithmetic = arithmetic_caps(setup);
        own.settings.running_cap = UNCAPPED;
        cap_prior(&arithmetic, most_in_flight)
    };
    let waves_known = points.iter().all(|point| point.requests.is_some() || point.output_tokens.is_none());
    let held = |point: &Point| {
        let each = point.output_tokens.map_or(0, |tokens| point.prompt_tokens + tokens);
        f64::from(point.concurrency) * f64::from(each)
    };
    let known = Known {
        kv_pool: known.kv_pool || engine.kv_pool_tokens.is_some(),
        single_token: points.iter().any(|point| point.concurrency == 1),
        most_context_tokens: points.iter().map(held).fold(0.0, f64::max),
        ..known
    };
    let priors = base_priors(&own, known);
    Ok(Model {
        setup: own,
        points: points.to_vec(),
        priors,
        structures: structures(&caps, waves_known),
        seed,
        laws: Arc::default(),
    })
}

/// Fits a setup to a measured table.
///
/// # Errors
/// Tables that contradict themselves, unknown lengths, and setups that cannot serve the table's requests.
pub fn fit(setup: &Setup, table: &Table, options: FitOptions) -> Result<Fit> {
    let started = Instant::now();
    let Points { used, left_out, findings } = Points::new(setup, table)?;
    let model = table_model(setup, &used, options.known, options.seed)?;
    let before = super::predict::simulations();
    let modes = find_modes(&model, None);
    let posterior = sample(&model, &modes, options.draws, options.seed);
    let posterior = explore(&model, posterior, options.moves, options.seed);
    let (Some(best), false) = (modes.first(), posterior.draws.is_empty()) else {
        return Err(cannot_serve(table));
    };
    let mut residuals = Vec::new();
    let others = model.predict(&best.scores, best.structure, &left_out).unwrap_or_default();
    for (points, predictions, used) in [(&used, &best.predictions, true), (&left_out, &others, false)] {
        for (point, prediction) in points.iter().zip(predictions) {
            let error = point.measured.tok_per_s.map_or(f64::NAN, |rate| (rate / prediction.tok_per_s).ln());
            residuals.push(RowResidual { point: point.clone(), prediction: *prediction, error, used });
        }
    }
    Ok(Fit {
        rms_log_error: rms_log_error(&used, &best.predictions),
        simulations: super::predict::simulations() - before,
        wall_s: started.elapsed().as_secs_f64(),
        residuals,
        findings,
        posterior,
        modes,
        model,
    })
}

fn cannot_serve(table: &Table) -> Error {
    let found = "no setting of the unknowns serves the requests of this table";
    let remedy = "check engine.kv_pool_tokens and the lengths in [benchmark]";
    Error::Input(InputError::new(found, remedy).file(&table.file))
}

/// What the posterior says of one parameter.
#[derive(Clone, Debug)]
pub struct Summary {
    /// 5, 50 and 95% quantiles, in the parameter's unit.
    pub quantiles: [f64; 3],
    /// The same before the table.
    pub prior_quantiles: [f64; 3],
    /// How much the table narrowed it: 1 − posterior ÷ prior deviation of the score.
    pub learned: f64,
}

/// 5 and 95% quantiles of the standard normal law.
const SCORE_90: f64 = 1.644_853_6;

/// |correlation| from which two parameters are named as not told apart.
const TOLD_APART: f64 = 0.6;

impl Fit {
    /// The best mode.
    pub fn best(&self) -> &Mode {
        &self.modes[0]
    }

    /// Summaries of the continuous parameters, in the order of the priors.
    pub fn summaries(&self) -> Vec<(&Prior, Summary)> {
        let one = |(index, prior): (usize, &Prior)| {
            let scores = self.posterior.quantiles(|draw| draw.scores[index], [0.05, 0.5, 0.95]);
            let (_, deviation) = self.posterior.moments(|draw| draw.scores[index]);
            Summary {
                quantiles: scores.map(|score| prior.value(score)),
                prior_quantiles: [-SCORE_90, 0.0, SCORE_90].map(|score| prior.value(score)),
                learned: (1.0 - deviation).max(0.0),
            }
        };
        self.model.priors.iter().enumerate().map(|(index, prior)| (prior, one((index, prior)))).collect()
    }

    /// Probability of each value of a whole-numbered unknown, the likeliest first.
    pub fn probabilities(&self, value: impl Fn(&Structure) -> Option<u32>) -> Vec<(Option<u32>, f64)> {
        let mut all: Vec<(Option<u32>, f64)> = Vec::new();
        for draw in &self.posterior.draws {
            let found = value(&draw.structure);
            match all.iter_mut().find(|(value, _)| *value == found) {
                Some((_, sum)) => *sum += draw.weight,
                None => all.push((found, draw.weight)),
            }
        }
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all
    }

    /// True when the running cap was looked for.
    pub fn cap_searched(&self) -> bool {
        self.model.structures.iter().any(|(structure, _)| structure.running_cap.is_some())
    }

    /// Pairs of parameters that the table cannot tell apart, with their correlation.
    pub fn correlations(&self) -> Vec<(&'static str, &'static str, f64)> {
        let priors = &self.model.priors;
        let moments: Vec<(f64, f64)> =
            (0..priors.len()).map(|index| self.posterior.moments(|draw| draw.scores[index])).collect();
        let mut found = Vec::new();
        for a in 0..priors.len() {
            for b in a + 1..priors.len() {
                let covariance: f64 = self
                    .posterior
                    .draws
                    .iter()
                    .map(|draw| draw.weight * (draw.scores[a] - moments[a].0) * (draw.scores[b] - moments[b].0))
                    .sum();
                let correlation = covariance / (moments[a].1 * moments[b].1);
                if correlation.abs() >= TOLD_APART {
                    found.push((priors[a].parameter.key(), priors[b].parameter.key(), correlation));
                }
            }
        }
        found.sort_by(|a, b| b.2.abs().total_cmp(&a.2.abs()));
        found
    }

    /// The error of one more measurement, median over the posterior: model error and floor.
    pub fn noise(&self) -> f64 {
        self.posterior.quantiles(|draw| draw.noise.hypot(NOISE_FLOOR), [0.5])[0]
    }

    /// Why this fit must not be trusted, if so.
    pub fn unexplained(&self) -> Option<String> {
        unexplained(&self.model, self.best(), self.rms_log_error)
    }
}

/// Why the best values of a model must not be trusted, if so: rows that they miss by more than noise, or a value that
/// nobody who looked would have believed, which then stands in for a mechanism that the model lacks.
pub fn unexplained(model: &Model, best: &Mode, rms_log_error: f64) -> Option<String> {
    let missed = |(point, found): (&Point, &Prediction)| -> Option<String> {
        let error = (point.measured.tok_per_s? / found.tok_per_s).ln();
        let beyond = error.abs() > ROW_UNEXPLAINED.max(3.0 * found.run_deviation.hypot(point.measured.noise));
        beyond.then(|| format!("{} at concurrency {}", signed_percent(error), point.in_flight))
    };
    let rows: Vec<String> = model.points.iter().zip(&best.predictions).filter_map(missed).collect();
    if !rows.is_empty() {
        return Some(format!("not explained by the model: measured {} of the fit", rows.join(", ")));
    }
    if rms_log_error > UNEXPLAINED {
        let share = 100.0 * rms_log_error;
        return Some(format!("not explained by the model: rows scatter by {share:.0}% around the fit"));
    }
    let strained = model.priors.iter().zip(&best.scores).find(|(_, score)| score.abs() > STRAINED);
    strained.map(|(prior, score)| {
        format!(
            "not explained by the model: it takes {} = {}, {:.1} deviations from what is believed of it",
            prior.parameter.key(),
            significant(prior.value(*score)),
            score.abs()
        )
    })
}

/// A logarithm as a signed percentage.
pub fn signed_percent(error: f64) -> String {
    format!("{:+.1}%", 100.0 * error.exp_m1())
}
