//! Rows of results: a value for each column, written so that reading gives the same bits.

use csv::{ReaderBuilder, StringRecord, Terminator, WriterBuilder};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// What one unit came to. Its fields are the columns: numbers and words as they are, everything else as JSON.
pub trait Row: Serialize + DeserializeOwned + PartialEq + Clone + Send + Sync {
    /// Names of the fields, in their order; the first is the number of the unit.
    const COLUMNS: &'static [&'static str];

    /// The number of its unit.
    fn unit(&self) -> u64;

    /// The same under another number.
    #[must_use]
    fn numbered(self, unit: u64) -> Self;
}

/// The line of a row, without its end and checksum; `None` when reading would not give the row back: a number in it is
/// not finite.
pub(super) fn write<R: Row>(row: &R) -> Option<String> {
    let Value::Object(fields) = serde_json::to_value(row).ok()? else { return None };
    let cells: Vec<String> = R::COLUMNS.iter().map(|name| fields.get(*name).map_or_else(String::new, cell)).collect();
    let mut writer = WriterBuilder::new().terminator(Terminator::Any(b'\n')).from_writer(Vec::new());
    writer.write_record(&cells).ok()?;
    let mut line = String::from_utf8(writer.into_inner().ok()?).ok()?;
    line.pop();
    (read::<R>(&line)? == *row).then_some(line)
}

/// Reads a line; `None` when it is no row.
pub(super) fn read<R: Row>(line: &str) -> Option<R> {
    let mut reader = ReaderBuilder::new().has_headers(false).buffer_capacity(512).from_reader(line.as_bytes());
    let mut record = StringRecord::new();
    let found = reader.read_record(&mut record).ok()? && record.len() == R::COLUMNS.len();
    if !found {
        return None;
    }
    let fields: Map<String, Value> =
        R::COLUMNS.iter().zip(&record).map(|(name, cell)| ((*name).to_owned(), value(cell))).collect();
    serde_json::from_value(Value::Object(fields)).ok()
}

/// A word stands without quotes unless it would be read as something else or would end the line.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(word) if matches!(self::value(word), Value::String(_)) && !word.contains(['\n', '\r']) => {
            word.clone()
        }
        other => other.to_string(),
    }
}

fn value(cell: &str) -> Value {
    if cell.is_empty() {
        return Value::Null;
    }
    serde_json::from_str(cell).unwrap_or_else(|_| Value::String(cell.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Odd {
        unit: u64,
        word: Option<String>,
        number: f64,
        many: Vec<f64>,
    }

    impl Row for Odd {
        const COLUMNS: &'static [&'static str] = &["unit", "word", "number", "many"];

        fn unit(&self) -> u64 {
            self.unit
        }

        fn numbered(self, unit: u64) -> Self {
            Odd { unit, ..self }
        }
    }

    #[test]
    fn whatever_a_row_holds_it_is_read_as_it_was() {
        let words = ["", "8", "null", "true", "a, \"b\"", "two\nlines", "[1]", "# no comment", "\"", " ", "é\r"];
        for word in words.iter().map(|word| Some((*word).to_owned())).chain([None]) {
            for number in [0.1 + 0.2, 1e300, -0.0, 5e-324, 123_456_789.0] {
                let row = Odd { unit: u64::MAX, word: word.clone(), number, many: vec![number, 1.0 / 3.0] };
                let line = write(&row).unwrap();
                assert!(!line.contains(['\n', '\r']), "{line:?}");
                let again: Odd = read(&line).unwrap();
                assert_eq!(again, row);
                assert_eq!(again.number.to_bits(), number.to_bits());
            }
        }
    }

    #[test]
    fn numbers_that_are_none_are_not_written() {
        for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(write(&Odd { unit: 0, word: None, number, many: Vec::new() }), None);
            assert_eq!(write(&Odd { unit: 0, word: None, number: 1.0, many: vec![number] }), None);
        }
    }
}
