//! Traces and batch outputs, as CSV and JSON.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use makespan::inspect::{Gathered, histogram};
use makespan::workload::Trace;
use makespan::workload::trace::{TextTokens, TraceOptions, read_records};

fuzz_target!(|bytes: &[u8]| {
    let path = Path::new("t");
    let _ = Trace::from_reader(bytes, path, TraceOptions { skip_empty: true, ..TraceOptions::default() });
    let _ = read_records(bytes, path, &TextTokens::default(), &mut Gathered::default());
    let text = String::from_utf8_lossy(bytes);
    let _ = (histogram::read_dataset(&text), histogram::read_rates(&text));
});
