//! Measured tables and result files of benchmark tools.
#![no_main]

use libfuzzer_sys::fuzz_target;
use makespan::measured::import::import;
use makespan::measured::{check, read_jobs, read_table};

fuzz_target!(|text: &str| {
    if let Ok(table) = read_table(text, "t") {
        let _ = check(&table);
    }
    let _ = (import(text, "t"), read_jobs(text, "t"));
});
