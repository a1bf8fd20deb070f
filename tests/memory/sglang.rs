//! SGLang's pools and caps against values derived from its source and reported by users.

use crate::question::{FREE_GIB, NEW, OLD, dense_8b, fraction, hybrid_27b, on_pro_6000, sglang, slots};
use makespan::engine::memory::{
    GIB, Limits, LogReadings, MambaStrategy, MemoryQuestion, Origin, RunningLimit, SglangFlags, VisionTower, limits,
};
use makespan::error::Result;
use makespan::model::sizes::ModelSizes;

/// Outcomes at both ends of free memory.
fn both_ends(model: &ModelSizes, flags: &SglangFlags, change: impl Fn(&mut MemoryQuestion)) -> [Limits; 2] {
    let engine = sglang();
    FREE_GIB.map(|free| {
        let mut question = on_pro_6000(&engine, model, free, flags.clone());
        change(&mut question);
        limits(&question).unwrap()
    })
}

/// "rest" of the trail, in GiB.
fn rest_gib(limits: &Limits) -> f64 {
    let line = limits.trail.iter().find_map(|line| line.strip_prefix("rest = ")).unwrap();
    line.split(' ').next().unwrap().parse().unwrap()
}

type Range = (u64, u64);

#[track_caller]
fn inside(what: &str, ends: [u64; 2], (low, high): Range) {
    assert!(ends.iter().all(|end| (low..=high).contains(end)), "{what}: {ends:?} is not within {low}-{high}");
}

/// The published table has one row for each memory fraction: rest counted and shared, then slots and caps.
#[test]
fn caps_of_the_27b_on_a_96_gb_card_match_the_published_table() {
    struct Row {
        mem: f64,
        rest: [f64; 4],
        slots: [Range; 2],
        caps: [Range; 6],
        kv_thousands: Range,
    }
    let row = |mem, rest, slots, caps, kv_thousands| Row { mem, rest, slots, caps, kv_thousands };
    // Caps: 5 slots counted / shared, lazy (4 slots) counted / shared, bf16 state counted / shared.
    let rows = [
        row(
            0.798,
            [18.1, 18.6, 22.8, 23.3],
            [(30, 31), (39, 39)],
            [(6, 6), (7, 7), (6, 7), (8, 8), (12, 12), (15, 16)],
            (150, 200),
        ),
        row(
            0.82,
            [20.1, 20.6, 24.9, 25.4],
            [(34, 35), (42, 43)],
            [(6, 7), (8, 8), (7, 7), (9, 9), (13, 14), (17, 17)],
            (170, 215),
        ),
        row(
            0.85,
            [23.0, 23.5, 27.7, 28.2],
            [(39, 40), (48, 49)],
            [(7, 8), (9, 9), (8, 9), (10, 11), (15, 16), (19, 19)],
            (190, 236),
        ),
        row(
            0.88,
            [25.8, 26.3, 30.5, 31.1],
            [(44, 45), (53, 54)],
            [(8, 9), (10, 10), (10, 10), (11, 12), (18, 18), (21, 21)],
            (215, 260),
        ),
        row(
            0.90,
            [27.7, 28.2, 32.4, 32.9],
            [(48, 49), (56, 57)],
            [(9, 9), (11, 11), (10, 11), (12, 12), (19, 19), (22, 23)],
            (230, 274),
        ),
    ];
    let (fp32, bf16) = (hybrid_27b(4.0), hybrid_27b(2.0));
    for row in rows {
        for column in 0..6 {
            let shared = column % 2 == 1;
            let lazy = (column / 2 == 1).then_some(MambaStrategy::ExtraBufferLazy);
            let flags =
                SglangFlags { draft_copies_shared: Some(shared), mamba_scheduler_strategy: lazy, ..fraction(row.mem) };
            let what = format!("mem_fraction {} column {column}", row.mem);
            let ends = both_ends(if column >= 4 { &bf16 } else { &fp32 }, &flags, |_| ());
            inside(&what, ends.each_ref().map(|end| end.running_cap), row.caps[column]);
            assert!(ends.iter().all(|end| end.running_limit == RunningLimit::StateSlots), "{what}");
            if column < 2 {
                inside(&format!("slots, {what}"), ends.each_ref().map(slots), row.slots[column]);
                for (end, published) in ends.iter().zip(&row.rest[2 * column..]) {
                    let rest = rest_gib(end);
                    assert!((rest - published).abs() < 0.1, "rest, {what}: {rest} against {published}");
                }
                let tokens = ends.each_ref().map(|end| end.kv_pool_tokens.value / 1000);
                let (low, high) = row.kv_thousands;
                // The ends need not rise: one request more takes its draft states from KV.
                let overlap = tokens.iter().min() <= Some(&high) && tokens.iter().max() >= Some(&low);
                assert!(overlap, "KV, {what}: {tokens:?} thousand against {low}-{high}");
            }
        }
    }
}

#[test]
fn caps_without_speculation_match_the_published_ones() {
    let model = hybrid_27b(4.0);
    let published = [(0.798, 15, 26), (0.85, 19, 31), (0.90, 22, 37)];
    for (mem, buffered, unbuffered) in published {
        for (strategy, expected) in [(MambaStrategy::ExtraBuffer, buffered), (MambaStrategy::NoBuffer, unbuffered)] {
            let flags = SglangFlags { mamba_scheduler_strategy: Some(strategy), ..fraction(mem) };
            let ends = both_ends(&model, &flags, |question| question.draft_steps = None);
            let caps = ends.each_ref().map(|end| end.running_cap);
            assert!(caps[0] <= expected && expected <= caps[1], "{mem} {strategy:?}: {caps:?} against {expected}");
            for end in &ends {
                assert!((205_000..=296_000).contains(&end.kv_pool_tokens.value), "{}", end.kv_pool_tokens);
            }
        }
    }
}

#[test]
fn older_releases_set_draft_states_aside_first() {
    let model = hybrid_27b(4.0);
    let strategy = Some(MambaStrategy::ExtraBuffer);
    let old = |mem: Option<f64>, running: Option<u64>| {
        let flags = SglangFlags {
            mem_fraction_static: mem,
            max_running_requests: running,
            mamba_scheduler_strategy: strategy,
            ..SglangFlags::default()
        };
        let engine = sglang();
        FREE_GIB.map(|free| {
            let mut question = on_pro_6000(&engine, &model, free, flags.clone());
            question.version = OLD;
            limits(&question)
        })
    };
    let caps = |ends: [Result<Limits>; 2]| ends.map(|end| end.unwrap().running_cap);
    inside("16 at 0.80", caps(old(Some(0.80), Some(16))), (9, 10));
    inside("16 at 0.85", caps(old(Some(0.85), Some(16))), (12, 13));
    inside("8 at 0.80", caps(old(Some(0.80), Some(8))), (8, 8));
    // The default of 48 takes 27.5 GiB for draft states, and the default fraction does not leave that.
    for end in old(None, None) {
        let message = end.unwrap_err().to_string();
        assert!(message.contains("no state slot fits") && message.contains("27.5"), "{message}");
    }
}

#[test]
fn given_slots_are_divided_by_the_reservation() {
    let model = hybrid_27b(4.0);
    let given = |slots, strategy| SglangFlags {
        max_mamba_cache_size: Some(slots),
        mamba_scheduler_strategy: strategy,
        ..fraction(0.90)
    };
    let lazy = Some(MambaStrategy::ExtraBufferLazy);
    for (slots, strategy, cap) in
        [(40, None, 8), (32, lazy, 8), (48, None, 9), (33, None, 6), (21, None, 4), (8, None, 1)]
    {
        let ends = both_ends(&model, &given(slots, strategy), |_| ());
        inside(&format!("{slots} slots"), ends.each_ref().map(|end| end.running_cap), (cap, cap));
        assert_eq!(ends[0].state.as_ref().unwrap().slots.origin, Origin::Flag);
    }
    // Reported for other models on this card: only the division is checked.
    for (slots, each, cap) in [(149, 4, 37), (64, 5, 12)] {
        assert_eq!(logged(slots, each, None, 48).running_cap, cap);
    }
}

/// Pools as read off a log, on a card whose memory then does not matter.
fn logged(slots: u64, reserved: u64, held: Option<u64>, configured: u64) -> Limits {
    let (engine, model) = (sglang(), hybrid_27b(4.0));
    let flags = SglangFlags { max_running_requests: Some(configured), ..SglangFlags::default() };
    let mut question = on_pro_6000(&engine, &model, 10.0, flags);
    question.gpu.reported_mib = 100_000.0;
    question.log = LogReadings {
        kv_pool_tokens: Some(190_000),
        state_slots: Some(slots),
        state_slots_per_request: Some(reserved),
        state_slots_held_per_request: held,
        max_running: None,
    };
    limits(&question).unwrap()
}

#[test]
fn the_configured_maximum_is_not_the_effective_one() {
    for (slots, reserved, configured, cap) in [(47, 5, 32, 9), (52, 4, 40, 13)] {
        let limits = logged(slots, reserved, None, configured);
        assert_eq!((limits.running_cap, limits.running_limit.name()), (cap, "state_slots"));
        assert_eq!((limits.max_running.value, limits.max_running.origin), (configured, Origin::Flag));
        assert!(limits.messages[0].contains(&format!("capped to {cap}")), "{:?}", limits.messages);
    }
}

#[test]
fn reserved_slots_set_the_cap_and_held_ones_leave_the_rest_idle() {
    for (slots, reserved, held, cap, idle) in [(40, 5, Some(4), 8, 8), (40, 5, None, 8, 8), (60, 6, Some(5), 10, 10)] {
        let limits = logged(slots, reserved, held, 48);
        assert_eq!(limits.running_cap, cap);
        assert_eq!(limits.state.unwrap().idle_slots(cap), idle);
    }
}

#[test]
fn default_memory_fractions_match_the_published_ones() {
    let (engine, model) = (sglang(), hybrid_27b(4.0));
    let fraction_with = |version, running, tower| {
        let flags = SglangFlags {
            max_running_requests: running,
            mamba_scheduler_strategy: Some(MambaStrategy::ExtraBuffer),
            ..SglangFlags::default()
        };
        let mut question = on_pro_6000(&engine, &model, 94.3, flags);
        (question.version, question.vision) = (version, tower);
        // The pools are given: some of these fractions would leave none.
        (question.log.kv_pool_tokens, question.log.state_slots) = (Some(190_000), Some(40));
        limits(&question).unwrap().mem_fraction.unwrap()
    };
    let tower = Some(VisionTower { hidden: 1152, num_hidden_layers: None });
    let new = fraction_with(NEW, None, tower);
    assert_eq!(new.origin, Origin::Arithmetic);
    assert!((new.value - 0.793).abs() < 5e-4, "{new}");
    let few = fraction_with(NEW, Some(8), tower);
    assert!((few.value - 0.798).abs() < 5e-4, "{few}");
    assert_eq!(fraction_with(NEW, None, None).value, 0.858);
    let old = fraction_with(OLD, None, tower);
    assert!((old.value - 0.755).abs() < 5e-4, "{old}");
}

#[test]
fn graphs_are_captured_by_the_rules_of_each_engine() {
    let sglang = sglang().sglang.unwrap();
    let with = sglang.graphs_with_drafts.sizes(256);
    let expected = (1..=8).chain((10..=32).step_by(2)).chain((36..=64).step_by(4)).chain((72..=256).step_by(8));
    assert_eq!(with, expected.collect::<Vec<u64>>());
    assert_eq!(sglang.graphs_without_drafts.sizes(40), [1, 2, 4, 8, 12, 16, 24, 32, 40]);
    assert_eq!(sglang.graphs_without_drafts.sizes(9), [1, 2, 4, 8, 9]);
    assert!(sglang.graphs_without_drafts.sizes(0).is_empty());

    // A batch is padded up to a captured size, and runs eagerly above the last.
    let model = hybrid_27b(4.0);
    let graphs = &both_ends(&model, &fraction(0.90), |question| question.log.state_slots = Some(100))[0].graphs;
    assert_eq!((graphs.max(), graphs.padded(9), graphs.padded(20), graphs.padded(21)), (20, Some(10), Some(20), None));
}

#[test]
fn what_can_never_fit_is_an_answer_with_a_reason() {
    let (engine, model) = (sglang(), hybrid_27b(4.0));
    let reason = |free, flags| {
        let error = limits(&on_pro_6000(&engine, &model, free, flags)).unwrap_err();
        assert_eq!(error.exit_code(), 1, "{error}");
        error.to_string()
    };
    assert!(reason(40.0, fraction(0.85)).contains("51.74 GiB on each GPU and 40.00 GiB are free"));
    assert!(reason(94.0, fraction(0.55)).contains("a larger mem_fraction_static"));
    assert!(reason(94.0, fraction(0.62)).contains("no state slot fits"));
    let unlocked = SglangFlags { disable_radix_cache: true, ..fraction(0.85) };
    assert!(reason(94.0, unlocked).contains("nothing is left for KV"));

    let older = |strategy| {
        let flags = SglangFlags { mamba_scheduler_strategy: strategy, ..fraction(0.85) };
        let mut question = on_pro_6000(&engine, &model, 94.0, flags);
        question.version = (0, 5, 13);
        limits(&question)
    };
    assert!(older(None).unwrap_err().to_string().contains("set mamba_scheduler_strategy to extra_buffer"));
    assert!(older(Some(MambaStrategy::ExtraBuffer)).is_ok());
}

#[test]
fn without_a_prefix_cache_one_slot_serves_a_request() {
    let model = hybrid_27b(4.0);
    let flags = SglangFlags { disable_radix_cache: true, max_running_requests: Some(24), ..fraction(0.85) };
    let [low, _] = both_ends(&model, &flags, |_| ());
    assert_eq!((low.running_cap, slots(&low), low.running_limit), (24, 24, RunningLimit::MaxRunning));
}

#[test]
fn a_dense_model_has_no_state_and_its_maximum_follows_from_the_pool() {
    let (engine, model) = (sglang(), dense_8b());
    let mut question = on_pro_6000(&engine, &model, 94.0, fraction(0.85));
    (question.linear_layers, question.vision, question.draft_steps) = (0, None, None);
    let limits = limits(&question).unwrap();
    assert!(limits.state.is_none());
    let tokens = ((94.0 * 0.85 - 15.27) * GIB / 147_456.0).floor();
    assert!((limits.kv_pool_tokens.value as f64 - tokens).abs() <= 1.0);
    assert_eq!((limits.max_running.value, limits.max_running.origin), (2048, Origin::Arithmetic));
    assert_eq!(limits.chunk_tokens.unwrap().value, 8192);
}
