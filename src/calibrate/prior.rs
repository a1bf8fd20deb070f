//! What is unknown of an engine, and what was believed of it before any table was seen.
//!
//! A fit works on scores: 0 is the centre of a prior, 1 is one of its standard deviations. Times and factors are
//! lognormal, shares logit-normal, so no score gives an impossible value.

use std::sync::Mutex;

use crate::cost::CostParameters;
use crate::engine::speculation::Speculation;
use crate::experiment::Setup;

use super::evidence::Evidence;

/// A parameter of a fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Parameter {
    /// Share of the nominal memory bandwidth.
    BandwidthShare,
    /// Share of the nominal matrix rate in decode and verify passes.
    FlopsShare,
    /// Share of the nominal matrix rate in prefill.
    PrefillShare,
    /// Exponent of the smooth maximum of weight reading and compute.
    SmoothExponent,
    /// Fixed time of a step, seconds.
    StepGap,
    /// Time that each running request adds to a step, seconds.
    PerRequest,
    /// Factor on the times to launch a prefill step and an eager step.
    Launch,
    /// Acceptance of one drafted position.
    Acceptance,
    /// Its standard deviation between requests.
    AcceptanceSpread,
    /// Factor on the bytes of touched experts: correlated routing touches fewer, small products read slower.
    ExpertBytes,
    /// Factor on the times of tensor-parallel communication.
    Communication,
    /// Factor on the KV pool of the engine's arithmetic.
    KvPool,
    /// Factor on the rate of a pass over one token: vector kernels take the place of matrix kernels.
    SingleToken,
    /// Seconds on the host link for each finished request, which the link cannot do at the same time.
    Transfer,
}

impl Parameter {
    /// The key in JSON and in fit files.
    pub fn key(self) -> &'static str {
        match self {
            Parameter::BandwidthShare => "bandwidth_share",
            Parameter::FlopsShare => "flops_share",
            Parameter::PrefillShare => "prefill_flops_share",
            Parameter::SmoothExponent => "smooth_exponent",
            Parameter::StepGap => "step_gap_s",
            Parameter::PerRequest => "per_request_s",
            Parameter::Launch => "launch_scale",
            Parameter::Acceptance => "acceptance",
            Parameter::AcceptanceSpread => "acceptance_spread",
            Parameter::ExpertBytes => "expert_bytes_scale",
            Parameter::Communication => "communication_scale",
            Parameter::KvPool => "kv_pool_scale",
            Parameter::SingleToken => "single_token_scale",
            Parameter::Transfer => "transfer_s",
        }
    }

    /// The parameter of a key.
    pub fn from_key(key: &str) -> Option<Parameter> {
        use Parameter::*;
        [
            BandwidthShare,
            FlopsShare,
            PrefillShare,
            SmoothExponent,
            StepGap,
            PerRequest,
            Launch,
            Acceptance,
            AcceptanceSpread,
            ExpertBytes,
            Communication,
            KvPool,
            SingleToken,
            Transfer,
        ]
        .into_iter()
        .find(|parameter| parameter.key() == key)
    }

    fn scale(self) -> Scale {
        match self {
            Parameter::BandwidthShare | Parameter::FlopsShare | Parameter::PrefillShare | Parameter::Acceptance => {
                Scale::Logit
            }
            _ => Scale::Log,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    Log,
    Logit,
}

/// What is believed of a parameter before a table is seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Prior {
    /// The parameter.
    pub parameter: Parameter,
    /// Median, in its unit.
    pub center: f64,
    /// Standard deviation of its logarithm, or of its logit for shares.
    pub deviation: f64,
    /// Where it comes from.
    pub source: String,
}

impl Prior {
    /// A prior around `center`, which is moved inside the parameter's range when it lies on its edge.
    pub fn new(parameter: Parameter, center: f64, deviation: f64, source: impl Into<String>) -> Prior {
        let center = match parameter.scale() {
            Scale::Logit => center.clamp(0.01, 0.99),
            Scale::Log => center.max(1e-9),
        };
        Prior { parameter, center, deviation, source: source.into() }
    }

    /// The value at a score.
    pub fn value(&self, score: f64) -> f64 {
        match self.parameter.scale() {
            Scale::Log => self.center * (self.deviation * score).exp(),
            Scale::Logit => {
                let logit = (self.center / (1.0 - self.center)).ln() + self.deviation * score;
                1.0 / (1.0 + (-logit).exp())
            }
        }
    }

    /// The score of a value.
    pub fn score(&self, value: f64) -> f64 {
        let distance = match self.parameter.scale() {
            Scale::Log => (value / self.center).ln(),
            Scale::Logit => (value / (1.0 - value)).ln() - (self.center / (1.0 - self.center)).ln(),
        };
        distance / self.deviation
    }
}

/// What the caller knows of the benchmark besides the setup.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// The acceptance was measured in the same run, as this mean of one position.
    pub acceptance: Option<f64>,
    /// The size of the KV pool was read off a log.
    pub kv_pool: bool,
    /// The dtype of the KV cache is not known, so the pool may be half or twice what the arithmetic gives.
    pub kv_dtype_unknown: bool,
    /// Some points have one token in a pass.
    pub single_token: bool,
    /// Tokens of context that the points hold at most.
    pub most_context_tokens: f64,
    /// What was read off the engine.
    pub evidence: Evidence,
}

/// The priors of a setup: centres from its descriptions, widths wide enough for every table they were not made from.
pub fn base_priors(setup: &Setup, known: Known) -> Vec<Prior> {
    use Parameter::*;
    let own = &setup.parameters;
    let hardware = setup.hardware.as_ref().map_or("hardware", |hardware| hardware.name.as_str());
    let engine = setup.engine.name.as_str();
    let of_hardware = format!("models/hardware/{hardware}.toml");
    let of_host = format!("models/engine/{engine}.toml, [host]");
    let mut priors = vec![
        // 0.8 at a deviation of 0.6: 0.60 to 0.91 in nine of ten.
        Prior::new(BandwidthShare, own.bandwidth_share, 0.6, &of_hardware),
        Prior::new(FlopsShare, own.flops_share, 0.6, &of_hardware),
        Prior::new(PrefillShare, own.prefill_flops_share, 0.7, format!("{of_hardware}, times 0.61 / 0.75")),
        Prior::new(SmoothExponent, own.smooth_exponent, 0.4, "skinny products on an H200: 2.5 to 3.5"),
        Prior::new(StepGap, own.step_gap_s, 0.7, &of_host),
        Prior::new(PerRequest, own.per_request_s, 1.0, &of_host),
        Prior::new(Launch, 1.0, 0.5, &of_host),
    ];
    if let Some(speculation) = &setup.settings.speculation {
        let table = setup.scenario.tables.engine.speculation.as_ref();
        let given = position_acceptance(speculation.mean_tokens_per_step(), speculation.draft_tokens());
        let (center, deviation, source) = match known.acceptance {
            Some(measured) => (measured, 0.1, "measured with the table"),
            None => (given, 0.5, "scenario; published acceptance of MTP layers lies between 0.4 and 0.9"),
        };
        let spread = table.and_then(|table| table.acceptance_spread).filter(|spread| *spread > 0.0).unwrap_or(0.05);
        priors.push(Prior::new(Acceptance, center, deviation, source));
        priors.push(Prior::new(AcceptanceSpread, spread, 0.4, "scenario; the spread between tasks"));
    }
    if setup.sizes.experts.is_some() {
        priors.push(Prior::new(ExpertBytes, 1.0, 0.35, "uniform routing at the bandwidth of dense layers"));
    }
    if setup.tensor_parallel > 1 {
        priors.push(Prior::new(Communication, 1.0, 0.5, "models/collective; hosts differ by topology"));
    }
    if !known.kv_pool && known.most_context_tokens > 0.5 * setup.settings.kv_pool_tokens as f64 {
        priors.push(if known.kv_dtype_unknown {
            Prior::new(KvPool, 1.0, 0.5, "the engine's memory arithmetic; the dtype of the KV is unknown")
        } else {
            Prior::new(KvPool, 1.0, 0.15, "the engine's memory arithmetic, checked to a few percent")
        });
    }
    if known.single_token && setup.settings.speculation.is_none() {
        priors.push(Prior::new(
            SingleToken,
            1.0,
            0.12,
            "kernels for one row: up to a fifth faster in published sweeps",
        ));
    }
    priors
}

/// Acceptance p of one position from the tokens of a step, m = 1 + p + p² + … + pˢ.
pub fn position_acceptance(tokens_per_step: f64, drafted: u32) -> f64 {
    let tokens = |p: f64| (0..=drafted as i32).map(|i| p.powi(i)).sum::<f64>();
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if tokens(middle) < tokens_per_step { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

/// Laws of speculation that were built last, by acceptance and spread: a fit moves one parameter at a time, and a law
/// takes longer to build than a point to simulate.
#[derive(Debug, Default)]
pub struct Laws(Mutex<Vec<([u64; 2], Speculation)>>);

/// Laws kept.
const LAWS: usize = 4;

impl Laws {
    /// The law with `acceptance` of each of `drafted` positions; `None` when there is none.
    fn get(&self, acceptance: f64, spread: f64, drafted: u32) -> Option<Speculation> {
        let key = [acceptance.to_bits(), spread.to_bits()];
        if let Ok(kept) = self.0.lock()
            && let Some((_, law)) = kept.iter().find(|(other, _)| *other == key)
        {
            return Some(law.clone());
        }
        let marginal: Vec<f64> = (1..=drafted as i32).map(|i| acceptance.powi(i)).collect();
        let law = Speculation::new(&marginal, spread).ok()?;
        if let Ok(mut kept) = self.0.lock() {
            if kept.len() == LAWS {
                kept.remove(0);
            }
            kept.push((key, law.clone()));
        }
        Some(law)
    }
}

/// What has no place in a setup.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Beside {
    /// Seconds on the host link for each finished request.
    pub transfer_s: Option<f64>,
    /// Factor on the rate of a pass over one token.
    pub single_token: f64,
}

/// Nothing beside the setup.
pub const PLAIN: Beside = Beside { transfer_s: None, single_token: 1.0 };

/// The widest spread that a Beta law of this mean allows, with room.
pub(super) fn widest_spread(acceptance: f64) -> f64 {
    0.9 * (acceptance * (1.0 - acceptance)).sqrt()
}

/// Puts the values of `priors` at `scores` into a setup, and returns what has no place there.
pub fn apply(setup: &mut Setup, priors: &[Prior], scores: &[f64], laws: &Laws) -> Beside {
    let mut beside = PLAIN;
    let (mut acceptance, mut spread) = (None, None);
    for (prior, score) in priors.iter().zip(scores) {
        let value = prior.value(*score);
        let own: &mut CostParameters = &mut setup.parameters;
        match prior.parameter {
            Parameter::BandwidthShare => own.bandwidth_share = value.clamp(1e-4, 1.0),
            Parameter::FlopsShare => own.flops_share = value.clamp(1e-4, 1.0),
            Parameter::PrefillShare => own.prefill_flops_share = value.clamp(1e-4, 1.0),
            Parameter::SmoothExponent => own.smooth_exponent = value.clamp(1.0, 64.0),
            Parameter::StepGap => own.step_gap_s = value.min(60.0),
            Parameter::PerRequest => own.per_request_s = value.min(60.0),
            Parameter::Launch => {
                own.prefill_launch_s = (own.prefill_launch_s * value).min(60.0);
                own.eager_launch_s = (own.eager_launch_s * value).min(60.0);
            }
            Parameter::Acceptance => acceptance = Some(value),
            Parameter::AcceptanceSpread => spread = Some(value),
            Parameter::ExpertBytes => setup.scale_experts(value),
            Parameter::Communication => setup.communication_scale *= value,
            Parameter::KvPool => {
                setup.settings.kv_pool_tokens = (setup.settings.kv_pool_tokens as f64 * value) as u64;
            }
            Parameter::SingleToken => beside.single_token = value,
            Parameter::Transfer => beside.transfer_s = Some(value),
        }
    }
    if let (Some(speculation), Some(acceptance)) = (&mut setup.settings.speculation, acceptance) {
        let spread = spread.unwrap_or(0.0).min(widest_spread(acceptance));
        if let Some(new) = laws.get(acceptance, spread, speculation.draft_tokens()) {
            *speculation = new;
        }
    }
    beside
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_and_values_are_inverse() {
        for (parameter, center) in
            [(Parameter::BandwidthShare, 0.8), (Parameter::StepGap, 1e-3), (Parameter::Acceptance, 0.78)]
        {
            let prior = Prior::new(parameter, center, 0.5, "test");
            for score in [-2.0, 0.0, 0.7] {
                assert!((prior.score(prior.value(score)) - score).abs() < 1e-9, "{parameter:?}");
            }
            assert!((prior.value(0.0) - center).abs() < 1e-12);
            assert_eq!(Parameter::from_key(parameter.key()), Some(parameter));
        }
    }

    #[test]
    fn acceptance_of_a_position_from_tokens_of_a_step() {
        let tokens = 1.0 + 0.8 + 0.64 + 0.512;
        assert!((position_acceptance(tokens, 3) - 0.8).abs() < 1e-9);
    }
}
