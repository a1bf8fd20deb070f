//! `makespan validate`.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use makespan::calibrate::{STEPS_PER_TABLE, load_jobs, load_tables, validate};
use makespan::report::ValidateReport;

use super::forecast::{progress, refuse};
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
    /// Replace the file if it exists
    #[arg(long, requires = "write")]
    force: bool,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl Validate {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        claim(&[("--write", &self.write)], self.force)?;
        let started = Instant::now();
        let mut tables = load_tables(self.folder.as_deref())?;
        tables.retain(|(name, _)| name.contains(&self.only));
        if tables.is_empty() {
            let found = format!("no measured table here has a name with `{}` in it", self.only);
            return Err(refuse("--only", found, "`makespan list measured` shows the built-in ones"));
        }
        let jobs = load_jobs(self.folder.as_deref())?;
        let bar = progress(STEPS_PER_TABLE * tables.len() as u64, "steps of tables");
        let validation = validate(tables, &jobs, self.seed, &|| bar.inc(1));
        bar.finish_and_clear();
        let report = ValidateReport::new(&validation, self.seed, started.elapsed().as_secs_f64());
        if let Some(path) = &self.write {
            let mut text = Vec::new();
            report.write_markdown(&mut text)?;
            makespan::files::write(path, text)?;
        }
        print(|out| if self.json { report.write_json(out) } else { report.write_text(out) })
    }
}
