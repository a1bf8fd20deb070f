//! Replicas whose GPUs are behind one PCIe root.
//!
//! Their copies share it, so a copy that one starts changes how fast those of the others move. All of them live in one
//! set of links, which the fleet's loop calls in order of time; when one starts a copy, stretches of the others with
//! copies under way end at their next step, whose price may be another. A step that has begun keeps the wait that it was
//! priced with: a copy that starts while it waits does not make it longer, though it makes the copies longer.

use crate::engine::link::{LinkPort, Rates};
use crate::engine::replica::Replica;
use crate::units::{SimTime, Span};

impl Replica {
    /// Puts the links of idle, new replicas behind one root. Without a host side there is nothing to share.
    pub fn share_root(replicas: &mut [Replica], root: Rates) {
        let Some(host) = replicas.first().and_then(|replica| replica.settings.host) else { return };
        let ports = LinkPort::behind_root(replicas.len(), host.link, root);
        for (replica, port) in replicas.iter_mut().zip(ports) {
            let Some(reuse) = &mut replica.reuse else { continue };
            // Its copies would not know of each other's.
            reuse.write_only = None;
            if let Some(host) = &mut reuse.host {
                host.links = port;
            }
        }
    }

    fn port(&self) -> Option<&LinkPort> {
        Some(&self.reuse.as_ref()?.host.as_ref()?.links)
    }

    /// True when both copy through one root.
    pub(crate) fn shares_root_with(&self, other: &Replica) -> bool {
        matches!((self.port(), other.port()), (Some(port), Some(other)) if port.shares_with(other))
    }

    /// True when it has started a copy since the last call.
    pub(crate) fn take_started_copy(&self) -> bool {
        self.port().is_some_and(LinkPort::take_started)
    }

    /// Another replica started a copy at `at`: from then on a step beside a copy of this one costs something else. A step
    /// that starts at `at` itself counts as begun if `begun`.
    pub(crate) fn copies_changed(&mut self, at: SimTime, begun: bool) {
        if self.slowdown().is_none() {
            return;
        }
        let Some(stride) = self.stride.as_mut().filter(|stride| stride.steps > 1 && stride.end > at) else { return };
        let steps = stride.steps;
        stride.cut_before(if begun { at + Span(1) } else { at });
        if stride.steps < steps {
            stride.deferred = false;
            stride.end = stride.start + Span(stride.span(stride.steps));
        }
    }
}
