//! The host tier: a pinned pool of host memory behind the prefix cache, what is written to it and when, and what reading
//! back costs.
//!
//! Two engines' rules. SGLang's HiCache (`mem_cache/hiradix_cache.py`) writes a block when it is inserted (`write_through`),
//! at its second use (`write_through_selective`) or when it leaves the device (`write_back`, which the scheduler waits
//! for); it reads back layer by layer, overlapped with the prefill of the layers before, from 10 tokens up. vLLM's
//! offload connector (`v1/kv_offload`) writes as blocks fill, without anyone waiting; a request waits outside the batch
//! until all of its blocks are back, and so may one that was preempted. Both evict the least recently used.
//!
//! Nothing here moves time: the caller hands the copies to its links.

pub mod estimate;
#[cfg(test)]
mod tests;

use crate::engine::prefix_cache::{Hit, Inserted, NodeId, PrefixCache};
use crate::units::Span;

/// When blocks are copied to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePolicy {
    /// When inserted.
    Through,
    /// At the second use.
    ThroughSelective,
    /// When evicted from the device; the engine waits for the copy.
    Back,
}

/// How blocks come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadBack {
    /// Inside the prefill step, each layer while those before it are computed.
    LayerByLayer,
    /// Before the request enters the batch, which goes on without it.
    BeforePrefill,
}

/// How the host pool lays out a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// All layers of a page lie together: a copy per page.
    PageFirst,
    /// Each layer has its own array: a copy per layer and page.
    LayerFirst,
}

/// Size of the host tier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HostSize {
    /// Of the device pools, each (`hicache_ratio`).
    Ratio(f64),
    /// Bytes of each host pool, of pages and of states (`hicache_size`, `kv_offloading_size`).
    Bytes(u64),
}

/// The device pools that it stands behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicePools {
    /// Tokens in a page.
    pub page_tokens: u32,
    /// Bytes of a page, all layers.
    pub page_bytes: u64,
    /// Pages.
    pub pages: u64,
    /// Layers that hold keys and values.
    pub layers: u32,
    /// Bytes of a request's recurrent state, 0 without.
    pub state_bytes: u64,
    /// Layers that hold state.
    pub state_layers: u32,
    /// State slots.
    pub state_slots: u64,
}

/// Settings of the host tier of one replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostTierSettings {
    /// The pools that it copies from.
    pub device: DevicePools,
    /// Its size.
    pub size: HostSize,
    /// When blocks are written.
    pub write: WritePolicy,
    /// How they come back.
    pub read: ReadBack,
    /// Tokens on the host below which they are computed again rather than read.
    pub read_tokens_at_least: u32,
    /// Its layout.
    pub layout: Layout,
    /// True when kernels copy: one launch moves everything, whatever the layout.
    pub kernel_copies: bool,
    /// Work of the engine for each read of [`ReadBack::BeforePrefill`], beside the copy: the launch of its
    /// prompt's step comes that much later.
    pub read_work: Span,
}

/// SGLang reads back from this many tokens up (`load_back_threshold`).
const HICACHE_READ_TOKENS: u32 = 10;

/// What vLLM's connector does for a request that it reads back (256 blocks to look up, to hand to the worker and to
/// take note of). Measured on an H200 (`qwen3-8b-kv-offload`, one request at a time): of 31.0 ms to the first token,
/// 11.9 are the transfer and 15.7 what a prompt of one block takes.
const VLLM_READ_WORK: Span = Span(3_400_000_000_000_000);

impl HostTierSettings {
    /// SGLang's HiCache with its default io backend (kernel) and layout.
    pub fn hicache(device: DevicePools, size: HostSize, write: WritePolicy) -> HostTierSettings {
        HostTierSettings {
            device,
            size,
            write,
            read: ReadBack::LayerByLayer,
            read_tokens_at_least: HICACHE_READ_TOKENS,
            layout: Layout::PageFirst,
            kernel_copies: true,
            read_work: Span::ZERO,
        }
    }

    /// vLLM's native offload connector of `bytes`: whole blocks by copy engine.
    pub fn vllm_offload(device: DevicePools, bytes: u64) -> HostTierSettings {
        HostTierSettings {
            device,
            size: HostSize::Bytes(bytes),
            write: WritePolicy::Through,
            read: ReadBack::BeforePrefill,
            read_tokens_at_least: 1,
            layout: Layout::PageFirst,
            kernel_copies: false,
            read_work: VLLM_READ_WORK,
        }
    }

    /// Pages and states that the host holds.
    pub fn capacity(&self) -> (u64, u64) {
        match self.size {
            HostSize::Ratio(ratio) => {
                let of = |count: u64| (count as f64 * ratio) as u64;
                (of(self.device.pages), of(self.device.state_slots))
            }
            HostSize::Bytes(bytes) => {
                let of = |each: u64| bytes.checked_div(each).unwrap_or(0);
                (of(self.device.page_bytes), of(self.device.state_bytes))
            }
        }
    }

    /// What copying `pages` and `states` takes, one way.
    pub fn copy(&self, pages: u64, states: u64) -> Copy {
        let device = &self.device;
        let bytes = pages * device.page_bytes + states * device.state_bytes;
        let pieces = match (self.kernel_copies, self.layout) {
            (true, _) => 1,
            (false, Layout::PageFirst) => pages + states,
            (false, Layout::LayerFirst) => {
                pages * u64::from(device.layers) + states * u64::from(device.state_layers.max(1))
            }
        };
        Copy { bytes, pieces: pieces.max(1) }
    }

    /// How long a prefill of `compute` is delayed by a read of `transfer` that begins with it.
    ///
    /// [`ReadBack::LayerByLayer`] with L layers, transfer T, compute C: layer l (from 1) is there at l·T/L, and the rest
    /// after it takes (L − l + 1)·C/L, so the prefill ends at the largest of l·T/L + (L − l + 1)·C/L, which is linear in
    /// l: at l = 1 or l = L. Stall = max(T/L, T − C·(L − 1)/L). [`ReadBack::BeforePrefill`] delays it by all of T, though
    /// only this request.
    pub fn stall(&self, transfer: Span, compute: Span) -> Span {
        match self.read {
            ReadBack::BeforePrefill => transfer,
            ReadBack::LayerByLayer => {
                let layers = u128::from((self.device.layers + self.device.state_layers).max(1));
                let hidden = compute.0 * (layers - 1) / layers;
                Span((transfer.0 / layers).max(transfer.0.saturating_sub(hidden)))
            }
        }
    }
}

/// Bytes to move, in equal copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copy {
    /// Bytes.
    pub bytes: u64,
    /// Copies, at least 1 when there are bytes.
    pub pieces: u64,
}

/// A copy to the host that has begun. Its blocks stay on the device until [`HostTier::written`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The locked end of what is being written.
    pub node: NodeId,
    /// What is moved.
    pub copy: Copy,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierCounters {
    /// Bytes written to the host.
    pub written_bytes: u64,
    /// Bytes read back.
    pub read_bytes: u64,
    /// Pages read back.
    pub read_pages: u64,
    /// Pages that found no room on the host.
    pub refused_pages: u64,
    /// Pages on the host too few to be worth a read.
    pub below_threshold_pages: u64,
}

/// The host tier of one replica.
#[derive(Clone, Debug)]
pub struct HostTier {
    settings: HostTierSettings,
    capacity_pages: u64,
    capacity_states: u64,
    counters: TierCounters,
}

impl HostTier {
    /// An empty tier.
    pub fn new(settings: HostTierSettings) -> HostTier {
        let (capacity_pages, capacity_states) = settings.capacity();
        HostTier { settings, capacity_pages, capacity_states, counters: TierCounters::default() }
    }

    /// What it is set to.
    pub fn settings(&self) -> &HostTierSettings {
        &self.settings
    }

    /// Counts so far.
    pub fn counters(&self) -> &TierCounters {
        &self.counters
    }

    /// Uses of a block until it is written; `None` when uses do not count: what [`PrefixCache::insert`] takes.
    pub fn back_up_after(&self) -> Option<u32> {
        match self.settings.write {
            WritePolicy::Through => Some(1),
            WritePolicy::ThroughSelective => Some(2),
            WritePolicy::Back => None,
        }
    }

    /// Writes what an insertion named; `None` when there is nothing to write, or no room for it.
    pub fn write(&mut self, cache: &mut PrefixCache, inserted: &Inserted) -> Option<Write> {
        let (mut pages, mut states, mut end) = (0, 0, None);
        for &node in &inserted.to_back_up {
            if !cache.parent_is_backed_up(node) {
                break;
            }
            let Some(size) = self.back_up(cache, node) else { break };
            (pages, states, end) = (pages + size.0, states + size.1, Some(node));
        }
        let node = end?;
        cache.lock(node);
        Some(Write { node, copy: self.wrote(pages, states) })
    }

    /// A write has ended: its blocks may be evicted from the device.
    pub fn written(&self, cache: &mut PrefixCache, write: &Write) {
        cache.unlock(write.node);
    }

    /// Evicts from the device until the cache holds at most `pages` there, writing first what the policy wants kept.
    /// Returns what was written (the engine waits for it), and whether `pages` was reached.
    pub fn shrink_to(&mut self, cache: &mut PrefixCache, pages: u64) -> (Copy, bool) {
        if self.settings.write != WritePolicy::Back {
            return (Copy::default(), cache.shrink_to(pages));
        }
        let mut written = (0, 0);
        while cache.device_pages() > pages {
            let Some(victim) = cache.next_victim() else { break };
            match self.back_up(cache, victim) {
                Some(size) => written = (written.0 + size.0, written.1 + size.1),
                // Without it what comes after it on the host could never be reached.
                None if cache.has_host_children(victim) => {
                    cache.shrink_host_to(0, 0);
                }
                None => {}
            }
            cache.evict(victim);
        }
        let copy = if written == (0, 0) { Copy::default() } else { self.wrote(written.0, written.1) };
        (copy, cache.device_pages() <= pages)
    }

    /// Reads back what a hit has on the host, if that is worth it; the hit's path must be locked and room made. `None`
    /// when nothing is read: the caller then has the hit's device pages only.
    pub fn read(&mut self, cache: &mut PrefixCache, hit: &Hit) -> Option<Copy> {
        if hit.host_pages + hit.host_states == 0 {
            return None;
        }
        let tokens = hit.host_pages * u64::from(self.settings.device.page_tokens);
        // A state that is missing beside keys and values that are there goes alone, whatever the threshold.
        if tokens < u64::from(self.settings.read_tokens_at_least) && hit.host_pages > 0 {
            self.counters.below_threshold_pages += hit.host_pages;
            return None;
        }
        let pages = cache.load_back(hit.end);
        let copy = self.settings.copy(pages, hit.host_states);
        self.counters.read_bytes += copy.bytes;
        self.counters.read_pages += pages;
        Some(copy)
    }

    /// Gives a block its host copy; `None` when there is no room.
    fn back_up(&mut self, cache: &mut PrefixCache, node: NodeId) -> Option<(u64, u64)> {
        let (pages, states) = cache.back_up_size(node);
        if pages + states == 0 {
            return Some((0, 0));
        }
        let room = (self.capacity_pages.checked_sub(pages), self.capacity_states.checked_sub(states));
        if let (Some(pages_left), Some(states_left)) = room
            && cache.shrink_host_to(pages_left, states_left)
        {
            cache.backed_up(node);
            return Some((pages, states));
        }
        self.counters.refused_pages += pages;
        None
    }

    /// Counts a copy to the host.
    pub fn wrote(&mut self, pages: u64, states: u64) -> Copy {
        let copy = self.settings.copy(pages, states);
        self.counters.written_bytes += copy.bytes;
        copy
    }
}
