//! Rival explanations of a plateau, each a model of the same table with its own priors.

use crate::error::Result;
use crate::experiment::Setup;

use super::caps::{UNCAPPED, WAVES, arithmetic_caps, cap_prior};
use super::fit::table_model;
use super::model::Model;
use super::points::Point;
use super::predict::Structure;
use super::prior::{Known, Parameter, Prior};

/// Why a curve may stop rising.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mechanism {
    /// The engine admits a fixed number of requests.
    RunningCap,
    /// The KV pool admits only so many.
    KvPool,
    /// Verify and decode passes are bound by compute.
    Compute,
    /// The host spends time on every running request in every step.
    Host,
    /// The host link moves something for every request.
    Link,
    /// The client keeps fewer requests in flight than it says.
    Client,
    /// Reading prompts takes most of the time.
    Prefill,
    /// Nothing but what the descriptions say.
    None,
}

impl Mechanism {
    /// All of them.
    pub const ALL: [Mechanism; 8] = [
        Mechanism::RunningCap,
        Mechanism::KvPool,
        Mechanism::Compute,
        Mechanism::Host,
        Mechanism::Link,
        Mechanism::Client,
        Mechanism::Prefill,
        Mechanism::None,
    ];

    /// The name in JSON.
    pub fn key(self) -> &'static str {
        match self {
            Mechanism::RunningCap => "running_cap",
            Mechanism::KvPool => "kv_pool",
            Mechanism::Compute => "compute_bound_verify",
            Mechanism::Host => "per_request_host_cost",
            Mechanism::Link => "pcie",
            Mechanism::Client => "client",
            Mechanism::Prefill => "prefill_share",
            Mechanism::None => "none",
        }
    }

    /// A few words for people.
    pub fn words(self) -> &'static str {
        match self {
            Mechanism::RunningCap => "a cap on running requests",
            Mechanism::KvPool => "a full KV pool",
            Mechanism::Compute => "compute-bound verify passes",
            Mechanism::Host => "host work for each running request",
            Mechanism::Link => "transfers over PCIe",
            Mechanism::Client => "a client with too few in flight",
            Mechanism::Prefill => "prefill taking most of the time",
            Mechanism::None => "no mechanism beyond the usual costs",
        }
    }

    /// Prior probability, from what people who reported plateaus found in the end: caps and KV pools most often, a
    /// client or a link rarely.
    pub fn prior(self) -> f64 {
        match self {
            Mechanism::RunningCap => 0.25,
            Mechanism::None => 0.20,
            Mechanism::KvPool => 0.15,
            Mechanism::Compute | Mechanism::Host | Mechanism::Prefill => 0.10,
            Mechanism::Link | Mechanism::Client => 0.05,
        }
    }

    /// The model of the table under this mechanism, and what its extra prior says.
    ///
    /// # Errors
    /// As [`table_model`].
    pub fn model(self, setup: &Setup, points: &[Point], known: Known, seed: u64) -> Result<(Model, String)> {
        let mut model = table_model(setup, points, known, seed)?;
        let engine = &setup.scenario.tables.engine;
        let cap_known = engine.max_running.is_some() || engine.max_running_requests.is_some();
        let own_cap = model.setup.settings.running_cap;
        if !cap_known {
            model.setup.settings.running_cap = UNCAPPED;
        }
        let most = points.iter().map(|point| point.concurrency).max().unwrap_or(1);
        let note = match self {
            Mechanism::RunningCap => {
                let (caps, note) = match (cap_known, known.evidence.running_cap) {
                    (true, _) => (vec![(Some(own_cap), 1.0)], "the scenario's cap".to_owned()),
                    (false, Some(cap)) => (vec![(Some(cap), 1.0)], format!("a cap of {cap}, read off the engine")),
                    (false, None) => (
                        cap_prior(&arithmetic_caps(setup), most),
                        "the cap: around the engine's arithmetic, and equal weight for each doubling".to_owned(),
                    ),
                };
                let caps: Vec<(Option<u32>, f64)> = caps.into_iter().filter(|(cap, _)| cap.is_some()).collect();
                model.structures =
                    with_waves(&model, &caps, |cap, waves| Structure { running_cap: cap, waves, client_cap: None });
                note
            }
            Mechanism::Client => {
                let caps: Vec<(Option<u32>, f64)> =
                    cap_prior(&[], most).into_iter().filter(|(cap, _)| cap.is_some()).collect();
                model.structures =
                    with_waves(&model, &caps, |cap, waves| Structure { running_cap: None, waves, client_cap: cap });
                "requests really in flight: equal weight for each doubling".to_owned()
            }
            _ => {
                model.structures = with_waves(&model, &[(None, 1.0)], |_, waves| Structure {
                    running_cap: None,
                    waves,
                    client_cap: None,
                });
                self.widen(&mut model)
            }
        };
        Ok((model, note))
    }

    /// Replaces the prior that this mechanism is about.
    fn widen(self, model: &mut Model) -> String {
        let setup = &model.setup;
        let prior = match self {
            Mechanism::KvPool => {
                let source = "the engine's memory arithmetic, within a factor of two";
                Prior::new(Parameter::KvPool, 1.0, 0.45, source)
            }
            Mechanism::Compute => {
                let center = setup.parameters.flops_share * 0.2;
                Prior::new(Parameter::FlopsShare, center, 1.0, "a fifth of the usual share, within a factor of five")
            }
            Mechanism::Host => {
                Prior::new(Parameter::PerRequest, 0.5e-3, 1.5, "0.5 ms, within a factor of twelve (usual: 7 µs)")
            }
            Mechanism::Link => {
                let bytes = setup.sizes.kv.stored_bytes_per_token * mean_context(&model.points)
                    + setup.sizes.state.as_ref().map_or(0.0, |state| state.bytes_per_request);
                let link = setup.hardware.as_ref().map(|hardware| &hardware.host_link);
                let rate = link.map_or(25e9, |link| link.d2h_bytes_per_s);
                let seconds = bytes / rate;
                let source = format!(
                    "{:.0} MB of KV and state a request over {:.0} GB/s, within a factor of ten",
                    bytes / 1e6,
                    rate / 1e9
                );
                Prior::new(Parameter::Transfer, seconds, 1.4, source)
            }
            Mechanism::Prefill => {
                let center = setup.parameters.prefill_flops_share * 0.1;
                Prior::new(Parameter::PrefillShare, center, 1.2, "a tenth of the usual share, within a factor of seven")
            }
            _ => return "priors of the descriptions".to_owned(),
        };
        let note = format!("{}: {}", prior.parameter.key(), prior.source);
        model.priors.retain(|other| other.parameter != prior.parameter);
        model.priors.push(prior);
        note
    }
}

fn with_waves(
    model: &Model,
    values: &[(Option<u32>, f64)],
    structure: impl Fn(Option<u32>, u32) -> Structure,
) -> Vec<(Structure, f64)> {
    let several = model.structures.iter().any(|(structure, _)| structure.waves > 1);
    let waves: &[(u32, f64)] = if several { &WAVES } else { &[(1, 1.0)] };
    let sum: f64 = values.iter().map(|(_, share)| share).sum();
    let mut all = Vec::new();
    for (value, share) in values {
        all.extend(waves.iter().map(|(waves, part)| (structure(*value, *waves), share / sum * part)));
    }
    all
}

/// Prompt and output of a request, averaged over the points.
fn mean_context(points: &[Point]) -> f64 {
    let tokens = |point: &Point| f64::from(point.prompt_tokens + point.output_tokens.unwrap_or(0));
    points.iter().map(tokens).sum::<f64>() / points.len().max(1) as f64
}
