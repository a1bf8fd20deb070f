//! A model's config.json, and the sizes that follow.
#![no_main]

use libfuzzer_sys::fuzz_target;
use makespan::model::llm::Llm;
use makespan::model::quantisation::{KvDtype, Quantisation, StateDtype};

fuzz_target!(|text: &str| {
    if let Ok(found) = Llm::from_config(text, "m/config.json")
        && let Ok(quantisation) = Quantisation::find(&found.llm.default_weights)
    {
        let _ = found.llm.sizes(&quantisation, KvDtype::Bf16, StateDtype::Float32);
    }
});
