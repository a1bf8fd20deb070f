//! `makespan simulate`.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use makespan::engine::observe::{Observer, StrideView};
use makespan::engine::sequence::Sequence;
use makespan::engine::settings::Stride;
use makespan::experiment::{JobSource, Setup};
use makespan::random::Streams;
use makespan::report::{SimulateReport, SliceTrace, Tally, Timeline, TimelineScale};

use super::{ScenarioArgs, claim, print};

/// Requests between two looks at the clock for the progress bar.
const PROGRESS_EVERY: u64 = 4096;

/// A run that takes less than this shows no bar.
const PROGRESS_AFTER: Duration = Duration::from_millis(700);

#[derive(Args)]
pub(super) struct Simulate {
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// Move time one engine step at a time: the same result, slowly
    #[arg(long)]
    stepwise: bool,
    /// Write one row per request: lengths, times, replica, preemptions
    #[arg(long, value_name = "FILE")]
    requests_csv: Option<PathBuf>,
    /// Write running, waiting, KV, slots and link use over time as CSV
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// Write the stretches of steps as a trace for the Chrome and Perfetto viewers
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Replace files that exist
    #[arg(long)]
    force: bool,
}

impl Simulate {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let scenario = self.scenario.load()?;
        let files = [("--requests-csv", &self.requests_csv), ("--timeline", &self.timeline), ("--trace", &self.trace)];
        claim(&files, self.force)?;
        let started = Instant::now();
        let setup = Setup::new(&scenario)?;
        let job = JobSource::new(&scenario)?;
        let mut watch = Watch {
            tally: Tally::default(),
            timeline: self.timeline.as_ref().map(|_| Timeline::new(timeline_scale(&setup))),
            trace: self.trace.as_ref().map(|_| SliceTrace::default()),
            rows: self.requests_csv.as_ref().map(|_| String::from(HEADER)),
            progress: Progress { bar: None, started, total: job.requests(), done: 0 },
        };
        let stride = if self.stepwise { Stride::Stepwise } else { Stride::Longest };
        let outcome = setup.run(&job, Streams::new(self.scenario.seed, 0), stride, &mut watch)?;
        if let Some(bar) = &watch.progress.bar {
            bar.finish_and_clear();
        }
        if let (Some(path), Some(rows)) = (&self.requests_csv, &watch.rows) {
            makespan::files::write(path, rows)?;
        }
        if let (Some(path), Some(timeline)) = (&self.timeline, &watch.timeline) {
            makespan::files::write(path, timeline.csv())?;
        }
        if let (Some(path), Some(trace)) = (&self.trace, &watch.trace) {
            makespan::files::write(path, trace.json())?;
        }
        let wall_s = started.elapsed().as_secs_f64();
        let report = SimulateReport::new(&setup, &outcome, watch.tally, self.scenario.seed, wall_s);
        print(|out| if self.scenario.json { report.write_json(out) } else { report.write_text(out) })
    }
}

fn timeline_scale(setup: &Setup) -> TimelineScale {
    let settings = &setup.settings;
    let state = setup.limits.as_ref().and_then(|limits| limits.state.as_ref());
    TimelineScale {
        pool_pages: settings.kv_pool_tokens / u64::from(settings.page_tokens),
        slots_per_request: state.map_or(0, |state| state.held_per_request.value),
        link_bytes_per_s: settings.host.map_or([0.0; 2], |host| host.link.rates.alone.map(|rate| rate as f64)),
    }
}

const HEADER: &str = "request,replica,prompt_tokens,output_tokens,truncated,submitted_s,admitted_s,first_token_s,last_token_s,preemptions\n";

/// Counts, rows and progress of one run.
struct Watch {
    tally: Tally,
    timeline: Option<Timeline>,
    trace: Option<SliceTrace>,
    rows: Option<String>,
    progress: Progress,
}

impl Observer for Watch {
    fn stride(&mut self, stride: &StrideView) {
        if let Some(timeline) = &mut self.timeline {
            timeline.stride(stride);
        }
        if let Some(trace) = &mut self.trace {
            trace.stride(stride);
        }
    }

    fn wants_strides(&self) -> bool {
        self.timeline.is_some() || self.trace.is_some()
    }

    fn completed(&mut self, replica: usize, sequence: &Sequence) {
        self.tally.completed(replica, sequence);
        self.progress.advance();
        if let Some(rows) = &mut self.rows {
            let request = &sequence.request;
            let _ = writeln!(
                rows,
                "{},{replica},{},{},{},{},{},{},{},{}",
                request.id,
                request.prompt_tokens,
                request.output_tokens,
                request.output_tokens < request.uncapped_output_tokens,
                sequence.submitted_at.as_s(),
                sequence.admitted_at.as_s(),
                sequence.first_token_at.min(sequence.finished_at).as_s(),
                sequence.finished_at.as_s(),
                sequence.preemptions
            );
        }
    }
}

/// A bar on stderr, once a run turns out to be long; hidden where stderr is no terminal.
struct Progress {
    bar: Option<ProgressBar>,
    started: Instant,
    total: u64,
    done: u64,
}

impl Progress {
    fn advance(&mut self) {
        self.done += 1;
        if !self.done.is_multiple_of(PROGRESS_EVERY) {
            return;
        }
        if self.bar.is_none() && self.started.elapsed() > PROGRESS_AFTER {
            let bar = ProgressBar::new(self.total);
            if let Ok(style) = ProgressStyle::with_template("{bar:40} {human_pos}/{human_len} requests, {eta} left") {
                bar.set_style(style);
            }
            self.bar = Some(bar);
        }
        if let Some(bar) = &self.bar {
            bar.set_position(self.done);
        }
    }
}
