//! What holds on every run, whatever the engine, the job and the limits: conservation, the ledger, and strided =
//! stepwise to the last attosecond.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers too")]

mod harness;

use harness::*;
use makespan::engine::settings::{EngineSettings, PolicySettings, Stride};
use makespan::engine::speculation::Speculation;
use makespan::simulation::{Dispatch, InFlight, Outcome, simulate};
use makespan::units::Span;
use proptest::prelude::*;

/// A random little world.
#[derive(Clone, Debug)]
struct World {
    settings: EngineSettings,
    job: Job,
    replicas: usize,
    dispatch: Dispatch,
    in_flight: InFlight,
    submit_interval: Span,
}

fn policy() -> impl Strategy<Value = PolicySettings> {
    prop_oneof![
        (prop::option::of(16u64..400), 64u64..2000, any::<bool>(), prop::option::of(1u64..300), 30u64..400).prop_map(
            |(chunk, max_prefill, ignore_eos, max_new, decay)| {
                let mut rules = sglang();
                rules.chunked_prefill_tokens = chunk;
                rules.max_prefill_tokens = max_prefill;
                rules.ignore_eos = ignore_eos;
                rules.decay_steps = decay;
                // A cap below some outputs would be no cap: the generator keeps outputs at most at 300.
                rules.max_new_tokens = max_new.map(|_| 300);
                PolicySettings::Sglang(rules)
            }
        ),
        (64u64..1500, any::<bool>(), 0.0..0.05).prop_map(|(token_budget, reserve_full_prompt, watermark)| {
            PolicySettings::Vllm(makespan::engine::settings::VllmSettings {
                token_budget,
                reserve_full_prompt,
                watermark,
            })
        }),
        Just(PolicySettings::Static),
    ]
}

fn world() -> impl Strategy<Value = World> {
    let lengths = prop::collection::vec((1u32..300, 1u32..300), 1..70);
    let loads = (0..5u32, 1u32..12, prop::bool::ANY, prop::collection::vec(0.0f64..0.2, 70));
    let engine =
        (policy(), 1u32..20, 620u64..6000, prop::option::of((0.0f64..0.95, 1usize..4)), any::<bool>(), 0u32..3);
    (lengths, loads, engine, 1usize..4, 0..3u32, any::<u64>()).prop_map(
        |(
            lengths,
            (load, each, spaced, gaps),
            (policy, cap, pool, speculation, page, lookahead),
            replicas,
            dispatch,
            seed,
        )| {
            let mut settings = settings(policy, cap, pool);
            if page && !matches!(policy, PolicySettings::Vllm(_)) {
                settings.page_tokens = 4;
            }
            if let (Some((acceptance, drafted)), false) = (speculation, matches!(policy, PolicySettings::Static)) {
                let marginal: Vec<f64> = (1..=drafted).map(|i| acceptance.powi(i as i32)).collect();
                settings.speculation = Some(Speculation::new(&marginal, 0.0).unwrap());
                settings.lookahead_tokens = lookahead;
            }
            if matches!(policy, PolicySettings::Static) {
                settings.kv_pool_tokens = 1_000_000;
            }
            let mut job = Job::new(&lengths).with_draws(seed);
            let mut in_flight = InFlight::All;
            match load {
                0 => {
                    let mut at = 0.0;
                    let arrivals: Vec<f64> = lengths
                        .iter()
                        .zip(&gaps)
                        .map(|(_, gap)| {
                            at += gap;
                            at
                        })
                        .collect();
                    job = job.arriving(&arrivals);
                }
                1 => in_flight = InFlight::PerReplica(each),
                2 => in_flight = InFlight::Total(each),
                _ => {}
            }
            World {
                settings,
                job,
                replicas,
                dispatch: [Dispatch::Shared, Dispatch::Static, Dispatch::RoundRobin][dispatch as usize],
                in_flight,
                submit_interval: if spaced { Span::from_s(0.001_7).unwrap() } else { Span::ZERO },
            }
        },
    )
}

fn run(world: &World, stride: Stride) -> (makespan::error::Result<Outcome>, Log) {
    let mut settings = world.settings.clone();
    settings.stride = stride;
    let draft_steps = settings.speculation.as_ref().map_or(0, Speculation::draft_tokens);
    let model = toy_model(1e10, 60_000.0);
    let mut fleet = fleet(&settings, world.replicas, || cost_of(&model, &parameters(), draft_steps));
    fleet.dispatch = world.dispatch;
    fleet.in_flight = world.in_flight;
    fleet.submit_interval = world.submit_interval;
    let mut log = Log::default();
    let outcome = simulate(fleet, world.job.clone(), &mut log);
    log.completed.sort_by_key(|(id, _, _, at)| (*at, *id));
    log.submitted.sort();
    log.preempted.sort_by_key(|(id, replica, at)| (*at, *replica, *id));
    (outcome, log)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn strided_equals_stepwise(world in world()) {
        let (strided, strided_log) = run(&world, Stride::Longest);
        let (stepwise, stepwise_log) = run(&world, Stride::Stepwise);
        match (strided, stepwise) {
            (Ok(strided), Ok(stepwise)) => {
                prop_assert_eq!(&strided_log, &stepwise_log);
                prop_assert_eq!(strided.steps, stepwise.steps);
                prop_assert_eq!(strided.preemptions, stepwise.preemptions);
                prop_assert_eq!(strided.recomputed_tokens, stepwise.recomputed_tokens);
                prop_assert_eq!(strided.makespan, stepwise.makespan);
                prop_assert_eq!(&strided.ledger, &stepwise.ledger);
            }
            (Err(strided), Err(stepwise)) => prop_assert_eq!(strided.to_string(), stepwise.to_string()),
            (strided, stepwise) => prop_assert!(false, "{strided:?} against {stepwise:?}"),
        }
    }

    #[test]
    fn every_run_conserves_tokens_requests_and_time(world in world()) {
        let (outcome, log) = run(&world, Stride::Longest);
        let outcome = match outcome {
            Ok(outcome) => outcome,
            // Only a request that cannot fit even alone, beside the share kept free, is a reason to give up.
            Err(error) => {
                let settings = &world.settings;
                let kept = match settings.policy {
                    PolicySettings::Vllm(rules) => rules.watermark,
                    _ => 0.0,
                };
                let longest = world.job.requests.iter().map(|r| r.prompt_tokens + r.output_tokens).max().unwrap();
                let pages = f64::from((longest + settings.lookahead_tokens + 1).div_ceil(settings.page_tokens));
                let pool = (settings.kv_pool_tokens / u64::from(settings.page_tokens)) as f64;
                prop_assert!(pages > pool * (1.0 - kept), "{}", error);
                return Ok(());
            }
        };
        let requests = &world.job.requests;
        // Every request ends exactly once, with all its tokens.
        let mut ids: Vec<u64> = log.completed.iter().map(|(id, ..)| *id).collect();
        ids.sort_unstable();
        prop_assert_eq!(ids, (0..requests.len() as u64).collect::<Vec<_>>());
        prop_assert_eq!(outcome.output_tokens, requests.iter().map(|r| u64::from(r.output_tokens)).sum::<u64>());
        prop_assert_eq!(outcome.prompt_tokens, requests.iter().map(|r| u64::from(r.prompt_tokens)).sum::<u64>());
        // The ledger sums to GPUs × makespan, to the attosecond.
        prop_assert_eq!(outcome.ledger.total(), Span(outcome.makespan.0 * world.replicas as u128));
        // First token after submission, last token not before the first, makespan at the last.
        let last = log.completed.iter().map(|(.., at)| *at).max().unwrap();
        prop_assert_eq!(last, outcome.makespan);
        for (id, _, first, at) in &log.completed {
            let submitted = log.submitted[*id as usize].1;
            prop_assert!(submitted < *first && first <= at);
        }
        prop_assert!(outcome.peak_pool_share <= 1.0 && outcome.mean_pool_share <= 1.0);
        for replica in &outcome.replicas {
            prop_assert!(replica.counters.peak_running <= world.settings.running_cap);
        }
    }
}
