//! vLLM's blocks and caps against measured and reported ones.

use crate::question::{dense_8b, hybrid_27b, on_h200, on_pro_6000, slots, vllm};
use makespan::engine::memory::{EngineFlags, GIB, SglangFlags, VllmFlags, limits};
use makespan::error::Error;

#[test]
fn vllm_graphs_follow_sequences_and_drafted_tokens() {
    // Largest captured step seen with vLLM, in tokens: by sequences and drafted tokens.
    for (seqs, drafts, max) in [(256, None, 512), (128, None, 256), (128, Some(1), 512), (64, None, 128)] {
        let (engine, model) = (vllm(), hybrid_27b(4.0));
        let flags = VllmFlags { max_num_seqs: Some(seqs), ..VllmFlags::default() };
        let mut question = on_h200(&engine, &model, flags);
        question.draft_steps = drafts;
        assert_eq!(limits(&question).unwrap().graphs.max(), max);
    }
}

/// The prior of vLLM's activations is calibrated to these counts: a check of the bookkeeping around it.
#[test]
fn vllm_pools_match_those_measured_on_an_h200() {
    let engine = vllm();
    let dense = dense_8b();
    let flags = VllmFlags {
        gpu_memory_utilization: Some(0.9),
        max_num_seqs: Some(256),
        enable_prefix_caching: Some(false),
        ..VllmFlags::default()
    };
    let tokens = limits(&on_h200(&engine, &dense, flags)).unwrap().kv_pool_tokens;
    assert!(tokens.value.abs_diff(794_016) < 800, "{tokens}");

    // The hybrid, as weights were measured on that machine. The log counts longest requests · context.
    for (drafts, weights_gib, logged, blocks, block_tokens) in
        [(None, 50.22, 1_060_864, 1554, 784), (Some(1), 51.02, 861_070, 1419, 800)]
    {
        let mut model = hybrid_27b(4.0);
        model.resident_bytes = weights_gib * GIB;
        model.draft_resident_bytes = 0.0;
        let flags = VllmFlags { max_num_seqs: Some(128), enable_prefix_caching: Some(false), ..VllmFlags::default() };
        let mut question = on_h200(&engine, &model, flags);
        question.draft_steps = drafts;
        let computed = limits(&question).unwrap();
        assert_eq!(computed.page_tokens.value, block_tokens);
        assert!(slots(&computed).abs_diff(blocks) <= 5, "{} blocks, {blocks} measured", slots(&computed));
        // The token count of the log is exactly that number of blocks, both ways.
        question.log.kv_pool_tokens = Some(logged);
        let read = limits(&question).unwrap();
        assert_eq!(slots(&read), blocks);
        assert_eq!(read.messages[0], format!("GPU KV cache size: {logged} tokens"));
    }
}

#[test]
fn vllm_blocks_of_the_27b_on_a_96_gb_card_match_the_reported_ones() {
    let (engine, model) = (vllm(), hybrid_27b(4.0));
    let mut question = on_pro_6000(&engine, &model, 94.3, SglangFlags::default());
    question.draft_steps = None;
    let flags = VllmFlags { gpu_memory_utilization: Some(0.95), max_num_seqs: Some(256), ..VllmFlags::default() };
    question.flags = EngineFlags::Vllm(flags.clone());
    let computed = limits(&question).unwrap();
    assert!(slots(&computed).abs_diff(556) <= 5, "{}", slots(&computed));
    assert_eq!(computed.page_tokens.value, 784);
    // The default of 1024 sequences exceeds them, and the engine aborts.
    question.flags = EngineFlags::Vllm(VllmFlags { max_num_seqs: None, ..flags.clone() });
    assert!(matches!(limits(&question), Err(Error::Input(_))));

    // State blocks of a request: 3 groups · (2 + drafted tokens) with a prefix cache, (1 + drafted tokens) without.
    question.log.state_slots = Some(556);
    for (drafts, cache, expected) in [(None, true, 6), (Some(3), true, 15), (None, false, 3), (Some(3), false, 12)] {
        question.draft_steps = drafts;
        question.flags = EngineFlags::Vllm(VllmFlags { enable_prefix_caching: Some(cache), ..flags.clone() });
        let state = limits(&question).unwrap().state.unwrap();
        assert_eq!(state.reserved_per_request.value, expected);
        assert_eq!(state.cap, 556 / (expected + 1));
    }
}

#[test]
fn more_vllm_sequences_than_state_blocks_are_refused_with_both_numbers() {
    let (engine, model) = (vllm(), hybrid_27b(4.0));
    let asked = |seqs| {
        let flags = VllmFlags { max_num_seqs: Some(seqs), ..VllmFlags::default() };
        let mut question = on_h200(&engine, &model, flags);
        question.log.state_slots = Some(700);
        limits(&question)
    };
    let error = asked(1024).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let message = error.to_string();
    assert!(message.contains("1024") && message.ends_with("set max_num_seqs to at most 700"), "{message}");
    assert_eq!(asked(700).unwrap().max_running.value, 700);
}
