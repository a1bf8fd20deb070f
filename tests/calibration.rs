//! Fits and diagnoses: the table the project started from, tables made by a known mechanism, a real engine's tables, and
//! what people reported.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test fails, in its helpers too")]
#![allow(clippy::print_stdout, reason = "the studies print what they found")]

use std::path::Path;

use makespan::calibrate::{
    Diagnosis, Effort, FitFile, FitOptions, Known, Measured, Mechanism, Model, PLAIN, Parameter, Point, Points, Prior,
    Structure, Unmeasured, base_priors, describe, diagnose, find_mode, fit, forecast, load_tables, predict,
    table_model,
};
use makespan::experiment::{Setup, measured_table};
use makespan::measured::{Table, read_table};
use makespan::model::scenario::{DEFAULT_SCENARIO, Override, Scenario};
use makespan::random::{Purpose, Streams, open_unit};
use rand::Rng;

fn setup(set: &[&str]) -> Setup {
    let overrides: Vec<Override> = set.iter().map(|text| Override::parse(text).unwrap()).collect();
    Setup::new(&Scenario::load(DEFAULT_SCENARIO, &overrides).unwrap()).unwrap()
}

fn own_table() -> (Setup, Table) {
    let setup = setup(&[]);
    let (_, table) = measured_table(&setup).unwrap().unwrap();
    (setup, table)
}

fn options(draws: usize) -> FitOptions {
    FitOptions { draws, ..FitOptions::new(1) }
}

/// A dense model on an H200 under vLLM, with any lengths.
fn plain_setup(extra: &str) -> Setup {
    let text = format!(
        "[job]\nrequests = 1\nprompt_tokens = 128\noutput_tokens = 512\n\n[fleet]\nhardware = \"h200\"\ngpus = 1\n\n[model]\nllm = \
         \"qwen3-8b\"\nweights = \"bf16\"\n\n[engine]\nname = \"vllm\"\nmem_fraction = 0.9\n{extra}"
    );
    Setup::new(&Scenario::parse(&text, "test", "test", Default::default(), &[]).unwrap()).unwrap()
}

fn parse(rows: &str) -> Table {
    let header = "concurrency,throughput_tok_s,throughput_kind,input_tokens,output_tokens,num_requests,ttft_ms,tpot_ms";
    read_table(&format!("{header}\n{rows}"), "test.csv").unwrap()
}

#[test]
fn the_table_the_project_started_from_is_fitted_to_two_and_a_half_percent() {
    let (setup, table) = own_table();
    let fit = fit(&setup, &table, options(300)).unwrap();
    assert!(fit.rms_log_error <= 0.025, "{}", fit.rms_log_error);
    assert!(fit.unexplained().is_none());
    // Quantiles of a handful of draws would be no quantiles.
    assert!(fit.posterior.effective_draws > 10.0, "{}", fit.posterior.effective_draws);
    let caps = fit.probabilities(|structure| structure.running_cap);
    let near: f64 = caps.iter().filter(|(cap, _)| matches!(cap, Some(7..=9))).map(|(_, p)| p).sum();
    assert!(near > 0.9, "{caps:?}");
    // Bandwidth and acceptance stand in for each other.
    let correlated = fit.correlations();
    assert!(correlated.iter().any(|(a, b, _)| (*a, *b) == ("bandwidth_share", "acceptance")), "{correlated:?}");
    let file = FitFile::new(&fit, "table", &table);
    let path = tempfile::tempdir().unwrap();
    let path = path.path().join("fit.toml");
    file.save(&path).unwrap();
    assert_eq!(FitFile::load(&path).unwrap(), file);
    let scenario = file.scenario(DEFAULT_SCENARIO, &[], true).unwrap();
    assert_eq!(Setup::new(&scenario).unwrap().settings.running_cap, file.running_cap.unwrap().p50.unwrap());
}

#[test]
fn the_plateau_is_a_running_cap_of_about_eight() {
    let (setup, table) = own_table();
    let found = diagnose(&setup, &table, options(300)).unwrap();
    let best = &found.explanations[0];
    assert_eq!(best.mechanism, Mechanism::RunningCap);
    assert!(best.probability > 0.9, "{}", best.probability);
    assert!((7..=9).contains(&found.caps[0].0), "{:?}", found.caps);
    let uncapped = best.predicts.iter().find(|(what, _)| *what == Unmeasured::Uncapped).unwrap().1;
    assert!(uncapped[0] > 2.0 * 409.0 && uncapped[2] < 5.0 * 409.0, "{uncapped:?}");
    // Slots or a flag: the start-up line tells, rates do not.
    let next = &found.measurements[0];
    assert_eq!(next.name, "startup_line");
    assert!(next.outcomes.iter().any(|(who, _)| who.contains("slots")), "{:?}", next.outcomes);
    let sum: f64 = found.explanations.iter().map(|explanation| explanation.probability).sum();
    assert!((sum - 1.0).abs() < 1e-9);
}

#[test]
fn a_fit_is_the_same_for_the_same_seed() {
    let (setup, table) = own_table();
    let one = fit(&setup, &table, options(120)).unwrap();
    let two = fit(&setup, &table, options(120)).unwrap();
    assert_eq!(one.best().scores, two.best().scores);
    assert_eq!(one.posterior.effective_draws.to_bits(), two.posterior.effective_draws.to_bits());
}

/// Concurrencies and lengths of a table that lets every mechanism show.
const SHAPES: [(u32, u32, u32); 11] = [
    (1, 128, 512),
    (4, 128, 512),
    (8, 128, 512),
    (16, 128, 512),
    (32, 128, 512),
    (64, 128, 512),
    (128, 128, 512),
    (16, 128, 2048),
    (64, 128, 2048),
    (16, 2048, 128),
    (64, 2048, 128),
];

/// A table as `mechanism` would give it, with 2% noise; `None` when it has no such thing.
fn synthetic(setup: &Setup, mechanism: Mechanism, seed: u64) -> Table {
    let mut generator = Streams::new(seed, 0).endless(Purpose::Uncertainty, 7);
    let mut unit = || open_unit(generator.next_u64());
    let mut truth = setup.clone();
    truth.settings.running_cap = 4096;
    truth.parameters.bandwidth_share = 0.65 + 0.2 * unit();
    let mut structure = Structure { running_cap: None, waves: 1, client_cap: None };
    let mut beside = PLAIN;
    let level = unit();
    match mechanism {
        Mechanism::RunningCap => structure.running_cap = Some(8 + (24.0 * level) as u32),
        Mechanism::Client => structure.client_cap = Some(8 + (24.0 * level) as u32),
        // Within reach of the arithmetic: the pool of a small share of the memory.
        Mechanism::KvPool => truth.settings.kv_pool_tokens = (14_000.0 + 16_000.0 * level) as u64,
        Mechanism::Compute => truth.parameters.flops_share = 0.03 + 0.05 * level,
        Mechanism::Host => truth.parameters.per_request_s = (0.4 + 1.2 * level) * 1e-3,
        Mechanism::Link => beside.transfer_s = Some(0.06 + 0.1 * level),
        Mechanism::Prefill => truth.parameters.prefill_flops_share = 0.01 + 0.03 * level,
        Mechanism::None => {}
    }
    let mut rows = String::new();
    for (concurrency, prompt_tokens, output_tokens) in SHAPES {
        let point = Point {
            line: 0,
            in_flight: concurrency,
            concurrency,
            requests: Some(u64::from(3 * concurrency)),
            prompt_tokens,
            output_tokens: Some(output_tokens),
            measured: Measured::default(),
            replicas: 1,
        };
        let found = predict(&truth, &point, structure, beside, 3).unwrap();
        let mut noise = || {
            let sum: f64 = (0..12).map(|_| unit()).sum();
            (0.02 * (sum - 6.0)).exp()
        };
        rows += &format!(
            "{concurrency},{},output,{prompt_tokens},{output_tokens},{},{},{}\n",
            found.tok_per_s * noise(),
            3 * concurrency,
            found.ttft_ms.unwrap() * noise(),
            found.tpot_ms.unwrap() * noise()
        );
    }
    parse(&rows)
}

/// The setup of the synthetic tables: a small KV pool by the engine's own arithmetic where that is the mechanism.
fn synthetic_setup(mechanism: Mechanism) -> Setup {
    let mut setup = plain_setup("");
    if mechanism == Mechanism::KvPool {
        setup.settings.kv_pool_tokens = 20_000;
    }
    setup
}

fn diagnosed(mechanism: Mechanism, seed: u64) -> Diagnosis {
    let setup = synthetic_setup(mechanism);
    let table = synthetic(&setup, mechanism, seed);
    diagnose(&setup, &table, options(120)).unwrap()
}

#[test]
fn made_up_tables_are_diagnosed_by_what_made_them() {
    for mechanism in [Mechanism::Host, Mechanism::Compute, Mechanism::None] {
        let found = diagnosed(mechanism, 1);
        assert_eq!(found.explanations[0].mechanism, mechanism, "{:?}", names(&found));
    }
}

fn names(found: &Diagnosis) -> Vec<(Mechanism, f64)> {
    found.explanations.iter().map(|explanation| (explanation.mechanism, explanation.probability)).collect()
}

/// Slow: `cargo test --release --test calibration -- --ignored --nocapture every_mechanism`.
#[test]
#[ignore = "minutes"]
fn every_mechanism_is_found_nine_times_in_ten() {
    let (mut right, mut all) = (0, 0);
    for mechanism in Mechanism::ALL {
        let mut own = 0;
        for seed in 0..10 {
            let found = diagnosed(mechanism, seed);
            if found.explanations[0].mechanism == mechanism {
                own += 1;
            } else {
                println!("{mechanism:?} {seed}: {:?}", &names(&found)[..3]);
            }
        }
        println!("{mechanism:?}: {own} of 10");
        right += own;
        all += 10;
    }
    println!("{right} of {all}");
    assert!(10 * right >= 9 * all, "{right} of {all}");
}

/// Simulation-based calibration. Slow: `cargo test --release --test calibration -- --ignored --nocapture true_parameters`.
#[test]
#[ignore = "minutes"]
fn true_parameters_lie_in_the_90_percent_interval() {
    let setup = plain_setup("");
    let blank = synthetic(&setup, Mechanism::None, 0);
    let points = Points::new(&setup, &blank).unwrap().used;
    let model = table_model(&setup, &points, Known::default(), 1).unwrap();
    let mut inside = vec![0usize; model.priors.len()];
    let mut counted = 0usize;
    for seed in 0..MADE_UP {
        let mut generator = Streams::new(seed, 1).endless(Purpose::Uncertainty, 9);
        let mut normal = || (0..12).map(|_| open_unit(generator.next_u64())).sum::<f64>() - 6.0;
        let truth: Vec<f64> = model.priors.iter().map(|_| normal()).collect();
        let found = model.predictions(&truth, model.structures[0].0).unwrap();
        // The noise that the fit assumes: floor and model error together.
        let own = makespan::calibrate::NOISE_FLOOR.hypot(0.015 * (0.8 * normal()).exp());
        let mut rows = String::new();
        for (point, prediction) in points.iter().zip(&found) {
            let mut noisy = |value: f64, deviation: f64| value * (deviation * normal()).exp();
            rows += &format!(
                "{},{},output,{},{},{},{},{}\n",
                point.concurrency,
                noisy(prediction.tok_per_s, own),
                point.prompt_tokens,
                point.output_tokens.unwrap(),
                point.requests.unwrap(),
                noisy(prediction.ttft_ms.unwrap(), 1.5 * own.hypot(0.25)),
                noisy(prediction.tpot_ms.unwrap(), 1.5 * own)
            );
        }
        // One in ten is refused: with such noise its own columns contradict one another.
        let Ok(fitted) = fit(&setup, &parse(&rows), options(200)) else { continue };
        counted += 1;
        for (index, (prior, summary)) in fitted.summaries().iter().enumerate() {
            let value = prior.value(truth[index]);
            inside[index] += usize::from(summary.quantiles[0] <= value && value <= summary.quantiles[2]);
        }
    }
    let shares: Vec<(&str, f64)> = model
        .priors
        .iter()
        .zip(&inside)
        .map(|(prior, count)| (prior.parameter.key(), *count as f64 / counted as f64))
        .collect();
    println!("{counted} tables: {shares:?}");
    let mean = shares.iter().map(|(_, share)| share).sum::<f64>() / shares.len() as f64;
    println!("mean {mean:.3}");
    assert!(counted >= 200, "{counted}");
    assert!((0.85..=0.95).contains(&mean), "{shares:?}");
}

/// Tables of the simulation-based calibration, the refused ones included.
const MADE_UP: u64 = 220;

/// The tables of one H200, which the program does not have built in.
fn h200(name: &str) -> (Model, Table, Setup) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/measured/h200");
    let (_, table) = load_tables(Some(&folder)).unwrap().into_iter().find(|(other, _)| other == name).unwrap();
    let described = describe(&table).unwrap();
    let points = Points::new(&described.setup, &table).unwrap().used;
    let model = table_model(&described.setup, &points, described.known, 1).unwrap();
    (model, table, described.setup)
}

#[test]
fn a_sweep_of_a_real_engine_predicts_other_caps_and_pools() {
    let (source, ..) = h200("qwen3-8b-sweep");
    let (structure, prior) = source.structures[0];
    let mode = find_mode(&source, structure, prior, &vec![0.0; source.priors.len()], Effort::Full).unwrap();
    let modes = [mode];
    for (name, bound) in [("qwen3-8b-slots8", 0.04), ("qwen3-8b-kv16k", 0.04)] {
        let (target, ..) = h200(name);
        let mut errors: Vec<f64> = target
            .points
            .iter()
            .map(|point| {
                let own = Some(target.structures[0].0);
                let found = forecast(&modes, &source, &target, point, own, &|found| found.tok_per_s).unwrap();
                (found.value / point.measured.tok_per_s.unwrap()).ln().abs()
            })
            .collect();
        println!("{name}: {errors:?}");
        errors.sort_by(f64::total_cmp);
        assert!(errors[errors.len() / 2] <= bound, "{name}: {errors:?}");
    }
}

mod reported {
    //! Cases that people reported, as far as they concern tables and fits.

    use super::*;

    /// A1, A2: slots, not the flag, cap the batch; what is reserved counts, not what is held.
    #[test]
    fn slots_cap_the_batch_and_the_points_above_share_rate_and_tpot() {
        let slots = setup(&[
            "engine.state_slots=52",
            "engine.state_slots_per_request=4",
            "engine.max_running_requests=40",
            "engine.speculation.acceptance_spread=0",
        ]);
        assert_eq!(slots.settings.running_cap, 13);
        let at = |concurrency: u32| {
            let point = point(concurrency, 1500, 600, 6 * u64::from(concurrency));
            predict(&slots, &point, structure(), PLAIN, 1).unwrap()
        };
        let (knee, above) = (at(13), at(40));
        assert!((above.tok_per_s / knee.tok_per_s - 1.0).abs() < 0.06, "{knee:?} {above:?}");
        assert!((above.tpot_ms.unwrap() / knee.tpot_ms.unwrap() - 1.0).abs() < 0.06);
        assert!(above.ttft_ms.unwrap() > 5.0 * knee.ttft_ms.unwrap());
        let held = setup(&[
            "engine.state_slots=60",
            "engine.state_slots_per_request=6",
            "engine.state_slots_held_per_request=5",
        ]);
        assert_eq!(held.settings.running_cap, 10);
        let state = held.limits.unwrap().state.unwrap();
        assert_eq!(state.idle_slots(10), 10);
    }

    /// A4: a capped batch is told from rate × tpot.
    #[test]
    fn a_cap_is_diagnosed_from_rates_and_tpot() {
        let table = parse(
            "1,300,output,1024,1024,16,60,3.1\n16,2000,output,1024,1024,64,120,7.6\n512,1900,output,1024,1024,1024,100000,12\n\
             2048,1950,output,1024,1024,4096,400000,12\n",
        );
        let findings = makespan::measured::check(&table);
        assert!(findings.iter().any(|finding| finding.what.contains("about 23 requests run at once")), "{findings:?}");
    }

    /// B2: prefill alone bounds the rate.
    #[test]
    fn prefill_bounds_the_requests_of_long_prompts() {
        let setup = plain_setup("");
        let mut slow = setup.clone();
        slow.parameters.prefill_flops_share = 0.02;
        let few = predict(&slow, &point(4, 12_000, 150, 24), structure(), PLAIN, 1).unwrap();
        let many = predict(&slow, &point(32, 12_000, 150, 96), structure(), PLAIN, 1).unwrap();
        assert!(many.tok_per_s / few.tok_per_s < 1.4, "{few:?} {many:?}");
    }

    /// B5: with prefill the bottleneck, doubling the cap changes nothing.
    #[test]
    fn doubling_the_cap_changes_nothing_when_prefill_is_the_bottleneck() {
        let mut setup = plain_setup("");
        setup.parameters.prefill_flops_share = 0.05;
        let at = |cap: u32| {
            let structure = Structure { running_cap: Some(cap), waves: 1, client_cap: None };
            predict(&setup, &point(16, 24_000, 200, 96), structure, PLAIN, 1).unwrap().tok_per_s
        };
        assert!((at(16) / at(8) - 1.0).abs() < 0.06, "{} {}", at(8), at(16));
    }

    /// C1: acceptance alone makes no speed-up.
    #[test]
    fn a_slow_draft_pass_makes_speculation_lose() {
        let mut with = setup(&["engine.speculation.draft_tokens=1", "engine.speculation.acceptance=0.95"]);
        let without = setup(&["engine.speculation.enabled=false"]);
        let one = point(1, 128, 512, 4);
        let plain = predict(&without, &one, structure(), PLAIN, 1).unwrap().tok_per_s;
        with.parameters.draft_pass_gap_s = 0.2;
        assert!(predict(&with, &one, structure(), PLAIN, 1).unwrap().tok_per_s < plain);
    }

    /// C2: what drafts gain depends on concurrency and lengths together, at one acceptance.
    #[test]
    fn drafts_gain_little_where_prefill_takes_the_time() {
        let (with, without) = (setup(&[]), setup(&["engine.speculation.enabled=false"]));
        let capped = Structure { running_cap: Some(16), waves: 1, client_cap: None };
        let gain = |concurrency: u32, prompt_tokens: u32| {
            let point = point(concurrency, prompt_tokens, 256, 2 * u64::from(concurrency));
            let rate = |setup: &Setup| predict(setup, &point, capped, PLAIN, 1).unwrap().tok_per_s;
            rate(&with) / rate(&without)
        };
        let (alone, short, long) = (gain(1, 512), gain(16, 512), gain(16, 8192));
        assert!(alone > 1.4, "{alone}");
        assert!(long < 1.0 + 0.6 * (short - 1.0), "{short} {long}");
    }

    /// C3: a fit survives a row that disagrees with its neighbours, and names it.
    #[test]
    fn an_outlier_is_left_out_and_named() {
        let rates = [80.0, 2.0 * 40.0, 3.0 * 70.0, 4.0 * 66.0, 5.0 * 60.0, 6.0 * 55.0];
        let rows: String =
            rates.iter().enumerate().map(|(i, rate)| format!("{},{rate},output,128,512,,,\n", i + 1)).collect();
        let with = fit(&setup(&["benchmark.waves=1"]), &parse(&rows), options(100)).unwrap();
        let left_out: Vec<u32> = with.residuals.iter().filter(|row| !row.used).map(|row| row.point.in_flight).collect();
        assert_eq!(left_out, [2]);
        let worst = with.residuals.iter().filter(|row| row.used).map(|row| row.error.abs()).fold(0.0, f64::max);
        assert!(worst < 0.15, "{worst}");
    }

    /// H1: rates from requests per second, weighed by the number of requests.
    #[test]
    fn few_requests_weigh_less() {
        let text = "ISL,OSL,Concurrency,N Req,TTFT,TPOT,Req Tput\n128,128,1,2,52.5,24.3,0.319\n128,128,8,8,80,26,2.2\n128,128,16,64,90,28,4.1\n";
        let table = read_table(text, "sweep.csv").unwrap();
        let points = Points::new(&plain_setup(""), &table).unwrap().used;
        assert!((points[0].measured.tok_per_s.unwrap() - 40.8).abs() < 0.1);
        assert!(points[0].measured.noise > points[2].measured.noise);
    }

    /// H2: a rate that contradicts its tpot is refused with the kind that would fit.
    #[test]
    fn the_wrong_kind_of_rate_is_refused() {
        let Err(error) = fit(&plain_setup(""), &parse("1,1300,output,4096,512,8,,7\n"), options(100)) else {
            panic!("a table of the wrong kind was fitted")
        };
        assert!(error.to_string().contains("total"), "{error}");
        assert_eq!(error.exit_code(), 2);
    }

    fn structure() -> Structure {
        Structure { running_cap: None, waves: 1, client_cap: None }
    }

    fn point(concurrency: u32, prompt_tokens: u32, output_tokens: u32, requests: u64) -> Point {
        Point {
            line: 0,
            in_flight: concurrency,
            concurrency,
            requests: Some(requests),
            prompt_tokens,
            output_tokens: Some(output_tokens),
            measured: Measured::default(),
            replicas: 1,
        }
    }
}

#[test]
fn priors_name_their_sources_and_do_not_know_the_table() {
    let priors: Vec<Prior> = base_priors(&setup(&[]), Known::default());
    assert!(priors.iter().all(|prior| !prior.source.is_empty()));
    assert!(priors.iter().any(|prior| prior.parameter == Parameter::Acceptance));
}
