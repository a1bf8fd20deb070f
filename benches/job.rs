//! How long the simulator itself takes: the 914,000-request job on four replicas, sampling included, on one thread, without
//! the host tier; how that grows with the job; what the host tier costs; and what making a request costs.
#![allow(missing_docs, clippy::unwrap_used)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use makespan::engine::observe::Unobserved;
use makespan::engine::settings::Stride;
use makespan::experiment::{Changes, JobSource, Setup};
use makespan::model::scenario::{DEFAULT_SCENARIO, Override, Scenario};
use makespan::random::Streams;
use makespan::simulation::simulate;

fn setup(requests: u64) -> (Setup, JobSource) {
    setup_with(&[&format!("job.requests={requests}"), "engine.hicache.enabled=false"])
}

fn setup_with(sets: &[&str]) -> (Setup, JobSource) {
    let sets: Vec<Override> = sets.iter().map(|set| Override::parse(set).unwrap()).collect();
    let scenario = Scenario::load(DEFAULT_SCENARIO, &sets).unwrap();
    (Setup::new(&scenario).unwrap(), JobSource::new(&scenario).unwrap())
}

fn run(setup: &Setup, job: &JobSource, cap: u32) -> u64 {
    let streams = Streams::new(1, 0);
    let workload = job.workload(streams).unwrap();
    let changes = Changes { running_cap: Some(cap), ..Changes::default() };
    let fleet = setup.fleet(streams, Stride::Longest, changes).unwrap();
    simulate(fleet, job.stream(&workload, streams), &mut Unobserved).unwrap().steps
}

fn whole_job(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("job_914k");
    group.sample_size(10);
    let (setup, job) = setup(914_000);
    group.throughput(Throughput::Elements(914_000));
    for cap in [8, 48, 256] {
        group.bench_with_input(BenchmarkId::new("cap", cap), &cap, |bencher, &cap| {
            bencher.iter(|| run(&setup, &job, cap));
        });
    }
    group.finish();
}

/// What the host tier costs: the same job with it off.
fn host_tier(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("host_tier");
    group.sample_size(10);
    group.throughput(Throughput::Elements(914_000));
    for enabled in [false, true] {
        let (setup, job) = setup_with(&["job.requests=914000", &format!("engine.hicache.enabled={enabled}")]);
        group.bench_with_input(BenchmarkId::new("enabled", enabled), &8, |bencher, &cap| {
            bencher.iter(|| run(&setup, &job, cap));
        });
    }
    group.finish();
}

fn growth(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("growth");
    group.sample_size(10);
    for requests in [9_140, 91_400, 914_000] {
        let (setup, job) = setup(requests);
        group.throughput(Throughput::Elements(requests));
        group.bench_with_input(BenchmarkId::from_parameter(requests), &requests, |bencher, _| {
            bencher.iter(|| run(&setup, &job, 8));
        });
    }
    group.finish();
}

fn sampling(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("requests");
    let (_, job) = setup(100_000);
    let workload = job.workload(Streams::new(1, 0)).unwrap();
    group.throughput(Throughput::Elements(100_000));
    group.bench_function("sampled", |bencher| {
        bencher.iter(|| {
            let mut cursor = workload.cursor();
            (0..100_000)
                .filter_map(|position| cursor.request(position).ok())
                .map(|r| u64::from(r.output_tokens))
                .sum::<u64>()
        });
    });
    group.finish();
}

criterion_group!(benches, whole_job, host_tier, growth, sampling);
criterion_main!(benches);
