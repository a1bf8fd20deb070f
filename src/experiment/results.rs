//! Finished replications on disk: one row each, appended as they finish, so that a run that ends in whatever way goes on
//! where it stopped, and parts that ran elsewhere are put together.
//!
//! The first line says what the rows belong to. Rows stand in the order in which they finished until the run is
//! complete; then the file is written once more in the order of their numbers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::error::{InputError, Result};
use crate::experiment::replicate::Replication;
use crate::files::{self, Growing};
use crate::model::scenario::Scenario;

const COLUMNS: [&str; 6] = ["replication", "makespan_s", "completed", "rejected", "truncated", "output_tokens"];

/// Finished replications of one scenario and seed.
#[derive(Debug)]
pub struct Results {
    header: String,
    unknowns: usize,
    rows: BTreeMap<u64, Replication>,
    file: Option<(PathBuf, Growing)>,
}

impl Results {
    /// None yet, kept in memory only.
    pub fn new(scenario: &Scenario, seed: u64) -> Results {
        let mut header = format!(
            "# makespan forecast; version {}; scenario {}; fingerprint {:016x}; seed {seed}\n{}",
            env!("CARGO_PKG_VERSION"),
            scenario.name,
            scenario.fingerprint(),
            COLUMNS.join(",")
        );
        for unknown in &scenario.unknowns {
            // Keys are TOML's and could hold a comma; the column is a quantile of the law, not a value.
            let _ = write!(header, ",u:{}", unknown.name.replace([',', '\n', '\r'], " "));
        }
        header.push('\n');
        Results { header, unknowns: scenario.unknowns.len(), rows: BTreeMap::new(), file: None }
    }

    /// Adds the rows of another file, which is left as it is. A torn last row is left out.
    ///
    /// # Errors
    /// When it cannot be read, or holds results of something else.
    pub fn read(&mut self, path: &Path) -> Result<()> {
        self.take(path).map(|_| ())
    }

    /// Goes on in `path`: rows that stand there count, a torn last one is dropped, new ones are appended.
    ///
    /// # Errors
    /// When it cannot be read or written; when it is no results file or one of something else, unless `replace`.
    pub fn keep_in(&mut self, path: &Path, replace: bool) -> Result<()> {
        let mut good = 0;
        if files::is_file(path) && !replace {
            good = self.take(path)?;
        }
        let mut growing = Growing::open(path, good)?;
        if good == 0 {
            growing.append(self.header.as_bytes())?;
        }
        // Rows read from other files belong here too, and are in no order either.
        self.file = Some((path.to_owned(), growing));
        Ok(())
    }

    /// Reads rows; returns how many bytes of the file are whole.
    fn take(&mut self, path: &Path) -> Result<u64> {
        let name = path.display().to_string();
        let wrong = |line: usize, found: String| {
            let remedy = "name another file, give the scenario and seed that it was made with, or add --force";
            InputError::new(found, remedy).file(&name).line(line as u64)
        };
        let bytes = files::read(path)?;
        if self.header.as_bytes().starts_with(&bytes) && bytes.len() < self.header.len() {
            // Killed before its first row.
            return Ok(0);
        }
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let text = std::str::from_utf8(&bytes[..whole]).map_err(|_| wrong(1, "not a results file".to_owned()))?;
        let Some(body) = text.strip_prefix(self.header.as_str()) else {
            let first = text.lines().next().unwrap_or("");
            if !first.starts_with("# makespan forecast; ") {
                return Err(wrong(1, "not a results file".to_owned()).into());
            }
            let own = self.header.lines().next().unwrap_or("");
            return Err(wrong(1, format!("results of something else: `{first}`, not `{own}`")).into());
        };
        for (index, line) in body.lines().enumerate() {
            let row = self.parse(line).ok_or_else(|| wrong(index + 3, format!("not a row of results: `{line}`")))?;
            self.insert(row).map_err(|found| wrong(index + 3, found))?;
        }
        Ok(whole as u64)
    }

    fn parse(&self, line: &str) -> Option<Replication> {
        let fields: Vec<&str> = line.split(',').collect();
        if fields.len() != COLUMNS.len() + self.unknowns {
            return None;
        }
        let whole = |place: usize| fields[place].parse::<u64>().ok();
        let number = |text: &&str| text.parse::<f64>().ok().filter(|number| number.is_finite());
        Some(Replication {
            index: whole(0)?,
            makespan_s: number(&fields[1])?,
            completed: whole(2)?,
            rejected: whole(3)?,
            truncated: whole(4)?,
            output_tokens: whole(5)?,
            units: fields[COLUMNS.len()..].iter().map(number).collect::<Option<_>>()?,
        })
    }

    fn insert(&mut self, row: Replication) -> std::result::Result<(), String> {
        match self.rows.insert(row.index, row.clone()) {
            Some(other) if other != row => Err(format!("another result of replication {}", row.index)),
            _ => Ok(()),
        }
    }

    /// Keeps a replication that has just finished.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn add(&mut self, row: Replication) -> Result<()> {
        if let Some((_, file)) = &mut self.file {
            file.append(written(&row).as_bytes())?;
        }
        self.rows.insert(row.index, row);
        Ok(())
    }

    /// Whether a replication is there.
    pub fn contains(&self, index: u64) -> bool {
        self.rows.contains_key(&index)
    }

    /// The replications of a range, by number; those that are missing are left out.
    pub fn range(&self, range: std::ops::Range<u64>) -> Vec<&Replication> {
        self.rows.range(range).map(|(_, row)| row).collect()
    }

    /// The whole file, in the order of the replications: the same bytes however they came about.
    pub fn to_csv(&self) -> String {
        let mut text = self.header.clone();
        self.rows.values().for_each(|row| text.push_str(&written(row)));
        text
    }

    /// Writes the file in order, once a run is complete.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(&mut self) -> Result<()> {
        match self.file.take() {
            Some((path, _)) => files::write(&path, self.to_csv()),
            None => Ok(()),
        }
    }
}

/// A row; numbers are written so that reading gives the same bits.
fn written(row: &Replication) -> String {
    let Replication { index, makespan_s, completed, rejected, truncated, output_tokens, units } = row;
    let mut line = format!("{index},{makespan_s},{completed},{rejected},{truncated},{output_tokens}");
    units.iter().for_each(|unit| {
        let _ = write!(line, ",{unit}");
    });
    line.push('\n');
    line
}
