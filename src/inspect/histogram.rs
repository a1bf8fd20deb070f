//! Histograms of lengths as ServeGen publishes them: a table of values with probabilities, or windows of dictionaries.

use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};

use super::gather::Gathered;
use super::recognise::LARGEST_DOCUMENT;
use crate::error::{Error, InputError, Result};
use crate::measured::table_reader;

/// Weight of a whole window whose number of requests is not known.
const WINDOW: f64 = 1e6;

/// One window of a ServeGen dataset: value and probability of each field, tokens; the share of thinking has no unit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Window {
    /// Start, s.
    pub start_s: f64,
    /// Prompt lengths.
    pub input: Vec<(f64, f64)>,
    /// Output lengths.
    pub output: Vec<(f64, f64)>,
    /// Thinking share of the output.
    pub thinking_share: Vec<(f64, f64)>,
}

/// Reads a dataset: windows by start, each field a text that holds a Python dictionary.
///
/// # Errors
///
/// No object, or a text that is no dictionary of numbers.
pub fn read_dataset(text: &str) -> std::result::Result<Vec<Window>, InputError> {
    let windows: Map<String, Value> = serde_json::from_str(text)
        .map_err(|error| InputError::new(error.to_string(), "give one JSON object of windows"))?;
    let mut found = Vec::with_capacity(windows.len());
    for (start, fields) in &windows {
        let field = |name: &str| match fields.get(name).and_then(Value::as_str) {
            None => Ok(Vec::new()),
            Some(text) => dictionary(text).map_err(|error| error.key(format!("{start}.{name}"))),
        };
        let start_s =
            start.parse().map_err(|_| InputError::new(format!("`{start}`"), "a window starts at a number"))?;
        found.push(Window {
            start_s,
            input: field("input_tokens")?,
            output: field("output_tokens")?,
            thinking_share: field("reason_ratio")?,
        });
    }
    Ok(found)
}

/// `{45: 0.25, 46: 0.5}`.
fn dictionary(text: &str) -> std::result::Result<Vec<(f64, f64)>, InputError> {
    let bad = |found: &str| InputError::new(format!("`{found}`"), "write value: probability pairs in braces");
    let inner = text
        .trim()
        .strip_prefix('{')
        .and_then(|text| text.strip_suffix('}'))
        .ok_or_else(|| bad(text.get(..20).unwrap_or(text)))?;
    let pairs = inner.split(',').filter(|pair| !pair.trim().is_empty());
    pairs
        .map(|pair| {
            let (value, probability) = pair.split_once(':').ok_or_else(|| bad(pair))?;
            match (value.trim().parse::<f64>(), probability.trim().parse::<f64>()) {
                (Ok(value), Ok(p)) if value.is_finite() && p.is_finite() && p >= 0.0 => Ok((value, p)),
                _ => Err(bad(pair)),
            }
        })
        .collect()
}

/// One line of a ServeGen trace: the arrivals of a client in a window.
#[derive(Clone, Debug, PartialEq)]
pub struct Rate {
    /// Start of the window, s.
    pub start_s: f64,
    /// Requests per second.
    pub rate_per_s: f64,
    /// Coefficient of variation of the gaps.
    pub cv: f64,
    /// Law of the gaps: Gamma, Weibull, or empty.
    pub law: String,
    /// Its shape.
    pub shape: f64,
    /// Its scale, s.
    pub scale: f64,
}

/// Reads a ServeGen trace: six cells without a header, or many clients' in one table with one. Also the number of clients.
///
/// # Errors
///
/// A line that has not six cells, no numbers where numbers belong, no lines.
pub fn read_rates(text: &str) -> std::result::Result<(Vec<Rate>, usize), InputError> {
    let text = text.trim_start_matches('\u{feff}');
    let mut reader = table_reader(text).has_headers(false).from_reader(text.as_bytes());
    // Start, rate, cv, law, shape, scale; the client last.
    let mut places: [Option<usize>; 7] = [Some(0), Some(1), Some(2), Some(3), Some(4), Some(5), None];
    let mut rates = Vec::new();
    let mut clients = std::collections::BTreeSet::new();
    for record in reader.records() {
        let record = record.map_err(|error| InputError::new(error.to_string(), "write one row per window"))?;
        let line = record.position().map_or(0, csv::Position::line);
        let bad = |found: String| InputError::new(found, "write start, rate, cv, law, shape, scale").line(line);
        if rates.is_empty() && record.iter().any(|cell| cell == "rate_per_s") {
            let names = ["timestamp_s", "rate_per_s", "cv", "pattern", "shape", "scale", "client"];
            places = names.map(|name| record.iter().position(|cell| cell == name));
            if let Some((name, _)) = names.iter().zip(&places).take(6).find(|(_, place)| place.is_none()) {
                return Err(bad("missing column".to_owned()).key(*name));
            }
            continue;
        }
        if places[6].is_none() && record.len() != 6 {
            return Err(bad(format!("{} cells", record.len())));
        }
        let cell = |column: usize| places[column].and_then(|place| record.get(place)).unwrap_or("");
        let number = |column: usize| match cell(column) {
            "" => Ok(0.0),
            text => {
                let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
                number.ok_or_else(|| bad(format!("`{text}`")))
            }
        };
        clients.insert(cell(6).to_owned());
        rates.push(Rate {
            start_s: number(0)?,
            rate_per_s: number(1)?,
            cv: number(2)?,
            law: cell(3).to_owned(),
            shape: number(4)?,
            scale: number(5)?,
        });
    }
    if rates.is_empty() {
        return Err(InputError::new("no rows", "give one row per window"));
    }
    Ok((rates, clients.len()))
}

/// Adds a histogram file to what was gathered.
pub(super) fn gather(path: &Path, gathered: &mut Gathered) -> Result<()> {
    let in_file = |error: InputError| Error::from(error.file(path.display().to_string()));
    let mut text = String::new();
    let mut limited = crate::files::open(path)?.take(LARGEST_DOCUMENT);
    limited.read_to_string(&mut text).map_err(|source| Error::file(path, source))?;
    gathered.histogram = true;
    gathered.output_name = "output_tokens".to_owned();
    if text.trim_start_matches('\u{feff}').trim_start().starts_with('{') {
        let windows = read_dataset(text.trim_start_matches('\u{feff}')).map_err(in_file)?;
        for window in &windows {
            gathered.rows += 1;
            for (values, counts) in [(&window.input, &mut gathered.input), (&window.output, &mut gathered.output)] {
                values.iter().for_each(|(value, p)| counts.add(*value as u32, p * WINDOW));
            }
        }
        return Ok(());
    }
    let mut reader = table_reader(&text).from_reader(text.as_bytes());
    let csv_error = |error: csv::Error| in_file(InputError::new(error.to_string(), "write field, value, probability"));
    let headers = reader.headers().map_err(csv_error)?.clone();
    let column = |name: &str| headers.iter().position(|header| header == name);
    let missing = |name: &str| in_file(InputError::new("missing column", "write field, value, probability").key(name));
    let field = column("field").ok_or_else(|| missing("field"))?;
    let value = column("value").ok_or_else(|| missing("value"))?;
    let probability = column("probability").ok_or_else(|| missing("probability"))?;
    let requests = column("requests");
    let mut record = csv::StringRecord::new();
    while reader.read_record(&mut record).map_err(csv_error)? {
        gathered.rows += 1;
        let number = |place: usize| record[place].parse::<f64>().ok().filter(|number| *number >= 0.0);
        let (Some(value), Some(p)) = (number(value), number(probability)) else { continue };
        let weight = p * requests.and_then(number).unwrap_or(WINDOW);
        match &record[field] {
            "input_tokens" => gathered.input.add(value as u32, weight),
            "output_tokens" => gathered.output.add(value as u32, weight),
            _ => {}
        }
    }
    if gathered.rows == 0 {
        return Err(in_file(InputError::new("a header and no rows", "give one row per value below it")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_of_servegen_files_is_read() {
        let text = r#"{"0": {"input_tokens": "{45: 0.25, 46: 0.5, 90: 0.25}", "output_tokens": "{400: 0.5, 1200: 0.5}", "reason_ratio": "{0.4: 0.5, 0.9: 0.5}"}}"#;
        let windows = read_dataset(text).unwrap();
        assert_eq!(windows[0].input, [(45.0, 0.25), (46.0, 0.5), (90.0, 0.25)]);
        assert_eq!((windows[0].start_s, windows[0].thinking_share[1]), (0.0, (0.9, 0.5)));
        let (rates, _) = read_rates("0,0,0,,0,0\n600,0.085,6.69,Gamma,0.0223,73.02\n").unwrap();
        assert_eq!((rates[1].rate_per_s, rates[1].law.as_str(), rates[1].scale), (0.085, "Gamma", 73.02));
        assert!(read_dataset(r#"{"0": {"output_tokens": "{x"}}"#).is_err());
        assert_eq!(read_rates("1,2\n").unwrap_err().line, Some(1));
        assert!(read_rates("").is_err());
        let joined = "client,timestamp_s,rate_per_s,cv,pattern,shape,scale\n0,0,0.5,,,0,0\n7,0,1.5,2,Gamma,1,1\n";
        let (rates, clients) = read_rates(joined).unwrap();
        assert_eq!((rates.len(), rates[1].rate_per_s, rates[1].cv, clients), (2, 1.5, 2.0, 2));
    }
}
