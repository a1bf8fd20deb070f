//! From the napkin's number to the forecast, one cause at a time; each step is a simulation.

use toml::{Table, Value};

use crate::engine::memory::RunningLimit;
use crate::engine::observe::Unobserved;
use crate::engine::settings::Stride;
use crate::error::{InputError, Result};
use crate::experiment::jobs::JobSource;
use crate::experiment::replicate::Reduced;
use crate::experiment::setup::{Changes, Setup};
use crate::model::scenario::Scenario;
use crate::random::Streams;
use crate::simulation::simulate;
use crate::units::SECONDS_PER_DAY;

/// Output length of the steps that leave the job's own lengths out, tokens, where no benchmark says one.
const SHORT_OUTPUT_TOKENS: u64 = 1024;

/// Prompt length of those steps, tokens, where no benchmark says one.
const SHORT_PROMPT_TOKENS: u64 = 128;

/// Requests for each running one in those steps.
const GENERATIONS: u64 = 64;

/// How many times the cap a lifted one is, where the engine has no other limit to fall back to.
const LIFTED: u64 = 4;

/// One step of the bridge.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What is added to the step before.
    pub step: String,
    /// Completion time with it, days.
    pub days: f64,
}

/// The steps, up to the scenario's own values; `median_days` of the forecast ends it.
///
/// # Errors
/// What a simulation leads to.
pub fn bridge(scenario: &Scenario, seed: u64, median_days: Option<f64>) -> Result<Vec<Step>> {
    let settled = scenario;
    let setup = Setup::new(settled)?;
    let streams = Streams::new(seed, 0);
    let mut steps = Vec::new();
    let mut add = |step: String, seconds: f64| steps.push(Step { step, days: seconds / SECONDS_PER_DAY });
    let job = &settled.tables.job;
    if let Some(napkin) = job.napkin {
        let envelope = |mean: Option<f64>, cap: bool| -> Result<f64> {
            let fixed = on_the_envelope(settled, napkin.tok_per_s_per_gpu, mean, cap)?;
            let source = JobSource::new(&fixed)?;
            let outcome = Setup::new(&fixed)?.run(&source, streams, Stride::Longest, &mut Unobserved)?;
            Ok(outcome.makespan.as_s())
        };
        let rate = napkin.tok_per_s_per_gpu;
        let mean = napkin.mean_output_tokens;
        add(format!("napkin: {mean} tokens each at {rate} tok/s per GPU"), envelope(Some(mean), false)?);
        if job.trace.is_none() {
            add("lengths by their law, without max_tokens".to_owned(), envelope(None, false)?);
        }
        if let Some(cap) = job.max_tokens {
            add(format!("max_tokens = {cap}"), envelope(None, true)?);
        }
    }
    let source = JobSource::new(settled)?;
    let whole = setup.run(&source, streams, Stride::Longest, &mut Unobserved)?;
    let tokens = whole.output_tokens as f64;
    if let Some(limits) = &setup.limits
        && setup.settings.speculation.is_some() | limits.state.is_some() | (setup.settings.running_cap > 1)
        && !matches!(setup.settings.policy, crate::engine::settings::PolicySettings::Static)
    {
        let cap = setup.settings.running_cap;
        let lifted = match limits.running_limit {
            RunningLimit::StateSlots if limits.max_running.value > u64::from(cap) => limits.max_running.value,
            _ => u64::from(cap) * LIFTED,
        };
        let lifted = u32::try_from(lifted).unwrap_or(u32::MAX);
        let length = short_output(settled);
        let short =
            |cap| short_rate(&setup, length, cap, streams).map(|rate| tokens / (rate * f64::from(setup.replicas)));
        if let Some(seconds) = short(lifted) {
            add(format!("the engine, {lifted} running at once, {length}-token outputs"), seconds);
        }
        if let Some(seconds) = short(cap) {
            add(format!("running cap of {cap}"), seconds);
        }
    }
    let reduced = Reduced::new(settled)?;
    let one = setup.fleet(streams, Stride::Longest, Changes::default())?;
    if let Some(rate) = steady_rate_of_one(&reduced, one, streams)? {
        add("the job's own lengths and contexts".to_owned(), tokens / (rate * f64::from(setup.replicas)));
    }
    if let Some(rate) = whole.steady_output_tok_per_s {
        add(format!("{} replicas together", setup.replicas), tokens / rate);
    }
    add("ramp and tail: the whole job, once".to_owned(), whole.makespan.as_s());
    if let Some(days) = median_days {
        add("what is uncertain: median of the forecast".to_owned(), days * SECONDS_PER_DAY);
    }
    Ok(steps)
}

/// The job on GPUs that write tokens at a fixed rate.
fn on_the_envelope(scenario: &Scenario, rate: f64, mean: Option<f64>, cap: bool) -> Result<Scenario> {
    let job = &scenario.tables.job;
    let mut table = Table::new();
    let requests = JobSource::new(scenario)?.requests();
    table.insert("requests".into(), Value::Integer(requests as i64));
    match (mean, &job.trace) {
        (Some(mean), _) => {
            table.insert("prompt_tokens".into(), Value::Integer(1));
            table.insert("output_tokens".into(), Value::Float(mean));
        }
        (None, Some(trace)) => {
            table.insert("trace".into(), Value::String(trace.display().to_string()));
            for (key, skip) in [("skip_empty_rows", job.skip_empty_rows), ("skip_faulty_rows", job.skip_faulty_rows)] {
                table.extend(skip.map(|skip| (key.to_owned(), Value::Boolean(skip))));
            }
            table.insert("arrivals".into(), Value::String("at_once".into()));
        }
        (None, None) => {
            table.extend(job.prompt_tokens.clone().map(|law| ("prompt_tokens".to_owned(), law)));
            table.extend(job.output_tokens.clone().map(|law| ("output_tokens".to_owned(), law)));
            table.extend(job.context_tokens.map(|tokens| ("context_tokens".to_owned(), Value::Integer(tokens as i64))));
        }
    }
    if let Some(tokens) = job.max_tokens.filter(|_| cap) {
        table.insert("max_tokens".into(), Value::Integer(tokens as i64));
    }
    let fleet = Table::from_iter([("gpus".to_owned(), Value::Integer(i64::from(scenario.tables.fleet.gpus)))]);
    let engine = Table::from_iter([
        ("name".to_owned(), Value::String("fixed-rate".into())),
        ("tok_per_s_per_gpu".to_owned(), Value::Float(rate)),
    ]);
    let all = Table::from_iter([
        ("job".to_owned(), Value::Table(table)),
        ("fleet".to_owned(), Value::Table(fleet)),
        ("engine".to_owned(), Value::Table(engine)),
    ]);
    let text = toml::to_string(&all).map_err(|error| InputError::new(error.to_string(), "a bug: please report it"))?;
    Scenario::parse(&text, "napkin", "napkin", scenario.folder.clone(), &[])
}

fn short_output(scenario: &Scenario) -> u64 {
    scenario.tables.benchmark.as_ref().and_then(|benchmark| benchmark.output_tokens).unwrap_or(SHORT_OUTPUT_TOKENS)
}

/// Steady output rate of one replica that always has `cap` equal short requests to run; `None` when it has none.
fn short_rate(setup: &Setup, output_tokens: u64, cap: u32, streams: Streams) -> Option<f64> {
    let benchmark = setup.scenario.tables.benchmark.as_ref();
    let prompt = benchmark.and_then(|benchmark| benchmark.prompt_tokens).unwrap_or(SHORT_PROMPT_TOKENS);
    let job = JobSource::benchmark(GENERATIONS * u64::from(cap), prompt as u32, output_tokens as u32).ok()?;
    let changes = Changes { running_cap: Some(cap), benchmark_output_tokens: Some(output_tokens as u32) };
    let mut fleet = setup.fleet(streams, Stride::Longest, changes).ok()?;
    fleet.replicas.truncate(1);
    fleet.in_flight = crate::simulation::InFlight::All;
    let workload = job.workload(streams).ok()?;
    // A pool too small for so many is no step of the bridge.
    simulate(fleet, job.stream(&workload, streams), &mut Unobserved).ok()?.steady_output_tok_per_s
}

fn steady_rate_of_one(reduced: &Reduced, mut fleet: crate::simulation::Fleet, streams: Streams) -> Result<Option<f64>> {
    fleet.replicas.truncate(1);
    let job = JobSource::new(&reduced.scenario)?;
    let workload = job.workload(streams)?;
    Ok(simulate(fleet, job.stream(&workload, streams), &mut Unobserved)?.steady_output_tok_per_s)
}
