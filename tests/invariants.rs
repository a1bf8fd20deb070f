//! What holds on every run, whatever the engine, the job and the limits: conservation, the ledger, and strided =
//! stepwise to the last attosecond.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers too")]

mod harness;

use std::collections::BTreeMap;
use std::sync::Arc;

use harness::*;
use makespan::engine::host_tier::{DevicePools, HostSize, HostTierSettings, Layout, ReadBack, WritePolicy};
use makespan::engine::link::{Copier, LinkSettings, Rates};
use makespan::engine::observe::{Limit, Observer, StrideView};
use makespan::engine::prefix_cache::Prompts;
use makespan::engine::replica::Replica;
use makespan::engine::settings::{
    EngineSettings, HostSettings, PolicySettings, PrefixCacheSettings, Spill, Stride, VllmSettings,
};
use makespan::engine::speculation::Speculation;
use makespan::simulation::{Dispatch, InFlight, Outcome, simulate};
use makespan::units::{SimTime, Span};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

/// A random little world.
#[derive(Clone, Debug)]
struct World {
    settings: EngineSettings,
    job: Job,
    replicas: usize,
    root: Option<Rates>,
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
        (64u64..1500, any::<bool>(), 0.0..0.05, any::<bool>()).prop_map(
            |(token_budget, reserve_full_prompt, watermark, swaps)| {
                let spill = if swaps { Spill::Running } else { Spill::Recompute };
                PolicySettings::Vllm(VllmSettings { token_budget, reserve_full_prompt, watermark, spill })
            }
        ),
        Just(PolicySettings::Static),
    ]
}

fn prompts() -> impl Strategy<Value = Prompts> {
    prop_oneof![
        3 => Just(Prompts::Distinct),
        2 => (1u64..20, 1u32..200).prop_map(|(prompts_per_prefix, prefix_tokens)| {
            Prompts::SharedPrefix { prompts_per_prefix, prefix_tokens }
        }),
        4 => (1u64..25, 1u64..6, 0u32..60, 1u32..80).prop_map(|(sessions, turns, system_tokens, turn_tokens)| {
            Prompts::Sessions { sessions, turns, system_tokens, turn_tokens }
        }),
    ]
}

fn cache() -> impl Strategy<Value = PrefixCacheSettings> {
    (prompts(), prop::option::of(1u32..20), prop::option::of((4u64..60, 1u64..5))).prop_map(
        |(prompts, checkpoint_pages, state_slots)| PrefixCacheSettings {
            prompts: Arc::new(prompts),
            checkpoint_pages,
            state_slots: state_slots.filter(|_| checkpoint_pages.is_some()),
        },
    )
}

/// A host whose link moves a prompt in anything from a small part of a step to many steps. Sizes of device pools are
/// put right by the world.
fn host() -> impl Strategy<Value = HostSettings> {
    let tier = (0.05f64..8.0, 0..3u32, any::<bool>(), prop_oneof![Just(1u32), 1u32..60], any::<bool>(), any::<bool>());
    let link = (1u64..2000, 1u64..2000, 0.5f64..1.0, 0u64..50, any::<bool>(), 0u32..60_000);
    (tier, link).prop_map(
        |((ratio, write, parks, at_least, page_first, kernel), (h2d, d2h, both, gap_us, sm, slow))| {
            let device = DevicePools {
                page_tokens: 1,
                page_bytes: 60_000,
                pages: 1,
                layers: 10,
                state_bytes: 0,
                state_layers: 0,
                state_slots: 0,
            };
            let alone = [h2d * 5_000_000, d2h * 5_000_000];
            HostSettings {
                link: LinkSettings {
                    rates: Rates { alone, both: alone.map(|rate| (rate as f64 * both) as u64) },
                    submit: Span::from_s(3e-6 * gap_us as f64).unwrap(),
                    gap: Span::from_s(1e-6 * gap_us as f64).unwrap(),
                    in_order: true,
                    copier: if sm { Copier::SmKernel { share_ppm: slow } } else { Copier::CopyEngine },
                    contention_ppm: [slow, slow / 5],
                },
                tier: HostTierSettings {
                    device,
                    size: HostSize::Ratio(ratio),
                    write: [WritePolicy::Through, WritePolicy::ThroughSelective, WritePolicy::Back][write as usize],
                    read: if parks { ReadBack::BeforePrefill } else { ReadBack::LayerByLayer },
                    read_tokens_at_least: at_least,
                    layout: if page_first { Layout::PageFirst } else { Layout::LayerFirst },
                    kernel_copies: kernel,
                    read_work: Span(u128::from(slow) * 1_000_000_000_000),
                },
            }
        },
    )
}

fn world() -> impl Strategy<Value = World> {
    let lengths = prop::collection::vec((1u32..300, 1u32..300), 1..70);
    let loads = (0..5u32, 1u32..12, prop::bool::ANY, prop::collection::vec(0.0f64..0.2, 70));
    let engine =
        (policy(), 1u32..20, 620u64..6000, prop::option::of((0.0f64..0.95, 1usize..4)), any::<bool>(), 0u32..3);
    let root = (1u64..3000, 1u64..3000, 0.5f64..1.0).prop_map(|(h2d, d2h, both)| {
        let alone = [h2d * 5_000_000, d2h * 5_000_000];
        Rates { alone, both: alone.map(|rate| (rate as f64 * both) as u64) }
    });
    let memory = (prop::option::of(cache()), prop::option::of(host()), prop::option::of(root), 0u64..4);
    (lengths, loads, engine, memory, 1usize..4, 0..3u32, any::<u64>()).prop_map(
        |(
            lengths,
            (load, each, spaced, gaps),
            (policy, cap, pool, speculation, page, lookahead),
            (cache, host, root, state_pages),
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
            } else {
                settings.prefix_cache = cache;
                settings.host = host.map(|mut host| {
                    let hybrid = settings.prefix_cache.as_ref().is_some_and(|cache| cache.checkpoint_pages.is_some());
                    let device = &mut host.tier.device;
                    device.page_tokens = settings.page_tokens;
                    device.page_bytes *= u64::from(settings.page_tokens);
                    device.pages = settings.kv_pool_tokens / u64::from(settings.page_tokens);
                    if hybrid {
                        (device.state_bytes, device.state_layers, device.state_slots) = (3_000_000, 10, 10);
                    }
                    host
                });
            }
            if matches!(policy, PolicySettings::Vllm(_)) {
                settings.state_pages_per_request = state_pages;
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
                root,
                dispatch: [Dispatch::Shared, Dispatch::Static, Dispatch::RoundRobin][dispatch as usize],
                in_flight,
                submit_interval: if spaced { Span::from_s(0.001_7).unwrap() } else { Span::ZERO },
            }
        },
    )
}

/// What a watcher of stretches sees.
#[derive(Default)]
struct Seen {
    steps: u64,
    most_pages: u64,
    backwards: bool,
    /// Bytes per second of the links, and whether they moved more.
    link: [u64; 2],
    overdriven: bool,
    /// Time and bytes at each replica's last end.
    end: Vec<(SimTime, [u64; 2])>,
}

impl Observer for Seen {
    fn stride(&mut self, view: &StrideView) {
        let (end, bytes) = self.end[view.replica];
        self.backwards |= view.start < end || view.end < view.start;
        self.backwards |= view.link_bytes[0] < bytes[0] || view.link_bytes[1] < bytes[1];
        for ((rate, now), before) in self.link.iter().zip(view.link_bytes).zip(bytes) {
            let possible = *rate as f64 * view.end.since(end).as_s();
            self.overdriven |= (now - before) as f64 > possible * (1.0 + 1e-9) + 2.0;
        }
        self.end[view.replica] = (view.end, view.link_bytes);
        self.steps += view.steps;
        self.most_pages = self.most_pages.max(view.used_pages);
    }

    fn wants_strides(&self) -> bool {
        true
    }
}

fn run(world: &World, stride: Stride) -> (makespan::error::Result<Outcome>, Log) {
    let mut log = Log::default();
    let outcome = watch(world, stride, &mut log);
    log.completed.sort_by_key(|(id, _, _, at)| (*at, *id));
    log.submitted.sort();
    log.preempted.sort_by_key(|(id, replica, at)| (*at, *replica, *id));
    (outcome, log)
}

fn watch(world: &World, stride: Stride, observer: &mut impl Observer) -> makespan::error::Result<Outcome> {
    let mut settings = world.settings.clone();
    settings.stride = stride;
    let draft_steps = settings.speculation.as_ref().map_or(0, Speculation::draft_tokens);
    let model = toy_model(1e10, 60_000.0);
    let mut fleet = fleet(&settings, world.replicas, || cost_of(&model, &parameters(), draft_steps));
    fleet.dispatch = world.dispatch;
    fleet.in_flight = world.in_flight;
    fleet.submit_interval = world.submit_interval;
    if let Some(root) = world.root {
        Replica::share_root(&mut fleet.replicas, root);
    }
    simulate(fleet, world.job.clone(), observer)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(4000), failure_persistence: None, ..ProptestConfig::default() })]

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
                for (strided, stepwise) in strided.replicas.iter().zip(&stepwise.replicas) {
                    prop_assert_eq!(strided.counters.stall_time, stepwise.counters.stall_time);
                    prop_assert_eq!(strided.counters.slowed_time, stepwise.counters.slowed_time);
                    prop_assert_eq!(&strided.reuse, &stepwise.reuse);
                }
            }
            (Err(strided), Err(stepwise)) => prop_assert_eq!(strided.to_string(), stepwise.to_string()),
            (strided, stepwise) => prop_assert!(false, "{strided:?} against {stepwise:?}"),
        }
    }

    #[test]
    fn who_watches_changes_nothing_and_sees_no_more_than_there_is(world in world()) {
        let pages = world.settings.kv_pool_tokens / u64::from(world.settings.page_tokens);
        let link = world.settings.host.map_or([0; 2], |host| host.link.rates.alone);
        let mut seen = Seen { link, end: vec![(SimTime::ZERO, [0; 2]); world.replicas], ..Seen::default() };
        let watched = watch(&world, Stride::Longest, &mut seen);
        let (unwatched, _) = run(&world, Stride::Longest);
        let (Ok(watched), Ok(unwatched)) = (watched, unwatched) else { return Ok(()) };
        prop_assert_eq!(watched.makespan, unwatched.makespan);
        prop_assert_eq!(&watched.ledger, &unwatched.ledger);
        prop_assert!(seen.steps >= watched.steps && seen.most_pages <= pages);
        prop_assert!(!seen.backwards, "neither time nor bytes fall");
        prop_assert!(!seen.overdriven, "no link is used beyond its limit");
        // Only a last step of rows that have ended is seen and then taken back.
        prop_assert!(seen.steps <= watched.steps + world.replicas as u64);
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
                let pages = f64::from((longest + settings.lookahead_tokens + 1).div_ceil(settings.page_tokens))
                    + settings.state_pages_per_request as f64;
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
            let Some(reuse) = replica.reuse else { continue };
            // Pages come into the cache as new ones or from the host, and leave it by eviction.
            let (cache, kept) = (reuse.cache, reuse.cached_pages);
            prop_assert_eq!(cache.inserted_pages + cache.loaded_pages, cache.evicted_pages + kept);
            prop_assert!(cache.device_hit_pages + cache.host_hit_pages <= cache.asked_pages);
            let Some(host) = world.settings.host else { continue };
            // Nothing runs faster than its link.
            for way in 0..2 {
                let most = host.link.rates.alone[way] as f64 * reuse.busy[way].as_s();
                prop_assert!(reuse.bytes[way] as f64 <= most + 1.0);
            }
            // What is read was written, or was swapped.
            let tier = reuse.tier.unwrap();
            prop_assert!(tier.read_pages == 0 || tier.written_bytes > 0);
        }
    }
}

/// The worlds above are worth something only if they reach what they are to check.
#[test]
fn worlds_reach_hits_reads_writes_stalls_and_swaps() {
    let mut runner = TestRunner::deterministic();
    let mut reached: BTreeMap<&str, u32> = BTreeMap::new();
    for _ in 0..1500 {
        let world = world().new_tree(&mut runner).unwrap().current();
        let (Ok(outcome), _) = run(&world, Stride::Longest) else {
            *reached.entry("impossible").or_default() += 1;
            continue;
        };
        for replica in &outcome.replicas {
            let Some(reuse) = replica.reuse else { continue };
            let (cache, tier) = (reuse.cache, reuse.tier.unwrap_or_default());
            let hybrid = world.settings.prefix_cache.as_ref().is_some_and(|cache| cache.checkpoint_pages.is_some());
            let swaps = matches!(world.settings.policy, PolicySettings::Vllm(rules) if rules.spill == Spill::Running);
            let back = world.settings.host.is_some_and(|host| host.tier.write == WritePolicy::Back);
            let vllm = matches!(world.settings.policy, PolicySettings::Vllm(_));
            for (what, there) in [
                ("device hits", cache.device_hit_pages > 0),
                ("host hits", cache.host_hit_pages > 0),
                ("hybrid hits", hybrid && cache.device_hit_pages > 0),
                ("resumed", cache.resumed_pages > 0),
                ("evictions", cache.evicted_pages > 0),
                ("host evictions", cache.host_evicted_pages > 0),
                ("writes", tier.written_bytes > 0),
                ("writes back", back && tier.written_bytes > 0),
                ("reads of vLLM", vllm && tier.read_bytes > 0),
                ("reads of SGLang", !vllm && tier.read_bytes > 0),
                ("below threshold", tier.below_threshold_pages > 0),
                ("stalls", replica.counters.stall_time > Span::ZERO),
                ("slowed", replica.counters.slowed_time > Span::ZERO),
                ("swaps", swaps && replica.counters.preemptions > 0 && reuse.bytes[0] > tier.read_bytes),
                ("limited by the link", outcome.limit_time[Limit::HostLink as usize] > Span::ZERO),
            ] {
                *reached.entry(what).or_default() += u32::from(there);
            }
        }
    }
    for (what, times) in &reached {
        assert!(*times >= 5, "{what}: {times} of {reached:?}");
    }
}
