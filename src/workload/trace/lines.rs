//! A file line by line, in bounded memory.

use std::io::{BufRead, Read as _};
use std::path::Path;

use crate::error::{Error, InputError, Result};

/// Longest line or document that is read, bytes: memory stays bounded whatever the file holds.
pub(super) const LONGEST_LINE_BYTES: u64 = 256 << 20;

/// Lines with their numbers, without line ends and byte order mark.
pub(super) struct Lines<'a, R> {
    pub(super) reader: R,
    pub(super) path: &'a Path,
    pub(super) line: Vec<u8>,
    /// Number of the current line, from 1.
    pub(super) number: u64,
}

impl<'a, R: BufRead> Lines<'a, R> {
    pub(super) fn new(reader: R, path: &'a Path) -> Self {
        Lines { reader, path, line: Vec::new(), number: 0 }
    }

    /// Whether the first character that is neither a space nor a byte order mark opens a JSON value.
    pub(super) fn starts_json(&mut self) -> Result<bool> {
        let start = self.reader.fill_buf().map_err(|source| Error::file(self.path, source))?;
        let start = start.strip_prefix(b"\xef\xbb\xbf".as_slice()).unwrap_or(start);
        Ok(matches!(start.iter().find(|byte| !byte.is_ascii_whitespace()), Some(b'{' | b'[')))
    }

    /// Whether the file is a JSON list.
    pub(super) fn starts_list(&mut self) -> Result<bool> {
        let start = self.reader.fill_buf().map_err(|source| Error::file(self.path, source))?;
        let start = start.strip_prefix(b"\xef\xbb\xbf".as_slice()).unwrap_or(start);
        Ok(start.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'['))
    }

    /// Moves past a byte order mark at the start.
    pub(super) fn skip_mark(&mut self) -> Result<()> {
        let start = self.reader.fill_buf().map_err(|source| Error::file(self.path, source))?;
        if start.starts_with(b"\xef\xbb\xbf") {
            self.reader.consume(3);
        }
        Ok(())
    }

    /// The current line, without its end and byte order mark.
    pub(super) fn current(&self) -> &[u8] {
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if self.number == 1 { line.strip_prefix(b"\xef\xbb\xbf".as_slice()).unwrap_or(line) } else { line }
    }

    /// Moves to the next line; `None` at the end.
    pub(super) fn next_line(&mut self) -> Result<Option<&[u8]>> {
        self.line.clear();
        let mut limited = (&mut self.reader).take(LONGEST_LINE_BYTES);
        let read = limited.read_until(b'\n', &mut self.line).map_err(|source| Error::file(self.path, source))?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        if read as u64 == LONGEST_LINE_BYTES {
            let found = format!("a line of more than {} MiB", LONGEST_LINE_BYTES >> 20);
            return Err(InputError::new(found, "give one request per line").line(self.number).into());
        }
        Ok(Some(self.current()))
    }
}
