//! From the text of a result file to objects: JSON in all its layouts, CSV, AIPerf's two-block CSV, markdown tables.

use serde_json::{Map, Value, json};

use crate::error::InputError;
use crate::measured::table_reader;

type Object = Map<String, Value>;

/// The objects of a text with the line or number of each.
pub(super) fn objects(text: &str) -> Result<Vec<(u64, Object)>, InputError> {
    let text = text.trim_start_matches('\u{feff}').trim();
    if !text.starts_with(['{', '[']) {
        if is_aiperf_csv(text) {
            return Ok(vec![(1, aiperf_csv(text))]);
        }
        let csv = markdown_as_csv(text).unwrap_or_else(|| text.to_owned());
        return csv_objects(&csv);
    }
    let mut found = Vec::new();
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let mut start = 0;
    while let Some(value) = stream.next() {
        let line = 1 + text[start..].len().min(text[..start].matches('\n').count()) as u64;
        let value = value.map_err(|error| {
            InputError::new(error.to_string(), "give whole JSON objects, one after another").line(error.line() as u64)
        })?;
        start = stream.byte_offset();
        // The blank between two objects belongs to neither.
        start += text[start..].len() - text[start..].trim_start().len();
        match value {
            Value::Object(object) => found.push((line, object)),
            Value::Array(items) => {
                let objects = items.into_iter().enumerate().filter_map(|(number, item)| match item {
                    Value::Object(object) => Some((number as u64 + 1, object)),
                    _ => None,
                });
                found.extend(objects);
            }
            _ => {}
        }
    }
    Ok(found)
}

fn cell(text: &str) -> Value {
    match text.trim().parse::<f64>() {
        Ok(number) if number.is_finite() => json!(number),
        _ => Value::String(text.trim().to_owned()),
    }
}

/// Rows as objects: sweep summaries carry the JSON keys as columns, llama-batched-bench prints short names.
fn csv_objects(text: &str) -> Result<Vec<(u64, Object)>, InputError> {
    let mut reader = table_reader(text).flexible(true).from_reader(text.as_bytes());
    let headers: Vec<String> = reader.headers().map_err(super::super::table::csv_error)?.iter().map(key).collect();
    let mut found = Vec::new();
    for record in reader.records() {
        let record = record.map_err(super::super::table::csv_error)?;
        let line = record.position().map_or(0, csv::Position::line);
        let filled = headers.iter().zip(&record).filter(|(_, text)| !text.is_empty());
        found.push((line, filled.map(|(name, text)| (name.clone(), cell(text))).collect()));
    }
    Ok(found)
}

/// The JSON key of a column.
fn key(header: &str) -> String {
    match header {
        "PP" => "pp",
        "TG" => "tg",
        "B" => "pl",
        "N_KV" => "n_kv",
        "T_PP s" => "t_pp",
        "S_PP t/s" => "speed_pp",
        "T_TG s" => "t_tg",
        "S_TG t/s" => "speed_tg",
        "T s" => "t",
        "S t/s" => "speed",
        other => other,
    }
    .to_owned()
}

/// Whether the text is the CSV of AIPerf or genai-perf: a block with statistics, a blank line, a block with values.
pub(crate) fn is_aiperf_csv(text: &str) -> bool {
    let head = text.trim_start_matches('\u{feff}').lines().next().unwrap_or("");
    head.starts_with("Metric,") && text.contains("Throughput")
}

/// Both blocks as one object of AIPerf's JSON: `Time to First Token (ms)` is `time_to_first_token` in ms.
fn aiperf_csv(text: &str) -> Object {
    let mut object = Object::new();
    let mut reader = csv::ReaderBuilder::new().flexible(true).has_headers(false).from_reader(text.as_bytes());
    let mut average = 1;
    for record in reader.records().filter_map(Result::ok) {
        let (Some(name), Some(value)) = (record.get(0), record.get(1)) else { continue };
        if name == "Metric" {
            average = record.iter().position(|column| column == "avg").unwrap_or(1);
            continue;
        }
        let (name, unit) = name.split_once(" (").map_or((name, ""), |(name, unit)| (name, unit.trim_end_matches(')')));
        let name = name.trim().to_lowercase().replace([' ', '-'], "_");
        let value = record.get(average).unwrap_or(value).replace(',', "");
        if let Ok(number) = value.trim().parse::<f64>() {
            object.insert(name, json!({ "avg": number, "unit": unit }));
        }
    }
    object
}

/// The first markdown table of a text as CSV, if there is one.
pub(crate) fn markdown_as_csv(text: &str) -> Option<String> {
    let rows: Vec<&str> = text
        .lines()
        .map(str::trim)
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .collect();
    let rule = |line: &str| line.chars().all(|c| matches!(c, '|' | '-' | ':' | ' ' | '+')) && line.contains('-');
    if rows.len() < 3 || !rows.iter().any(|line| rule(line)) {
        return None;
    }
    let mut writer = csv::WriterBuilder::new().flexible(true).from_writer(Vec::new());
    for line in rows.into_iter().filter(|line| !rule(line)) {
        let cells = line.trim_matches('|').split('|').map(str::trim);
        writer.write_record(cells).ok()?;
    }
    String::from_utf8(writer.into_inner().ok()?).ok()
}
