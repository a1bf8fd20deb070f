//! `makespan show`.

use std::io::Write;

use clap::Args;
use makespan::error::{Error, InputError};
use makespan::experiment::Setup;
use makespan::model::builtin::{Kind, find, names};
use makespan::model::scenario::{Override, Scenario};
use serde_json::json;

use super::print;

#[derive(Args)]
pub(super) struct Show {
    /// Name of a built-in description, or path of a scenario
    name: String,
    /// Kind of the description, where the name alone is not enough
    #[arg(long)]
    kind: Option<String>,
    /// Override a key of a scenario (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Print a scenario's own file rather than what follows from it
    #[arg(long)]
    source: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl Show {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let kinds = match &self.kind {
            Some(word) => vec![Kind::from_word(word)?],
            None => Kind::ALL.into_iter().filter(|kind| names(*kind).contains(&self.name)).collect(),
        };
        let path = std::path::Path::new(&self.name);
        let kind = match kinds.as_slice() {
            [kind] => *kind,
            [] if makespan::files::is_file(path) => Kind::Scenario,
            [] => {
                let every: Vec<String> = Kind::ALL.into_iter().flat_map(names).collect();
                let remedy = match makespan::error::nearest(&self.name, every.iter().map(String::as_str)) {
                    Some(near) => format!("did you mean `{near}`? `makespan list` shows every name"),
                    None => "`makespan list` shows every name".to_owned(),
                };
                return Err(Error::from(InputError::new(format!("nothing is called `{}`", self.name), remedy)).into());
            }
            several => {
                let words: Vec<&str> = several.iter().map(|kind| kind.word()).collect();
                let found = format!("`{}` is a {}", self.name, words.join(" and a "));
                return Err(Error::from(InputError::new(found, "add --kind")).into());
            }
        };
        if kind != Kind::Scenario || self.source {
            if !self.overrides.is_empty() {
                let found = format!("{} is shown as its {} file", self.name, kind.word());
                return Err(Error::from(
                    InputError::new(
                        found,
                        "--set changes what follows from a scenario: leave it out, or leave out --source",
                    )
                    .key("--set"),
                )
                .into());
            }
            let found = find(kind, &self.name)?;
            let text = found.text()?.to_owned();
            if self.json {
                let object = json!({ "kind": kind.word(), "name": found.name, "file": found.file, "text": text });
                return print(|out| {
                    serde_json::to_writer_pretty(&mut *out, &object)?;
                    writeln!(out)
                });
            }
            return print(|out| out.write_all(text.as_bytes()));
        }
        let overrides = self.overrides.iter().map(|text| Override::parse(text)).collect::<Result<Vec<_>, _>>()?;
        let setup = Setup::new(&Scenario::load(&self.name, &overrides)?)?;
        let report = makespan::report::SetupReport::new(&setup);
        print(|out| if self.json { report.write_json(out) } else { report.write_text(out) })
    }
}
