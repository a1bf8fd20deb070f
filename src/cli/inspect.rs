//! `makespan inspect`.

use std::path::PathBuf;

use clap::Args;
use makespan::error::Error;
use makespan::inspect::{Declared, JobPart, Options, inspect};
use makespan::report::InspectReport;
use makespan::workload::trace::TextTokens;

use super::print;

#[derive(Args)]
pub(super) struct Inspect {
    /// A trace, length file, batch output, benchmark result, engine log, metrics snapshot, config.json, table, or a
    /// folder of results
    file: PathBuf,
    /// The job that the file is a finished part of, as in total=914000,slots=256
    #[arg(long, value_name = "total=N[,slots=N]")]
    job: Option<String>,
    /// Input file of the batch: joined by custom_id for caps and the number of requests
    #[arg(long, value_name = "FILE")]
    inputs: Option<PathBuf>,
    /// Requests that still run, with their output lengths so far
    #[arg(long, value_name = "FILE")]
    running: Option<PathBuf>,
    /// The model's tokenizer.json: counts prompts and answers that a file gives as text (builds with the feature
    /// `tokenizers`); without it they are estimated from their characters
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Cap that the requests asked for, tokens
    #[arg(long, value_name = "TOKENS")]
    max_tokens: Option<u32>,
    /// Context of the model, tokens
    #[arg(long, value_name = "TOKENS")]
    context: Option<u32>,
    /// The model thinks before it answers
    #[arg(long)]
    thinking: bool,
    /// The job gives fixed short answers, as a classifier does
    #[arg(long)]
    short_answers: bool,
    /// End with success in spite of errors in the file
    #[arg(long)]
    accept_faults: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl Inspect {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let job = self.job.as_deref().map(JobPart::parse).transpose().map_err(Error::from)?;
        let options = Options {
            declared: Declared {
                short_answers: self.short_answers,
                thinking: self.thinking,
                max_tokens: self.max_tokens,
                context_tokens: self.context,
            },
            job,
            inputs: self.inputs.clone(),
            running: self.running.clone(),
            texts: self.tokenizer.as_deref().map(TextTokens::from_file).transpose()?.unwrap_or_default(),
        };
        let inspection = inspect(&self.file, &options)?;
        let errors = inspection.errors().len();
        let report = InspectReport(inspection);
        print(|out| if self.json { report.write_json(out) } else { report.write_text(out) })?;
        if errors > 0 && !self.accept_faults {
            return Err(Error::Impossible(format!(
                "{} has {errors} error{} that would spoil any plan from it; mend it, or add --accept-faults",
                self.file.display(),
                if errors == 1 { "" } else { "s" }
            ))
            .into());
        }
        Ok(())
    }
}
