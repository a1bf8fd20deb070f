//! Results of typed rows, in memory and on disk.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::error::{InputError, Result};
use crate::files::{self, Growing};

use super::identity::Identity;
use super::row::{self, Row};
use super::sheet::{Head, Sheet};

/// Results of one piece of work. Rows are appended to its file as they finish, in whatever order; once the work is
/// complete the file is written anew in the order of the units.
#[derive(Debug)]
pub struct Store<R> {
    identity: Identity,
    head: Head,
    rows: BTreeMap<u64, R>,
    file: Option<(PathBuf, Growing)>,
    torn: Vec<String>,
}

const REMEDY: &str = "name another file, give what it was made with, or add --force to start it anew";

impl<R: Row> Store<R> {
    /// None yet, kept in memory only.
    pub fn new(identity: Identity) -> Store<R> {
        let head = Head::new(&identity, &columns::<R>());
        Store { identity, head, rows: BTreeMap::new(), file: None, torn: Vec::new() }
    }

    /// Adds the rows of another file, which is left as it is. A torn last row is left out and named in
    /// [`Store::torn`].
    ///
    /// # Errors
    /// When it cannot be read, or holds results of something else.
    pub fn read(&mut self, path: &Path) -> Result<()> {
        let sheet = Sheet::read(path)?;
        self.take(sheet, &path.display().to_string())
    }

    /// Goes on in `path`: rows that stand there count, a torn last one is dropped, new ones are appended. No other run
    /// can go on in it meanwhile, where the file system knows locks.
    ///
    /// # Errors
    /// When it cannot be read or written, when another run holds it, and when it is no results file or one of something
    /// else, unless `replace`.
    pub fn keep_in(&mut self, path: &Path, replace: bool) -> Result<()> {
        let mut growing = Growing::open(path)?;
        let bytes = if replace { Vec::new() } else { growing.read()? };
        let mut good_bytes = 0;
        // A run that was killed before its first row leaves a part of the first lines.
        if !self.head.text.as_bytes().starts_with(&bytes) {
            let name = path.display().to_string();
            let sheet = Sheet::parse(&bytes, &name)?;
            good_bytes = sheet.good_bytes;
            self.take(sheet, &name)?;
        }
        growing.keep(good_bytes)?;
        if good_bytes == 0 {
            growing.append(self.head.text.as_bytes())?;
        }
        self.file = Some((path.to_owned(), growing));
        Ok(())
    }

    fn take(&mut self, sheet: Sheet, file: &str) -> Result<()> {
        self.identity.expect(&sheet.identity, file, REMEDY)?;
        let refuse = |line: u64, found: String| InputError::new(found, REMEDY).file(file).line(line);
        if sheet.columns != columns::<R>() {
            return Err(refuse(2, "columns of something else".to_owned()).into());
        }
        for (unit, (line, cells)) in sheet.rows {
            let row: R = row::read(&cells).ok_or_else(|| refuse(line, format!("not a row of results: `{cells}`")))?;
            match self.rows.get(&unit) {
                Some(other) if *other != row => {
                    return Err(refuse(line, format!("another result of unit {unit}")).into());
                }
                _ => self.rows.insert(unit, row),
            };
        }
        if let Some(line) = sheet.torn_line {
            self.torn.push(format!("{file}:{line}: a row that was cut short is left out"));
        }
        Ok(())
    }

    /// Last rows that were cut short, by file and line.
    pub fn torn(&self) -> &[String] {
        &self.torn
    }

    /// Keeps the row of a unit that has just finished.
    ///
    /// # Errors
    /// When the file cannot be written, and for numbers that are none.
    pub fn add(&mut self, row: R) -> Result<()> {
        let cells = cells(&row)?;
        if let Some((_, file)) = &mut self.file {
            file.append(self.head.row(&cells).as_bytes())?;
        }
        self.rows.insert(row.unit(), row);
        Ok(())
    }

    /// Whether a unit is there.
    pub fn contains(&self, unit: u64) -> bool {
        self.rows.contains_key(&unit)
    }

    /// The units of a range that are not there.
    pub fn missing(&self, units: Range<u64>) -> Vec<u64> {
        units.filter(|unit| !self.contains(*unit)).collect()
    }

    /// The rows of a range, by number; those that are missing are left out.
    pub fn range(&self, units: Range<u64>) -> Vec<&R> {
        self.rows.range(units).map(|(_, row)| row).collect()
    }

    /// The rows of a range, numbered from its start.
    pub fn numbered(&self, units: Range<u64>) -> Vec<R> {
        let start = units.start;
        self.rows.range(units).map(|(unit, row)| row.clone().numbered(unit - start)).collect()
    }

    /// The whole file, in the order of the units: the same bytes however they came about.
    ///
    /// # Errors
    /// For numbers that are none.
    pub fn to_csv(&self) -> Result<String> {
        let rows = self.rows.iter().map(|(unit, row)| Ok((*unit, cells(row)?))).collect::<Result<Vec<_>>>()?;
        Ok(self.head.file(rows.iter().map(|(unit, cells)| (*unit, cells.as_str()))))
    }

    /// Writes the file in order, once the work is complete.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(&mut self) -> Result<()> {
        let Some((path, growing)) = self.file.take() else { return Ok(()) };
        files::write(&path, self.to_csv()?)?;
        // Held until the new file stands under the name.
        drop(growing);
        Ok(())
    }
}

fn columns<R: Row>() -> Vec<String> {
    R::COLUMNS.iter().map(|name| (*name).to_owned()).collect()
}

fn cells<R: Row>(row: &R) -> Result<String> {
    let unit = row.unit();
    row::write(row).ok_or_else(|| {
        let remedy = "look for a value of the scenario that is far out of its usual range";
        InputError::new(format!("unit {unit} came to a number that is not finite"), remedy).into()
    })
}
