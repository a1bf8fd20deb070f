//! A folder of result files as one sweep: a file, or a folder of files, for each run.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::{Imported, import, row};
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
    /// Files that were read.
    pub read: usize,
}

/// Reads the result files below `folder` in order of their paths. Where there are none, plain tables of concurrency
/// and throughput. Every other file and every run without a point is named in the table's `left_out`.
///
/// # Errors
///
/// An unreadable folder, one with too many files, or one without a result.
pub fn read_folder(folder: &Path) -> Result<Sweep> {
    let files = files_below(folder)?;
    let is_summary = |file: &PathBuf| file.file_stem().is_some_and(|stem| stem == "summary");
    let (summaries, runs): (Vec<PathBuf>, Vec<PathBuf>) = files.into_iter().partition(is_summary);
    let name = folder.display().to_string();
    // A summary repeats the runs of the files beside it: it counts where they are gone.
    for (files, beside, why) in [
        (&runs, &summaries, "a summary, which repeats the runs beside it"),
        (&summaries, &runs, "no result beside the summary"),
    ] {
        if let Some((imported, read)) = results(files) {
            let mut table = imported.table(&name)?;
            table.left_out.extend(beside.iter().map(|file| format!("{}: {why}", file.display())));
            return Ok(Sweep { table, imported: Some(imported), read });
        }
    }
    let mut table = Table::of_rows(&name, Vec::new());
    let mut read = 0;
    for file in runs.iter().chain(&summaries) {
        let found = text(file).and_then(|text| read_table(&text, "").map_err(in_one_line));
        match found {
            Ok(found) => {
                read += 1;
                table.rows.extend(found.rows);
            }
            Err(why) => table.left_out.push(format!("{}: {why}", file.display())),
        }
    }
    if table.rows.is_empty() {
        let found = table.left_out.first().map_or_else(
            || "an empty folder".to_owned(),
            |first| format!("no result file among {} ({first})", table.left_out.len()),
        );
        let remedy = "give a folder with results of one benchmark tool, or with tables of concurrency and throughput";
        return Err(InputError::new(found, remedy).file(name).into());
    }
    (1..).zip(&mut table.rows).for_each(|(number, row)| row.line = number);
    Ok(Sweep { table, imported: None, read })
}

/// The runs of all results among `files` that make a point, with the number of files read. What is left out is named.
fn results(files: &[PathBuf]) -> Option<(Imported, usize)> {
    let mut all: Option<Imported> = None;
    let mut left_out = Vec::new();
    let mut read = 0;
    for file in files {
        let name = file.display();
        let found = match text(file).and_then(|text| import(&text, &name.to_string()).map_err(in_one_line)) {
            Ok(found) => found,
            Err(why) => {
                left_out.push(format!("{name}: {why}"));
                continue;
            }
        };
        let tool = all.as_ref().map_or(found.tool, |all| all.tool);
        if found.tool != tool {
            left_out.push(format!("{name}: of {}, not of {tool}", found.tool));
            continue;
        }
        read += 1;
        left_out.extend(found.left_out.iter().map(|why| format!("{name}: {why}")));
        let (points, others): (Vec<_>, Vec<_>) = found
            .runs
            .into_iter()
            .map(|(line, run)| (line, row(line, &run, tool).err(), run))
            .partition(|it| it.1.is_none());
        left_out.extend(others.into_iter().filter_map(|(line, why, _)| Some(format!("{name}: line {line}: {}", why?))));
        let points = points.into_iter().map(|(line, _, run)| (line, run));
        match &mut all {
            None => all = Some(Imported { runs: points.collect(), left_out: Vec::new(), ..found }),
            Some(all) => {
                all.runs.extend(points);
                all.model = all.model.take().or(found.model);
            }
        }
    }
    // Lines of different files are the same numbers: a run is known by its place among all.
    let mut all = all?;
    (1..).zip(&mut all.runs).for_each(|(number, (line, _))| *line = number);
    all.left_out = left_out;
    Some((all, read))
}

/// What was wrong with a file whose name stands before it.
fn in_one_line(error: InputError) -> String {
    InputError { file: None, ..error }.to_string()
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(inner) = folders.pop() {
        for entry in std::fs::read_dir(&inner).map_err(|source| Error::file(&inner, source))? {
            let entry = entry.map_err(|source| Error::file(&inner, source))?;
            let kind = entry.file_type().map_err(|source| Error::file(&inner, source))?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path());
            }
        }
        if files.len() > MOST_FILES {
            let found = format!("more than {MOST_FILES} files");
            let remedy = "give a folder with the results of one sweep";
            return Err(InputError::new(found, remedy).file(folder.display().to_string()).into());
        }
    }
    files.sort();
    Ok(files)
}

/// The text of a file that may be a result, decompressed; else why it is none.
fn text(file: &Path) -> std::result::Result<String, String> {
    let name = file.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let plain = name.trim_end_matches(".gz").trim_end_matches(".zst");
    if !EXTENSIONS.iter().any(|extension| plain.ends_with(&format!(".{extension}"))) {
        return Err(format!("not a result by its name, which ends in none of {}", EXTENSIONS.join(", ")));
    }
    let mut bytes = Vec::new();
    let opened = crate::files::open(file).map_err(|error| error.to_string())?;
    let read = opened.take(LARGEST_FILE + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if read as u64 > LARGEST_FILE {
        return Err(format!("larger than {} MiB", LARGEST_FILE >> 20));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
