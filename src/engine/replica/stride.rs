//! The start of a stretch of steps: how long the plan stays valid, and what it costs.

use std::cmp::Ordering;

use crate::cost::{Cause, Segment};
use crate::engine::observe::Limit;
use crate::engine::replica::{Queue, Replica};
use crate::engine::settings::Stride;
use crate::units::{SimTime, Span, attoseconds};

#[derive(Clone, Copy, Debug)]
pub(super) struct ActiveStride {
    pub(super) start: SimTime,
    pub(super) end: SimTime,
    pub(super) steps: u64,
    /// First step, attoseconds.
    pub(super) first: u128,
    /// Each step is longer than the one before it by this, attoseconds.
    pub(super) increment: u128,
    /// Rows that decode in it, and the price piece they run at.
    pub(super) rows: u32,
    pub(super) segment: Segment,
    pub(super) limit: Limit,
    pub(super) prefill_tokens: u64,
    /// Ends one step after a completion (see `Replica::defers`).
    pub(super) deferred: bool,
    /// What copies add to its first step alone, attoseconds.
    pub(super) once: u128,
}

/// What copies between host and GPU do to a stretch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Beside {
    /// What its first step waits for copies.
    pub(super) stall: Span,
    /// What copies add to its first decode step alone.
    pub(super) slowed_once: Span,
    /// What they add to each decode step, and to each context unit of a step, attoseconds.
    pub(super) slowed_fixed: u128,
    pub(super) slowed_slope: u128,
    /// When that ends.
    until: Option<SimTime>,
}

/// When a sequence ends. Greatest is who ends first, and of those that end together who was admitted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Finish {
    /// Decode counter after its last step above its admission: one comparison orders both.
    key: u128,
    pub(super) slot: u32,
}

impl Finish {
    pub(super) fn new(step: u64, admission: u64, slot: u32) -> Self {
        Finish { key: u128::from(step) << 64 | u128::from(admission), slot }
    }

    /// Decode counter after the last step.
    pub(super) fn step(self) -> u64 {
        (self.key >> 64) as u64
    }
}

impl Ord for Finish {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key.cmp(&self.key)
    }
}

impl PartialOrd for Finish {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// What a step of ended rows has put into the books.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdleStep {
    pub(super) rows: u32,
    pub(super) kv: Span,
    pub(super) extra: Span,
    pub(super) limit: Limit,
    pub(super) running: u32,
    pub(super) stall: Span,
    pub(super) slowed: Span,
}

impl ActiveStride {
    /// Time of the first `steps` steps.
    #[inline]
    pub(super) fn span(&self, steps: u64) -> u128 {
        let once = if steps > 0 { self.once } else { 0 };
        let steps = u128::from(steps);
        once + steps * self.first + self.increment * (steps * steps.saturating_sub(1) / 2)
    }

    /// True when it holds no step: everything waits for a copy.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        self.steps == 0
    }

    /// Leaves out the steps that would start at `end` or later: from then on each costs something else.
    #[inline]
    fn cut_before(&mut self, end: SimTime) {
        let left = end.since(self.start).0;
        if self.steps <= 1 || self.span(self.steps - 1) < left {
            return;
        }
        // Step j starts when the first j are over.
        let (mut before, mut after) = (0, self.steps - 1);
        while after - before > 1 {
            let middle = before + (after - before) / 2;
            if self.span(middle) < left { before = middle } else { after = middle }
        }
        self.steps = after.max(1);
    }

    #[inline]
    pub(super) fn last_step_start(&self) -> SimTime {
        if self.steps <= 1 {
            return self.start;
        }
        self.end - Span(self.first + self.increment * u128::from(self.steps - 1))
    }
}

/// True when a step of `attoseconds` waits for copies for more than half of them: the link is what limits it.
#[inline]
fn waits_mostly(stall: Span, attoseconds: u128) -> bool {
    2 * stall.0 > attoseconds
}

impl Replica {
    pub(super) fn start_decode(&mut self, now: SimTime, limit: Limit, at_most: u64, queue: &mut impl Queue) {
        let (fixed, segment) = self.cost.decode_at(self.rows, self.context);
        let slope = u128::from(segment.slope_attoseconds);
        let fixed = fixed + segment.extra_attoseconds + self.window_attoseconds;
        let steps = if self.settings.stride == Stride::Longest && at_most > 1 {
            self.longest_stride(&segment, queue)
        } else {
            1
        };
        let mut stride = ActiveStride {
            start: now,
            end: now,
            steps,
            first: fixed + slope * u128::from(self.context),
            increment: slope * u128::from(self.growth),
            rows: self.rows,
            segment,
            limit,
            prefill_tokens: 0,
            deferred: false,
            once: 0,
        };
        if self.reuse.is_some() {
            self.beside = self.copies_beside(now, fixed, slope, Span(stride.first));
            self.beside.slowed_once = self.take_slowed();
            let Beside { stall, slowed_once, slowed_fixed, slowed_slope, until } = self.beside;
            stride.first += slowed_fixed + slowed_slope * u128::from(self.context);
            stride.increment += slowed_slope * u128::from(self.growth);
            stride.once = stall.0 + slowed_once.0;
            if waits_mostly(stall, stall.0 + stride.first) {
                stride.limit = Limit::HostLink;
            }
            if let Some(end) = until {
                stride.cut_before(end);
            }
        }
        let next_finish = self.finish.peek().map(|finish| finish.step());
        stride.deferred = next_finish.is_some_and(|finish_step| finish_step < self.step + stride.steps);
        stride.end = now + Span(stride.span(stride.steps));
        self.stride = Some(stride);
    }

    /// What copies do to a stretch that begins `now`: its decode steps cost `fixed` and `slope` a context unit,
    /// attoseconds, and its first step computes for `compute`.
    fn copies_beside(&mut self, now: SimTime, fixed: u128, slope: u128, compute: Span) -> Beside {
        let stall = self.take_stall(now, compute);
        self.charge_wait(stall);
        let Some((slowdown, end)) = self.slowdown() else { return Beside { stall, ..Beside::default() } };
        Beside {
            stall,
            slowed_once: Span::ZERO,
            slowed_fixed: slowdown.of(fixed),
            slowed_slope: slowdown.of(slope),
            until: Some(end),
        }
    }

    /// For how many steps the plan stays valid.
    #[inline]
    pub(super) fn longest_stride(&self, segment: &Segment, queue: &mut impl Queue) -> u64 {
        if !self.unreleased.is_empty() {
            return 1;
        }
        let Some(finish) = self.finish.peek() else { return 1 };
        let mut steps = finish.step() + u64::from(self.defers(queue)) - self.step;
        debug_assert!(steps > 0, "finished requests are collected before a stride");
        if self.growth > 0 && segment.last_context < u64::MAX {
            let crossing = segment.last_context.saturating_sub(self.context) / self.growth + 1;
            steps = steps.min(crossing.max(1));
        }
        self.steps_that_fit(steps)
    }

    #[inline]
    pub(super) fn start_prefill(&mut self, now: SimTime, decode_rows: u32, limit: Limit, known: SimTime) {
        let (mut tokens, mut recomputed, mut pairs) = (0u64, 0u64, 0.0);
        let padded = self.policy.padded_prompt;
        for chunk in &self.chunks {
            let Some(sequence) = self.slots[chunk.slot as usize].as_ref() else { continue };
            let (new, before) = (f64::from(chunk.tokens), f64::from(sequence.prefilled));
            tokens += u64::from(chunk.tokens);
            let read = padded.map_or(new, f64::from);
            pairs += read * (before + (read + 1.0) / 2.0);
            if sequence.recomputes() {
                recomputed += u64::from(chunk.tokens);
            }
        }
        let priced_tokens = padded.map_or(tokens, |prompt| u64::from(prompt) * self.chunks.len() as u64);
        let gpu = attoseconds(self.cost.prefill_s(priced_tokens, pairs, decode_rows, self.chunks.len() as u32));
        let mut segment = Segment { last_context: u64::MAX, extra_attoseconds: 0, slope_attoseconds: 0 };
        let mut fixed = 0;
        if decode_rows > 0 {
            let (own, piece) = self.cost.decode_at(decode_rows, self.context);
            segment = piece;
            fixed = own + segment.extra_attoseconds + self.window_attoseconds;
        }
        let slope = u128::from(segment.slope_attoseconds);
        let mut decode = fixed + slope * u128::from(self.context);
        let mut ready = now;
        let mut launch_end = known;
        if self.reuse.is_some() {
            self.beside = self.copies_beside(now, fixed, slope, Span(gpu + decode));
            decode += self.beside.slowed_fixed + self.beside.slowed_slope * u128::from(self.context);
            ready = now + self.beside.stall;
            launch_end = known + self.take_read_work();
        }
        let recompute_part = if recomputed == 0 { 0 } else { gpu / u128::from(tokens) * u128::from(recomputed) };
        self.counters.ledger[Cause::Recompute] += Span(recompute_part);
        self.counters.ledger[Cause::Prefill] += Span(gpu - recompute_part);
        let total_tokens = tokens + u64::from(decode_rows) * u64::from(self.cost.verify_width());
        launch_end = launch_end + self.cost.prefill_launch(total_tokens);
        let gpu_end = ready + Span(gpu + decode);
        let end = gpu_end.max(launch_end);
        self.counters.ledger[Cause::StepGap] += end.since(gpu_end);
        self.host_free_at = launch_end;
        let span = end.since(now).0;
        self.stride = Some(ActiveStride {
            start: now,
            end,
            steps: 1,
            first: span,
            increment: 0,
            rows: decode_rows,
            segment,
            limit: if waits_mostly(ready.since(now), span) { Limit::HostLink } else { limit },
            prefill_tokens: tokens,
            deferred: false,
            once: 0,
        });
    }

    /// Nothing can run before a copy ends: waits for `end`.
    pub(super) fn start_wait(&mut self, now: SimTime, end: SimTime) {
        self.stride = Some(ActiveStride {
            start: now,
            end,
            steps: 0,
            first: 0,
            increment: 0,
            rows: 0,
            segment: Segment { last_context: u64::MAX, extra_attoseconds: 0, slope_attoseconds: 0 },
            limit: Limit::HostLink,
            prefill_tokens: 0,
            deferred: false,
            once: 0,
        });
    }

    /// Books time in which nothing runs because a copy is under way.
    pub(super) fn charge_wait(&mut self, span: Span) {
        self.counters.ledger[Cause::Transfer] += span;
        self.counters.stall_time += span;
    }

    /// New work became known at `at`, in the middle of a stretch: ends it as soon as the engine could act on it.
    pub fn interrupt(&mut self, at: SimTime) {
        let open = (self.running.len() as u32) < self.settings.running_cap && self.policy.full.is_none();
        let lag = u64::from(self.settings.overlap);
        let Some(stride) = self.stride.as_mut() else { return };
        if stride.waits() {
            // Nothing is on the GPU that would have to end first.
            stride.end = stride.end.min(at);
            return;
        }
        if !open || stride.steps <= 1 || stride.end <= at {
            return;
        }
        // Steps that start before `at`; the span of the first j steps is where step j starts.
        let elapsed = at.since(stride.start).0;
        let (mut before, mut after) = (0, stride.steps);
        while after - before > 1 {
            let middle = before + (after - before) / 2;
            if stride.span(middle) < elapsed { before = middle } else { after = middle }
        }
        let started = if elapsed == 0 { 0 } else { before + 1 };
        let steps = (started + lag).max(1);
        if steps < stride.steps {
            stride.steps = steps;
            stride.end = stride.start + Span(stride.span(steps));
        }
    }

    /// The last request of the job was taken elsewhere at `at`: a stretch that was to end a step late ends on time.
    pub fn exhausted(&mut self, at: SimTime) {
        let Some(stride) = self.stride.as_mut().filter(|stride| stride.deferred && stride.steps > 1) else { return };
        if stride.last_step_start() > at {
            stride.steps -= 1;
            stride.end = stride.start + Span(stride.span(stride.steps));
        }
        stride.deferred = false;
    }
}
