//! Measured tables of a folder, or the built-in ones.

use std::path::Path;

use crate::error::Result;
use crate::measured::{Job, Table, read_about, read_jobs, read_table};
use crate::model::builtin::{Kind, find, names};

/// File of whole jobs.
const JOBS: &str = "jobs.csv";

/// Tables with a description beside them, by name. Files that are no sweep (other columns) are left out.
///
/// # Errors
/// When the folder or a file in it cannot be read.
pub fn load_tables(folder: Option<&Path>) -> Result<Vec<(String, Table)>> {
    let mut stems: Vec<String> = match folder {
        None => names(Kind::Measured),
        Some(folder) => {
            let names = crate::files::names(folder)?;
            names.iter().filter_map(|name| name.strip_suffix(".csv").map(str::to_owned)).collect()
        }
    };
    stems.retain(|stem| !stem.contains(".runs"));
    let mut tables = Vec::new();
    for stem in stems {
        let place = |extension: &str| match folder {
            None => format!("{stem}.{extension}"),
            Some(folder) => folder.join(format!("{stem}.{extension}")).display().to_string(),
        };
        let Ok(about) = find(Kind::Measured, &place("toml")) else { continue };
        // A description alone has no rates.
        let Ok(found) = find(Kind::Measured, &place("csv")) else { continue };
        // Grids, copies and step times have other columns: they are no table of rates.
        let (Ok(table), Ok(about)) = (read_table(found.text()?, &found.file), read_about(about.text()?, &about.file))
        else {
            continue;
        };
        tables.push((stem.clone(), table.with_about(about)));
    }
    Ok(tables)
}

/// Whole jobs.
///
/// # Errors
/// When the list is there and cannot be read.
pub fn load_jobs(folder: Option<&Path>) -> Result<Vec<Job>> {
    let place = folder.map_or(JOBS.to_owned(), |folder| folder.join(JOBS).display().to_string());
    let Ok(found) = find(Kind::Measured, &place) else { return Ok(Vec::new()) };
    Ok(read_jobs(found.text()?, &found.file)?)
}
