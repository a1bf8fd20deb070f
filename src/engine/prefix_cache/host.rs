//! Host copies of cached blocks. What is copied, and when, is for `host_tier` to say.

use crate::engine::prefix_cache::tree::ROOT;
use crate::engine::prefix_cache::{NodeId, PrefixCache};

impl PrefixCache {
    /// Pages and states that a host copy of `node` would add.
    pub fn back_up_size(&self, node: NodeId) -> (u64, u64) {
        let node = &self.tree[node];
        let pages = u64::from(node.pages.saturating_sub(node.host_pages));
        (pages, u64::from(node.device_state && !node.host_state))
    }

    /// True when the host has all of the block before `node`: what is written on use goes from the root outwards.
    pub fn parent_is_backed_up(&self, node: NodeId) -> bool {
        let parent = self.tree[node].parent;
        parent == ROOT || self.tree[parent].host_pages > 0 && self.tree[parent].host_pages >= self.tree[parent].pages
    }

    /// True when blocks after `node` are on the host.
    pub fn has_host_children(&self, node: NodeId) -> bool {
        self.tree[node].host_children > 0
    }

    /// Notes that `id` has a copy on the host. Room must have been made.
    pub fn backed_up(&mut self, id: NodeId) {
        let (pages, states) = self.back_up_size(id);
        self.host_pages += pages;
        self.host_states += states;
        let parent = self.tree[id].parent;
        let node = &mut self.tree[id];
        let is_new = node.host_pages == 0 && node.pages > 0;
        node.host_pages = node.host_pages.max(node.pages);
        node.host_state |= states > 0;
        if is_new {
            self.tree[parent].host_children += 1;
        }
        self.tree.offer_states(id);
    }

    /// Evicts from the host, least recently used first, blocks that only it holds and states, until at most `pages` and
    /// `states` are held there; false when that cannot be reached.
    pub fn shrink_host_to(&mut self, pages: u64, states: u64) -> bool {
        let mut reached = true;
        while self.host_states > states {
            let Some(id) = self.tree.least_used_host_state() else {
                // States that are being read stay; that is no reason to keep pages.
                reached = false;
                break;
            };
            self.tree[id].host_state = false;
            self.host_states -= 1;
        }
        while self.host_pages > pages {
            let Some(victim) = self.tree.least_used_host_leaf() else { return false };
            let node = &self.tree[victim];
            self.host_pages -= u64::from(node.host_pages);
            self.host_states -= u64::from(node.host_state);
            self.counters.host_evicted_pages += u64::from(node.host_pages);
            let parent = node.parent;
            self.tree.remove(victim);
            self.tree[parent].host_children -= 1;
            self.tree.offer_host(parent);
        }
        reached
    }

    /// Brings the path to `node` back to the device where only the host has it; returns the pages that takes. Room must
    /// have been made, and what is on the device already be locked.
    pub fn load_back(&mut self, node: NodeId) -> u64 {
        let mut loaded = 0;
        let mut at = node;
        while at != ROOT {
            let parent = self.tree[at].parent;
            let block = &mut self.tree[at];
            let missing = block.host_pages.saturating_sub(block.pages);
            let was_absent = block.pages == 0;
            block.pages += missing;
            if block.guards > 0 {
                self.protected_pages += u64::from(missing);
            }
            loaded += u64::from(missing);
            if was_absent && missing > 0 {
                self.tree[parent].device_children += 1;
            }
            at = parent;
        }
        let end = &mut self.tree[node];
        if end.host_state && !std::mem::replace(&mut end.device_state, true) {
            self.device_states += 1;
            self.tree.offer_states(node);
        }
        self.device_pages += loaded;
        self.counters.loaded_pages += loaded;
        self.tree.offer(node);
        loaded
    }
}
