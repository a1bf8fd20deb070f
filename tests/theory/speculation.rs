//! Speculation in strides (the number of steps drawn once) against the token-exact reference (every step drawn).

use std::collections::HashMap;

use rayon::prelude::*;

use crate::harness::*;
use makespan::engine::observe::Observer;
use makespan::engine::sequence::Sequence;
use makespan::engine::settings::{EngineSettings, PolicySettings, Stride};
use makespan::engine::speculation::Speculation;
use makespan::random::Streams;
use makespan::simulation::simulate;

/// Steps after the first token, by request.
#[derive(Default)]
struct Steps(HashMap<u64, (u32, u64)>);

impl Observer for Steps {
    fn completed(&mut self, _replica: usize, sequence: &Sequence) {
        let steps = sequence.finish_step - sequence.start_step;
        let twice = self.0.insert(sequence.request.id, (sequence.request.output_tokens, steps));
        assert!(twice.is_none(), "request {} ended twice", sequence.request.id);
    }
}

/// Largest distance of two empirical distribution functions.
fn distance(a: &mut [f64], b: &mut [f64]) -> f64 {
    a.sort_unstable_by(f64::total_cmp);
    b.sort_unstable_by(f64::total_cmp);
    let share = |sorted: &[f64], x: f64| sorted.partition_point(|v| *v <= x) as f64 / sorted.len() as f64;
    a.iter().chain(b.iter()).map(|&x| (share(a, x) - share(b, x)).abs()).fold(0.0, f64::max)
}

/// The distance that two samples of one continuous law exceed with probability 5·10⁻⁵: 2·exp(−2λ²), λ = D·√(nm/(n + m)).
/// For lattice laws the probability is smaller still.
fn threshold(a: usize, b: usize) -> f64 {
    let lambda = (-(5e-5f64 / 2.0).ln() / 2.0).sqrt();
    lambda * ((a + b) as f64 / (a as f64 * b as f64)).sqrt()
}

/// Output lengths on both sides of where the law of steps changes its method (48 tokens), and one far beyond.
const LENGTHS: [u32; 8] = [1, 2, 9, 40, 49, 90, 150, 260];

struct Sample {
    makespans: Vec<f64>,
    /// By output tokens.
    steps: HashMap<u32, Vec<f64>>,
}

/// Independent replications: own draws of acceptance and steps for each, own streams of the reference.
fn sample(settings: &EngineSettings, replicas: usize, seed: u64, replications: u64) -> Sample {
    let lengths: Vec<(u32, u32)> = (0..24).map(|i| (20 + i, LENGTHS[i as usize * 5 % LENGTHS.len()])).collect();
    let drafted = settings.speculation.as_ref().map_or(0, Speculation::draft_tokens);
    let model = toy_model(1e10, 60_000.0);
    let runs: Vec<(f64, Steps)> = (0..replications)
        .into_par_iter()
        .map(|replication| {
            let streams = Streams::new(seed, replication);
            let fleet = fleet_with(settings, replicas, streams, || cost_of(&model, &parameters(), drafted));
            let mut steps = Steps::default();
            let job = Job::new(&lengths).with_draws(seed * 1_000_000 + replication);
            let outcome = simulate(fleet, job, &mut steps).unwrap();
            // A last step's surplus does not count.
            assert_eq!(outcome.output_tokens, lengths.iter().map(|(_, output)| u64::from(*output)).sum::<u64>());
            let after_first: u64 = lengths.iter().map(|(_, output)| u64::from(*output) - 1).sum();
            let taken: u64 = steps.0.values().map(|(_, steps)| steps).sum();
            let tokens_per_step = outcome.tokens_per_request_step.unwrap();
            assert!((tokens_per_step - after_first as f64 / taken as f64).abs() < 1e-12);
            (outcome.makespan.as_s(), steps)
        })
        .collect();
    let mut steps: HashMap<u32, Vec<f64>> = HashMap::new();
    for (output, taken) in runs.iter().flat_map(|(_, run)| run.0.values()) {
        steps.entry(*output).or_default().push(*taken as f64);
    }
    Sample { makespans: runs.iter().map(|(makespan, _)| *makespan).collect(), steps }
}

#[test]
fn drawing_every_step_gives_the_same_law_of_steps_and_makespan() {
    let replications = 500;
    for (policy, marginal, spread) in [
        (PolicySettings::Sglang(sglang()), vec![0.8, 0.64, 0.512], 0.0),
        (PolicySettings::Vllm(vllm()), vec![0.85], 0.0),
        (PolicySettings::Vllm(vllm()), vec![0.7, 0.4, 0.3], 0.15),
        (PolicySettings::Sglang(sglang()), vec![0.3, 0.05], 0.1),
    ] {
        let mut settings = settings(policy, 5, 1_000_000);
        settings.speculation = Some(Speculation::new(&marginal, spread).unwrap());
        let mut strided = sample(&settings, 2, 1, replications);
        settings.stride = Stride::TokenExact;
        let mut exact = sample(&settings, 2, 2, replications);
        let must_agree = |what: String, a: &mut Vec<f64>, b: &mut Vec<f64>| {
            let (distance, threshold) = (distance(a, b), threshold(a.len(), b.len()));
            assert!(distance < threshold, "{marginal:?} ± {spread}, {what}: {distance} against {threshold}");
        };
        must_agree("makespan".to_owned(), &mut strided.makespans, &mut exact.makespans);
        for output in LENGTHS {
            let (a, b) = (strided.steps.get_mut(&output).unwrap(), exact.steps.get_mut(&output).unwrap());
            must_agree(format!("steps of {output} tokens"), a, b);
        }
    }
}

#[test]
fn the_reference_ends_when_no_token_is_left_whatever_the_draws() {
    // Certain acceptance: every step emits 3 tokens; L − 1 of them need ⌈(L − 1)/3⌉ steps, also when 3 does not divide.
    for policy in [PolicySettings::Sglang(sglang()), PolicySettings::Vllm(vllm())] {
        for stride in [Stride::Longest, Stride::Stepwise, Stride::TokenExact] {
            let mut settings = EngineSettings { stride, ..settings(policy, 3, 100_000) };
            settings.speculation = Some(Speculation::new(&[1.0, 1.0], 0.0).unwrap());
            let lengths: Vec<(u32, u32)> = (1..60).map(|output| (5, output)).collect();
            let mut steps = Steps::default();
            let outcome =
                simulate(fleet(&settings, 1, || constant_cost(0.01)), Job::new(&lengths), &mut steps).unwrap();
            assert_eq!(outcome.output_tokens, (1..60).sum::<u64>());
            for (output, taken) in steps.0.values() {
                assert_eq!(*taken, u64::from((output - 1).div_ceil(3)), "{stride:?}");
            }
        }
    }
}

#[test]
fn the_reference_keeps_its_tokens_through_preemptions() {
    for policy in [PolicySettings::Sglang(sglang()), PolicySettings::Vllm(vllm())] {
        let mut settings = EngineSettings { stride: Stride::TokenExact, ..settings(policy, 12, 1200) };
        settings.speculation = Some(Speculation::new(&[0.8, 0.6], 0.1).unwrap());
        let lengths: Vec<(u32, u32)> = (0..60u32).map(|i| (1 + i * 37 % 90, 100 + i * 53 % 200)).collect();
        let mut steps = Steps::default();
        let job = Job::new(&lengths).with_draws(3);
        let outcome = simulate(fleet(&settings, 1, || constant_cost(0.01)), job, &mut steps).unwrap();
        assert!(outcome.preemptions > 0);
        assert_eq!(steps.0.len(), lengths.len());
        assert_eq!(outcome.output_tokens, lengths.iter().map(|(_, output)| u64::from(*output)).sum::<u64>());
    }
}

/// Without speculation nothing is drawn: the reference is one of the strides.
#[test]
fn without_speculation_the_reference_equals_the_strides() {
    for policy in [PolicySettings::Sglang(sglang()), PolicySettings::Vllm(vllm()), PolicySettings::Static] {
        let lengths: Vec<(u32, u32)> = (0..40u32).map(|i| (1 + i * 37 % 90, 1 + i * 53 % 120)).collect();
        let run = |stride| {
            let settings = EngineSettings { stride, ..settings(policy, 6, 100_000) };
            let model = toy_model(1e10, 60_000.0);
            let mut log = Log::default();
            let fleet = fleet(&settings, 2, || cost_of(&model, &parameters(), 0));
            let outcome = simulate(fleet, Job::new(&lengths), &mut log).unwrap();
            log.completed.sort_by_key(|(id, ..)| *id);
            (log.completed, outcome.makespan, outcome.steps, outcome.ledger)
        };
        assert_eq!(run(Stride::TokenExact), run(Stride::Longest));
    }
}
