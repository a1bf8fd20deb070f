//! The commands: read, call, show. A file per command.

mod calibrate;
mod decide;
mod diagnose;
mod faults;
mod forecast;
mod grid;
mod inspect;
mod list;
mod measured;
mod merge;
mod plan;
mod scale;
mod show;
mod simulate;
mod sweep;
mod units;
mod validate;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use makespan::calibrate::FitFile;
use makespan::error::{Error, InputError};
use makespan::inspect::{Kind, wrong_file};
use makespan::model::scenario::{DEFAULT_SCENARIO, Override, Scenario};

/// How long will my batch-generation job take, why does its throughput plateau, and what should I change?
#[derive(Parser)]
#[command(version, max_term_width = 110, after_help = "Without a command: plan.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The whole answer, from the measured table to advice
    Plan(plan::PlanCommand),
    /// Run a whole job once: how long, at what rate, what limited it
    Simulate(simulate::Simulate),
    /// Throughput against concurrency, beside the measured table
    Sweep(sweep::Sweep),
    /// Fit the unknowns to a measured table: values, what the table taught, residuals
    Calibrate(calibrate::Calibrate),
    /// Why a measured table plateaus, what would tell, and what to measure next
    Diagnose(diagnose::Diagnose),
    /// Put predictions to the test on measured tables
    Validate(validate::Validate),
    /// What a trace, length file, result file or engine log says, and its faults
    Inspect(inspect::Inspect),
    /// Completion time with intervals, what drives its spread, and the way there from the napkin
    Forecast(forecast::ForecastCommand),
    /// The options side by side: time, answers, tokens, GPU-hours, and which to take
    Decide(decide::Decide),
    /// 1, 2, 4, 8 GPUs, and what would explain a loss
    Scale(scale::Scale),
    /// Put results of parts that ran anywhere together, to the bytes of one run
    Merge(merge::Merge),
    /// List what is built in
    List(list::List),
    /// Show a built-in description, or what follows from a scenario
    Show(show::Show),
}

/// What every command that runs a scenario takes.
#[derive(Args)]
struct ScenarioArgs {
    /// A scenario: a path to a TOML file, or a built-in name (`makespan list scenario`)
    #[arg(default_value = DEFAULT_SCENARIO)]
    scenario: String,
    /// Override a key of the scenario, as in --set job.max_tokens=2048 (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Take costs, acceptance and running cap from a fit that `calibrate --out` wrote; --set wins over it
    #[arg(long, value_name = "FILE")]
    fit: Option<PathBuf>,
    /// Seed of everything random
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    seed: u64,
    /// Plan in spite of errors in the job's file of requests or lengths, or of a fit that does not explain its table
    #[arg(long)]
    accept_faults: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl ScenarioArgs {
    fn load(&self) -> anyhow::Result<Scenario> {
        self.load_with(Vec::new())
    }

    /// The scenario of a command that fits, as [`ScenarioArgs::load_with`]: it starts from what is assumed, not from what a
    /// table taught already.
    fn load_unfitted(&self, more: Vec<Override>) -> anyhow::Result<Scenario> {
        if self.fit.is_some() {
            let remedy = "leave --fit out: a fit used as its own start would count its table twice";
            return Err(Error::from(InputError::new("this command makes a fit", remedy).file("--fit")).into());
        }
        self.load_with(more)
    }

    /// The scenario with what other options change in it; --set goes before them.
    fn load_with(&self, more: Vec<Override>) -> anyhow::Result<Scenario> {
        let mut overrides = self.overrides.iter().map(|text| Override::parse(text)).collect::<Result<Vec<_>, _>>()?;
        overrides.extend(more);
        let of_scenario =
            |error| wrong_file(error, Path::new(&self.scenario), "a scenario", &[Kind::Scenario, Kind::Description]);
        let scenario = match &self.fit {
            Some(file) => FitFile::load(file)?.scenario(&self.scenario, &overrides, !self.accept_faults),
            None => Scenario::load(&self.scenario, &overrides),
        };
        let mut scenario = scenario.map_err(of_scenario)?;
        if self.accept_faults {
            scenario = faults::without_faulty_rows(&scenario)?;
        } else {
            faults::refuse_faulty_files(&scenario)?;
        }
        faults::tell_left_out(&scenario);
        Ok(scenario)
    }
}

/// Files that a command is about to write, by option: refuses one that exists, unless it may be replaced, and one that two
/// options name, and makes sure of the others before a long run.
fn claim(files: &[(&str, &Option<PathBuf>)], replace: bool) -> Result<(), Error> {
    let named: Vec<(&str, &PathBuf)> =
        files.iter().filter_map(|(key, path)| path.as_ref().map(|path| (*key, path))).collect();
    for (place, (key, path)) in named.iter().enumerate() {
        let refuse = |found: String, remedy: &str| Err(InputError::new(found, remedy).key(*key).into());
        if let Some((other, _)) = named[..place].iter().find(|(_, other)| other == path) {
            return refuse(format!("{} is what {other} writes", path.display()), "name another file");
        }
        if makespan::files::is_file(path) && !replace {
            return refuse(format!("{} exists", path.display()), "name another file, or add --force");
        }
        makespan::files::check_writable(path)?;
    }
    Ok(())
}

/// Runs the program and says how it ended.
pub fn run() -> ExitCode {
    let mut arguments: Vec<_> = std::env::args_os().collect();
    if arguments.len() == 1 {
        arguments.push("plan".into());
    }
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        // Help and version are answers; everything else is one line, as every other error.
        Err(asked) if !asked.use_stderr() => asked.exit(),
        Err(error) => return refuse(&usage_error(&error), 2),
    };
    let done = match cli.command {
        Command::Plan(command) => command.run(),
        Command::Simulate(command) => command.run(),
        Command::Sweep(command) => command.run(),
        Command::Calibrate(command) => command.run(),
        Command::Diagnose(command) => command.run(),
        Command::Validate(command) => command.run(),
        Command::Inspect(command) => command.run(),
        Command::Forecast(command) => command.run(),
        Command::Decide(command) => command.run(),
        Command::Scale(command) => command.run(),
        Command::Merge(command) => command.run(),
        Command::List(command) => command.run(),
        Command::Show(command) => command.run(),
    };
    let Err(error) = done else { return ExitCode::SUCCESS };
    // A reader that has seen enough closes the pipe: no error.
    let broken_pipe = error
        .chain()
        .any(|cause| cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe));
    if broken_pipe {
        return ExitCode::SUCCESS;
    }
    refuse(&format!("{error:#}"), error.downcast_ref::<Error>().map_or(2, Error::exit_code))
}

/// Prints an error on one line, whatever the input that it quotes.
fn refuse(error: &str, code: u8) -> ExitCode {
    let line: String = error.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let _ = writeln!(io::stderr(), "error: {line}");
    ExitCode::from(code)
}

/// What the parser of the command line found, its tips, and where to read on.
fn usage_error(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let paragraphs =
        text.trim().split("\n\n").filter(|part| !part.starts_with("Usage") && !part.starts_with("For more"));
    let lines = |part: &str| part.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let found = paragraphs.map(lines).collect::<Vec<_>>().join("; ");
    format!("{}; `--help` shows what is known", found.trim_start_matches("error: "))
}

/// Writes a whole report to standard output at once.
fn print(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> anyhow::Result<()> {
    let mut text = Vec::new();
    write(&mut text).context("the report could not be written")?;
    let mut out = io::stdout().lock();
    out.write_all(&text)?;
    out.flush()?;
    Ok(())
}
