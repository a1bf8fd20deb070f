//! Laws that every run obeys: Little's, and that the same seed gives the same run for any number of threads.

use rayon::prelude::*;

use crate::harness::*;
use makespan::engine::observe::{Observer, StrideView};
use makespan::engine::sequence::Sequence;
use makespan::engine::settings::{EngineSettings, PolicySettings, Stride};
use makespan::engine::speculation::Speculation;
use makespan::random::{Purpose, Streams};
use makespan::simulation::{Dispatch, Fleet, InFlight, Outcome, simulate};
use makespan::units::{SimTime, Span};

/// When each request came, was given a place and left; the longest step; whether any lost its place.
#[derive(Default)]
struct Stays {
    stays: Vec<(SimTime, SimTime, SimTime)>,
    longest_step: Span,
    preempted: bool,
}

impl Observer for Stays {
    fn stride(&mut self, stride: &StrideView) {
        assert_eq!(stride.steps, 1, "run step by step");
        self.longest_step = self.longest_step.max(stride.end.since(stride.start));
    }
    fn completed(&mut self, _replica: usize, sequence: &Sequence) {
        self.stays.push((sequence.submitted_at, sequence.admitted_at, sequence.finished_at));
    }
    fn preempted(&mut self, _replica: usize, _sequence: &Sequence, _at: SimTime) {
        self.preempted = true;
    }
    fn wants_strides(&self) -> bool {
        true
    }
}

/// A random little world: policy, overlap, pool, speculation, lengths, open or closed loop, dispatch.
struct World {
    settings: EngineSettings,
    job: Job,
    replicas: usize,
    dispatch: Dispatch,
    in_flight: InFlight,
    submit_interval: Span,
}

impl World {
    fn new(number: u64) -> World {
        let mut blocks = Streams::new(4, number).blocks(Purpose::Uncertainty);
        let pick = blocks.draws(0);
        let below = |draw: f64, end: u32| (draw * f64::from(end)) as u32;
        let policy = match number % 3 {
            0 => PolicySettings::Sglang(sglang()),
            1 => PolicySettings::Vllm(vllm()),
            _ => PolicySettings::Static,
        };
        let is_static = matches!(policy, PolicySettings::Static);
        let pool = if is_static || pick[0] < 0.5 { 1_000_000 } else { 500 + u64::from(below(pick[1], 1000)) };
        let mut settings = settings(policy, 1 + below(pick[2], 12), pool);
        settings.overlap = !is_static && number.is_multiple_of(2);
        if !is_static && pick[3] < 0.4 {
            settings.speculation = Some(Speculation::new(&[0.8, 0.6, 0.5], 0.1).unwrap());
        }
        settings.stride = Stride::Stepwise;
        let requests = 20 + u64::from(below(pick[4], 60));
        let (mut lengths, mut arrivals, mut now) = (Vec::new(), Vec::new(), 0.0);
        let gap = 2.0 * pick[5];
        for id in 1..=requests {
            let draws = blocks.draws(id);
            lengths.push((1 + below(draws[0], 300), 1 + below(draws[1], 150)));
            now -= draws[2].ln() * gap;
            arrivals.push(now);
        }
        let mut job = Job::new(&lengths).with_draws(number);
        let mut in_flight = InFlight::All;
        let mut submit_interval = Span::ZERO;
        match below(pick[6], 6) {
            0 | 1 => job = job.arriving(&arrivals),
            2 => in_flight = InFlight::PerReplica(1 + below(pick[7], 10)),
            3 => in_flight = InFlight::Total(1 + below(pick[7], 20)),
            4 => submit_interval = Span::from_s(0.2 * pick[7]).unwrap(),
            _ => {}
        }
        World {
            settings,
            job,
            replicas: 1 + (number / 6 % 3) as usize,
            dispatch: [Dispatch::Shared, Dispatch::Static, Dispatch::RoundRobin][(number / 18 % 3) as usize],
            in_flight,
            submit_interval,
        }
    }

    fn fleet(&self) -> Fleet {
        let drafted = self.settings.speculation.as_ref().map_or(0, Speculation::draft_tokens);
        let model = toy_model(1e10, 60_000.0);
        let mut fleet = fleet(&self.settings, self.replicas, || cost_of(&model, &parameters(), drafted));
        fleet.dispatch = self.dispatch;
        fleet.in_flight = self.in_flight;
        fleet.submit_interval = self.submit_interval;
        fleet
    }
}

/// ∫ N(t) dt in attoseconds, by a sweep over the instants at which the number present changes; panics when it falls
/// below zero.
fn sweep(stays: impl Iterator<Item = (SimTime, SimTime)>) -> u128 {
    let mut changes: Vec<(SimTime, i64)> = stays.flat_map(|(from, to)| [(from, 1), (to, -1)]).collect();
    // Of one instant, comings first.
    changes.sort_by_key(|&(at, change)| (at, -change));
    let (mut area, mut present, mut before) = (0u128, 0i64, SimTime::ZERO);
    for (at, change) in changes {
        area += at.since(before).0 * u128::try_from(present).unwrap();
        present += change;
        before = at;
    }
    assert_eq!(present, 0);
    area
}

#[test]
fn little_s_law_holds_on_every_run() {
    let (mut exact, mut bounded, mut preempted) = (0, 0, 0);
    for number in 0..540 {
        let world = World::new(number);
        let mut log = Stays::default();
        let outcome = simulate(world.fleet(), world.job.clone(), &mut log).unwrap();
        let seconds = outcome.makespan.as_s();
        assert_eq!(log.stays.len() as u64, outcome.completed);

        // L = λ·W for the system: requests known to the server, in the queue or running.
        let mean_present = sweep(log.stays.iter().map(|&(from, _, to)| (from, to))) as f64 / 1e18 / seconds;
        let throughput = outcome.completed as f64 / seconds;
        let by_little = throughput * outcome.mean_sojourn_s.unwrap();
        assert!((mean_present / by_little - 1.0).abs() < 1e-9, "run {number}: {mean_present} against {by_little}");
        // A closed loop never holds more than the client keeps in flight.
        let most = match world.in_flight {
            InFlight::All => f64::INFINITY,
            InFlight::PerReplica(each) => f64::from(each) * world.replicas as f64,
            InFlight::Total(total) => f64::from(total),
        };
        assert!(mean_present <= most * (1.0 + 1e-12), "run {number}: {mean_present} of {most}");

        // L = λ·W for the places: from admission to the end, and one step longer where the host learns of it late.
        if log.preempted {
            preempted += 1;
            continue;
        }
        let held = sweep(log.stays.iter().map(|&(_, from, to)| (from, to))) as f64 / 1e18;
        let running = outcome.mean_running * seconds * world.replicas as f64;
        if world.settings.overlap {
            let late = outcome.completed as f64 * log.longest_step.as_s();
            assert!((held * (1.0 - 1e-9)..=held + late).contains(&running), "run {number}: {running} against {held}");
            bounded += 1;
        } else {
            assert!((running / held - 1.0).abs() < 1e-9, "run {number}: {running} against {held}");
            exact += 1;
        }
    }
    assert!(exact > 150 && bounded > 80 && preempted > 30, "{exact} {bounded} {preempted}");
}

/// A replication whose every part is drawn: lengths, acceptance, arrivals, and the steps of the reference.
fn replicate(seed: u64, replication: u64) -> (String, Log) {
    let streams = Streams::new(seed, replication);
    let mut blocks = streams.blocks(Purpose::Request);
    let mut gaps = streams.blocks(Purpose::Arrival);
    let (mut lengths, mut arrivals, mut now) = (Vec::new(), Vec::new(), 0.0);
    for id in 0..200 {
        let draws = blocks.draws(id);
        lengths.push((1 + (draws[0] * 300.0) as u32, 1 + (draws[1] * 300.0) as u32));
        now -= gaps.draws(id)[0].ln() * 0.1;
        arrivals.push(now);
    }
    let policy =
        if replication.is_multiple_of(2) { PolicySettings::Sglang(sglang()) } else { PolicySettings::Vllm(vllm()) };
    let mut settings = settings(policy, 8, 3000);
    settings.speculation = Some(Speculation::new(&[0.8, 0.6], 0.1).unwrap());
    if replication >= 4 {
        settings.stride = Stride::TokenExact;
    }
    let model = toy_model(1e10, 60_000.0);
    let fleet = fleet_with(&settings, 2, streams, || cost_of(&model, &parameters(), 2));
    let job = Job::new(&lengths).with_draws(seed ^ replication << 32).arriving(&arrivals);
    let mut log = Log::default();
    let outcome: Outcome = simulate(fleet, job, &mut log).unwrap();
    // Debug output shows every field and every float to its last bit.
    (format!("{outcome:?}"), log)
}

#[test]
fn the_same_seed_gives_the_same_runs_for_any_number_of_threads() {
    let run = |seed: u64, threads: usize| -> Vec<(String, Log)> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| (0..8u64).into_par_iter().map(|replication| replicate(seed, replication)).collect())
    };
    let one = run(11, 1);
    assert_eq!(one, run(11, 2));
    assert_eq!(one, run(11, 1));
    for (mine, other) in one.iter().zip(run(12, 2)) {
        assert_ne!(mine.0, other.0);
        assert_ne!(mine.1, other.1);
    }
    // Replications differ from each other as well.
    for (index, mine) in one.iter().enumerate() {
        assert!(one[..index].iter().all(|before| before.1 != mine.1));
    }
}
/// Pools here hold every request alone (at most 300 + 150 tokens), so none may be given up, however tight it gets beside
/// others that have ended and whose pages are not free yet.
#[test]
fn a_request_that_fits_alone_is_always_served() {
    for number in 0..5000 {
        let mut world = World::new(number);
        world.settings.stride = Stride::Longest;
        let outcome = simulate(world.fleet(), world.job.clone(), &mut Log::default());
        assert!(outcome.is_ok(), "run {number}: {}", outcome.unwrap_err());
    }
}

/// Parts of a job differ in length, and a client that keeps a number in flight over all replicas goes on with the parts
/// that are left.
#[test]
fn every_request_is_sent_however_the_job_is_cut_and_the_client_paced() {
    let clients =
        [InFlight::All, InFlight::PerReplica(1), InFlight::PerReplica(3), InFlight::Total(1), InFlight::Total(5)];
    for policy in [PolicySettings::Sglang(sglang()), PolicySettings::Vllm(vllm()), PolicySettings::Static] {
        for dispatch in [Dispatch::Shared, Dispatch::Static, Dispatch::RoundRobin] {
            for in_flight in clients {
                for requests in 1..9 {
                    let settings = EngineSettings { stride: Stride::Stepwise, ..settings(policy, 1, 1000) };
                    let mut fleet = fleet(&settings, 3, || constant_cost(0.01));
                    (fleet.dispatch, fleet.in_flight) = (dispatch, in_flight);
                    fleet.submit_interval = Span::from_s(0.003).unwrap();
                    let job = Job::new(&vec![(1, 2); requests]);
                    let outcome = simulate(fleet, job, &mut Stays::default());
                    let what = format!("{dispatch:?}, {in_flight:?}, {requests} requests");
                    assert_eq!(outcome.map(|outcome| outcome.completed).unwrap_or(0), requests as u64, "{what}");
                }
            }
        }
    }
}
