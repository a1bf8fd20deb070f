//! A table with a header line, record by record in bounded memory, with the exact line of each.

use std::io::BufRead;

use super::{Checked, Lines};
use crate::error::{InputError, Result};
use crate::measured::separator;

/// A table read record by record, with the exact line of each.
pub(super) struct Table<'l, 'p, R> {
    lines: &'l mut Lines<'p, R>,
    parser: csv_core::Reader,
    fields: Vec<u8>,
    ends: Vec<usize>,
    count: usize,
    /// First line of the current record.
    pub line: u64,
    /// Whether the header has told the separator.
    delimited: bool,
}

impl<'l, 'p, R: BufRead> Table<'l, 'p, R> {
    pub fn new(lines: &'l mut Lines<'p, R>) -> Self {
        let (fields, ends) = (vec![0; 1024], vec![0; 64]);
        Table { lines, parser: csv_core::Reader::new(), fields, ends, count: 0, line: 0, delimited: false }
    }

    /// Moves to the next record that is not blank.
    pub fn advance(&mut self) -> Result<bool> {
        let (mut written, mut ended) = (0, 0);
        let mut inside = false;
        loop {
            let number = self.lines.number + 1;
            let Some(line) = self.lines.next_line()? else {
                if inside {
                    let remedy = "close the quote that this record opens";
                    return Err(InputError::new("unfinished quoted field", remedy).line(self.line).into());
                }
                return Ok(false);
            };
            if !inside && line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let mut rest = line;
            let mut end_fed = false;
            if !inside {
                self.line = number;
                inside = true;
            }
            if !self.delimited {
                self.parser = csv_core::ReaderBuilder::new().delimiter(separator(line)).build();
                self.delimited = true;
            }
            loop {
                let input = if rest.is_empty() { b"\n".as_slice() } else { rest };
                let feeding_end = rest.is_empty();
                let (state, read, wrote, ends) =
                    self.parser.read_record(input, &mut self.fields[written..], &mut self.ends[ended..]);
                written += wrote;
                ended += ends;
                match state {
                    csv_core::ReadRecordResult::OutputFull => self.fields.resize(self.fields.len() * 2, 0),
                    csv_core::ReadRecordResult::OutputEndsFull => self.ends.resize(self.ends.len() * 2, 0),
                    csv_core::ReadRecordResult::Record => {
                        self.count = ended;
                        return Ok(true);
                    }
                    csv_core::ReadRecordResult::InputEmpty | csv_core::ReadRecordResult::End => {
                        end_fed |= feeding_end;
                    }
                }
                if !feeding_end {
                    rest = &rest[read..];
                } else if end_fed {
                    // A line end inside quotes: the record goes on.
                    break;
                }
            }
        }
    }

    /// Field `place` of the current record.
    pub fn field(&self, place: usize) -> Option<&str> {
        let start = if place == 0 { 0 } else { self.ends[place - 1] };
        (place < self.count).then(|| std::str::from_utf8(&self.fields[start..self.ends[place]]).unwrap_or("\u{fffd}"))
    }

    pub fn header(&mut self) -> Result<Vec<String>> {
        if !self.advance()? {
            return Err(InputError::new("an empty file", "give a header line and one row per request").into());
        }
        Ok((0..self.count).filter_map(|place| self.field(place)).map(|name| name.trim().to_owned()).collect())
    }

    /// Field `place` of the current record, parsed; errors get line and column name.
    pub fn parse<T>(&self, place: usize, names: &[String], parse: impl Fn(&str) -> Checked<T>) -> Checked<T> {
        let value = match self.field(place) {
            Some(text) => parse(text),
            None => {
                let found = format!("a row of {} fields", self.count);
                Err(InputError::new(found, format!("give every row the {} fields of the header", names.len())))
            }
        };
        value.map_err(|error| error.key(names[place].clone()).line(self.line))
    }
}
