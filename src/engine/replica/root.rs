//! Replicas whose GPUs are behind one PCIe root.
//!
//! Their copies share it, so a copy that one starts changes how fast those of the others move. All of them live in one
//! set of links, which the fleet's loop calls in order of time. When one starts a copy, the others look again at what their
//! steps wait for, and stretches beside a copy end at their next step, which costs something else. A decode step that has
//! begun beside a copy keeps the memory bandwidth that the copy takes as it was when the step began.

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

    /// Another replica started a copy at `at`: its own copies become slower. A step
    /// that starts at `at` itself counts as begun if `begun`.
    pub(crate) fn copies_changed(&mut self, at: SimTime, begun: bool) {
        if self.slowdown().is_none() {
            return;
        }
        if self.stride.as_ref().is_none_or(|stride| stride.waits() || stride.end <= at) {
            return;
        }
        self.lengthen_wait();
        let Some(stride) = self.stride.as_mut() else { return };
        let steps = stride.steps;
        stride.cut_before(if begun { at + Span(1) } else { at });
        if stride.steps < steps {
            stride.deferred = false;
            stride.end = stride.start + Span(stride.span(stride.steps));
        }
    }
}
