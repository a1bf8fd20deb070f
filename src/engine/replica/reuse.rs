//! Prefix cache, host tier and link of a replica: what prompts find there, what they leave behind, and which copies steps
//! wait for.
//!
//! Pages that the cache holds and nobody reads or writes out count as free: they are evicted as running requests grow.
//! Everything here happens at step boundaries, and every change that happens between two boundaries of a longer stretch
//! is brought up to the level of its last step when it ends, so that a stretch leaves what its single steps would leave.

use std::sync::Arc;

use crate::engine::host_tier::{Copy, HostTier, ReadBack, Write, WritePolicy};
use crate::engine::link::{Direction, HostLinks, TransferId};
use crate::engine::prefix_cache::{Block, Hit, Inserted, NodeId, PrefixCache, Prompts, Reader};
use crate::engine::replica::Replica;
use crate::engine::replica::write_only::WriteOnly;
use crate::engine::sequence::{Phase, Waiting};
use crate::engine::settings::{EngineSettings, PolicySettings};
use crate::units::{SimTime, Span};
use crate::workload::Request;

/// The replica's only GPU in its links.
pub(super) const GPU: usize = 0;

/// Cache, tier and link.
#[derive(Debug)]
pub(in crate::engine) struct Reuse {
    pub(super) cache: PrefixCache,
    /// `None` without a prefix cache.
    pub(super) prompts: Option<Arc<Prompts>>,
    pub(super) checkpoint_pages: Option<u32>,
    pub(super) page_tokens: u32,
    pub(super) state_slots: Option<(u64, u64)>,
    pub(super) host: Option<HostSide>,
    /// In place of blocks while none of them can be found again.
    pub(super) write_only: Option<WriteOnly>,
    /// The step that is being planned starts its work no earlier.
    pub(super) ready_at: SimTime,
    /// The blocks of the request last asked about, kept for their memory.
    pub(super) blocks: Vec<Block>,
}

/// What needs a link.
#[derive(Debug)]
pub(super) struct HostSide {
    pub(super) tier: HostTier,
    pub(super) links: HostLinks,
    pub(super) writes: Vec<(TransferId, Write)>,
    /// Reads that a sequence waits for outside the batch: transfer, slot, admission.
    pub(super) loads: Vec<(TransferId, u32, u64)>,
    /// What the coming step reads while it computes.
    pub(super) reads: Copy,
    /// Host work of reads that have ended since the last step with prefill.
    pub(super) read_work: Span,
    /// Pages of swapped requests.
    pub(super) swapped_pages: u64,
    /// Bytes and busy time to the host that its links have not seen.
    pub(super) before: (u64, Span),
}

/// What a request starts with.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct Start {
    /// Pages of the cache that it need not compute.
    pub pages: u64,
    /// Tokens in them.
    pub tokens: u32,
    pub(super) lock: Option<NodeId>,
    pub(super) branch_pages: u32,
    load: Option<TransferId>,
}

impl Start {
    /// True when it waits for pages outside the batch.
    #[inline]
    pub fn is_loading(&self) -> bool {
        self.load.is_some()
    }
}

impl Reuse {
    pub(super) fn new(settings: &EngineSettings) -> Option<Box<Reuse>> {
        if settings.prefix_cache.is_none() && settings.host.is_none() {
            return None;
        }
        let cached = settings.prefix_cache.as_ref();
        let checkpoint_pages = cached.and_then(|cached| cached.checkpoint_pages);
        Some(Box::new(Reuse {
            cache: match settings.policy {
                PolicySettings::Vllm(_) => PrefixCache::new(checkpoint_pages).evicting_pages(),
                _ => PrefixCache::new(checkpoint_pages),
            },
            prompts: cached.map(|cached| cached.prompts.clone()),
            checkpoint_pages,
            page_tokens: settings.page_tokens,
            state_slots: cached.and_then(|cached| cached.state_slots),
            host: settings.host.map(|host| HostSide {
                tier: HostTier::new(host.tier),
                links: HostLinks::new(1, host.link, None),
                writes: Vec::new(),
                loads: Vec::new(),
                reads: Copy::default(),
                read_work: Span::ZERO,
                swapped_pages: 0,
                before: (0, Span::ZERO),
            }),
            write_only: WriteOnly::new(settings),
            ready_at: SimTime::ZERO,
            blocks: Vec::new(),
        }))
    }

    /// Cuts the first `tokens` tokens of a request into blocks; false without a prefix cache.
    fn cut(&mut self, request: &Request, tokens: u32) -> bool {
        let Some(prompts) = &self.prompts else { return false };
        prompts.blocks(request.id, tokens, self.page_tokens, &mut self.blocks);
        true
    }

    /// Bytes moved and busy time to the host by `now` that the links have not seen.
    pub(super) fn unseen(&self, now: SimTime) -> (u64, Span) {
        let before = self.host.as_ref().map_or((0, Span::ZERO), |host| host.before);
        self.write_only.as_ref().map_or(before, |lane| lane.moved(now))
    }

    fn insert(&mut self, counts: bool) -> Inserted {
        let back_up_after = match &self.host {
            Some(host) => host.tier.back_up_after(),
            None => Some(u32::MAX),
        };
        self.cache.insert(&self.blocks, back_up_after.filter(|_| counts))
    }

    /// Writes what an insertion named, if the policy says so.
    fn write(&mut self, inserted: &Inserted, now: SimTime) {
        let Some(host) = &mut self.host else { return };
        if let Some(write) = host.tier.write(&mut self.cache, inserted) {
            let Copy { bytes, pieces } = write.copy;
            let id = host.links.start(now, GPU, Direction::ToHost, bytes, pieces, 0);
            host.writes.push((id, write));
        }
    }

    fn writes_back(&self) -> bool {
        self.host.as_ref().is_some_and(|host| host.tier.settings().write == WritePolicy::Back)
    }

    pub(super) fn wait_for(&mut self, id: TransferId) {
        let Some(host) = &self.host else { return };
        self.ready_at = self.ready_at.max(host.links.end_of(id));
    }
}

impl Replica {
    /// True when there is a prefix cache or a host side.
    #[inline]
    pub(in crate::engine) fn reuses(&self) -> bool {
        self.reuse.is_some()
    }

    /// Pages of the cache that cannot be evicted.
    #[inline]
    pub(super) fn locked_pages(&self) -> u64 {
        self.reuse.as_ref().map_or(0, |reuse| reuse.cache.protected_pages())
    }

    /// Pages that running requests can grow into without waiting for a copy: where eviction writes, none of the cache's.
    #[inline]
    pub(super) fn pages_without_waiting(&self) -> u64 {
        match &self.reuse {
            Some(reuse) if reuse.writes_back() => self.pool_pages.saturating_sub(reuse.cache.device_pages()),
            _ => self.open_pages(),
        }
    }

    /// What the cache has of a request whose first `goal` tokens are to be there before it writes, at least one of them
    /// computed. What it finds is kept from eviction until [`Replica::resume`] or [`Replica::decline`].
    pub(in crate::engine) fn find_prefix(&mut self, request: &Request, goal: u64) -> Option<Hit> {
        let reuse = self.reuse.as_mut()?;
        if reuse.write_only.is_some() || !reuse.cut(request, goal as u32 - 1) {
            return None;
        }
        let hit = reuse.cache.peek(&reuse.blocks);
        reuse.cache.lock(hit.end);
        Some(hit)
    }

    /// The request is not admitted.
    pub(in crate::engine) fn decline(&mut self, hit: Option<Hit>) {
        if let (Some(reuse), Some(hit)) = (&mut self.reuse, hit) {
            reuse.cache.unlock(hit.end);
        }
    }

    /// The request is admitted: counts what it found, and begins to read back what the host has.
    pub(in crate::engine) fn resume(&mut self, waiting: &Waiting, hit: Option<Hit>, now: SimTime) -> Start {
        let Some(reuse) = &mut self.reuse else { return Start::default() };
        if reuse.write_only.is_some() {
            reuse.cache.count_miss(u64::from(waiting.request.prompt_tokens - 1) / u64::from(reuse.page_tokens));
        }
        let Some(found) = hit else { return Start::default() };
        let reader = if waiting.progress.is_some() { Reader::Preempted } else { Reader::New };
        let hit = reuse.cache.lookup(&reuse.blocks, reader);
        debug_assert_eq!(hit, found, "nothing happens between finding and taking");
        let mut start = Start { lock: Some(hit.end), ..Start::default() };
        if let PolicySettings::Sglang(_) = self.settings.policy {
            start.branch_pages = hit.branch_pages;
        }
        let copy = reuse.host.as_mut().and_then(|host| host.tier.read(&mut reuse.cache, &hit));
        start.pages = match (copy, &mut reuse.host) {
            (Some(copy), Some(host)) => {
                let parks = matches!(self.settings.policy, PolicySettings::Vllm(_))
                    && host.tier.settings().read == ReadBack::BeforePrefill;
                if parks {
                    let id = host.links.start(now, GPU, Direction::ToDevice, copy.bytes, copy.pieces, 0);
                    start.load = Some(id);
                } else {
                    host.reads.bytes += copy.bytes;
                    host.reads.pieces += copy.pieces;
                }
                hit.device_pages + hit.host_pages
            }
            _ if hit.host_pages + hit.host_states > 0 => {
                // Not worth a read. Without its state a hybrid cannot go on from the pages before it either.
                reuse.cache.lock(hit.device_end);
                reuse.cache.unlock(hit.end);
                start.lock = Some(hit.device_end);
                if hit.host_states > 0 { 0 } else { hit.device_pages }
            }
            _ => hit.device_pages,
        };
        start.tokens = start.pages as u32 * reuse.page_tokens;
        start
    }

    /// An admitted sequence waits for the pages that it starts with.
    pub(super) fn await_load(&mut self, slot: u32, admission: u64, start: Start) {
        if let (Some(id), Some(host)) = (start.load, self.reuse.as_mut().and_then(|reuse| reuse.host.as_mut())) {
            host.loads.push((id, slot, admission));
        }
    }

    /// A part of a prompt has been read: the cache takes its whole pages over.
    pub(super) fn cache_prompt(&mut self, slot: u32, now: SimTime) {
        let (Some(reuse), Some(sequence)) = (&mut self.reuse, self.slots[slot as usize].as_mut()) else { return };
        if sequence.uncached || reuse.write_only.is_some() || !reuse.cut(&sequence.request, sequence.prefilled) {
            return;
        }
        let whole = sequence.prefilled >= sequence.prefill_goal;
        let inserted = reuse.insert(whole);
        reuse.cache.lock(inserted.end);
        if whole && sequence.branch_pages > 0 {
            reuse.cache.keep_state_at(&reuse.blocks, sequence.branch_pages);
        }
        if let Some(before) = sequence.lock.replace(inserted.end) {
            reuse.cache.unlock(before);
        }
        let pages: u64 = reuse.blocks.iter().map(|block| u64::from(block.pages)).sum();
        // What others inserted meanwhile is there once: its duplicates are free.
        let given = pages - sequence.shared_pages;
        sequence.shared_pages = pages;
        if sequence.phase == Phase::Prefill
            || sequence.phase == Phase::Finished && !self.settings.computes_finished_rows
        {
            sequence.held_pages -= given;
            self.held_pages -= given;
        } else {
            self.shared_pages += given;
        }
        if whole {
            reuse.write(&inserted, now);
        }
    }

    /// A sequence left: its first `tokens` tokens stay in the cache; 0 leaves nothing more than what is there.
    pub(super) fn leave_in_cache(&mut self, slot: u32, tokens: u32, now: SimTime) {
        let used = self.pages_by_sum();
        let (Some(reuse), Some(sequence)) = (&mut self.reuse, &self.slots[slot as usize]) else { return };
        if let (Some(lane), Some(host)) = (&mut reuse.write_only, &mut reuse.host) {
            let pages = u64::from(tokens / reuse.page_tokens);
            if pages > 0 {
                let states = u64::from(reuse.checkpoint_pages.is_some_and(|interval| pages >= u64::from(interval)));
                let copy = host.tier.wrote(pages, states);
                if !lane.write(now, copy, pages, used, self.pool_pages) {
                    self.keep_blocks(now);
                }
            }
            return;
        }
        if tokens > 0 && reuse.cut(&sequence.request, tokens) {
            let inserted = reuse.insert(true);
            reuse.write(&inserted, now);
        }
        if let Some(lock) = sequence.lock {
            reuse.cache.unlock(lock);
        }
    }

    /// From now on every block is kept: those of running requests come into the cache, copies in flight onto the links.
    pub(super) fn keep_blocks(&mut self, now: SimTime) {
        let Some(reuse) = &mut self.reuse else { return };
        let Some(lane) = reuse.write_only.take() else { return };
        if let Some(host) = &mut reuse.host {
            let (flights, before) = lane.hand_over();
            host.before = before;
            for flight in flights {
                let Copy { bytes, pieces } = flight.copy;
                host.links.start(flight.started, GPU, Direction::ToHost, bytes, pieces, 0);
            }
            host.links.advance(now);
        }
        for slot in self.running.clone() {
            if self.slots[slot as usize].as_ref().is_some_and(|sequence| sequence.prefilled > 0) {
                self.cache_prompt(slot, now);
            }
        }
    }

    /// A request that does not fit though it is alone: the cache may hold pages for it that it cannot use (the rest of a
    /// block that others share with it). It is to be preempted and computed on pages of its own; false when they are.
    pub(in crate::engine) fn give_up_reuse(&mut self, slot: u32) -> bool {
        let sequence = self.slots[slot as usize].as_mut();
        let Some(sequence) = sequence.filter(|sequence| sequence.lock.is_some() && !sequence.uncached) else {
            return false;
        };
        sequence.uncached = true;
        true
    }

    /// What a preempted sequence leaves behind: the blocks that vLLM has filled, nothing under SGLang. Returns the pages
    /// that went to the host for it to go on from.
    pub(super) fn leave_preempted(&mut self, slot: u32, now: SimTime) -> u64 {
        if self.reuse.is_none() {
            return 0;
        }
        self.keep_blocks(now);
        let Some(sequence) = self.slots[slot as usize].clone() else { return 0 };
        if let Some(host) = self.reuse.as_mut().and_then(|reuse| reuse.host.as_mut()) {
            // Nobody waits for what a request reads that lost its place.
            host.loads.retain(|(.., admission)| *admission != sequence.admission);
        }
        let swapped = if sequence.phase == Phase::Decode { self.swap_out(&sequence, now) } else { 0 };
        let kept = match (self.settings.policy, sequence.phase) {
            _ if swapped > 0 || sequence.loading || sequence.uncached => 0,
            (PolicySettings::Vllm(_), Phase::Prefill) => sequence.prefilled,
            (PolicySettings::Vllm(_), _) => sequence.request.prompt_tokens + sequence.generated(self.step) - 1,
            _ => 0,
        };
        self.leave_in_cache(slot, kept, now);
        swapped
    }

    /// Brings the cache down to what the last of `steps` steps leaves of the pool.
    pub(super) fn shrink_cache(&mut self, steps: u64) {
        let Some(reuse) = &self.reuse else { return };
        if reuse.cache.device_pages() == 0 || reuse.writes_back() {
            return;
        }
        let level = self.pool_pages.saturating_sub(self.lasting_pages_at(self.step + steps - 1));
        if let Some(reuse) = &mut self.reuse {
            reuse.cache.shrink_to(level);
        }
    }

    /// Makes room for the step that was planned.
    pub(super) fn make_room(&mut self, now: SimTime) {
        if self.reuse.as_ref().is_none_or(|reuse| reuse.write_only.is_some()) {
            return;
        }
        if !self.fits() {
            self.wait_for_writes();
        }
        let occupied = u64::from(self.occupied());
        let empty = self.reuse.as_ref().is_none_or(|reuse| reuse.cache.device_pages() == 0);
        let level = if empty { u64::MAX } else { self.pool_pages.saturating_sub(self.lasting_pages_at(self.step)) };
        let Some(reuse) = &mut self.reuse else { return };
        let copy = match &mut reuse.host {
            Some(host) => host.tier.shrink_to(&mut reuse.cache, level).0,
            None => {
                reuse.cache.shrink_to(level);
                Copy::default()
            }
        };
        if let Some((slots, each)) = reuse.state_slots {
            reuse.cache.shrink_states_to(slots.saturating_sub(occupied * each));
        }
        if let (true, Some(host)) = (copy.bytes > 0, &mut reuse.host) {
            let id = host.links.start(now, GPU, Direction::ToHost, copy.bytes, copy.pieces, 0);
            reuse.wait_for(id);
        }
    }
}
