//! Textbook queues. A replica whose step takes a constant time is a server (batch of one) or a group of servers (a slot
//! each): a request of L tokens holds its place for exactly L steps, one of prefill and L − 1 of decode.

use rayon::prelude::*;
use statrs::function::gamma::ln_gamma;

use crate::harness::*;
use crate::interval::{Interval, Replication, controlled};
use makespan::engine::observe::Observer;
use makespan::engine::sequence::Sequence;
use makespan::engine::settings::PolicySettings;
use makespan::random::{Purpose, Streams};
use makespan::simulation::simulate;
use makespan::units::Span;

/// Length of a step. Any value would do; one that is not a power of two makes rounding visible.
const STEP_S: f64 = 0.01;
/// Requests at the start of a replication that the mean leaves out: the queue starts empty.
const WARM_UP: u64 = 1000;
const REPLICATIONS: u64 = 40;

/// Sums the waiting times (sojourn less L steps) of the requests after the warm-up.
#[derive(Default)]
struct Waits {
    attoseconds: u128,
    requests: u64,
}

impl Observer for Waits {
    fn completed(&mut self, _replica: usize, sequence: &Sequence) {
        if sequence.request.id >= WARM_UP {
            let service = Span::from_s(STEP_S).unwrap() * u64::from(sequence.request.output_tokens);
            self.attoseconds += sequence.finished_at.since(sequence.submitted_at).0 - service.0;
            self.requests += 1;
        }
    }
}

/// Output tokens from a uniform draw.
type Length = dyn Fn(f64) -> u32 + Sync;

/// A queue with Poisson arrivals.
struct Queue<'a> {
    policy: PolicySettings,
    servers: u32,
    /// Arrivals per second.
    rate: f64,
    /// Output tokens from a uniform draw, and their mean.
    length: &'a Length,
    mean_length: f64,
    requests: u64,
}

impl Queue<'_> {
    /// Mean waiting time by simulation.
    fn mean_wait(&self) -> Interval {
        let replications: Vec<Replication> = (0..REPLICATIONS).into_par_iter().map(|r| self.replicate(r)).collect();
        controlled(&replications)
    }

    fn replicate(&self, replication: u64) -> Replication {
        let mut blocks = Streams::new(20_260, replication).blocks(Purpose::Arrival);
        let (mut now, mut tokens) = (0.0, 0.0);
        let (mut lengths, mut arrivals) = (Vec::new(), Vec::new());
        for id in 0..self.requests {
            let draws = blocks.draws(id);
            now -= draws[0].ln() / self.rate;
            let length = (self.length)(draws[1]);
            tokens += f64::from(length);
            lengths.push((1, length));
            arrivals.push(now);
        }
        let mut settings = settings(self.policy, self.servers, 1 << 40);
        settings.overlap = false;
        let job = Job::new(&lengths).arriving(&arrivals);
        let mut waits = Waits::default();
        let outcome = simulate(fleet(&settings, 1, || constant_cost(STEP_S)), job, &mut waits).unwrap();
        assert_eq!(outcome.completed, self.requests);
        let requests = self.requests as f64;
        Replication {
            estimate: waits.attoseconds as f64 / 1e18 / waits.requests as f64,
            controls: [self.rate * now / requests - 1.0, tokens / requests / self.mean_length - 1.0],
        }
    }
}

#[test]
fn one_server_with_constant_service_waits_as_in_m_d_1() {
    // Wq = ρ / (2·μ·(1 − ρ)).
    for (load, requests, policy) in
        [(0.4, 50_000, PolicySettings::Static), (0.75, 100_000, PolicySettings::Vllm(vllm()))]
    {
        let queue = Queue { policy, servers: 1, rate: load / STEP_S, length: &|_| 1, mean_length: 1.0, requests };
        let exact = load * STEP_S / (2.0 * (1.0 - load));
        queue.mean_wait().must_hold(&format!("M/D/1 at {load}"), exact);
    }
}

#[test]
fn one_server_with_random_service_waits_as_pollaczek_and_khinchine_say() {
    // Wq = λ·E[S²] / (2·(1 − ρ)).
    let two_point = |u: f64| if u < 0.75 { 2 } else { 18 };
    let uniform = |u: f64| 1 + (u * 20.0) as u32;
    let laws: [(&str, &Length, f64, f64); 2] = [
        // 2 with probability 3/4, 18 with 1/4: E = 6, E² = 3 + 81.
        ("two points", &two_point, 6.0, 84.0),
        // 1..=20: E = 21/2, E² = 21·41/6.
        ("uniform", &uniform, 10.5, 143.5),
    ];
    let policies = [PolicySettings::Static, PolicySettings::Vllm(vllm()), PolicySettings::Sglang(sglang())];
    for ((name, length, mean, square), (load, policy)) in
        laws.into_iter().zip([(0.5, policies[0]), (0.6, policies[1])]).chain([(laws[0], (0.6, policies[2]))])
    {
        let rate = load / (mean * STEP_S);
        let queue = Queue { policy, servers: 1, rate, length, mean_length: mean, requests: 45_000 };
        let exact = rate * square * STEP_S * STEP_S / (2.0 * (1.0 - load));
        queue.mean_wait().must_hold(&format!("M/G/1, {name}, at {load}"), exact);
    }
}

/// Mean waiting time in M/M/c by Erlang's formula C: Wq = C / (c·μ·(1 − ρ)).
fn erlang_c(servers: u32, load: f64, mean_service: f64) -> f64 {
    let c = f64::from(servers);
    let offered = load * c;
    let term = |k: u32| (f64::from(k) * offered.ln() - ln_gamma(f64::from(k) + 1.0)).exp();
    let all_busy = term(servers) / (1.0 - load);
    let waits = all_busy / ((0..servers).map(term).sum::<f64>() + all_busy);
    waits * mean_service / (c * (1.0 - load))
}

/// The exact mean waiting time of the same queue when service is counted in steps: lengths geometric with mean m steps of
/// length d, admissions at step boundaries only, a step begun at once when an arrival finds the replica idle.
///
/// The requests present at the boundaries are a Markov chain: from n ≥ 1 to n + Poisson(λd) − Binomial(min(n, c), 1/m)
/// after a step of d; an empty replica idles for 1/λ on average and starts a step with n = 1. With π its stationary law,
/// the mean number present is Σπₙ(n·d + λd²/2) / (Σπₙ·d + π₀/λ), and Little's law gives the sojourn.
fn slotted(servers: u32, load: f64, mean_length: f64) -> f64 {
    const STATES: usize = 160;
    let rate = load * f64::from(servers) / (mean_length * STEP_S);
    let end = 1.0 / mean_length;
    let arrivals = rate * STEP_S;
    let poisson = |k: usize| (k as f64 * arrivals.ln() - arrivals - ln_gamma(k as f64 + 1.0)).exp();
    let binomial = |n: usize, k: usize| {
        let choose = (0..k).map(|i| (n - i) as f64 / (i + 1) as f64).product::<f64>();
        choose * end.powi(k as i32) * (1.0 - end).powi((n - k) as i32)
    };
    let mut moves = vec![vec![0.0; STATES]; STATES];
    moves[0][1] = 1.0;
    for n in 1..STATES {
        let busy = n.min(servers as usize);
        for ended in 0..=busy {
            for arrived in 0..STATES {
                moves[n][(n - ended + arrived).min(STATES - 1)] += binomial(busy, ended) * poisson(arrived);
            }
        }
    }
    let law = stationary(moves);
    let (mut present, mut time) = (0.0, law[0] / rate);
    for (n, p) in law.iter().enumerate().skip(1) {
        present += p * (n as f64 * STEP_S + arrivals * STEP_S / 2.0);
        time += p * STEP_S;
    }
    present / time / rate - mean_length * STEP_S
}

/// Stationary law of a Markov chain, by eliminating states without subtractions. Grassmann, Taksar and Heyman,
/// "Regenerative analysis and steady state distributions for Markov chains", Operations Research 33 (1985) 1107–1116.
fn stationary(mut moves: Vec<Vec<f64>>) -> Vec<f64> {
    let states = moves.len();
    for last in (1..states).rev() {
        let (kept, gone) = moves.split_at_mut(last);
        let out: f64 = gone[0][..last].iter().sum();
        for row in kept {
            row[last] /= out;
            let through = row[last];
            for (to, onward) in row[..last].iter_mut().zip(&gone[0][..last]) {
                *to += through * onward;
            }
        }
    }
    let mut law = vec![1.0];
    for state in 1..states {
        law.push(law.iter().zip(&moves).map(|(p, row)| p * row[state]).sum());
    }
    let total: f64 = law.iter().sum();
    law.iter().map(|p| p / total).collect()
}

/// Geometric on 1, 2, … with the given mean, at quantile `u`.
fn geometric(mean: f64) -> impl Fn(f64) -> u32 + Sync {
    move |u| (u.ln() / (1.0 - 1.0 / mean).ln()).ceil() as u32
}

/// Batch slots as servers: `servers` slots, lengths so long that a step is short.
fn must_wait_as_erlang_says(servers: u32, load: f64, mean_length: f64, requests: u64) {
    let exact = erlang_c(servers, load, mean_length * STEP_S);
    // What steps change: below a tenth of a per cent.
    let bias = slotted(servers, load, mean_length) / exact - 1.0;
    assert!(bias.abs() < 1e-3, "{bias}");
    let queue = Queue {
        policy: PolicySettings::Vllm(vllm()),
        servers,
        rate: load * f64::from(servers) / (mean_length * STEP_S),
        length: &geometric(mean_length),
        mean_length,
        requests,
    };
    queue.mean_wait().must_hold(&format!("M/M/{servers} at {load}"), exact);
}

#[test]
fn two_batch_slots_wait_as_the_servers_of_m_m_2() {
    must_wait_as_erlang_says(2, 0.6, 1000.0, 80_000);
}

#[test]
fn four_batch_slots_wait_as_the_servers_of_m_m_4() {
    must_wait_as_erlang_says(4, 0.6, 4000.0, 120_000);
}

#[test]
fn arrivals_that_wait_for_a_step_boundary_wait_as_the_slotted_chain_says() {
    // Steps so long that they matter: Erlang's formula would be off by a quarter.
    let (servers, load, mean_length) = (3, 0.6, 3.0);
    let exact = slotted(servers, load, mean_length);
    assert!((exact / erlang_c(servers, load, mean_length * STEP_S) - 1.0).abs() > 0.25);
    let queue = Queue {
        policy: PolicySettings::Vllm(vllm()),
        servers,
        rate: load * f64::from(servers) / (mean_length * STEP_S),
        length: &geometric(mean_length),
        mean_length,
        requests: 60_000,
    };
    queue.mean_wait().must_hold(&format!("slotted M/Geo/{servers} at {load}"), exact);
}
