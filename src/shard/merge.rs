//! Results of several runs put together.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use crate::error::{InputError, Result};
use crate::files;

use super::identity::Identity;
use super::sheet::{Head, Sheet};
use super::{in_words, ranges};

/// Results put together.
#[derive(Debug)]
pub struct Merged {
    /// What they belong to.
    pub identity: Identity,
    /// The units.
    pub units: Range<u64>,
    /// The file: the same bytes as one run of all units writes.
    pub text: String,
}

/// Puts files together that hold each unit once, and all units from the first to the last: those of `expected`, or as many
/// as their first line says, where it does.
///
/// # Errors
/// By name: files that cannot be read, are not complete, belong to something else or come from another version of the
/// program; units that two files hold; units that no file holds.
pub fn merge(paths: &[PathBuf], expected: Option<Range<u64>>) -> Result<Merged> {
    let read = |path: &PathBuf| Ok((path.display().to_string(), files::read(path)?));
    merge_bytes(&paths.iter().map(read).collect::<Result<Vec<_>>>()?, expected)
}

/// As [`merge`], of the names and contents of files.
///
/// # Errors
/// As [`merge`].
pub fn merge_bytes(files: &[(String, Vec<u8>)], expected: Option<Range<u64>>) -> Result<Merged> {
    let mut first: Option<(Sheet, &str)> = None;
    let mut rows: BTreeMap<u64, (String, usize)> = BTreeMap::new();
    for (place, (name, bytes)) in files.iter().enumerate() {
        let refuse = |found: String, remedy: &str| InputError::new(found, remedy).file(name);
        let mut sheet = Sheet::parse(bytes, name)?;
        match &first {
            // This program's version, by what it would write itself.
            None => Identity::new(sheet.identity.command()).expect_version(&sheet.identity, name)?,
            Some((other, other_name)) => {
                let remedy = format!("merge files of one run only: {other_name} is of another");
                other.identity.expect(&sheet.identity, name, &remedy)?;
                if other.columns != sheet.columns {
                    return Err(refuse(format!("not the columns of {other_name}"), &remedy).line(2).into());
                }
            }
        }
        if !sheet.complete {
            let cut = sheet.torn_line.map_or(String::new(), |line| format!("line {line} was cut short, and "));
            let found = format!("not finished: {cut}units {} are there", in_words(&sheet.units()));
            return Err(refuse(found, "run it again with the same --range and --results").into());
        }
        let mut twice: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for (unit, (_, cells)) in std::mem::take(&mut sheet.rows) {
            if let Some((_, other)) = rows.insert(unit, (cells, place)) {
                twice.entry(other).or_default().push(unit);
            }
        }
        if let Some((other, units)) = twice.into_iter().next() {
            let other = files.get(other).map_or("", |(name, _)| name);
            let found = format!("units {} are in {other} too", in_words(&ranges(units)));
            return Err(refuse(found, "give each range once").into());
        }
        first.get_or_insert((sheet, name));
    }
    let no_files = || InputError::new("no results", "name the results files of every range").key("FILES");
    let (sheet, _) = first.ok_or_else(no_files)?;
    let ends = rows.keys().next().zip(rows.keys().next_back()).map(|(low, high)| *low..*high + 1);
    let known = sheet.identity.units().map(|units| 0..units);
    let units = expected.or(known).or(ends).ok_or_else(no_files)?;
    let missing = ranges(units.clone().filter(|unit| !rows.contains_key(unit)));
    if let Some(one) = missing.first() {
        let found = format!("units {} are in no file", in_words(&missing));
        let remedy = format!("run them, as with --range {}..{}, and merge that file too", one.start, one.end);
        return Err(InputError::new(found, remedy).key("FILES").into());
    }
    let beyond = ranges(rows.keys().copied().filter(|unit| !units.contains(unit)));
    if !beyond.is_empty() {
        let found = format!("units {} are beyond {}", in_words(&beyond), in_words(std::slice::from_ref(&units)));
        return Err(InputError::new(found, "leave out their files, or give a wider --range").key("FILES").into());
    }
    let head = Head::new(&sheet.identity, &sheet.columns);
    let text = head.file(rows.iter().map(|(unit, (cells, _))| (*unit, cells.as_str())));
    Ok(Merged { identity: sheet.identity, units, text })
}
