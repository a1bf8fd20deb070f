//! `makespan validate`.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use makespan::calibrate::{Validator, load_jobs, load_tables, validate};
use makespan::report::ValidateReport;

use super::forecast::{progress, refuse};
use super::units::UnitsArgs;
use super::{claim, print};

#[derive(Args)]
pub(super) struct Validate {
    /// A folder of measured tables (default: the built-in ones)
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Only tables whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Write the accuracy table to a file, in Markdown
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    #[command(flatten)]
    units: UnitsArgs,
    /// Seed of everything random
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    seed: u64,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl Validate {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        self.units.on_threads(|| self.validate())
    }

    fn validate(&self) -> anyhow::Result<()> {
        claim(&[("--write", &self.write)], self.units.force)?;
        let started = Instant::now();
        let mut tables = load_tables(self.folder.as_deref())?;
        tables.retain(|(name, _)| name.contains(&self.only));
        if tables.is_empty() {
            let found = format!("no measured table here has a name with `{}` in it", self.only);
            return Err(refuse("--only", found, "`makespan list measured` shows the built-in ones"));
        }
        let jobs = load_jobs(self.folder.as_deref())?;
        let mut validator = Validator::new(tables, &jobs, self.seed);
        let all = validator.units();
        let range = self.units.range_of(all)?;
        let mut store = self.units.store(&validator)?;
        let missing = store.missing(range.clone());
        let bar = progress((validator.needed(&missing).len() + missing.len()) as u64, "fits and tests of tables");
        validate(&mut validator, range.clone(), &mut store, &|| bar.inc(1))?;
        bar.finish_and_clear();
        let Some(store) = self.units.whole(store, &range, all, self.json)? else { return Ok(()) };
        let validation = Validator::validation(&store.range(range));
        let report = ValidateReport::new(&validation, self.seed, started.elapsed().as_secs_f64());
        if let Some(path) = &self.write {
            let mut text = Vec::new();
            report.write_markdown(&mut text)?;
            makespan::files::write(path, text)?;
        }
        print(|out| if self.json { report.write_json(out) } else { report.write_text(out) })
    }
}
