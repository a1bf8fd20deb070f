//! Theory: the engines' memory arithmetic gives the caps that were derived from their sources or reported by users.

#![expect(clippy::unwrap_used, reason = "a failed test panics")]

mod question;
mod sglang;
mod vllm;

use makespan::engine::memory::{EngineFlags, GIB, SglangFlags, limits};
use makespan::model::engine::parse_version;
use question::{hybrid_27b, on_pro_6000, transformers};

#[test]
fn a_static_batch_takes_its_size_from_the_user_and_the_rest_of_memory() {
    let (engine, model) = (transformers(), hybrid_27b(4.0));
    let mut question = on_pro_6000(&engine, &model, 94.0, SglangFlags::default());
    (question.draft_steps, question.vision) = (None, None);
    question.flags = EngineFlags::Static { batch_size: Some(16) };
    let batch = limits(&question).unwrap();
    let tokens = (94.0 * GIB - model.resident_bytes - 16.0 * 153_944_064.0) / 65_536.0;
    assert_eq!((batch.running_cap, batch.kv_pool_tokens.value), (16, tokens as u64));
    question.flags = EngineFlags::Static { batch_size: None };
    assert_eq!(limits(&question).unwrap_err().exit_code(), 2);
}

#[test]
fn versions_are_read_with_their_suffixes() {
    assert_eq!(parse_version("0.5.10.post1"), Some((0, 5, 10)));
    assert_eq!(parse_version("v0.33.0rc2"), Some((0, 33, 0)));
    assert_eq!(parse_version("5.24"), Some((5, 24, 0)));
    assert_eq!(parse_version("latest"), None);
    for engine in [question::sglang(), question::vllm(), transformers()] {
        assert!(engine.parsed_version().is_some());
    }
}
