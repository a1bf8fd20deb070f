use std::collections::HashMap;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::workload::trace::{Trace, TraceOptions};

fn path(ids: &[u64]) -> Vec<Block> {
    ids.iter().map(|&id| Block { id, pages: 1 + (id % 3) as u32 }).collect()
}

fn pages(blocks: &[Block]) -> u64 {
    blocks.iter().map(|block| u64::from(block.pages)).sum()
}

/// The recorded conversations, where they are at hand.
fn recorded() -> Option<(Prompts, Vec<u32>)> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/traces/mooncake_conversation.jsonl.gz");
    if !file.is_file() {
        println!("skipped: no shared traces");
        return None;
    }
    let trace = Trace::read(&file, TraceOptions::default()).unwrap();
    let tokens = trace.rows.iter().map(|row| row.prompt_tokens).collect();
    Some((Prompts::Recorded(trace.prefix_blocks.unwrap()), tokens))
}

#[test]
fn the_mooncake_conversations_reuse_as_many_blocks_as_their_description_says() {
    let Some((prompts, tokens)) = recorded() else { return };
    let mut cache = PrefixCache::new(None);
    let mut blocks = Vec::new();
    for (request, &tokens) in tokens.iter().enumerate() {
        // One token a page, so that the last block of a prompt is counted too.
        prompts.blocks(request as u64, tokens, 1, &mut blocks);
        cache.lookup(&blocks, Reader::New);
        cache.insert(&blocks, None);
    }
    let counters = cache.counters();
    assert_eq!(counters.asked_blocks, 288_500);
    let share = counters.device_hit_blocks as f64 / counters.asked_blocks as f64;
    assert!((share - 0.3664).abs() < 5e-5, "{share}");
    assert_eq!(counters.evicted_blocks, 0);
}

#[test]
fn a_bounded_cache_reuses_less_of_the_mooncake_conversations() {
    let Some((prompts, tokens)) = recorded() else { return };
    let mut cache = PrefixCache::new(None);
    let mut blocks = Vec::new();
    for (request, &tokens) in tokens.iter().enumerate().take(4000) {
        prompts.blocks(request as u64, tokens, 16, &mut blocks);
        cache.lookup(&blocks, Reader::New);
        cache.insert(&blocks, None);
        assert!(cache.shrink_to(50_000));
    }
    let counters = cache.counters();
    let share = counters.device_hit_pages as f64 / counters.asked_pages as f64;
    assert!(share > 0.01 && share < 0.3, "{share}");
    assert_eq!(counters.inserted_pages, counters.evicted_pages + cache.device_pages());
}

#[test]
fn the_least_recently_used_leaf_goes_first_and_parents_outlive_their_children() {
    let mut cache = PrefixCache::new(None);
    cache.insert(&path(&[1, 2]), None);
    cache.insert(&path(&[1, 3]), None);
    cache.insert(&path(&[4]), None);
    cache.lookup(&path(&[1, 2]), Reader::New);
    let mut left = Vec::new();
    while let Some(victim) = cache.next_victim() {
        cache.evict(victim);
        let held = |ids: &[u64]| cache.peek(&path(ids)).device_blocks;
        left.push((held(&[1, 2]), held(&[1, 3]), held(&[4])));
    }
    assert_eq!(left, [(2, 1, 1), (2, 1, 0), (1, 1, 0), (0, 0, 0)]);
}

#[test]
fn locked_paths_stay_until_they_are_unlocked() {
    let mut cache = PrefixCache::new(None);
    let end = cache.insert(&path(&[1, 2, 3]), None).end;
    cache.lock(end);
    cache.insert(&path(&[1, 2, 4, 5]), None);
    assert_eq!(cache.protected_pages(), pages(&path(&[1, 2, 3])));
    assert!(!cache.shrink_to(0));
    assert_eq!(cache.device_pages(), cache.protected_pages());
    assert_eq!(cache.peek(&path(&[1, 2, 3])).device_blocks, 3);
    cache.unlock(end);
    assert_eq!(cache.protected_pages(), 0);
    assert!(cache.shrink_to(0));
    assert_eq!(cache.counters().evicted_blocks, 5);
}

#[test]
fn prompts_in_cyclic_order_never_hit_a_cache_smaller_than_the_cycle() {
    // As `qwen3-8b-kv-offload`: 12 of 32 prompts of 4096 tokens fit 49,152 tokens.
    let mut cache = PrefixCache::new(None);
    let prompt = |index: u64| -> Vec<Block> { (0..256).map(|id| Block { id: index << 20 | id, pages: 1 }).collect() };
    for index in (0..32).chain(0..32) {
        let blocks = prompt(index);
        assert_eq!(cache.lookup(&blocks, Reader::New).device_pages, 0);
        assert!(cache.shrink_to(3072 - 256));
        cache.insert(&blocks, None);
    }
    assert_eq!(cache.device_pages(), 3072);
    assert_eq!(cache.counters().device_hit_blocks, 0);
    assert_eq!(cache.lookup(&prompt(31), Reader::New).device_pages, 256);
}

#[test]
fn what_preempted_requests_find_again_is_no_hit() {
    let mut cache = PrefixCache::new(None);
    let blocks = path(&[1, 2]);
    cache.lookup(&blocks, Reader::New);
    cache.insert(&blocks, None);
    cache.lookup(&blocks, Reader::Preempted);
    let counters = cache.counters();
    assert_eq!((counters.lookups, counters.device_hit_pages), (1, 0));
    assert_eq!(counters.resumed_pages, pages(&blocks));
}

#[test]
fn a_request_that_grew_owns_only_what_is_new() {
    let mut cache = PrefixCache::new(None);
    let grown = |pages| [Block { id: 1, pages: 4 }, Block { id: 2, pages }];
    assert_eq!(cache.insert(&grown(3), None).new_pages, 7);
    assert_eq!(cache.insert(&grown(10), None).new_pages, 7);
    assert_eq!(cache.device_pages(), 14);
    assert_eq!(cache.peek(&grown(5)).device_pages, 9);
    assert_eq!(cache.peek(&grown(5)).device_blocks, 2);
}

#[test]
fn hybrids_hit_at_checkpoints_only() {
    let blocks = |id, pages| [Block { id: 1, pages: 10 }, Block { id, pages }];
    let mut cache = PrefixCache::new(Some(8));
    let end = cache.insert(&blocks(2, 25), None).end;
    assert_eq!(cache.device_states(), 1);
    // 35 pages: the state was kept at 32.
    assert_eq!(cache.peek(&blocks(2, 25)).device_pages, 32);
    assert_eq!(cache.peek(&blocks(2, 22)).device_pages, 32);
    assert_eq!(cache.peek(&blocks(2, 21)).device_pages, 0, "the state is beyond the prompt");
    assert_eq!(cache.peek(&blocks(3, 25)).device_pages, 0, "the shared part ends where no state was kept");
    cache.insert(&blocks(3, 0)[..1], None);
    assert_eq!(cache.peek(&blocks(3, 25)).device_pages, 8);
    assert_eq!(cache.device_states(), 2);
    cache.lock(end);
    assert!(!cache.shrink_states_to(0), "a running request reads the other state");
    assert_eq!(cache.peek(&blocks(3, 25)).device_pages, 0);
    assert_eq!(cache.peek(&blocks(2, 25)).device_pages, 32);
}

#[test]
fn rules_for_prompts_share_what_they_say() {
    let mut blocks = Vec::new();
    let mut of = |prompts: &Prompts, request, tokens| {
        prompts.blocks(request, tokens, 16, &mut blocks);
        blocks.clone()
    };
    assert_eq!(of(&Prompts::Distinct, 3, 100), [Block { id: 3, pages: 6 }]);
    assert!(of(&Prompts::Distinct, 3, 15).is_empty());

    let shared = Prompts::SharedPrefix { prompts_per_prefix: 4, prefix_tokens: 40 };
    let (first, fourth, fifth) = (of(&shared, 0, 100), of(&shared, 3, 100), of(&shared, 4, 100));
    assert_eq!(first.iter().map(|block| block.pages).collect::<Vec<_>>(), [2, 4]);
    assert_eq!(first[0], fourth[0]);
    assert!(first[1] != fourth[1] && first[0] != fifth[0]);

    let sessions = Prompts::Sessions { sessions: 2, turns: 3, system_tokens: 32, turn_tokens: 64 };
    // Session 1: requests 1, 3, 5; then session 3: 7, 9, 11.
    let ended = of(&sessions, 1, 32 + 64);
    let next = of(&sessions, 3, 32 + 64 + 20);
    assert_eq!(ended, next[..2]);
    assert_eq!(next.len(), 3);
    let other = of(&sessions, 7, 32 + 64);
    assert!(other[0] == ended[0] && other[1] != ended[1]);
    assert_eq!(of(&sessions, 5, 10_000).len(), 1 + 3 + 1);
}

/// The same rules, by brute force over all prefixes.
#[derive(Default)]
struct Naive {
    /// Use and locks of each cached prefix.
    held: HashMap<Vec<u64>, (u64, u32)>,
    tick: u64,
}

impl Naive {
    fn hit(&mut self, ids: &[u64], touch: bool) -> u64 {
        self.tick += u64::from(touch);
        let mut hit = 0;
        for end in 1..=ids.len() {
            let Some(entry) = self.held.get_mut(&ids[..end]) else { break };
            if touch {
                entry.0 = self.tick;
            }
            hit += pages(&path(&ids[end - 1..end]));
        }
        hit
    }

    fn insert(&mut self, ids: &[u64]) {
        self.tick += 1;
        for end in 1..=ids.len() {
            self.held.entry(ids[..end].to_vec()).or_default().0 = self.tick;
        }
    }

    fn pages(&self) -> u64 {
        self.held.keys().map(|ids| pages(&path(&ids[ids.len() - 1..]))).sum()
    }

    fn shrink_to(&mut self, most: u64) {
        while self.pages() > most {
            let is_leaf =
                |ids: &Vec<u64>| !self.held.keys().any(|other| other.len() > ids.len() && other.starts_with(ids));
            let victim = self.held.iter().filter(|(ids, entry)| entry.1 == 0 && is_leaf(ids)).min_by_key(|(_, e)| e.0);
            let Some(victim) = victim.map(|(ids, _)| ids.clone()) else { break };
            self.held.remove(&victim);
        }
    }
}

#[derive(Clone, Debug)]
enum Action {
    Lookup(Vec<u64>),
    Insert(Vec<u64>),
    Lock(Vec<u64>),
    Unlock,
    Shrink(u64),
}

fn action() -> impl Strategy<Value = Action> {
    let ids = || prop::collection::vec(0..4u64, 1..5);
    prop_oneof![
        ids().prop_map(Action::Lookup),
        ids().prop_map(Action::Insert),
        ids().prop_map(Action::Lock),
        Just(Action::Unlock),
        (0..40u64).prop_map(Action::Shrink),
    ]
}

proptest! {
    #[test]
    fn the_cache_does_what_brute_force_does(actions in prop::collection::vec(action(), 1..120)) {
        let (mut cache, mut naive) = (PrefixCache::new(None), Naive::default());
        let mut locks = Vec::new();
        for action in actions {
            match action {
                Action::Lookup(ids) => {
                    prop_assert_eq!(cache.lookup(&path(&ids), Reader::New).device_pages, naive.hit(&ids, true));
                }
                Action::Insert(ids) => {
                    let new = pages(&path(&ids)) - naive.hit(&ids, false);
                    prop_assert_eq!(cache.insert(&path(&ids), None).new_pages, new);
                    naive.insert(&ids);
                }
                Action::Lock(ids) => {
                    let hit = cache.peek(&path(&ids));
                    cache.lock(hit.end);
                    let ids = ids[..hit.device_blocks as usize].to_vec();
                    naive.held.entry(ids.clone()).and_modify(|entry| entry.1 += 1);
                    locks.push((hit.end, ids));
                }
                Action::Unlock => {
                    if let Some((node, ids)) = locks.pop() {
                        cache.unlock(node);
                        naive.held.entry(ids).and_modify(|entry| entry.1 -= 1);
                    }
                }
                Action::Shrink(pages) => {
                    naive.shrink_to(pages);
                    prop_assert_eq!(cache.shrink_to(pages), naive.pages() <= pages);
                }
            }
            prop_assert_eq!(cache.device_pages(), naive.pages());
            let counters = cache.counters();
            prop_assert_eq!(counters.inserted_pages, counters.evicted_pages + cache.device_pages());
            let guarded: u64 = naive
                .held
                .keys()
                .filter(|ids| locks.iter().any(|(_, locked)| locked.starts_with(ids)))
                .map(|ids| pages(&path(&ids[ids.len() - 1..])))
                .sum();
            prop_assert_eq!(cache.protected_pages(), guarded);
        }
    }

    #[test]
    fn shrinking_little_by_little_ends_where_shrinking_at_once_does(
        inserts in prop::collection::vec(prop::collection::vec(0..4u64, 1..5), 1..30), stops in prop::collection::vec(0..60u64, 1..6)
    ) {
        let mut once = PrefixCache::new(None);
        for ids in &inserts {
            once.insert(&path(ids), None);
        }
        let mut slowly = once.clone();
        let mut stops = stops;
        stops.sort_unstable_by(|a, b| b.cmp(a));
        for &stop in &stops {
            slowly.shrink_to(stop);
        }
        once.shrink_to(stops[stops.len() - 1]);
        prop_assert_eq!(once.counters(), slowly.counters());
        for ids in &inserts {
            prop_assert_eq!(once.peek(&path(ids)).device_pages, slowly.peek(&path(ids)).device_pages);
        }
    }
}
