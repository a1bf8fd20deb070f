//! Copies of a replica between host and GPU: what has ended, which ones a step waits for, and what they add to it.

use crate::engine::host_tier::TierCounters;
use crate::engine::link::{Direction, Slowdown, Traffic};
use crate::engine::prefix_cache::CacheCounters;
use crate::engine::replica::Replica;
use crate::engine::replica::write_only::WriteOnly;
use crate::engine::sequence::Sequence;
use crate::engine::settings::{PolicySettings, Spill};
use crate::units::{SimTime, Span};

/// What the prefix cache, host tier and link of one replica did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReuseOutcome {
    /// Lookups, hits, evictions.
    pub cache: CacheCounters,
    /// Pages that the cache holds at the end.
    pub cached_pages: u64,
    /// What went to the host tier and came back; `None` without.
    pub tier: Option<TierCounters>,
    /// Bytes over the link of one GPU, to device and to host, with those under way at the end.
    pub bytes: [u64; 2],
    /// Time with a copy under way in each direction, to the end of the last one.
    pub busy: [Span; 2],
}

impl Replica {
    /// Takes note of what ended on the link by `now`.
    pub(super) fn settle_transfers(&mut self, now: SimTime) {
        let Some(reuse) = &mut self.reuse else { return };
        let Some(host) = reuse.host.as_mut().filter(|_| reuse.write_only.is_none()) else { return };
        for finished in host.links.advance(now) {
            if let Some(at) = host.writes.iter().position(|(id, _)| *id == finished.id) {
                let (_, write) = host.writes.remove(at);
                host.tier.written(&mut reuse.cache, &write);
                // Room that an admission may have lacked.
                self.policy.full = None;
            } else if let Some(at) = host.loads.iter().position(|(id, ..)| *id == finished.id) {
                let (_, slot, admission) = host.loads.remove(at);
                let sequence = self.slots[slot as usize].as_mut();
                if let Some(sequence) = sequence.filter(|sequence| sequence.admission == admission) {
                    sequence.loading = false;
                    host.read_work += host.tier.settings().read_work;
                }
            }
        }
    }

    /// Lets the coming step wait until everything that is being written to the host is there, which frees its pages;
    /// false when nothing is. To send a request back instead would throw away work to save milliseconds.
    pub(in crate::engine) fn wait_for_writes(&mut self) -> bool {
        let Some(reuse) = &mut self.reuse else { return false };
        let Some(host) = &mut reuse.host else { return false };
        let Some(&(last, _)) = host.writes.last() else { return false };
        for (_, write) in host.writes.drain(..) {
            host.tier.written(&mut reuse.cache, &write);
        }
        // Writes follow each other on their stream.
        reuse.wait_for(last);
        true
    }

    /// When something that a sequence or the room for one waits for may have ended; `None` when nothing is under way.
    pub(super) fn next_transfer_end(&self, waits_for_room: bool) -> Option<SimTime> {
        let host = self.reuse.as_ref()?.host.as_ref()?;
        let awaited = !host.loads.is_empty() || waits_for_room && !host.writes.is_empty();
        if awaited { host.links.next_end() } else { None }
    }

    /// What copies that no block stands for add to the coming decode step.
    pub(super) fn take_slowed(&mut self) -> Span {
        let lane = self.reuse.as_mut().and_then(|reuse| reuse.write_only.as_mut());
        lane.map_or(Span::ZERO, WriteOnly::take_slowed)
    }

    /// When the present slowdown ends.
    pub(super) fn slowdown(&self) -> Option<(Slowdown, SimTime)> {
        let host = self.reuse.as_ref()?.host.as_ref()?;
        host.links.slowdown()
    }

    /// Host work before the launch of the coming step with prefill.
    pub(super) fn take_read_work(&mut self) -> Span {
        let host = self.reuse.as_mut().and_then(|reuse| reuse.host.as_mut());
        host.map_or(Span::ZERO, |host| std::mem::take(&mut host.read_work))
    }

    pub(super) fn swap_out(&mut self, sequence: &Sequence, now: SimTime) -> u64 {
        let PolicySettings::Vllm(rules) = self.settings.policy else { return 0 };
        if rules.spill != Spill::Running {
            return 0;
        }
        let pages = self.pages(u64::from(sequence.request.prompt_tokens + sequence.generated(self.step)));
        let Some(reuse) = &mut self.reuse else { return 0 };
        let Some(host) = &mut reuse.host else { return 0 };
        let settings = host.tier.settings();
        if host.swapped_pages + pages > settings.capacity().0 {
            return 0;
        }
        let copy = settings.copy(pages, u64::from(settings.device.state_bytes > 0));
        host.swapped_pages += pages;
        let id = host.links.start(now, Direction::ToHost, copy.bytes, copy.pieces);
        reuse.wait_for(id);
        pages
    }

    /// A swapped request has been admitted: its pages come back, and the coming step waits for them.
    pub(super) fn swap_in(&mut self, pages: u64, now: SimTime) {
        let Some(reuse) = &mut self.reuse else { return };
        let Some(host) = &mut reuse.host else { return };
        let settings = host.tier.settings();
        let copy = settings.copy(pages, u64::from(settings.device.state_bytes > 0));
        host.swapped_pages -= pages;
        let id = host.links.start(now, Direction::ToDevice, copy.bytes, copy.pieces);
        reuse.wait_for(id);
    }

    /// Bytes that the link has moved by `now`.
    pub(super) fn link_bytes(&self, now: SimTime) -> [u64; 2] {
        let Some(reuse) = &self.reuse else { return [0; 2] };
        let Some(host) = &reuse.host else { return [0; 2] };
        // A copy is moved on: who watches changes nothing.
        let (mut links, gpu) = host.links.snapshot();
        links.advance(now);
        let (unseen, _) = reuse.unseen(now);
        [links.traffic(gpu, Direction::ToDevice).bytes(), links.traffic(gpu, Direction::ToHost).bytes() + unseen]
    }

    /// What cache, tier and link have done.
    pub fn reuse(&self) -> Option<ReuseOutcome> {
        let reuse = self.reuse.as_ref()?;
        let host = reuse.host.as_ref();
        // Copies under way at the end count in full: how far they have come would depend on the last look at them.
        let links = host.map(|host| {
            let (mut links, gpu) = host.links.snapshot();
            while let Some(end) = links.next_end() {
                links.advance(end);
            }
            (links, gpu)
        });
        let of = |way| links.as_ref().map_or(Traffic::default(), |(links, gpu)| links.traffic(*gpu, way));
        let (bytes, busy) = reuse.unseen(SimTime::NEVER);
        Some(ReuseOutcome {
            cache: *reuse.cache.counters(),
            cached_pages: reuse.cache.device_pages(),
            tier: host.map(|host| *host.tier.counters()),
            bytes: [of(Direction::ToDevice).bytes(), of(Direction::ToHost).bytes() + bytes],
            busy: [of(Direction::ToDevice).busy, of(Direction::ToHost).busy + busy],
        })
    }
}
