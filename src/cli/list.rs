//! `makespan list`.

use std::io::Write;

use clap::Args;
use makespan::model::builtin::{Kind, names};
use serde_json::{Map, Value};

use super::print;

#[derive(Args)]
pub(super) struct List {
    /// One kind only: scenario, llm, quantisation, hardware, collective, engine, law, measured, requests, lengths
    kind: Option<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl List {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let kinds = match &self.kind {
            Some(word) => vec![Kind::from_word(word)?],
            None => Kind::ALL.to_vec(),
        };
        if self.json {
            let object: Map<String, Value> =
                kinds.iter().map(|kind| (kind.word().to_owned(), names(*kind).into())).collect();
            return print(|out| {
                serde_json::to_writer_pretty(&mut *out, &object)?;
                writeln!(out)
            });
        }
        print(|out| {
            for kind in kinds {
                let names = names(kind);
                if self.kind.is_some() {
                    names.iter().try_for_each(|name| writeln!(out, "{name}"))?;
                } else if !names.is_empty() {
                    writeln!(out, "{}\n    {}", kind.word(), names.join("\n    "))?;
                }
            }
            Ok(())
        })
    }
}
