//! A results file as lines whose checksums hold, whatever their columns mean.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::{Error, InputError, Result};
use crate::files;

use super::identity::Identity;
use super::{in_words, ranges};

/// Between a comment and its checksum.
const CHECKSUM: &str = "; crc ";

/// Start of the last line of a file that is complete.
const END: &str = "# units ";

/// The lines that every file of such results starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// The lines, with their ends.
    pub text: String,
    checksum: u32,
}

impl Head {
    pub(super) fn new(identity: &Identity, columns: &[String]) -> Head {
        let (line, columns) = (identity.line(), columns.join(","));
        let checksum = crc32fast::hash(format!("{line}\n{columns}").as_bytes());
        Head { text: format!("{line}{CHECKSUM}{checksum:08x}\n{columns},crc\n"), checksum }
    }

    /// The checksum of a later line: over the first lines too, so that no row of another file passes.
    fn sum(&self, line: &str) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.checksum.to_le_bytes());
        hasher.update(line.as_bytes());
        hasher.finalize()
    }

    /// A row with its checksum and end.
    pub(super) fn row(&self, cells: &str) -> String {
        format!("{cells},{:08x}\n", self.sum(cells))
    }

    /// The last line of a file that holds these units and no other.
    pub(super) fn end(&self, units: impl IntoIterator<Item = u64>) -> String {
        let line = format!("{END}{}", in_words(&ranges(units)));
        format!("{line}{CHECKSUM}{:08x}\n", self.sum(&line))
    }

    /// The whole file of these rows.
    pub(super) fn file<'a>(&self, rows: impl IntoIterator<Item = (u64, &'a str)>) -> String {
        let mut text = self.text.clone();
        let mut units = Vec::new();
        for (unit, cells) in rows {
            text.push_str(&self.row(cells));
            units.push(unit);
        }
        text.push_str(&self.end(units));
        text
    }
}

/// A results file.
#[derive(Debug)]
pub(super) struct Sheet {
    /// What the rows belong to.
    pub identity: Identity,
    /// Names of the cells.
    pub columns: Vec<String>,
    /// Cells of each unit, with the line they stand on.
    pub rows: BTreeMap<u64, (u64, String)>,
    /// Whether the last line says that all is there.
    pub complete: bool,
    /// Bytes up to the end of the last row that is whole.
    pub good_bytes: u64,
    /// A last line that was cut.
    pub torn_line: Option<u64>,
}

const REMEDY: &str = "name another file, or add --force to start it anew";

fn refuse(file: &str, line: u64, found: impl Into<String>, remedy: &str) -> Error {
    InputError::new(found, remedy).file(file).line(line).into()
}

impl Sheet {
    /// Reads a file; a last line that was cut is left out and named.
    ///
    /// # Errors
    /// When it cannot be read, is no results file, or a line other than the last is damaged.
    pub(super) fn read(path: &Path) -> Result<Sheet> {
        Sheet::parse(&files::read(path)?, &path.display().to_string())
    }

    /// As [`Sheet::read`], of bytes.
    pub(super) fn parse(bytes: &[u8], file: &str) -> Result<Sheet> {
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let (good, torn) = bytes.split_at(whole);
        let text = std::str::from_utf8(good).map_err(|_| refuse(file, 1, "not a results file", REMEDY))?;
        // By line feeds alone: a carriage return is a change like any other.
        let mut lines = text.split_terminator('\n');
        let (head, identity, columns) =
            head(lines.next(), lines.next()).map_err(|(line, found)| refuse(file, line, found, REMEDY))?;
        let mut sheet = Sheet {
            identity,
            columns,
            rows: BTreeMap::new(),
            complete: false,
            good_bytes: head.text.len() as u64,
            torn_line: None,
        };
        let mut last = 2;
        for line in lines {
            last += 1;
            sheet.take(&head, line).map_err(|found| {
                let remedy = "delete that line: its unit is run again";
                refuse(file, last, found, remedy)
            })?;
        }
        sheet.torn_line = (!torn.is_empty()).then_some(last + 1);
        Ok(sheet)
    }

    fn take(&mut self, head: &Head, line: &str) -> std::result::Result<(), String> {
        if self.complete {
            return Err("a line after the one that ends the results".to_owned());
        }
        if let Some((end, _)) = line.strip_prefix(END).and_then(|rest| rest.split_once(CHECKSUM)) {
            // Compared as a whole: the units and the checksum follow from the rows.
            let own = head.end(self.rows.keys().copied());
            if own.strip_suffix('\n') != Some(line) {
                let found = in_words(&ranges(self.rows.keys().copied()));
                return Err(format!("the last line says that units {end} are there; found {found}"));
            }
            self.complete = true;
            return Ok(());
        }
        let damaged = || format!("a damaged row: `{}`", line.chars().take(60).collect::<String>());
        let (cells, _) = line.rsplit_once(',').ok_or_else(damaged)?;
        if head.row(cells).strip_suffix('\n') != Some(line) {
            return Err(damaged());
        }
        let unit = cells.split(',').next().and_then(|unit| unit.parse::<u64>().ok()).ok_or_else(damaged)?;
        self.good_bytes += line.len() as u64 + 1;
        match self.rows.insert(unit, (self.rows.len() as u64 + 3, cells.to_owned())) {
            Some(_) => Err(format!("another row of unit {unit}")),
            None => Ok(()),
        }
    }

    /// The units that are there.
    pub(super) fn units(&self) -> Vec<std::ops::Range<u64>> {
        ranges(self.rows.keys().copied())
    }
}

/// The first two lines; an error with its line otherwise.
fn head(
    first: Option<&str>,
    second: Option<&str>,
) -> std::result::Result<(Head, Identity, Vec<String>), (u64, &'static str)> {
    let none = (1, "not a results file");
    let first = first.ok_or(none)?;
    let (line, _) = first.rsplit_once(CHECKSUM).ok_or(none)?;
    let identity = Identity::parse(line).ok_or(none)?;
    let names = second.and_then(|names| names.strip_suffix(",crc")).ok_or((2, "not the columns of results"))?;
    let columns: Vec<String> = names.split(',').map(str::to_owned).collect();
    let head = Head::new(&identity, &columns);
    if head.text.split('\n').next() != Some(first) {
        return Err((1, "the first two lines do not fit their checksum"));
    }
    Ok((head, identity, columns))
}
