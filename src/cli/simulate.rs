//! `makespan simulate`.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use makespan::engine::observe::{Observer, StrideView};
use makespan::engine::sequence::Sequence;
use makespan::engine::settings::Stride;
use makespan::error::InputError;
use makespan::experiment::{JobSource, Setup};
use makespan::random::Streams;
use makespan::report::{SimulateReport, Tally};
use makespan::units::SimTime;

use super::{ScenarioArgs, print};

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
    /// Replace files that exist
    #[arg(long)]
    force: bool,
}

impl Simulate {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let scenario = self.scenario.load()?;
        if let Some(path) = &self.requests_csv
            && makespan::files::is_file(path)
            && !self.force
        {
            let found = format!("{} exists", path.display());
            return Err(makespan::error::Error::from(
                InputError::new(found, "name another file, or add --force").key("--requests-csv"),
            )
            .into());
        }
        if let Some(path) = &self.requests_csv {
            makespan::files::check_writable(path)?;
        }
        let started = Instant::now();
        let setup = Setup::new(&scenario)?;
        let job = JobSource::new(&scenario)?;
        let mut watch = Watch {
            tally: Tally::default(),
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
        let wall_s = started.elapsed().as_secs_f64();
        let report = SimulateReport::new(&setup, &outcome, watch.tally, self.scenario.seed, wall_s);
        print(|out| if self.scenario.json { report.write_json(out) } else { report.write_text(out) })
    }
}

const HEADER: &str = "request,replica,prompt_tokens,output_tokens,truncated,submitted_s,admitted_s,first_token_s,last_token_s,preemptions\n";

/// Counts, rows and progress of one run.
struct Watch {
    tally: Tally,
    rows: Option<String>,
    progress: Progress,
}

impl Observer for Watch {
    fn stride(&mut self, _stride: &StrideView) {}

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
                sequence.first_token_at.map_or(0.0, SimTime::as_s),
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
