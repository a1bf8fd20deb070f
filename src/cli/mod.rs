//! The commands: read, call, show. A file per command.

mod decide;
mod forecast;
mod list;
mod scale;
mod show;
mod simulate;
mod sweep;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use makespan::error::Error;
use makespan::model::scenario::{DEFAULT_SCENARIO, Override, Scenario};

/// How long will my batch-generation job take, why does its throughput plateau, and what should I change?
#[derive(Parser)]
#[command(version, max_term_width = 110, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a whole job once: how long, at what rate, what limited it
    Simulate(simulate::Simulate),
    /// Throughput against concurrency, beside the measured table
    Sweep(sweep::Sweep),
    /// Completion time with intervals, what drives its spread, and the way there from the napkin
    Forecast(forecast::ForecastCommand),
    /// The options side by side: time, answers, tokens, GPU-hours, and which to take
    Decide(decide::Decide),
    /// 1, 2, 4, 8 GPUs, and what would explain a loss
    Scale(scale::Scale),
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
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl ScenarioArgs {
    fn load(&self) -> anyhow::Result<Scenario> {
        let overrides = self.overrides.iter().map(|text| Override::parse(text)).collect::<Result<Vec<_>, _>>()?;
        Ok(Scenario::load(&self.scenario, &overrides)?)
    }
}

/// Runs the program and says how it ended.
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help and version are answers; everything else is one line, as every other error.
        Err(asked) if !asked.use_stderr() || asked.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            asked.exit()
        }
        Err(error) => return refuse(&usage_error(&error), 2),
    };
    let done = match cli.command {
        Command::Simulate(command) => command.run(),
        Command::Sweep(command) => command.run(),
        Command::Forecast(command) => command.run(),
        Command::Decide(command) => command.run(),
        Command::Scale(command) => command.run(),
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
