//! Faults of the files that a job's requests come from: refused, or left out and counted.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use makespan::error::Error;
use makespan::inspect::{Options, inspect};
use makespan::model::scenario::{Job, Override, Scenario};
use makespan::workload::Trace;
use makespan::workload::trace::{CHARACTERS_PER_TOKEN, LeftOut, TextTokens, TraceOptions, read_lengths};

/// The job's laws of lengths that are columns of files, with their keys.
fn laws_of_files(job: &Job) -> impl Iterator<Item = (&'static str, &toml::Table)> {
    [("job.prompt_tokens", &job.prompt_tokens), ("job.output_tokens", &job.output_tokens)]
        .into_iter()
        .filter_map(|(key, law)| Some((key, law.as_ref()?.as_table().filter(|law| law.contains_key("file"))?)))
}

/// The scenario with rows that cannot be requests left out of its files, unless it says itself what to do with them.
pub(super) fn without_faulty_rows(scenario: &Scenario) -> Result<Scenario, Error> {
    let job = &scenario.tables.job;
    let of_trace = job.trace.is_some() && job.skip_faulty_rows.is_none();
    let laws = laws_of_files(job).filter(|(_, law)| !law.contains_key("skip_faulty_rows"));
    let keys =
        laws.map(|(key, _)| format!("{key}.skip_faulty_rows")).chain(of_trace.then(|| "job.skip_faulty_rows".into()));
    let overrides: Vec<Override> =
        keys.map(|key| Override::new(&key, toml::Value::Boolean(true), "--accept-faults:")).collect();
    if overrides.is_empty() { Ok(scenario.clone()) } else { scenario.with(&overrides) }
}

/// Says how many rows of the job's files are left out as faulty.
pub(super) fn tell_left_out(scenario: &Scenario) {
    let job = &scenario.tables.job;
    let tell = |path: &Path, left_out: &LeftOut| {
        if let Some(first) = &left_out.first {
            let (rows, are) = (left_out.rows, if left_out.rows == 1 { "row is" } else { "rows are" });
            let _ = writeln!(io::stderr(), "warning: {rows} {are} left out of {}; the first: {first}", path.display());
        }
    };
    if let (Some(trace), Some(true)) = (&job.trace, job.skip_faulty_rows) {
        let path = scenario.folder.join(trace);
        let skip_empty = job.skip_empty_rows.unwrap_or(false);
        // What cannot be read at all is left to the reader that needs it, which says why.
        if let Ok(trace) = Trace::read(&path, TraceOptions { skip_empty, skip_faulty: true, ..TraceOptions::default() })
        {
            tell(&path, &trace.left_out);
        }
    }
    for (_, law) in laws_of_files(job) {
        let text = |key: &str| law.get(key).and_then(toml::Value::as_str);
        let skip = law.get("skip_faulty_rows").and_then(toml::Value::as_bool) == Some(true);
        let (Some(file), Some(column), true) = (text("file"), text("column"), skip) else { continue };
        let path = scenario.folder.join(file);
        if let Ok((_, left_out)) = read_lengths(&path, column, true) {
            tell(&path, &left_out);
        }
    }
}

/// Looks at the files that the job's requests come from: a plan from a faulty one looks precise and is worthless.
pub(super) fn refuse_faulty_files(scenario: &Scenario) -> Result<(), Error> {
    let job = &scenario.tables.job;
    let of_law = |law: &Option<toml::Value>| {
        let law = law.as_ref()?.as_table()?;
        law.get("file").or_else(|| law.get("finished"))?.as_str().map(PathBuf::from)
    };
    for file in [job.trace.clone(), of_law(&job.output_tokens)].into_iter().flatten() {
        let path = scenario.folder.join(file);
        let texts = match &job.tokenizer {
            Some(tokenizer) => TextTokens::from_file(&scenario.folder.join(tokenizer)),
            None => Ok(TextTokens::default()),
        };
        let inspected = texts.and_then(|texts| inspect(&path, &Options { texts, ..Options::default() }));
        // What cannot be inspected is left to the reader that needs it, which says why.
        let Ok(inspection) = inspected else { continue };
        if inspection.lengths.as_ref().is_some_and(|lengths| lengths.estimated) {
            let _ = writeln!(
                io::stderr(),
                "warning: lengths of texts in {} are estimates, {CHARACTERS_PER_TOKEN} characters a token: name the model's \
                 tokenizer.json as job.tokenizer",
                path.display()
            );
        }
        // Rows that are no requests are named, or left out, by the reader.
        if inspection.lengths.as_ref().is_some_and(|lengths| lengths.refused > 0) && job.skip_empty_rows != Some(true) {
            continue;
        }
        let mut errors = inspection.errors();
        errors.retain(|error| !error.starts_with("error 1,"));
        if let Some(first) = errors.first() {
            let path = path.display();
            return Err(Error::Impossible(format!(
                "{path} has faults: {first}. `makespan inspect {path}` shows all; --accept-faults plans all the same"
            )));
        }
    }
    Ok(())
}
