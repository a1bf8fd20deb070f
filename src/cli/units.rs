//! Options of commands whose work is cut into units.

use std::ops::Range;
use std::path::PathBuf;

use clap::Args;
use makespan::shard::{Identity, Row, Store};

use super::forecast::refuse;

#[derive(Args)]
pub(super) struct UnitsArgs {
    /// Run these units only, as in 250..500: parts may run anywhere, each with its own --results, and `merge` puts
    /// them together
    #[arg(long, value_name = "A..B")]
    range: Option<String>,
    /// Keep finished units in this file, and go on from what it holds
    #[arg(long, value_name = "FILE")]
    pub(super) results: Option<PathBuf>,
    /// Take finished units from this file too (repeatable)
    #[arg(long, value_name = "FILE")]
    from: Vec<PathBuf>,
    /// Replace what the files to be written hold
    #[arg(long)]
    pub(super) force: bool,
    /// Threads (default: all cores); results do not depend on it
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..=4096))]
    threads: Option<u16>,
}

impl UnitsArgs {
    /// Runs `work` on the threads asked for.
    pub(super) fn on_threads(&self, work: impl FnOnce() -> anyhow::Result<()> + Send) -> anyhow::Result<()> {
        match self.threads {
            None => work(),
            Some(threads) => rayon::ThreadPoolBuilder::new().num_threads(usize::from(threads)).build()?.install(work),
        }
    }

    /// The range asked for.
    pub(super) fn range(&self) -> anyhow::Result<Option<Range<u64>>> {
        self.range.as_deref().map(parse_range).transpose()
    }

    /// The range asked for of `all` units; a part needs a file to go to.
    pub(super) fn range_of(&self, all: u64) -> anyhow::Result<Range<u64>> {
        let Some(range) = self.range()? else { return Ok(0..all) };
        if range.end > all {
            let found = format!("found {}..{}", range.start, range.end);
            return Err(refuse("--range", found, &format!("there are {all} units: give a range within 0..{all}")));
        }
        if range != (0..all) && self.results.is_none() {
            let found = format!("{}..{} is a part of {all} units", range.start, range.end);
            return Err(refuse("--range", found, "keep it with --results FILE, to be merged with the others"));
        }
        Ok(range)
    }

    /// What is there already.
    pub(super) fn store<R: Row>(&self, identity: Identity) -> anyhow::Result<Store<R>> {
        let mut store = Store::new(identity);
        for path in &self.from {
            store.read(path)?;
        }
        if let Some(path) = &self.results {
            store.keep_in(path, self.force)?;
        }
        for torn in store.torn() {
            eprintln_note(torn);
        }
        Ok(store)
    }

    /// Says that a part is done.
    pub(super) fn print_part(&self, range: &Range<u64>, all: u64, json: bool) -> anyhow::Result<()> {
        let file = self.results.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        super::print(|out| {
            use std::io::Write;
            if json {
                let part = serde_json::json!({ "first": range.start, "end": range.end, "units": all, "results": file });
                writeln!(out, "{part:#}")
            } else {
                writeln!(
                    out,
                    "units {}..{} of {all} are in {file}; `makespan merge` puts parts together",
                    range.start, range.end
                )
            }
        })
    }
}

fn eprintln_note(note: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "note: {note}");
}

/// Reads `A..B`.
pub(super) fn parse_range(text: &str) -> anyhow::Result<Range<u64>> {
    let parsed = text.split_once("..").and_then(|(start, end)| Some(start.parse().ok()?..end.parse().ok()?));
    match parsed {
        Some(range) if range.start < range.end && range.end <= 1 << 40 => Ok(range),
        _ => {
            let remedy = "give the first and the one after the last, as in 250..500";
            Err(refuse("--range", format!("found `{text}`"), remedy))
        }
    }
}
