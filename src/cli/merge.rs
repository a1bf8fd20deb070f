//! `makespan merge`.

use std::path::PathBuf;

use clap::Args;
use makespan::shard::merge;

use super::units::parse_range;
use super::{claim, print};

#[derive(Args)]
pub(super) struct Merge {
    /// Results files of every part, in any order
    #[arg(value_name = "FILES", required = true)]
    files: Vec<PathBuf>,
    /// The file to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Units that must be there, as in 0..1000 (default: all that the files know of)
    #[arg(long, value_name = "A..B")]
    range: Option<String>,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl Merge {
    pub(super) fn run(&self) -> anyhow::Result<()> {
        let expected = self.range.as_deref().map(parse_range).transpose()?;
        claim(&[("--out", &Some(self.out.clone()))], self.force)?;
        let merged = merge(&self.files, expected)?;
        makespan::files::write(&self.out, &merged.text)?;
        let (command, units) = (merged.identity.command(), &merged.units);
        let out = self.out.display().to_string();
        print(|text| {
            use std::io::Write;
            if self.json {
                let object = serde_json::json!({
                    "command": command, "first": units.start, "end": units.end, "files": self.files.len(), "out": out,
                });
                return writeln!(text, "{object:#}");
            }
            writeln!(
                text,
                "units {}..{} of {command} from {} files are in {out}; `makespan {command} ... --from {out}` reports them",
                units.start,
                units.end,
                self.files.len()
            )
        })
    }
}
