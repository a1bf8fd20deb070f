//! Engine logs and metrics.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use makespan::inspect::{EngineReadings, read_metrics};

fuzz_target!(|bytes: &[u8]| {
    let _ = EngineReadings::of_log(bytes, Path::new("t"));
    let _ = read_metrics(&String::from_utf8_lossy(bytes));
});
