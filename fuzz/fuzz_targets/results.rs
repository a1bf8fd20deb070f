//! Measured tables, result files of benchmark tools, and results of units.
#![no_main]

use libfuzzer_sys::fuzz_target;
use makespan::measured::import::import;
use makespan::measured::{check, read_jobs, read_table};
use makespan::shard::merge_bytes;

fuzz_target!(|text: &str| {
    if let Ok(table) = read_table(text, "t") {
        let _ = check(&table);
    }
    let _ = (import(text, "t"), read_jobs(text, "t"));
    let file = ("t".to_owned(), text.as_bytes().to_vec());
    if let Ok(merged) = merge_bytes(std::slice::from_ref(&file), None) {
        // What is accepted as whole stays so.
        let again = merge_bytes(&[("t".to_owned(), merged.text.clone().into_bytes())], None);
        assert_eq!(again.ok().map(|again| again.text), Some(merged.text));
    }
});
