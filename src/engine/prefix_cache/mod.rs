//! A prefix cache over blocks of pages: a tree whose paths are prompts, with a copy of each block on the device, on the
//! host, or on both.
//!
//! A block is on the device only if its parent is, and on the host only if its parent is on either. Blocks that running
//! requests read are locked; unlocked leaves are evicted, the one least recently used first. Time here is a counter of
//! operations, so nothing depends on when between two events something is looked at; [`PrefixCache::shrink_to`] takes a
//! level, not an amount, so that shrinking in one go or little by little evicts the same blocks.
//!
//! Hybrid models resume only where a recurrent state was kept: at the last multiple of the checkpoint interval that an
//! insertion covered. Hits are cut to there (SGLang's chunk and track boundaries, vLLM's `align` mode).

mod host;
pub mod prompts;
#[cfg(test)]
mod tests;
mod tree;

pub use prompts::{Block, Prompts};
pub use tree::NodeId;
use tree::{ROOT, Tree};

/// Who reads a prefix: hits of a request that was preempted are its own tokens, not reuse between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A new request.
    New,
    /// One that was here before.
    Preempted,
}

/// The longest cached prefix of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Blocks at its start that are wholly on the device.
    pub device_blocks: u32,
    /// Blocks after those that are on the host only.
    pub host_blocks: u32,
    /// Pages that can be used at once.
    pub device_pages: u64,
    /// Pages more that can be used once they are read back.
    pub host_pages: u64,
    /// Recurrent states to read back for that.
    pub host_states: u64,
    /// Where the usable part on the device ends: to be locked before anything is evicted.
    pub device_end: NodeId,
    /// Where the whole usable part ends: what [`PrefixCache::load_back`] reads up to.
    pub end: NodeId,
    /// Pages at which a state would have made more of the match usable: worth keeping one there. 0 for none.
    pub branch_pages: u32,
}

/// What an insertion did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inserted {
    /// Pages that the cache owns from now on; the caller's other pages of the prompt are duplicates and free.
    pub new_pages: u64,
    /// The prompt's last block.
    pub end: NodeId,
    /// Blocks that have now been used often enough to be copied to the host, in order from the root.
    pub to_back_up: Vec<NodeId>,
}

/// Counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Lookups of new requests.
    pub lookups: u64,
    /// Blocks that those asked for.
    pub asked_blocks: u64,
    /// Of those, found on the device, as far as usable.
    pub device_hit_blocks: u64,
    /// Of those, found on the host only.
    pub host_hit_blocks: u64,
    /// Pages that new requests asked for.
    pub asked_pages: u64,
    /// Of those, found on the device.
    pub device_hit_pages: u64,
    /// Of those, found on the host only.
    pub host_hit_pages: u64,
    /// Pages that preempted requests found again, on device or host.
    pub resumed_pages: u64,
    /// Blocks evicted from the device.
    pub evicted_blocks: u64,
    /// Pages evicted from the device.
    pub evicted_pages: u64,
    /// Pages that insertions added.
    pub inserted_pages: u64,
    /// Pages that came back from the host.
    pub loaded_pages: u64,
    /// Pages evicted from the host.
    pub host_evicted_pages: u64,
}

/// The cache of one replica.
#[derive(Clone, Debug)]
pub struct PrefixCache {
    tree: Tree,
    /// Pages between state checkpoints; `None` for models without recurrent state.
    checkpoint_pages: Option<u32>,
    /// True when blocks lose pages one by one, the last first (vLLM); else they are given up as a whole (SGLang).
    evicts_pages: bool,
    tick: u64,
    device_pages: u64,
    protected_pages: u64,
    device_states: u64,
    host_pages: u64,
    host_states: u64,
    counters: CacheCounters,
    /// The path of the last lookup, kept for its memory.
    path: Vec<NodeId>,
}

impl PrefixCache {
    /// An empty cache; `checkpoint_pages` is the interval of state checkpoints of a hybrid model.
    pub fn new(checkpoint_pages: Option<u32>) -> PrefixCache {
        PrefixCache {
            tree: Tree::new(),
            checkpoint_pages: checkpoint_pages.map(|pages| pages.max(1)),
            evicts_pages: false,
            tick: 0,
            device_pages: 0,
            protected_pages: 0,
            device_states: 0,
            host_pages: 0,
            host_states: 0,
            counters: CacheCounters::default(),
            path: Vec::new(),
        }
    }

    /// The same, of an engine that evicts page by page.
    #[must_use]
    pub fn evicting_pages(mut self) -> PrefixCache {
        self.evicts_pages = true;
        self
    }

    /// Pages of the device pool that it holds.
    pub fn device_pages(&self) -> u64 {
        self.device_pages
    }

    /// Of those, pages that running requests read: they cannot be evicted.
    pub fn protected_pages(&self) -> u64 {
        self.protected_pages
    }

    /// State slots of the device that it holds.
    pub fn device_states(&self) -> u64 {
        self.device_states
    }

    /// Pages of the host pool that it holds.
    pub fn host_pages(&self) -> u64 {
        self.host_pages
    }

    /// State slots of the host that it holds.
    pub fn host_states(&self) -> u64 {
        self.host_states
    }

    /// Counts so far.
    pub fn counters(&self) -> &CacheCounters {
        &self.counters
    }

    /// Finds the longest usable prefix without a trace: for admission rules that only ask.
    pub fn peek(&self, blocks: &[Block]) -> Hit {
        self.find(blocks, |_| {})
    }

    /// Finds the longest usable prefix, makes it recently used and counts it.
    pub fn lookup(&mut self, blocks: &[Block], reader: Reader) -> Hit {
        let mut path = std::mem::take(&mut self.path);
        path.clear();
        let hit = self.find(blocks, |node| path.push(node));
        self.tick += 1;
        for &node in &path {
            self.tree[node].used = self.tick;
        }
        self.path = path;
        let counters = &mut self.counters;
        match reader {
            Reader::New => {
                counters.lookups += 1;
                counters.asked_blocks += blocks.len() as u64;
                counters.asked_pages += blocks.iter().map(|block| u64::from(block.pages)).sum::<u64>();
                counters.device_hit_blocks += u64::from(hit.device_blocks);
                counters.host_hit_blocks += u64::from(hit.host_blocks);
                counters.device_hit_pages += hit.device_pages;
                counters.host_hit_pages += hit.host_pages;
            }
            Reader::Preempted => counters.resumed_pages += hit.device_pages + hit.host_pages,
        }
        hit
    }

    /// Counts a lookup of a new request that cannot find anything, of one block of `pages`.
    pub fn count_miss(&mut self, pages: u64) {
        self.counters.lookups += 1;
        self.counters.asked_blocks += u64::from(pages > 0);
        self.counters.asked_pages += pages;
    }

    fn find(&self, blocks: &[Block], mut seen: impl FnMut(NodeId)) -> Hit {
        let mut hit = Hit {
            device_blocks: 0,
            host_blocks: 0,
            device_pages: 0,
            host_pages: 0,
            host_states: 0,
            device_end: ROOT,
            end: ROOT,
            branch_pages: 0,
        };
        // What was matched, before hits are cut to a checkpoint: pages, and pages on the device.
        let (mut matched, mut on_device, mut device_closed) = (0, 0, true);
        let (mut at, mut last_on_device) = (ROOT, ROOT);
        for block in blocks {
            let Some(child) = self.tree.child(at, block.id) else { break };
            let node = &self.tree[child];
            let device = if device_closed { node.pages.min(block.pages) } else { 0 };
            let both = node.pages.max(node.host_pages).min(block.pages);
            seen(child);
            on_device += u64::from(device);
            matched += u64::from(both);
            device_closed &= device == block.pages;
            if device > 0 {
                last_on_device = child;
            }
            at = child;
            let usable = match self.checkpoint_pages {
                None => Some((matched, 0)),
                Some(_) if u64::from(node.state_at) > matched => None,
                Some(_) if node.device_state => Some((u64::from(node.state_at), 0)),
                Some(_) if node.host_state => Some((u64::from(node.state_at), 1)),
                Some(_) => None,
            };
            if let Some((pages, states)) = usable {
                hit.device_pages = on_device.min(pages);
                hit.host_pages = pages - hit.device_pages;
                hit.host_states = states;
                hit.end = child;
                hit.device_end = last_on_device;
            }
            if both < block.pages {
                break;
            }
        }
        if let Some(interval) = self.checkpoint_pages {
            let aligned = matched / u64::from(interval) * u64::from(interval);
            if aligned > hit.device_pages + hit.host_pages {
                hit.branch_pages = aligned as u32;
            }
        }
        let mut pages = 0;
        for block in blocks {
            pages += u64::from(block.pages);
            if pages <= hit.device_pages {
                hit.device_blocks += 1;
            } else if pages <= hit.device_pages + hit.host_pages {
                hit.host_blocks += 1;
            } else {
                break;
            }
        }
        hit
    }

    /// Adds a prompt that was read, or a request that ended. Blocks that are used for the `back_up_after`-th time or
    /// more and lack a host copy are named for one; `None` counts no use (chunks of a prompt still being read).
    pub fn insert(&mut self, blocks: &[Block], back_up_after: Option<u32>) -> Inserted {
        self.tick += 1;
        let mut inserted = Inserted { new_pages: 0, end: ROOT, to_back_up: Vec::new() };
        let mut at = ROOT;
        let mut end_pages = 0u32;
        let mut checkpoint = None;
        for block in blocks {
            let child = self.tree.child_or_new(at, block.id);
            let grown = u64::from(block.pages.saturating_sub(self.tree[child].pages));
            if self.tree[child].pages == 0 {
                self.tree[at].device_children += 1;
            }
            let node = &mut self.tree[child];
            node.pages = node.pages.max(block.pages);
            node.used = self.tick;
            inserted.new_pages += grown;
            if node.guards > 0 {
                self.protected_pages += grown;
            }
            if let Some(threshold) = back_up_after {
                node.hits = node.hits.saturating_add(1);
                if node.hits >= threshold && node.host_pages < node.pages {
                    inserted.to_back_up.push(child);
                }
            }
            let begin = end_pages;
            end_pages += block.pages;
            if let Some(interval) = self.checkpoint_pages {
                let last = end_pages / interval * interval;
                checkpoint = (last > begin).then_some((child, last)).or(checkpoint);
            }
            at = child;
        }
        inserted.end = at;
        self.device_pages += inserted.new_pages;
        self.counters.inserted_pages += inserted.new_pages;
        if let Some((node, position)) = checkpoint {
            self.keep_state(node, position);
            let used_enough = back_up_after.is_some_and(|threshold| self.tree[node].hits >= threshold);
            if used_enough && !self.tree[node].host_state && !inserted.to_back_up.contains(&node) {
                inserted.to_back_up.push(node);
            }
        }
        self.tree.offer(at);
        inserted
    }

    /// Keeps a state at `position` pages of a prompt that is in the cache: where another one left it (SGLang's branching
    /// checkpoint).
    pub fn keep_state_at(&mut self, blocks: &[Block], position: u32) {
        let (mut at, mut end) = (ROOT, 0);
        for block in blocks {
            let Some(child) = self.tree.child(at, block.id) else { return };
            end += block.pages;
            if position <= end {
                return self.keep_state(child, position);
            }
            at = child;
        }
    }

    fn keep_state(&mut self, id: NodeId, position: u32) {
        let node = &mut self.tree[id];
        if node.state_at != position {
            // A longer prompt moves the block's checkpoint; a host copy of the earlier one is of no use.
            self.host_states -= u64::from(std::mem::take(&mut node.host_state));
        }
        node.state_at = position;
        self.device_states += u64::from(!std::mem::replace(&mut node.device_state, true));
        self.tree.offer_states(id);
    }

    /// Keeps the path to `node` on the device until [`PrefixCache::unlock`] is called as often.
    pub fn lock(&mut self, node: NodeId) {
        self.tree[node].locks += 1;
        let mut at = node;
        while at != ROOT {
            let guarded = &mut self.tree[at];
            guarded.guards += 1;
            if guarded.guards > 1 {
                break;
            }
            self.protected_pages += u64::from(guarded.pages);
            at = guarded.parent;
        }
    }

    /// Takes one lock back.
    pub fn unlock(&mut self, node: NodeId) {
        debug_assert!(self.tree[node].locks > 0, "only what is locked is unlocked");
        self.tree[node].locks -= 1;
        let mut at = node;
        while at != ROOT {
            let guarded = &mut self.tree[at];
            guarded.guards -= 1;
            if guarded.guards > 0 {
                break;
            }
            self.protected_pages -= u64::from(guarded.pages);
            let parent = guarded.parent;
            self.tree.offer(at);
            at = parent;
        }
        self.tree.offer_host(node);
        self.tree.offer_states(node);
    }

    /// The block that eviction from the device would take next.
    pub fn next_victim(&mut self) -> Option<NodeId> {
        self.tree.least_used_leaf()
    }

    /// Evicts one block from the device, as [`PrefixCache::next_victim`] names it; what is not on the host is gone.
    pub fn evict(&mut self, id: NodeId) {
        let node = &mut self.tree[id];
        debug_assert!(node.is_device_leaf(), "only unlocked leaves are evicted");
        let pages = u64::from(std::mem::take(&mut node.pages));
        self.device_states -= u64::from(std::mem::take(&mut node.device_state));
        let (parent, backed_up) = (node.parent, node.host_pages > 0);
        self.device_pages -= pages;
        self.counters.evicted_blocks += 1;
        self.counters.evicted_pages += pages;
        self.tree[parent].device_children -= 1;
        if backed_up {
            self.tree.offer_host(id);
        } else {
            self.tree.remove(id);
        }
        self.tree.offer(parent);
    }

    /// Evicts from the device until at most `pages` are held there; false when locked blocks are more than that.
    pub fn shrink_to(&mut self, pages: u64) -> bool {
        while self.device_pages > pages {
            let Some(victim) = self.next_victim() else { return false };
            let excess = self.device_pages - pages;
            let node = &mut self.tree[victim];
            if self.evicts_pages && u64::from(node.pages) > excess {
                node.pages -= excess as u32;
                self.device_pages -= excess;
                self.counters.evicted_pages += excess;
            } else {
                self.evict(victim);
            }
        }
        true
    }

    /// Drops device states, least recently used first, until at most `states` are held; those at the end of a locked
    /// prefix stay. False when these are more than that.
    pub fn shrink_states_to(&mut self, states: u64) -> bool {
        while self.device_states > states {
            let Some(id) = self.tree.least_used_device_state() else { return false };
            self.tree[id].device_state = false;
            self.device_states -= 1;
        }
        true
    }
}
