//! A folder of result files as one sweep: a file, or a folder of files, for each run.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::{Imported, import};
use crate::error::{Error, InputError, Result};
use crate::measured::table::{Table, read_table};

/// Files of a folder that are looked at.
const MOST_FILES: usize = 10_000;

/// Largest file of a folder that is read, bytes; results with the lengths and times of every request are below.
const LARGEST_FILE: u64 = 64 << 20;

/// Extensions of result files and tables, those of compressed ones left out.
const EXTENSIONS: [&str; 6] = ["json", "jsonl", "csv", "md", "txt", "tsv"];

/// The runs of a folder.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The points. Their lines are numbers of runs, in order of the paths.
    pub table: Table,
    /// The runs, where they are results of a benchmark tool; plain tables have none.
    pub imported: Option<Imported>,
    /// Runs and files that were left out, with the reason.
    pub left_out: Vec<String>,
    /// Files that were read.
    pub read: usize,
    /// Files that are no results.
    pub others: usize,
}

/// Reads the result files below `folder` in order of their paths. Where there are none, plain tables of concurrency
/// and throughput.
///
/// # Errors
///
/// An unreadable folder, or one without a result.
pub fn read_folder(folder: &Path) -> Result<Sweep> {
    let files = files_below(folder)?;
    let is_summary = |file: &PathBuf| file.file_stem().is_some_and(|stem| stem == "summary");
    let (summaries, runs): (Vec<PathBuf>, Vec<PathBuf>) = files.into_iter().partition(is_summary);
    let name = folder.display().to_string();
    // A summary repeats the runs of the files beside it: it counts where they are gone.
    for (files, beside) in [(&runs, summaries.len()), (&summaries, runs.len())] {
        if let Some((imported, read, others)) = results(files) {
            let (table, left_out) = imported.table(&name)?;
            return Ok(Sweep { table, imported: Some(imported), left_out, read, others: others + beside });
        }
    }
    let mut table = Table::of_rows(&name, Vec::new());
    let (mut read, mut others) = (0, summaries.len());
    for file in &runs {
        let found = text(file).and_then(|text| read_table(&text, &file.display().to_string()).ok());
        let Some(found) = found else {
            others += 1;
            continue;
        };
        read += 1;
        table.rows.extend(found.rows);
    }
    if table.rows.is_empty() {
        let remedy = "give a folder with results of one benchmark tool, or with tables of concurrency and throughput";
        return Err(InputError::new("no result file", remedy).file(name).into());
    }
    (1..).zip(&mut table.rows).for_each(|(number, row)| row.line = number);
    Ok(Sweep { table, imported: None, left_out: Vec::new(), read, others })
}

/// The runs of all results among `files`, with the numbers of files read and of others.
fn results(files: &[PathBuf]) -> Option<(Imported, usize, usize)> {
    let mut all: Option<Imported> = None;
    let (mut read, mut others) = (0, 0);
    for file in files {
        let Some(found) = text(file).and_then(|text| import(&text, &file.display().to_string()).ok()) else {
            others += 1;
            continue;
        };
        read += 1;
        match &mut all {
            None => all = Some(found),
            Some(all) if all.tool == found.tool => {
                all.runs.extend(found.runs);
                all.left_out.extend(found.left_out);
            }
            Some(all) => all.left_out.push(format!("{}: of {}, not of {}", file.display(), found.tool, all.tool)),
        }
    }
    // Lines of different files are the same numbers: a run is known by its place among all.
    let mut all = all?;
    (1..).zip(&mut all.runs).for_each(|(number, (line, _))| *line = number);
    Some((all, read, others))
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).map_err(|source| Error::file(&folder, source))? {
            let entry = entry.map_err(|source| Error::file(&folder, source))?;
            let kind = entry.file_type().map_err(|source| Error::file(&folder, source))?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() && files.len() < MOST_FILES {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The text of a file that may be a result, decompressed.
fn text(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_string_lossy().to_lowercase();
    let plain = name.trim_end_matches(".gz").trim_end_matches(".zst");
    if !EXTENSIONS.iter().any(|extension| plain.ends_with(&format!(".{extension}"))) {
        return None;
    }
    let mut bytes = Vec::new();
    let read = crate::files::open(file).ok()?.take(LARGEST_FILE + 1).read_to_end(&mut bytes).ok()?;
    (read as u64 <= LARGEST_FILE).then(|| String::from_utf8_lossy(&bytes).into_owned())
}
