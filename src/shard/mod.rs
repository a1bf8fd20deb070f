//! Work cut into numbered units, each the same wherever and in whatever company it runs; what they came to, kept in
//! files; and files of several runs put together.
//!
//! A results file is CSV between two lines of comment. The first says what the rows belong to; the last, written once
//! every unit that was asked for is there, which units the file holds. Every line ends with a checksum over itself and the
//! first line, so that a row that was cut, changed or brought over from elsewhere is known.

mod grid;
mod identity;
mod merge;
mod row;
mod sheet;
mod store;
mod work;

pub use grid::Grid;
pub use identity::Identity;
pub use merge::{Merged, merge, merge_bytes};
pub use row::Row;
pub use store::Store;
pub use work::{Work, run_missing};

use std::ops::Range;

/// Numbers as ranges: those that follow one another are one.
pub fn ranges(numbers: impl IntoIterator<Item = u64>) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    for number in numbers {
        match found.last_mut() {
            Some(last) if last.end == number => last.end += 1,
            _ => found.push(number..number + 1),
        }
    }
    found
}

/// Ranges as people and `--range` write them.
pub fn in_words(ranges: &[Range<u64>]) -> String {
    let words: Vec<String> = ranges.iter().map(|range| format!("{}..{}", range.start, range.end)).collect();
    words.join(" ")
}
