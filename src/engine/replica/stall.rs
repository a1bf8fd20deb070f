//! How long a step waits for copies, and by how much longer when others slow them down.

use crate::cost::Cause;
use crate::engine::host_tier::{Copy, HostTierSettings};
use crate::engine::link::{Direction, LinkPort, TransferId};
use crate::engine::observe::Limit;
use crate::engine::replica::Replica;
use crate::engine::replica::stride::waits_mostly;
use crate::units::{SimTime, Span};

/// The copies that a step waits for.
#[derive(Clone, Debug)]
pub(super) struct Wait {
    /// When the step is launched.
    start: SimTime,
    /// What must have ended before its work starts, and when it has.
    before: Vec<TransferId>,
    ready_at: SimTime,
    /// What comes layer by layer beside the work, and when all of it is there.
    beside: Option<(TransferId, SimTime)>,
    /// The work.
    compute: Span,
}

impl Wait {
    fn stall(&self, tier: &HostTierSettings) -> Span {
        let wait = if self.ready_at > self.start { self.ready_at.since(self.start) } else { Span::ZERO };
        let Some((_, end)) = self.beside else { return wait };
        let left = Span(end.since(self.start).0.saturating_sub(wait.0));
        wait + tier.stall(left, self.compute)
    }

    /// Looks again at the copies in flight, which end later than they would have.
    fn look_again(&mut self, links: &LinkPort) {
        for end in self.before.iter().filter_map(|id| links.end_in_flight(*id)) {
            self.ready_at = self.ready_at.max(end);
        }
        if let Some((id, end)) = &mut self.beside {
            *end = links.end_in_flight(*id).unwrap_or(*end).max(*end);
        }
    }
}

impl Replica {
    /// How long the coming step waits for copies, given what it computes.
    pub(super) fn take_stall(&mut self, now: SimTime, compute: Span) -> Span {
        let Some(reuse) = &mut self.reuse else { return Span::ZERO };
        let Some(host) = &mut reuse.host else { return Span::ZERO };
        let before = std::mem::take(&mut reuse.wait_before);
        let Copy { bytes, pieces } = std::mem::take(&mut host.reads);
        if bytes == 0 && reuse.ready_at <= now {
            reuse.wait = None;
            return Span::ZERO;
        }
        let beside = (bytes > 0).then(|| {
            let id = host.links.start(now, Direction::ToDevice, bytes, pieces);
            (id, host.links.end_of(id))
        });
        let wait = Wait { start: now, before, ready_at: reuse.ready_at, beside, compute };
        let stall = wait.stall(host.tier.settings());
        reuse.wait = Some(wait);
        stall
    }

    /// Lengthens the step under way by what the copies it waits for have become slower.
    pub(super) fn lengthen_wait(&mut self) {
        let Some(reuse) = &mut self.reuse else { return };
        let (Some(wait), Some(host), Some(stride)) = (&mut reuse.wait, &reuse.host, &mut self.stride) else { return };
        let before = wait.stall(host.tier.settings());
        wait.look_again(&host.links);
        let stall = wait.stall(host.tier.settings());
        let longer = stall - before;
        if longer == Span::ZERO {
            return;
        }
        // A step that was waiting for its launch waits that much less for it.
        let hidden = Span(longer.0.min(stride.slack.0));
        stride.slack = stride.slack - hidden;
        if stride.prefill_tokens > 0 {
            stride.first += (longer - hidden).0;
        } else {
            stride.once += longer.0;
            self.beside.stall += longer;
        }
        stride.end = stride.start + Span(stride.span(stride.steps));
        if waits_mostly(stall, stride.span(1)) {
            stride.limit = Limit::HostLink;
        }
        self.counters.ledger[Cause::StepGap] = self.counters.ledger[Cause::StepGap] - hidden;
        self.charge_wait(longer);
    }
}
