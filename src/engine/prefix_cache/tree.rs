//! The nodes of the cache, and the orders in which leaves are given up.
//!
//! The orders are heaps that are put right only when looked at: a node is in one at most once, under the use that it had
//! when it came in, and goes back in when it has been used since. A lookup therefore touches no heap.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::{Index, IndexMut};

/// A block in the cache. Not to be kept unlocked: names are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(u32);

/// The empty prefix.
pub(super) const ROOT: NodeId = NodeId(0);

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub parent: NodeId,
    id: u64,
    /// Pages on the device and on the host; 0 is not there.
    pub pages: u32,
    pub host_pages: u32,
    pub device_children: u32,
    pub host_children: u32,
    /// Locks on this node, and those plus its guarded children.
    pub locks: u32,
    pub guards: u32,
    /// Insertions that used it.
    pub hits: u32,
    /// Pages from the root to the recurrent state that it keeps; 0 for none.
    pub state_at: u32,
    pub device_state: bool,
    pub host_state: bool,
    /// Operation that last used it.
    pub used: u64,
    /// In which orders it stands.
    queued: [bool; ORDERS],
}

impl Node {
    fn new(parent: NodeId, id: u64) -> Node {
        Node {
            parent,
            id,
            pages: 0,
            host_pages: 0,
            device_children: 0,
            host_children: 0,
            locks: 0,
            guards: 0,
            hits: 0,
            state_at: 0,
            device_state: false,
            host_state: false,
            used: 0,
            queued: [false; ORDERS],
        }
    }

    pub fn is_device_leaf(&self) -> bool {
        self.pages > 0 && self.device_children == 0 && self.guards == 0
    }

    fn is_host_leaf(&self) -> bool {
        self.host_pages > 0 && self.pages == 0 && self.host_children == 0 && self.locks == 0
    }

    fn is_in(&self, order: Order) -> bool {
        match order {
            Order::Device => self.is_device_leaf(),
            Order::Host => self.is_host_leaf(),
            Order::DeviceState => self.device_state && self.locks == 0,
            Order::HostState => self.host_state && self.locks == 0,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Order {
    /// Leaves on the device that nobody reads.
    Device,
    /// Leaves that only the host has.
    Host,
    /// States on the device at the end of no locked prefix.
    DeviceState,
    /// States on the host, likewise.
    HostState,
}

const ORDERS: usize = 4;

/// Multiplies and folds the two words of a key: the ids are the program's own, so nobody chooses them to collide, and a
/// job of a million requests looks up several million of them.
#[derive(Clone, Copy, Debug, Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        // 2^64 over the golden ratio.
        let product = u128::from(self.0 ^ word ^ 0x5851_f42d_4c95_7f2d) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product as u64) ^ (product >> 64) as u64;
    }
}

#[derive(Clone, Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    free: Vec<NodeId>,
    children: HashMap<(NodeId, u64), NodeId, BuildHasherDefault<Mixer>>,
    orders: [BinaryHeap<Reverse<(u64, NodeId)>>; ORDERS],
}

impl Tree {
    pub fn new() -> Tree {
        Tree {
            nodes: vec![Node::new(ROOT, 0)],
            free: Vec::new(),
            children: HashMap::default(),
            orders: Default::default(),
        }
    }

    pub fn child(&self, parent: NodeId, id: u64) -> Option<NodeId> {
        self.children.get(&(parent, id)).copied()
    }

    pub fn child_or_new(&mut self, parent: NodeId, id: u64) -> NodeId {
        let Tree { nodes, free, children, .. } = self;
        *children.entry((parent, id)).or_insert_with(|| match free.pop() {
            Some(child) => {
                nodes[child.0 as usize] = Node::new(parent, id);
                child
            }
            None => {
                nodes.push(Node::new(parent, id));
                NodeId(nodes.len() as u32 - 1)
            }
        })
    }

    /// Forgets a node without children that nothing stands on.
    pub fn remove(&mut self, node: NodeId) {
        debug_assert!(self[node].device_children == 0 && self[node].host_children == 0, "leaves are removed first");
        let key = (self[node].parent, self[node].id);
        self.children.remove(&key);
        let old = &mut self[node];
        (old.pages, old.host_pages, old.device_state, old.host_state) = (0, 0, false, false);
        // While an order still names it, its name stays taken.
        if old.queued == [false; ORDERS] {
            self.free.push(node);
        }
    }

    pub fn offer(&mut self, node: NodeId) {
        self.offer_to(Order::Device, node);
    }

    pub fn offer_host(&mut self, node: NodeId) {
        self.offer_to(Order::Host, node);
    }

    pub fn offer_states(&mut self, node: NodeId) {
        self.offer_to(Order::DeviceState, node);
        self.offer_to(Order::HostState, node);
    }

    fn offer_to(&mut self, order: Order, id: NodeId) {
        let node = &mut self[id];
        if id != ROOT && node.is_in(order) && !node.queued[order as usize] {
            node.queued[order as usize] = true;
            let entry = Reverse((node.used, id));
            self.orders[order as usize].push(entry);
        }
    }

    /// The device leaf to evict next; it stays in its order until it is evicted.
    pub fn least_used_leaf(&mut self) -> Option<NodeId> {
        let node = self.take_least(Order::Device)?;
        self.offer(node);
        Some(node)
    }

    pub fn least_used_host_leaf(&mut self) -> Option<NodeId> {
        self.take_least(Order::Host)
    }

    pub fn least_used_device_state(&mut self) -> Option<NodeId> {
        self.take_least(Order::DeviceState)
    }

    pub fn least_used_host_state(&mut self) -> Option<NodeId> {
        self.take_least(Order::HostState)
    }

    fn take_least(&mut self, order: Order) -> Option<NodeId> {
        while let Some(Reverse((used, id))) = self.orders[order as usize].pop() {
            let node = &mut self.nodes[id.0 as usize];
            node.queued[order as usize] = false;
            if node.is_in(order) {
                if node.used == used {
                    return Some(id);
                }
                self.offer_to(order, id);
            } else if node.pages == 0 && node.host_pages == 0 && node.queued == [false; ORDERS] {
                self.free.push(id);
            }
        }
        None
    }
}

impl Index<NodeId> for Tree {
    type Output = Node;
    fn index(&self, node: NodeId) -> &Node {
        &self.nodes[node.0 as usize]
    }
}

impl IndexMut<NodeId> for Tree {
    fn index_mut(&mut self, node: NodeId) -> &mut Node {
        &mut self.nodes[node.0 as usize]
    }
}
