//! Options of commands whose work is cut into units.

use std::io::{self, Write};
use std::ops::Range;
use std::path::PathBuf;

use clap::Args;
use makespan::shard::{Row, Store, Work, run_missing};

use super::forecast::{progress, refuse};

#[derive(Args)]
pub(super) struct UnitsArgs {
    /// Run these units only, as in 250..500: parts may run anywhere, each with its own --results, and `merge` puts
    /// them together
    #[arg(long, value_name = "A..B")]
    range: Option<String>,
    /// Keep finished units in this file, and go on from what it holds
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
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
    pub(super) fn store<W: Work>(&self, work: &W) -> anyhow::Result<Store<W::Row>> {
        let mut store = Store::new(work.identity()?);
        for path in &self.from {
            store.read(path)?;
        }
        if let Some(path) = &self.results {
            store.keep_in(path, self.force)?;
        }
        for torn in store.torn() {
            let _ = writeln!(io::stderr(), "note: {torn}");
        }
        Ok(store)
    }

    /// Runs what is missing of the units asked for, of `all`. `None` where they are a part of all: that part is in its
    /// file, and this says so.
    pub(super) fn run<W: Work>(
        &self,
        work: &W,
        all: u64,
        of_what: &str,
        json: bool,
    ) -> anyhow::Result<Option<Store<W::Row>>> {
        let range = self.range_of(all)?;
        let mut store = self.store(work)?;
        let bar = progress(store.missing(range.clone()).len() as u64, of_what);
        run_missing(work, range.clone(), &mut store, &|| bar.inc(1))?;
        store.finish()?;
        bar.finish_and_clear();
        self.whole(store, &range, all, json)
    }

    /// The results of all units; `None` where they are a part, which this says.
    pub(super) fn whole<R: Row>(
        &self,
        store: Store<R>,
        range: &Range<u64>,
        all: u64,
        json: bool,
    ) -> anyhow::Result<Option<Store<R>>> {
        if *range == (0..all) {
            return Ok(Some(store));
        }
        let file = self.results.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        super::print(|out| {
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
        })?;
        Ok(None)
    }
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
