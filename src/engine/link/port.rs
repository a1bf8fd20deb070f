//! A GPU's way to the links of its host, which the GPUs of other replicas may share.

use std::cell::RefCell;
use std::rc::Rc;

use crate::engine::link::{Direction, Finished, HostLinks, LinkSettings, Rates, Slowdown, TransferId};
use crate::units::SimTime;

/// One GPU of the links of a host. Those who share them call in order of time.
#[derive(Debug)]
pub struct LinkPort {
    links: Rc<RefCell<HostLinks>>,
    gpu: usize,
}

impl LinkPort {
    /// A link that nobody shares.
    pub fn alone(settings: LinkSettings) -> LinkPort {
        LinkPort { links: Rc::new(RefCell::new(HostLinks::new(1, settings, None))), gpu: 0 }
    }

    /// Links of `gpus` GPUs behind a root that lets `root` through.
    pub fn behind_root(gpus: usize, settings: LinkSettings, root: Rates) -> Vec<LinkPort> {
        let links = Rc::new(RefCell::new(HostLinks::new(gpus, settings, Some(root))));
        (0..gpus).map(|gpu| LinkPort { links: links.clone(), gpu }).collect()
    }

    /// See [`HostLinks::start`].
    pub fn start(&self, now: SimTime, direction: Direction, bytes: u64, pieces: u64) -> TransferId {
        self.links.borrow_mut().start(now, self.gpu, direction, bytes, pieces, 0)
    }

    /// Moves time to `now` and returns which transfers of this GPU have ended since the last call.
    pub fn advance(&self, now: SimTime) -> Vec<Finished> {
        self.links.borrow_mut().advance_of(self.gpu, now)
    }

    /// See [`HostLinks::next_end`]: of all who share the links, whose rates depend on each other.
    pub fn next_end(&self) -> Option<SimTime> {
        self.links.borrow().next_end()
    }

    /// See [`HostLinks::end_of`].
    pub fn end_of(&self, id: TransferId) -> SimTime {
        self.links.borrow().end_of(id)
    }

    /// The same while it is in flight; `None` once it has ended.
    pub fn end_in_flight(&self, id: TransferId) -> Option<SimTime> {
        let links = self.links.borrow();
        links.is_in_flight(id).then(|| links.end_of(id))
    }

    /// By how much decode steps are longer at present, and when that may change; `None` without a copy of this GPU.
    pub fn slowdown(&self) -> Option<(Slowdown, SimTime)> {
        let links = self.links.borrow();
        if !links.is_busy(self.gpu) {
            return None;
        }
        Some((links.decode_slowdown(self.gpu), links.next_end()?))
    }

    /// True when a transfer has been handed in since the last call, by anyone who shares the links.
    pub fn take_started(&self) -> bool {
        self.links.borrow_mut().take_started()
    }

    /// True when `other` is behind the same root.
    pub fn shares_with(&self, other: &LinkPort) -> bool {
        Rc::ptr_eq(&self.links, &other.links)
    }

    /// The links as they are, and this GPU's number there: to move them on without moving them for others.
    pub fn snapshot(&self) -> (HostLinks, usize) {
        (self.links.borrow().clone(), self.gpu)
    }
}
