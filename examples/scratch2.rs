use makespan::calibrate::*;
use makespan::experiment::*;
use makespan::model::scenario::*;
use std::time::Instant;
fn main() {
    let mut setup = Setup::new(&Scenario::load(DEFAULT_SCENARIO, &[]).unwrap()).unwrap();
    setup.replicas = 1;
    let (_, table) = measured_table(&setup).unwrap().unwrap();
    let t = Instant::now();
    for i in 0..200 { let a = 0.7 + 0.0005 * i as f64; std::hint::black_box(makespan::engine::speculation::Speculation::new(&[a, a*a, a*a*a], 0.08).unwrap()); }
    println!("speculation {:?}", t.elapsed() / 200);
    let points = Points::new(&setup, &table).unwrap();
    let model = table_model(&setup, &points.used, Known::default(), 1).unwrap();
    let z = vec![0.1; model.priors.len()];
    let t = Instant::now();
    for _ in 0..200 { std::hint::black_box(model.setup_at(&z)); }
    println!("setup_at {:?}", t.elapsed() / 200);
    let streams = makespan::random::Streams::new(1, 0);
    let ch = Changes { running_cap: Some(8), benchmark_output_tokens: Some(1024) };
    let t = Instant::now();
    for _ in 0..1000 { std::hint::black_box(setup.fleet(streams, Default::default(), ch).unwrap()); }
    println!("fleet {:?}", t.elapsed() / 1000);
    let t = Instant::now();
    for _ in 0..1000 { std::hint::black_box(JobSource::benchmark(4, 133, 1024).unwrap()); }
    println!("job {:?}", t.elapsed() / 1000);
    let job = JobSource::benchmark(4, 133, 1024).unwrap();
    let t = Instant::now();
    for _ in 0..1000 { std::hint::black_box(job.workload(streams).unwrap()); }
    println!("workload {:?}", t.elapsed() / 1000);
    for p in &points.used {
        let s = Structure { running_cap: Some(8), waves: 1, client_cap: None };
        let t = Instant::now();
        let before = simulations();
        for _ in 0..20 { std::hint::black_box(predict(&setup, p, s, None, 1).unwrap()); }
        println!("{} {:?} {} runs", p.concurrency, t.elapsed() / 20, (simulations() - before) / 20);
    }
}
