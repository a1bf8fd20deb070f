use proptest::prelude::*;

use super::estimate::{Move, Recompute, crossover_tokens};
use super::*;
use crate::engine::link::{Copier, Direction, HostLinks, LinkSettings};
use crate::engine::prefix_cache::{Block, Prompts, Reader};
use crate::model::hardware::Hardware;
use crate::units::SimTime;

/// Qwen3-8B in `qwen3-8b-kv-offload`: blocks of 16 tokens, 147,456 B a token.
const QWEN3_8B: DevicePools = DevicePools {
    page_tokens: 16,
    page_bytes: 16 * 147_456,
    pages: 3072,
    layers: 36,
    state_bytes: 0,
    state_layers: 0,
    state_slots: 0,
};

/// Qwen3.6-27B with MTP: 69,632 B a token, 153.9 MB of state, 40 slots.
const QWEN36_27B: DevicePools = DevicePools {
    page_tokens: 1,
    page_bytes: 69_632,
    pages: 190_000,
    layers: 17,
    state_bytes: 153_944_064,
    state_layers: 48,
    state_slots: 40,
};

fn link(hardware: &str) -> LinkSettings {
    let hardware = Hardware::find(hardware).unwrap();
    LinkSettings::new(&hardware.host_link, hardware.hbm_bytes_per_s, Copier::CopyEngine, true)
}

fn close(found: f64, measured: f64, slack: f64, what: &str) {
    assert!((found / measured - 1.0).abs() <= slack, "{what}: {found} against {measured}");
}

/// Qwen3-8B on an H200: 7.57e9 parameters read per token, of 36 layers of 32 heads of 128. Prefill of a served model
/// reaches 0.61 of the nominal rate.
fn qwen3_8b_recompute() -> Recompute {
    let hardware = Hardware::find("h200").unwrap();
    let flops_per_s = hardware.bf16_flops_per_s * 0.61;
    Recompute { flops_per_token: 2.0 * 7.57e9, flops_per_pair: 4.0 * 36.0 * 32.0 * 128.0, flops_per_s, fixed_s: 0.0 }
}

/// A prompt of one new block takes 15.7 ms (`qwen3-8b-prefill`, 16 tokens): the step that a cached prompt still needs.
const SHORT_PREFILL_S: f64 = 0.0157;
/// A decode step alone (`tpot_ms_mean` at concurrency 1).
const DECODE_STEP_S: f64 = 0.0055;

#[test]
fn reading_a_prompt_back_takes_what_was_measured() {
    let recompute_s = qwen3_8b_recompute().time_s(4096.0);
    close(recompute_s, 0.0979, 0.15, "time to first token, recomputed");

    let tier = HostTierSettings::vllm_offload(QWEN3_8B, 24 << 30);
    let copy = tier.copy(4096 / 16, 0);
    assert_eq!(copy, Copy { bytes: 4096 * 147_456, pieces: 256 });
    let transfer = link("h200").time_alone(Direction::ToDevice, copy.bytes, copy.pieces);
    let read_back_s = tier.stall(transfer, Span::ZERO).as_s() + SHORT_PREFILL_S;
    close(read_back_s, 0.0310, 0.15, "time to first token, read back");

    // 32 prompts, 8 in flight, 16 tokens each. They go in waves: each has a step for its prompt, and the last admitted
    // decodes 15 more. Reading back overlaps with the prompt steps of the others, which are longer than a transfer.
    let wave_s = |prompt_step_s: f64| 8.0 * prompt_step_s + 15.0 * DECODE_STEP_S;
    close(4.0 * wave_s(recompute_s), 3.59, 0.15, "batch, recomputed");
    assert!(transfer.as_s() < SHORT_PREFILL_S);
    close(4.0 * (transfer.as_s() + wave_s(SHORT_PREFILL_S)), 0.82, 0.15, "batch, read back");
}

#[test]
fn the_offload_run_hits_on_the_host_from_the_second_round_on() {
    let mut cache = PrefixCache::new(None);
    let mut tier = HostTier::new(HostTierSettings::vllm_offload(QWEN3_8B, 24 << 30));
    let mut read = Vec::new();
    for index in (0..32u64).chain(0..32) {
        let blocks = [Block { id: index, pages: 256 }];
        let hit = cache.lookup(&blocks, Reader::New);
        cache.lock(hit.end);
        let kept = QWEN3_8B.pages - 256;
        assert!(tier.shrink_to(&mut cache, kept).1);
        read.push(tier.read(&mut cache, &hit).map_or(0, |copy| copy.bytes));
        let inserted = cache.insert(&blocks, tier.back_up_after());
        cache.unlock(hit.end);
        if let Some(write) = tier.write(&mut cache, &inserted) {
            tier.written(&mut cache, &write);
        }
    }
    assert_eq!(read[..32], [0; 32]);
    assert_eq!(read[32..], [256 * QWEN3_8B.page_bytes; 32]);
    assert_eq!(tier.counters().written_bytes, 32 * 256 * QWEN3_8B.page_bytes);
    assert_eq!(tier.counters().read_bytes, tier.counters().written_bytes);
    assert_eq!(cache.counters().device_hit_blocks, 0);
    assert_eq!(cache.counters().host_hit_blocks, 32);
}

#[test]
fn the_seed_case_uses_under_one_per_cent_of_its_link() {
    // By hand: a finished request of 1.2k tokens (133 of prompt, the rest output) leaves 1200 × 69,632 B = 83.6 MB of
    // keys and values and one state of 153.9 MB: 237.5 MB. At 0.4 requests/s that is 95 MB/s of 55 GB/s: 0.17 %.
    let tier_settings = HostTierSettings::hicache(QWEN36_27B, HostSize::Ratio(2.0), WritePolicy::Through);
    let copy = tier_settings.copy(1200, 1);
    assert_eq!(copy, Copy { bytes: 237_502_464, pieces: 1 });
    close(copy.bytes as f64 * 0.4 / 55e9, 0.00173, 0.01, "share of the link");
    // The rate at which it would fill the link: 230 requests/s, 600 times the job's.
    close(55e9 / copy.bytes as f64 / 0.4, 579.0, 0.01, "times the job's rate");

    // The same with cache, tier and link: distinct prompts, one every 2.5 s.
    let mut links = HostLinks::new(1, link("rtx-pro-6000"), None);
    let mut cache = PrefixCache::new(Some(256));
    let mut tier = HostTier::new(tier_settings);
    let mut blocks = Vec::new();
    let mut write = None;
    for request in 0..400u64 {
        let now = SimTime::from_s(2.5 * request as f64).unwrap();
        for _ in links.advance(now) {
            if let Some(write) = write.take() {
                tier.written(&mut cache, &write);
            }
        }
        Prompts::Distinct.blocks(request, 1200, QWEN36_27B.page_tokens, &mut blocks);
        let hit = cache.lookup(&blocks, Reader::New);
        assert_eq!(hit.device_pages + hit.host_pages, 0);
        let inserted = cache.insert(&blocks, tier.back_up_after());
        write = tier.write(&mut cache, &inserted);
        let copy = write.unwrap().copy;
        links.start(now, 0, Direction::ToHost, copy.bytes, copy.pieces, request);
        assert!(tier.shrink_to(&mut cache, QWEN36_27B.pages).1 && cache.shrink_states_to(8));
    }
    links.advance(SimTime::from_s(1000.0).unwrap());
    assert_eq!(tier.counters().written_bytes, 400 * copy.bytes);
    assert_eq!(links.traffic(0, Direction::ToHost).bytes(), 400 * copy.bytes);
    assert_eq!(cache.host_states(), 80, "twice the device's slots");
    let used = links.utilisation(0, Direction::ToHost);
    assert!(used < 0.01 && used > 0.0015, "{used}");
}

#[test]
fn sizes_follow_ratio_or_bytes() {
    let of = |size| HostTierSettings::hicache(QWEN36_27B, size, WritePolicy::Through).capacity();
    assert_eq!(of(HostSize::Ratio(2.0)), (380_000, 80));
    assert_eq!(of(HostSize::Bytes(12_400_000_000)), (178_079, 80));
}

#[test]
fn layouts_decide_the_number_of_copies() {
    let mut tier = HostTierSettings::vllm_offload(QWEN36_27B, 1 << 40);
    assert_eq!(tier.copy(100, 2).pieces, 102);
    tier.layout = Layout::LayerFirst;
    assert_eq!(tier.copy(100, 2).pieces, 17 * 100 + 48 * 2);
    tier.kernel_copies = true;
    assert_eq!(tier.copy(100, 2).pieces, 1);
}

#[test]
fn layer_by_layer_reads_stall_as_a_layered_schedule_does() {
    let settings = HostTierSettings::hicache(QWEN3_8B, HostSize::Ratio(2.0), WritePolicy::Through);
    let layers = 36;
    for (transfer, compute) in [(360, 3600), (3600, 360), (720, 720), (36, 0), (0, 36)] {
        // Layer by layer: it starts when it is there and the one before it is done.
        let done = (1..=layers).fold(0, |done: u128, layer| done.max(layer * transfer / 36) + compute / 36);
        let stall = settings.stall(Span(transfer), Span(compute));
        assert_eq!(stall.0, done - compute, "transfer {transfer}, compute {compute}");
    }
}

#[test]
fn each_policy_writes_when_it_says() {
    let blocks = |id| [Block { id: 1, pages: 8 }, Block { id, pages: 4 }];
    let run = |write| {
        let mut cache = PrefixCache::new(None);
        let mut tier = HostTier::new(HostTierSettings::hicache(QWEN3_8B, HostSize::Ratio(1.0), write));
        let mut written = Vec::new();
        for id in [2, 3, 2] {
            let inserted = cache.insert(&blocks(id), tier.back_up_after());
            if let Some(write) = tier.write(&mut cache, &inserted) {
                tier.written(&mut cache, &write);
            }
            written.push(tier.counters().written_bytes / QWEN3_8B.page_bytes);
        }
        let (waited_for, reached) = tier.shrink_to(&mut cache, 0);
        assert!(reached);
        written.push(waited_for.bytes / QWEN3_8B.page_bytes);
        (written, cache.host_pages())
    };
    assert_eq!(run(WritePolicy::Through), (vec![12, 16, 16, 0], 16));
    assert_eq!(run(WritePolicy::ThroughSelective), (vec![0, 8, 12, 0], 12));
    assert_eq!(run(WritePolicy::Back), (vec![0, 0, 0, 16], 16));
}

#[test]
fn short_host_hits_are_computed_again_but_a_lone_state_is_read() {
    let mut settings = HostTierSettings::hicache(QWEN36_27B, HostSize::Ratio(1.0), WritePolicy::Through);
    settings.device.page_tokens = 1;
    let mut tier = HostTier::new(settings);
    let mut cache = PrefixCache::new(Some(4));
    let blocks = [Block { id: 1, pages: 9 }];
    let inserted = cache.insert(&blocks, tier.back_up_after());
    let write = tier.write(&mut cache, &inserted).unwrap();
    assert_eq!(write.copy.bytes, 9 * 69_632 + 153_944_064);
    tier.written(&mut cache, &write);
    assert!(cache.shrink_states_to(0));
    let lone = cache.peek(&blocks);
    assert_eq!((lone.device_pages, lone.host_pages, lone.host_states), (8, 0, 1));
    assert_eq!(tier.read(&mut cache, &lone).unwrap().bytes, 153_944_064);
    assert_eq!(cache.device_states(), 1);
    assert!(cache.shrink_to(0));
    let short = cache.lookup(&blocks, Reader::New);
    assert_eq!((short.device_pages, short.host_pages, short.host_states), (0, 8, 1));
    assert_eq!(tier.read(&mut cache, &short), None);
    assert_eq!(tier.counters().below_threshold_pages, 8);
}

/// What a token costs to move in `pieces` copies.
fn moving(hardware: &str, bytes: u64, pieces: u64, fixed_s: f64) -> Move {
    let many = 1000;
    let time = link(hardware).time_alone(Direction::ToDevice, bytes * many, pieces * many);
    Move { s_per_token: time.as_s() / many as f64, fixed_s }
}

#[test]
fn moving_beats_computing_from_the_crossover_on() {
    let recompute = qwen3_8b_recompute();
    // PCIe 5 and PCIe 4, whole pages of 64 tokens: 2.7 and 5.9 µs a token against 25.1 µs of compute. Only the step that
    // a cached prompt still takes makes recomputing short contexts better: 15.7 ms / (25.1 − 2.7 µs) = 700 tokens, a little
    // less with the attention among them.
    let pages = |hardware| {
        let page = moving(hardware, 64 * 147_456, 1, 0.0);
        Move { s_per_token: page.s_per_token / 64.0, fixed_s: SHORT_PREFILL_S }
    };
    let (gen5, gen4) = (pages("h200"), pages("a100"));
    let crossover = |moving: &Move| crossover_tokens(&recompute, moving).unwrap();
    close(crossover(&gen5), 695.0, 0.05, "PCIe 5");
    assert!(crossover(&gen4) > crossover(&gen5) && crossover(&gen4) < 1000.0);
    // Swapping pays both ways, so it needs longer contexts, the more so on the slower link.
    assert!(crossover(&gen5.both_ways()) > crossover(&gen5));
    assert!(crossover(&gen4.both_ways()) > crossover(&gen5.both_ways()));
    // A copy per layer and token (layer first, page 1, copy engine): 36 × 11.5 µs a token. Computing wins until
    // attention, which grows with the square of the context, has caught up.
    let scattered = moving("h200", 147_456, 36, 0.0);
    close(scattered.s_per_token, 36.0 * 11.5e-6, 0.01, "scattered token");
    let by_hand = 2.0 * (36.0 * 11.5e-6 - 2.0 * 7.57e9 / recompute.flops_per_s) * recompute.flops_per_s / 589_824.0;
    close(crossover(&scattered), by_hand, 0.01, "scattered copies");
    // Without attention's square it would never pay.
    let linear = Recompute { flops_per_pair: 0.0, ..recompute };
    assert_eq!(crossover_tokens(&linear, &scattered), None);
}

proptest! {
    #[test]
    fn at_the_crossover_both_take_the_same(
        per_token in 1e9..1e11f64, per_pair in 0.0..1e6f64, s_per_token in 1e-7..1e-3f64, fixed in 0.0..0.1f64, moved in 0.0..0.1f64
    ) {
        let recompute = Recompute { flops_per_token: per_token, flops_per_pair: per_pair, flops_per_s: 5e14, fixed_s: fixed };
        let moving = Move { s_per_token, fixed_s: moved };
        match crossover_tokens(&recompute, &moving) {
            Some(tokens) => {
                if tokens > 0.0 {
                    let (computed, moved) = (recompute.time_s(tokens), moving.time_s(tokens));
                    prop_assert!((computed / moved - 1.0).abs() < 1e-6, "{computed} {moved}");
                }
                prop_assert!(moving.time_s(tokens * 2.0 + 1.0) <= recompute.time_s(tokens * 2.0 + 1.0) * (1.0 + 1e-9));
            }
            None => prop_assert!(moving.time_s(1e9) > recompute.time_s(1e9)),
        }
    }

    #[test]
    fn host_pools_hold_no_more_than_they_can_and_reads_follow_writes(
        requests in prop::collection::vec((0..5u64, 0..5u64, 0..4u64), 1..120),
        device in 20..80u64, host in 0..120u64, write in 0..3usize, hybrid: bool
    ) {
        let write = [WritePolicy::Through, WritePolicy::ThroughSelective, WritePolicy::Back][write];
        let pools = DevicePools { page_tokens: 4, state_slots: 6, state_bytes: 1 << 20, ..QWEN3_8B };
        let mut settings = HostTierSettings::hicache(pools, HostSize::Bytes(host * pools.page_bytes), write);
        settings.read_tokens_at_least = 1;
        let mut tier = HostTier::new(settings);
        let mut cache = PrefixCache::new(hybrid.then_some(3));
        let mut pending: Vec<Write> = Vec::new();
        for (first, second, third) in requests {
            let blocks = [first, second, third].map(|id| Block { id, pages: 1 + id as u32 });
            let hit = cache.lookup(&blocks, Reader::New);
            cache.lock(hit.end);
            tier.shrink_to(&mut cache, device.saturating_sub(hit.host_pages));
            let loaded = tier.read(&mut cache, &hit);
            prop_assert_eq!(loaded.is_some(), hit.host_pages + hit.host_states > 0);
            let now = cache.peek(&blocks);
            prop_assert_eq!(now.device_pages, hit.device_pages + hit.host_pages);
            let inserted = cache.insert(&blocks, tier.back_up_after());
            cache.unlock(hit.end);
            pending.extend(tier.write(&mut cache, &inserted));
            if pending.len() > 2 {
                tier.written(&mut cache, &pending.remove(0));
            }
            prop_assert!(cache.host_pages() <= host);
            prop_assert!(cache.host_states() <= tier.settings().capacity().1);
            let counters = cache.counters();
            let came = counters.inserted_pages + counters.loaded_pages;
            prop_assert_eq!(came, counters.evicted_pages + cache.device_pages());
        }
        for write in pending {
            tier.written(&mut cache, &write);
        }
        prop_assert_eq!(cache.protected_pages(), 0);
        prop_assert!(tier.shrink_to(&mut cache, 0).1);
        prop_assert_eq!(cache.device_states(), 0);
        prop_assert!(cache.shrink_host_to(0, 0));
        prop_assert_eq!((cache.host_pages(), cache.host_states()), (0, 0));
    }
}
