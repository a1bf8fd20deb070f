//! `makespan decide`.

use clap::{Args, ValueEnum};
use makespan::error::Error;
use makespan::experiment::{Choice, Comparison, Keep, Prices, Terms, Thinking, choices, decision, parse_days};
use makespan::model::scenario::Scenario;
use makespan::report::DecideReport;
use makespan::shard::Grid;
use serde_json::Value;

use super::forecast::refuse;
use super::grid::{self, Cell, Column, GridArgs};
use super::units::UnitsArgs;
use super::{ScenarioArgs, print};

/// What is shown of each scenario of a grid: the option to take there.
const COLUMNS: [Column; 4] = [
    ("p50 days", "/taken/makespan_days/p50", 2),
    ("in time", "/taken/p_deadline", 2),
    ("complete", "/taken/complete_answers", 0),
    ("take", "/recommended", 0),
];

#[derive(Args)]
pub(super) struct Decide {
    #[command(flatten)]
    scenario: ScenarioArgs,
    #[command(flatten)]
    terms: TermsArgs,
    /// One more option, as in --option 'cap 1024: job.max_tokens=1024; fleet.gpus=8' (repeatable); without any here or in
    /// the scenario, a usual set is compared
    #[arg(long = "option", value_name = "NAME: KEY=VALUE; ...")]
    options: Vec<String>,
    /// Replications of each option
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    replications: u64,
    #[command(flatten)]
    grid: GridArgs,
    #[command(flatten)]
    units: UnitsArgs,
}

/// What options are weighed by.
#[derive(Args)]
pub(super) struct TermsArgs {
    /// When the job must be done, as in 10d or 36h (default: the scenario's forecast.deadline_days)
    #[arg(long, value_name = "TIME")]
    deadline: Option<String>,
    /// How likely it must be done by then
    #[arg(long, value_name = "SHARE", default_value_t = 0.9, allow_hyphen_values = true)]
    confidence: f64,
    /// What to keep most of among the options that are in time
    #[arg(long, value_enum, default_value_t = KeepWord::Complete)]
    keep: KeepWord,
    /// Price of one GPU for an hour, in any currency
    #[arg(long, value_name = "PRICE", allow_hyphen_values = true)]
    price: Option<f64>,
    /// Power of one GPU with its share of the host while it works, for the energy
    #[arg(long, value_name = "WATTS", allow_hyphen_values = true)]
    watts: Option<f64>,
    /// The same while it has nothing to do (default: as while it works)
    #[arg(long, value_name = "WATTS", requires = "watts", allow_hyphen_values = true)]
    idle_watts: Option<f64>,
    /// Price of a kilowatt-hour, in the currency of --price
    #[arg(long, value_name = "PRICE", requires = "watts", allow_hyphen_values = true)]
    price_per_kwh: Option<f64>,
    /// Outputs are answers from the first token
    #[arg(long)]
    no_thinking: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum KeepWord {
    /// Answers that end by themselves
    Complete,
    /// Requests, however they end
    Samples,
    /// Output tokens that are not lost to requests cut while thinking
    Tokens,
}

impl TermsArgs {
    /// The terms, for a scenario that may bring its own deadline.
    pub(super) fn terms(&self, scenario: &Scenario, seed: u64, replications: u64) -> anyhow::Result<Terms> {
        let deadline_days = deadline_days(self.deadline.as_deref(), scenario)?;
        if !(self.confidence > 0.0 && self.confidence < 1.0) {
            return Err(refuse("--confidence", format!("found {}", self.confidence), "give a share between 0 and 1"));
        }
        let above_zero = [
            ("--price", self.price, "give a price above 0"),
            ("--watts", self.watts, "give the power of one GPU, as in 600"),
            ("--price-per-kwh", self.price_per_kwh, "give a price above 0, as in 0.3"),
        ];
        for (flag, value, remedy) in above_zero {
            if let Some(value) = value.filter(|value| !(value.is_finite() && *value > 0.0)) {
                return Err(refuse(flag, format!("found {value}"), remedy));
            }
        }
        if let (Some(idle), Some(watts)) = (self.idle_watts, self.watts)
            && !(0.0..=watts).contains(&idle)
        {
            return Err(refuse("--idle-watts", format!("found {idle}"), "give a power from 0 to that of --watts"));
        }
        Ok(Terms {
            seed,
            replications,
            deadline_days,
            confidence: self.confidence,
            thinking: if self.no_thinking { Thinking::None } else { Thinking::BeforeAnswer },
            keep: match self.keep {
                KeepWord::Complete => Keep::Complete,
                KeepWord::Samples => Keep::Samples,
                KeepWord::Tokens => Keep::Tokens,
            },
            prices: Prices {
                gpu_hour: self.price,
                kwh: self.price_per_kwh,
                watts: self.watts,
                idle_watts: self.idle_watts,
            },
        })
    }
}

/// The deadline asked for, or the scenario's.
pub(super) fn deadline_days(asked: Option<&str>, scenario: &Scenario) -> anyhow::Result<Option<f64>> {
    match asked {
        Some(text) => Ok(Some(parse_days(text).map_err(|error| match error {
            Error::Input(input) => Error::Input(input.key("--deadline")),
            other => other,
        })?)),
        None => Ok(scenario.tables.forecast.deadline_days),
    }
}

impl Decide {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        self.units.on_threads(|| self.decide())
    }

    /// The comparison of every scenario of a grid.
    fn grid(&self, cells: Vec<Cell>, further: &[Choice]) -> anyhow::Result<()> {
        let (mut works, mut listed) = (Vec::new(), Vec::new());
        for Cell { name, scenario } in cells {
            let terms = self.terms.terms(&scenario, self.scenario.seed, self.replications)?;
            let choices = choices(&scenario, further)?;
            let comparison = Comparison::new(&scenario, &choices, terms.seed, terms.thinking)?;
            let units = comparison.units(self.replications);
            works.push((name, comparison, units));
            listed.push((scenario, terms, choices));
        }
        let grid = Grid::new(works);
        let Some(store) = self.units.run(&grid, grid.units(), "runs", self.scenario.json)? else { return Ok(()) };
        let mut reports = Vec::new();
        for ((name, comparison, units), (scenario, terms, choices)) in grid.cells().zip(&listed) {
            let decision = decision(comparison, &store.numbered(units), scenario, *terms)?;
            let mut report = serde_json::to_value(DecideReport::new(scenario, *terms, choices, &decision))?;
            let of_name = |option: &&Value| option["name"] == report["recommended"];
            let taken = report["options"].as_array().and_then(|options| options.iter().find(of_name)).cloned();
            report["taken"] = taken.unwrap_or_default();
            reports.push((name.to_owned(), report));
        }
        grid::print(&reports, &COLUMNS, self.scenario.json)
    }

    fn decide(&self) -> anyhow::Result<()> {
        let further = self.options.iter().map(|text| Choice::parse(text)).collect::<Result<Vec<_>, _>>()?;
        if let Some(cells) = self.grid.cells(&self.scenario, &[])? {
            return self.grid(cells, &further);
        }
        let scenario = self.scenario.load()?;
        let terms = self.terms.terms(&scenario, self.scenario.seed, self.replications)?;
        let choices = choices(&scenario, &further)?;
        let comparison = Comparison::new(&scenario, &choices, terms.seed, terms.thinking)?;
        let all = comparison.units(self.replications);
        let Some(store) = self.units.run(&comparison, all, "runs", self.scenario.json)? else { return Ok(()) };
        let decision = decision(&comparison, &store.numbered(0..all), &scenario, terms)?;
        let report = DecideReport::new(&scenario, terms, &choices, &decision);
        print(|out| if self.scenario.json { report.write_json(out) } else { report.write_text(out) })
    }
}
