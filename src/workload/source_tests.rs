use super::*;
use crate::model::workload::LengthLaw;
use crate::workload::trace::{LeftOut, TraceFormat, TraceRow};
use std::path::Path;

fn named(name: &str) -> Law {
    let value = toml::Value::String(name.into());
    Law::from_description(&LengthLaw::from_toml(&value, "law", Path::new("")).unwrap(), "law").unwrap()
}

fn laws(rank_correlation: f64) -> Lengths {
    Lengths::Laws { prompt: Law::lognormal(133.0, 0.6).unwrap(), output: named("central"), rank_correlation }
}

fn workload(lengths: Lengths, requests: u64, max_tokens: u32, order: Order) -> Workload {
    let limits = Limits { max_tokens: Some(max_tokens), context_tokens: Some(32_768) };
    Workload::new(lengths, requests, limits, order, Streams::new(1, 0)).unwrap()
}

fn all(workload: &Workload) -> Vec<Request> {
    let mut cursor = workload.cursor();
    (0..workload.len()).map(|position| cursor.request(position).unwrap()).collect()
}

fn trace() -> Arc<Trace> {
    let rows = (1..=500).map(|n| TraceRow { prompt_tokens: n, output_tokens: 10 * n, arrival_ns: 0 }).collect();
    Arc::new(Trace {
        format: TraceFormat::Lengths,
        rows,
        timed: false,
        prefix_blocks: None,
        skipped: 0,
        left_out: LeftOut::default(),
        moved: 0,
    })
}

#[test]
fn a_request_stays_the_same_whatever_the_cap_and_the_order() {
    let plain = all(&workload(laws(0.0), 5000, 4096, Order::File));
    for order in [Order::Shuffled, Order::LongestFirst] {
        let other = all(&workload(laws(0.0), 5000, 2048, order));
        let mut seen = vec![false; plain.len()];
        for request in &other {
            let same = &plain[request.id as usize];
            assert!(!std::mem::replace(&mut seen[request.id as usize], true), "{} twice", request.id);
            assert_eq!(request.uncapped_output_tokens, same.uncapped_output_tokens);
            assert_eq!(request.prompt_tokens, same.prompt_tokens);
            assert_eq!(request.output_tokens, same.uncapped_output_tokens.min(2048));
            assert_eq!((request.acceptance_draw, request.steps_draw), (same.acceptance_draw, same.steps_draw));
        }
        let rising = other.windows(2).all(|pair| pair[0].id < pair[1].id);
        assert!(!rising, "{order:?} must not be the file's order");
        if order == Order::LongestFirst {
            let key = |request: &Request| (std::cmp::Reverse(request.output_tokens), request.id);
            assert!(other.is_sorted_by_key(key));
        }
    }
}

#[test]
fn random_access_gives_what_sequential_access_gives() {
    let workload = workload(laws(0.3), 100, 4096, Order::File);
    let sequential = all(&workload);
    let mut cursor = workload.cursor();
    for position in [99u64, 0, 50, 51, 3] {
        assert_eq!(cursor.request(position).unwrap(), sequential[position as usize]);
    }
}

fn rank_correlation(requests: &[Request]) -> f64 {
    let ranks = |key: &dyn Fn(&Request) -> u32| {
        let mut order: Vec<usize> = (0..requests.len()).collect();
        order.sort_by_key(|place| key(&requests[*place]));
        let mut ranks = vec![0.0; order.len()];
        for (rank, place) in order.into_iter().enumerate() {
            ranks[place] = rank as f64;
        }
        ranks
    };
    let (a, b) = (ranks(&|it| it.prompt_tokens), ranks(&|it| it.uncapped_output_tokens));
    let count = a.len() as f64;
    let squares: f64 = a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum();
    1.0 - 6.0 * squares / (count * (count * count - 1.0))
}

#[test]
fn the_rank_correlation_asked_for_is_achieved_and_the_laws_are_kept() {
    for asked in [-0.4, 0.0, 0.1, 0.7] {
        let requests = all(&workload(laws(asked), 100_000, 32_768, Order::File));
        let found = rank_correlation(&requests);
        assert!((found - asked).abs() < 0.02, "{asked}: {found}");
        let mean = requests.iter().map(|it| f64::from(it.uncapped_output_tokens)).sum::<f64>() / 1e5;
        assert!((mean / named("central").mean() - 1.0).abs() < 0.02, "mean {mean} at {asked}");
    }
}

#[test]
fn rows_are_replayed_in_order_or_drawn_whole() {
    let in_order = all(&workload(Lengths::Trace { trace: trace(), draw: RowDraw::InOrder }, 500, 4096, Order::File));
    assert!(in_order.iter().zip(1..).all(|(it, n)| it.prompt_tokens == n && it.uncapped_output_tokens == 10 * n));
    let drawn = Lengths::Trace { trace: trace(), draw: RowDraw::WithReplacement };
    let drawn = all(&workload(drawn, 50_000, 4096, Order::File));
    assert!(drawn.iter().all(|it| it.uncapped_output_tokens == 10 * it.prompt_tokens));
    let mean = drawn.iter().map(|it| f64::from(it.prompt_tokens)).sum::<f64>() / 50_000.0;
    assert!((mean - 250.5).abs() < 3.0, "{mean}");
}

#[test]
fn a_prompt_that_fills_the_context_is_rejected() {
    let limits = Limits { max_tokens: None, context_tokens: Some(100) };
    let lengths = Lengths::Trace { trace: trace(), draw: RowDraw::InOrder };
    let workload = Workload::new(lengths, 500, limits, Order::File, Streams::new(0, 0)).unwrap();
    let mut cursor = workload.cursor();
    assert_eq!(cursor.request(98).unwrap().output_tokens, 1);
    assert_eq!(cursor.request(49).unwrap().output_tokens, 50);
    assert_eq!(cursor.request(99), Err(Rejected { id: 99, prompt_tokens: 100 }));
}

#[test]
fn first_requests_are_stable() {
    let found: Vec<(u32, u32)> = all(&workload(laws(0.0), 4, 32_768, Order::File))
        .iter()
        .map(|it| (it.prompt_tokens, it.uncapped_output_tokens))
        .collect();
    assert_eq!(found, [(96, 6332), (125, 1130), (98, 12_766), (131, 2141)]);
    let ids: Vec<u64> = all(&workload(laws(0.0), 8, 32_768, Order::Shuffled)).iter().map(|it| it.id).collect();
    assert_eq!(ids, [4, 5, 7, 3, 0, 1, 2, 6]);
}

#[test]
fn bad_jobs_are_refused() {
    let new = |lengths, requests, limits, order| {
        Workload::new(lengths, requests, limits, order, Streams::new(0, 0)).unwrap_err().to_string()
    };
    let none = Limits::default();
    let replay = Lengths::Trace { trace: trace(), draw: RowDraw::InOrder };
    let zero = Limits { max_tokens: Some(0), ..none };
    for (error, expected) in [
        (new(laws(0.0), 0, none, Order::File), "requests: 0; give at least 1 request"),
        (new(laws(1.5), 1, none, Order::File), "rank_correlation: 1.5; a rank correlation is between -1 and 1"),
        (new(laws(f64::NAN), 1, none, Order::File), "rank_correlation: NaN; "),
        (new(laws(0.0), 1, zero, Order::File), "max_tokens: 0; give at least 1 token"),
        (new(replay, 501, none, Order::File), "requests: 501 requests from a trace of 500 rows; ask for fewer"),
        (new(laws(0.0), 1 << 33, none, Order::Shuffled), "order: 8589934592 requests; file order has no limit"),
    ] {
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
#[ignore = "a measurement: cargo test --release -- --ignored --nocapture making_a_request"]
fn making_a_request_takes_less_than_100_ns() {
    let mut blocks = Streams::new(1, 0).blocks(Purpose::Request);
    let law = named("central");
    let timed = |name: &str, make: &mut dyn FnMut(u64) -> f64| {
        let start = std::time::Instant::now();
        let sum: f64 = (0..2_000_000).map(make).sum();
        println!("{name}: {:.1} ns ({sum})", start.elapsed().as_nanos() as f64 / 2e6);
    };
    timed("block of draws", &mut |id| blocks.draws(id)[3]);
    timed("central", &mut |id| law.sample((id % 97) as f64 / 97.0, (id % 8191) as f64 / 8192.0 + 1e-5));
    for rank_correlation in [0.0, 0.3] {
        let workload = workload(laws(rank_correlation), 2_000_000, 4096, Order::File);
        let mut cursor = workload.cursor();
        let _ = cursor.request(0);
        let start = std::time::Instant::now();
        let sum: u64 = (0..workload.len()).map(|at| cursor.request(at).map_or(0, |it| it.output_tokens.into())).sum();
        let ns = start.elapsed().as_nanos() as f64 / workload.len() as f64;
        println!("rank correlation {rank_correlation}: {ns:.1} ns a request ({sum} tokens)");
    }
}
