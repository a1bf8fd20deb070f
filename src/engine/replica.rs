//! One replica in time: it plans at step boundaries, runs stretches of equal steps, and keeps the books.

mod counters;
mod pages;
mod progress;
mod reuse;
mod stride;
mod transfers;
mod write_only;

use std::collections::BinaryHeap;
use std::rc::Rc;

use crate::cost::{Cause, Ledger, StepCost};
use crate::engine::observe::{Limit, Observer};
use crate::engine::policy::{self, PolicyState};
use crate::engine::sequence::{Phase, Progress, Sequence, Waiting};
use crate::engine::settings::{EngineSettings, RunningCap};
use crate::error::Result;
use crate::random::{Blocks, Purpose, Streams};
use crate::units::{SimTime, Span};

pub use counters::{Counters, Milestone};
use reuse::Reuse;
pub(super) use reuse::Start;
use stride::{ActiveStride, Beside, Finish, IdleStep};
pub use transfers::ReuseOutcome;

/// The requests that a replica may take, as the fleet's router offers them.
pub trait Queue {
    /// The next request that the server knew of by `known`.
    fn peek(&mut self, known: SimTime) -> Option<&Waiting>;
    /// True when a request has arrived by `now` of which the server did not know by `known`, and none before it.
    fn unknown(&mut self, known: SimTime, now: SimTime) -> bool;
    /// Takes the request that `peek` has just shown.
    fn take(&mut self) -> Option<Waiting>;
    /// Puts a preempted request back, before or behind all others.
    fn put_back(&mut self, waiting: Waiting, first: bool);
    /// A request of this replica ended at `at`.
    fn completed(&mut self, at: SimTime);
    /// True when a request is waiting or may still come.
    fn more(&mut self) -> bool;
    /// True when the client learns of completions and reacts to them.
    fn reacts(&self) -> bool;
    /// Requests known to the server and not admitted.
    fn waiting(&self) -> u64;
}

/// Tokens of prompt that a step reads for one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Chunk {
    /// The sequence.
    pub slot: u32,
    /// Tokens read in this step.
    pub tokens: u32,
}

/// One replica.
#[derive(Debug)]
pub struct Replica {
    index: usize,
    /// Shared, so that a policy reads its rules while it changes the replica.
    pub(super) settings: Rc<EngineSettings>,
    pub(super) policy: PolicyState,
    cost: StepCost,
    /// Draws of the token-exact reference.
    exact_draws: Blocks,
    pub(super) slots: Vec<Option<Sequence>>,
    free_slots: Vec<u32>,
    /// Slots in order of admission.
    pub(super) running: Vec<u32>,
    /// Sequences that read their prompt.
    pub(super) prefilling: u32,
    /// Finished sequences that the host does not know of yet: they hold their slot.
    pub(super) unreleased: Vec<u32>,
    finish: BinaryHeap<Finish>,
    admissions: u64,
    /// Decode steps so far: the clock of decode progress.
    pub(super) step: u64,
    /// Rows that a decode step computes.
    pub(super) rows: u32,
    /// Total context, growth per step and bounded attention of those rows.
    pub(super) context: u64,
    growth: u64,
    window_attoseconds: u128,
    /// Prompt and `max_tokens` over those rows, tokens.
    pub(super) final_context_tokens: u64,
    /// Pages held by sequences that do not decode.
    pub(super) held_pages: u64,
    pub(super) pool_pages: u64,
    /// Pages of the prefix cache that stand for the first tokens of decode rows, each row's counted.
    shared_pages: u64,
    /// Prefix cache and host; `None` when neither is used.
    reuse: Option<Box<Reuse>>,
    stride: Option<ActiveStride>,
    /// What copies do to that stretch; nothing without reuse.
    beside: Beside,
    /// Prompt tokens that the coming step reads.
    pub(super) chunks: Vec<Chunk>,
    busy_until: SimTime,
    last_step_start: SimTime,
    host_free_at: SimTime,
    /// First instant with work, if any.
    first_work: Option<SimTime>,
    /// Output tokens written, context units.
    written: u128,
    ramp_end: Option<Milestone>,
    drain_start: Option<Milestone>,
    counters: Counters,
    /// The last step, when it computed only rows that had ended.
    idle_step: Option<IdleStep>,
    starved: Span,
    ramp: Span,
}

impl Replica {
    /// An idle replica.
    pub fn new(index: usize, settings: EngineSettings, cost: StepCost, streams: Streams) -> Self {
        let pool_pages = settings.kv_pool_tokens / u64::from(settings.page_tokens);
        Replica {
            index,
            policy: PolicyState::new(&settings),
            cost,
            exact_draws: streams.blocks(Purpose::ExactSteps),
            slots: Vec::new(),
            free_slots: Vec::new(),
            running: Vec::new(),
            prefilling: 0,
            unreleased: Vec::new(),
            finish: BinaryHeap::new(),
            admissions: 0,
            step: 0,
            rows: 0,
            context: 0,
            growth: 0,
            window_attoseconds: 0,
            final_context_tokens: 0,
            held_pages: 0,
            pool_pages,
            shared_pages: 0,
            reuse: Reuse::new(&settings),
            stride: None,
            beside: Beside::default(),
            chunks: Vec::new(),
            busy_until: SimTime::ZERO,
            last_step_start: SimTime::ZERO,
            host_free_at: SimTime::ZERO,
            first_work: None,
            written: 0,
            ramp_end: None,
            drain_start: None,
            counters: Counters::default(),
            idle_step: None,
            starved: Span::ZERO,
            ramp: Span::ZERO,
            settings: Rc::new(settings),
        }
    }

    /// When its present stretch of steps ends; `None` when idle.
    #[inline]
    pub fn ends_at(&self) -> Option<SimTime> {
        self.stride.as_ref().map(|stride| stride.end)
    }

    /// Counters so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Since when it has been idle.
    pub fn idle_since(&self) -> SimTime {
        self.busy_until
    }

    /// When the batch first reached a limit, and when nothing was left to admit.
    pub fn milestones(&self) -> (Option<Milestone>, Option<Milestone>) {
        (self.ramp_end, self.drain_start)
    }

    /// Pages in its key-value pool.
    pub fn pool_pages(&self) -> u64 {
        self.pool_pages
    }

    /// Requests that hold a place: reading, decoding, or finished without the host's knowing.
    pub fn occupied(&self) -> u32 {
        self.running.len() as u32
    }

    /// The books: time by cause up to the end of its last step, ramp and starvation included.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = self.counters.ledger.clone();
        for (rows, &steps) in self.counters.decode_steps.iter().enumerate().filter(|(_, steps)| **steps > 0) {
            ledger.add_times(&self.cost.decode(rows as u32).fixed, steps);
        }
        ledger[Cause::Ramp] += self.ramp;
        ledger[Cause::Starved] += self.starved;
        ledger
    }

    /// Frees the places of finished requests that the host knows of by `known`.
    #[inline]
    fn release(&mut self, known: SimTime, now: SimTime) {
        let mut index = 0;
        while index < self.unreleased.len() {
            let slot = self.unreleased[index];
            let finished_at = self.slots[slot as usize].as_ref().map_or(SimTime::ZERO, |s| s.finished_at);
            if finished_at > known {
                index += 1;
                continue;
            }
            self.unreleased.swap_remove(index);
            self.leave_batch(slot);
            if self.settings.computes_finished_rows {
                self.leave_rows(slot);
            } else if let Some(sequence) = &self.slots[slot as usize] {
                self.held_pages -= sequence.held_pages;
            }
            if self.reuse.is_some()
                && let Some(sequence) = &self.slots[slot as usize]
            {
                // The last token is written without having been read.
                let tokens = sequence.request.prompt_tokens + sequence.request.output_tokens - 1;
                self.leave_in_cache(slot, tokens, now);
            }
            self.slots[slot as usize] = None;
            self.policy.full = None;
        }
    }

    /// Takes a sequence out of the batch; its slot is free once it is emptied.
    #[inline]
    fn leave_batch(&mut self, slot: u32) {
        self.free_slots.push(slot);
        if let Some(at) = self.running.iter().position(|&other| other == slot) {
            self.running.remove(at);
        }
    }

    #[inline]
    fn leave_rows(&mut self, slot: u32) {
        let Some(sequence) = &self.slots[slot as usize] else { return };
        self.context -= sequence.context(self.step);
        self.growth -= sequence.growth;
        self.window_attoseconds -= sequence.window_attoseconds;
        self.final_context_tokens -= self.policy.final_context_tokens(&sequence.request);
        self.shared_pages -= sequence.shared_pages;
        self.rows -= 1;
    }

    /// Sends a running sequence back to the queue, to be recomputed or read back.
    pub(super) fn preempt<O: Observer>(
        &mut self,
        slot: u32,
        now: SimTime,
        first: bool,
        queue: &mut impl Queue,
        observer: &mut O,
    ) {
        let Some(sequence) = &self.slots[slot as usize] else { return };
        self.counters.preemptions += 1;
        let generated = sequence.generated(self.step);
        if sequence.phase == Phase::Prefill {
            self.prefilling -= 1;
            self.held_pages -= sequence.held_pages;
        } else {
            self.leave_rows(slot);
            self.finish.retain(|finish| finish.slot != slot);
        }
        self.leave_batch(slot);
        let swapped_pages = self.leave_preempted(slot, now);
        let Some(mut sequence) = self.slots[slot as usize].take() else { return };
        self.policy.full = None;
        sequence.preemptions += 1;
        observer.preempted(self.index, &sequence, now);
        let progress = Progress {
            generated_tokens: generated,
            growth: sequence.growth,
            admitted_at: sequence.admitted_at,
            first_token_at: sequence.first_token_at,
            preemptions: sequence.preemptions,
            swapped_pages,
            uncached: sequence.uncached,
        };
        let waiting = Waiting {
            request: sequence.request,
            submitted_at: sequence.submitted_at,
            progress: Some(Box::new(progress)),
        };
        queue.put_back(waiting, first);
    }

    /// Gives a waiting request a place and `held_tokens` of the pool, those at its start included. It reads the rest of
    /// its prompt in the coming steps; one that was swapped goes on where it was.
    #[inline]
    pub(super) fn admit(&mut self, waiting: Waiting, held_tokens: u32, start: Start, now: SimTime) -> u32 {
        self.admissions += 1;
        let progress = waiting.progress.as_deref();
        let generated = progress.map_or(0, |progress| progress.generated_tokens);
        let prefill_goal = waiting.request.prompt_tokens + generated;
        let held_pages = self.pages(u64::from(held_tokens)) - start.pages;
        let swapped_pages = progress.map_or(0, |progress| progress.swapped_pages);
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[slot as usize] = Some(Sequence {
            request: waiting.request,
            admission: self.admissions,
            phase: Phase::Prefill,
            prefill_goal,
            prefilled: start.tokens,
            generated_before: generated,
            start_step: self.step,
            finish_step: 0,
            context_start: 0,
            growth: progress.map_or(0, |progress| progress.growth),
            window_attoseconds: 0,
            held_pages,
            shared_pages: start.pages,
            lock: start.lock,
            branch_pages: start.branch_pages,
            uncached: progress.is_some_and(|progress| progress.uncached),
            loading: start.is_loading(),
            submitted_at: waiting.submitted_at,
            admitted_at: progress.map_or(now, |progress| progress.admitted_at),
            first_token_at: progress.map_or(SimTime::NEVER, |progress| progress.first_token_at),
            finished_at: SimTime::NEVER,
            preemptions: progress.map_or(0, |progress| progress.preemptions),
        });
        self.held_pages += held_pages;
        self.prefilling += 1;
        self.running.push(slot);
        if start.is_loading() {
            self.await_load(slot, self.admissions, start);
        }
        if swapped_pages > 0 {
            self.swap_in(swapped_pages, now);
            self.go_on(slot);
        }
        slot
    }

    /// Which limit the running cap is.
    #[inline]
    pub(super) fn cap_limit(&self) -> Limit {
        match self.settings.cap_source {
            RunningCap::MaxRunning => Limit::MaxRunning,
            RunningCap::StateSlots => Limit::StateSlots,
            RunningCap::BatchSize => Limit::BatchSize,
        }
    }

    /// At a step boundary: plans, and starts the next stretch of steps if there is anything to do.
    ///
    /// # Errors
    /// When a request can never fit.
    pub fn start<O: Observer>(&mut self, now: SimTime, queue: &mut impl Queue, observer: &mut O) -> Result<()> {
        debug_assert!(self.stride.is_none(), "a replica plans between strides");
        if self.reuse.is_some() {
            self.settle_transfers(now);
        }
        let was_busy = self.busy_until == now && self.first_work.is_some();
        let mut known =
            if self.settings.overlap && was_busy { self.host_free_at.max(self.last_step_start) } else { now };
        let (verdict, idle) = loop {
            self.release(known, now);
            let verdict = policy::plan(self, now, known, queue, observer)?;
            let idle = self.nothing_to_run();
            if !idle || known >= now && self.unreleased.is_empty() {
                break (verdict, idle);
            }
            // Nothing to overlap with: the host catches up at once.
            known = now;
        };
        if idle {
            if let Some(end) = self.next_transfer_end(verdict.limit == Some(Limit::KvPool)) {
                self.begin_work(now);
                self.start_wait(now, end);
                return Ok(());
            }
            debug_assert!(
                self.occupied() > 0 || self.held_pages == 0 && self.shared_pages == 0,
                "pages that were handed out have come back"
            );
            self.policy.idle(self.step);
            if !queue.more() {
                self.drop_idle_step();
            }
            return Ok(());
        }
        self.begin_work(now);
        if self.reuse.is_some() {
            self.make_room(now);
        }
        let limit = verdict.limit.unwrap_or_else(|| if queue.more() { Limit::Client } else { Limit::Drain });
        if self.ramp_end.is_none() && self.chunks.is_empty() {
            self.ramp_end = Some(Milestone { at: now, written: self.written });
        }
        if self.drain_start.is_none() && limit == Limit::Drain {
            self.drain_start = Some(Milestone { at: now, written: self.written });
        }
        if self.chunks.is_empty() {
            // What has arrived but is not known yet will be known a step later.
            let soon = verdict.replan || queue.unknown(known, now);
            let steps = if soon { 1 } else { u64::MAX };
            self.start_decode(now, limit, steps, queue);
        } else {
            let decode_rows = if verdict.decodes_beside_prefill { self.rows } else { 0 };
            self.start_prefill(now, decode_rows, limit, known);
        }
        Ok(())
    }

    /// Closes the books on the time since the last step.
    #[inline]
    fn begin_work(&mut self, now: SimTime) {
        if self.busy_until < now {
            let gap = now.since(self.busy_until);
            if self.first_work.is_none() { self.ramp += gap } else { self.starved += gap }
        }
        self.first_work.get_or_insert(now);
    }

    /// True when no prompt is to be read and every row has ended already.
    #[inline]
    fn nothing_to_run(&self) -> bool {
        let ended = if self.settings.computes_finished_rows { self.unreleased.len() as u32 } else { 0 };
        self.chunks.is_empty() && self.rows == ended
    }
}
