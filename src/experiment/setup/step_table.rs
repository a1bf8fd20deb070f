//! Measured step tables as a scenario names them.

use crate::cost::StepTable;
use crate::error::{Error, InputError, Result};
use crate::model::scenario::Scenario;

/// Reads a measured step table: one row a point, columns matched by name.
pub(super) fn read_step_table(scenario: &Scenario) -> Result<Option<StepTable>> {
    let Some(path) = &scenario.tables.engine.step_table else { return Ok(None) };
    let path = scenario.folder.join(path);
    let file = path.display().to_string();
    let text = crate::files::read_to_string(&path)
        .map_err(|error| scenario.error("engine.step_table", error.to_string(), ""))?;
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
    let bad = |error: csv::Error| {
        let line = error.position().map_or(1, csv::Position::line);
        Error::Input(InputError::new(error.to_string(), "write it as CSV with a header").file(&file).line(line))
    };
    let headers = reader.headers().map_err(bad)?.clone();
    let column = |names: &[&str]| headers.iter().position(|header| names.contains(&header));
    let missing = |names: &str| {
        let found = format!("no column {names} among {}", headers.iter().collect::<Vec<_>>().join(", "));
        Error::Input(
            InputError::new(found, "give batch, context_tokens (per request) or kv_tokens_resident, step_ms")
                .file(&file)
                .line(1),
        )
    };
    let batch = column(&["batch"]).ok_or_else(|| missing("batch"))?;
    let total = column(&["kv_tokens_resident", "total_context_tokens"]);
    let each = column(&["context_tokens"]);
    if total.is_none() && each.is_none() {
        return Err(missing("context_tokens or kv_tokens_resident"));
    }
    let step = column(&["step_ms", "step_ms_median"]).ok_or_else(|| missing("step_ms"))?;
    let mut points = Vec::new();
    for record in reader.records() {
        let record = record.map_err(bad)?;
        let line = record.position().map_or(0, csv::Position::line);
        let value = |at: usize| -> Result<f64> {
            let text = record.get(at).unwrap_or("");
            text.parse::<f64>().map_err(|_| {
                let key = headers.get(at).unwrap_or("");
                InputError::new(format!("found `{text}`"), "a number").file(&file).line(line).key(key).into()
            })
        };
        let rows = value(batch)?;
        let context = match (total, each) {
            (Some(total), _) => value(total)?,
            (None, Some(each)) => rows * value(each)?,
            (None, None) => 0.0,
        };
        points.push((rows, context, value(step)? / 1000.0));
    }
    StepTable::new(&points).map(Some).map_err(|error| error.file(&file).into())
}
