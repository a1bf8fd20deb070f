//! Descriptions in TOML: scenarios, models, laws.
#![no_main]

use libfuzzer_sys::fuzz_target;
use makespan::measured::read_about;
use makespan::model::hardware::Hardware;
use makespan::model::llm::Llm;
use makespan::model::parse::parse_toml;
use makespan::model::quantisation::Quantisation;
use makespan::model::scenario::Tables;

fuzz_target!(|text: &str| {
    let _ = parse_toml::<Tables>(text, "t");
    let _ = (Llm::parse(text, "t"), Quantisation::parse(text, "t"), Hardware::parse(text, "t"));
    let _ = read_about(text, "t");
});
