//! Thousands of damaged samples through every reader: an error or a result, never a panic or a hang.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;

use makespan::inspect::{Options, histogram, inspect, read_metrics};
use makespan::measured::import::import;
use makespan::measured::{read_about, read_jobs, read_table};
use makespan::model::llm::Llm;
use makespan::model::scenario::Scenario;
use makespan::workload::Trace;
use makespan::workload::trace::TraceOptions;

/// Mutations of each sample.
const ROUNDS: u64 = 250;

/// Pieces that readers stumble over.
const PIECES: [&str; 24] = [
    "\"",
    "{",
    "}",
    "[",
    "]",
    ",",
    "\n",
    "\r\n",
    "\u{feff}",
    "NaN",
    "-1",
    "1e308",
    "1e-400",
    "99999999999999999999",
    "null",
    "{}",
    "[]",
    "\u{0}",
    "é",
    "\\u0000",
    "0",
    "|",
    "=",
    ":",
];

/// A small generator: the test is the same every time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % limit.max(1)
    }
}

fn damaged(bytes: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=dice.below(4) {
        let place = dice.below(bytes.len());
        match dice.below(6) {
            0 => bytes.truncate(place),
            1 if !bytes.is_empty() => bytes[place] ^= 1 << dice.below(8),
            2 => {
                let end = (place + dice.below(40)).min(bytes.len());
                bytes.drain(place..end);
            }
            3 => {
                let end = (place + dice.below(200)).min(bytes.len());
                let copy = bytes[place..end].to_vec();
                bytes.splice(place..place, copy);
            }
            // A number becomes another one.
            4 => {
                if let Some(digit) = bytes[place..].iter().position(u8::is_ascii_digit) {
                    let start = place + digit;
                    let end = start + bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                    bytes.splice(start..end, PIECES[9 + dice.below(8)].bytes());
                }
            }
            _ => {
                bytes.splice(place..place, PIECES[dice.below(PIECES.len())].bytes());
            }
        }
    }
    bytes
}

#[test]
fn no_reader_panics_on_damaged_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["tests/samples", "models/scenario", "models/llm", "models/lengths"] {
        let mut found: Vec<_> =
            std::fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path()).collect();
        found.sort();
        // Of the descriptions a few stand for all.
        found.truncate(if folder == "tests/samples" { usize::MAX } else { 4 });
        files.extend(found);
    }
    let folder = tempfile::tempdir().unwrap();
    let mut dice = Dice(6);
    let mut done = 0;
    for file in files {
        let sample = std::fs::read(&file).unwrap();
        let path = folder.path().join(file.file_name().unwrap());
        for _ in 0..ROUNDS {
            let bytes = damaged(&sample, &mut dice);
            std::fs::write(&path, &bytes).unwrap();
            let text = String::from_utf8_lossy(&bytes);
            let _ = inspect(&path, &Options::default());
            let _ = Trace::from_reader(
                bytes.as_slice(),
                &path,
                TraceOptions { skip_empty: true, ..TraceOptions::default() },
            );
            let _ = makespan::workload::finished::Survival::read(&path, None);
            let _ = import(&text, "t").and_then(|imported| imported.table("t"));
            let _ = (read_table(&text, "t"), read_about(&text, "t"), read_jobs(&text, "t"));
            let _ = read_metrics(&text);
            let _ = (histogram::read_dataset(&text), histogram::read_rates(&text));
            let _ = (Llm::from_config(&text, "t"), Llm::parse(&text, "t"));
            if path.extension().is_some_and(|extension| extension == "toml") {
                let _ = Scenario::load(path.to_str().unwrap(), &[]);
            }
            done += 1;
        }
    }
    assert!(done > 10_000, "{done}");
}
