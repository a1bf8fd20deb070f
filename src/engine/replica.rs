//! One replica in time: it plans at step boundaries, runs stretches of equal steps, and keeps the books.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::cost::{CONTEXT_UNIT_BITS, Cause, DecodeCost, Ledger, Segment, StepCost};
use crate::engine::observe::{LIMITS, Limit, Observer, StrideView};
use crate::engine::policy::{self, PolicyState};
use crate::engine::sequence::{Phase, Progress, Sequence, Waiting};
use crate::engine::settings::{EngineSettings, RunningCap, Stride};
use crate::error::Result;
use crate::random::{Blocks, Purpose, Streams};
use crate::units::{SimTime, Span, attoseconds};

/// The requests that a replica may take, as the fleet's router offers them.
pub trait Queue {
    /// The next request that the server knew of by `known`.
    fn peek(&mut self, known: SimTime) -> Option<&Waiting>;
    /// True when a request has arrived by `now` of which the server did not know by `known`, and none before it.
    fn unknown(&mut self, known: SimTime, now: SimTime) -> bool;
    /// Takes the request that `peek` showed.
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

/// What one replica has counted.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Engine steps.
    pub steps: u64,
    /// Steps that held prefill.
    pub prefill_steps: u64,
    /// Prompt tokens read, recomputed ones included.
    pub prefill_tokens: u64,
    /// Tokens read again after a preemption.
    pub recomputed_tokens: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Requests ended.
    pub completed: u64,
    /// Output tokens of ended requests.
    pub output_tokens: u64,
    /// Prompt tokens of ended requests.
    pub prompt_tokens: u64,
    /// Verify or decode steps of ended requests, summed over requests.
    pub request_steps: u64,
    /// Most requests that ran at once.
    pub peak_running: u32,
    /// Most pages in use.
    pub peak_pages: u64,
    /// Pages in use, integrated over time (page-attoseconds).
    pub page_time: u128,
    /// Running requests, integrated over time (request-attoseconds).
    pub running_time: u128,
    /// Sum of times to first token over ended requests.
    pub ttft_sum: Span,
    /// Sum of sojourn times.
    pub sojourn_sum: Span,
    /// Sum over requests of two or more tokens of (last − first token) / (tokens − 1), seconds.
    pub tpot_sum_s: f64,
    /// How many requests that is.
    pub tpot_requests: u64,
    /// Time by what limited the batch.
    pub limit_time: [Span; LIMITS],
    /// Decode steps by rows computed.
    decode_steps: Vec<u64>,
    /// Everything that is not a per-step constant of the decode batch.
    ledger: Ledger,
}

/// A moment of the run at which output was counted, for steady rates.
#[derive(Clone, Copy, Debug)]
pub struct Milestone {
    /// When.
    pub at: SimTime,
    /// Output tokens written on the replica so far, in context units.
    pub written: u128,
}

#[derive(Clone, Copy, Debug)]
struct ActiveStride {
    start: SimTime,
    end: SimTime,
    steps: u64,
    /// First step, attoseconds.
    first: u128,
    /// Each step is longer than the one before it by this, attoseconds.
    increment: u128,
    /// Rows that decode in it, and the price piece they run at.
    rows: u32,
    segment: Segment,
    limit: Limit,
    prefill_tokens: u64,
    /// Ends one step after a completion (see `Replica::defers`).
    deferred: bool,
}

/// What a step of ended rows has put into the books.
#[derive(Clone, Copy, Debug)]
struct IdleStep {
    rows: u32,
    kv: Span,
    extra: Span,
    limit: Limit,
    running: u32,
}

impl ActiveStride {
    /// Time of the first `steps` steps.
    fn span(&self, steps: u64) -> u128 {
        let steps = u128::from(steps);
        steps * self.first + self.increment * (steps * steps.saturating_sub(1) / 2)
    }

    fn last_step_start(&self) -> SimTime {
        if self.steps == 1 { self.start } else { self.start + Span(self.span(self.steps - 1)) }
    }
}

/// A decode counter that is never reached: the token-exact reference does not know when a request ends.
const NEVER_STEP: u64 = u64::MAX / 2;

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
    pub(super) settings: EngineSettings,
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
    finish: BinaryHeap<Reverse<(u64, u64, u32)>>,
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
    stride: Option<ActiveStride>,
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
            stride: None,
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
            settings,
        }
    }

    /// When its present stretch of steps ends; `None` when idle.
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

    /// Context of all decode rows in the coming step, tokens.
    pub(super) fn context_tokens(&self) -> u64 {
        self.context >> CONTEXT_UNIT_BITS
    }

    /// Pages that the decode step at counter `step` needs, with everything else that is held.
    fn pages_at(&self, step: u64) -> u64 {
        let (page, lookahead) = (self.settings.page_tokens, self.settings.lookahead_tokens);
        let decoding: u64 = self
            .running
            .iter()
            .filter_map(|&slot| self.slots[slot as usize].as_ref())
            .filter(|sequence| self.counts_as_row(sequence))
            .map(|sequence| sequence.pages(step, page, lookahead))
            .sum();
        decoding + self.held_pages
    }

    fn counts_as_row(&self, sequence: &Sequence) -> bool {
        match sequence.phase {
            Phase::Prefill => false,
            Phase::Decode => true,
            Phase::Finished => self.settings.computes_finished_rows,
        }
    }

    /// An upper bound of `pages_at` that costs O(1).
    fn pages_bound(&self, steps_ahead: u64) -> u64 {
        let rows = u64::from(self.rows);
        let context = ((self.context + self.growth * steps_ahead) >> CONTEXT_UNIT_BITS) + 1;
        let tokens = context + rows * (1 + u64::from(self.settings.lookahead_tokens));
        self.pages(tokens) + rows + self.held_pages
    }

    /// Pages in use for the coming step: exact near the pool's end, where it matters, an upper bound elsewhere.
    pub(super) fn used_pages(&self) -> u64 {
        self.pages_at(self.step)
    }

    /// True when the coming decode step leaves `pages` free.
    pub(super) fn has_free_pages(&self, pages: u64) -> bool {
        self.pages_bound(0) + pages <= self.pool_pages || self.used_pages() + pages <= self.pool_pages
    }

    /// True when the coming decode step fits.
    pub(super) fn fits(&self) -> bool {
        self.has_free_pages(0)
    }

    /// Of `wanted` decode steps, how many run before the pool overflows; the first one is known to fit.
    fn steps_that_fit(&self, wanted: u64) -> u64 {
        if self.pages_bound(wanted - 1) <= self.pool_pages {
            return wanted;
        }
        let (mut fits, mut fails) = (1, wanted + 1);
        while fails - fits > 1 {
            let middle = fits + (fails - fits) / 2;
            if self.pages_at(self.step + middle - 1) <= self.pool_pages { fits = middle } else { fails = middle }
        }
        fits
    }

    /// Runs a stretch to its end at `now`: progress, completions, books.
    pub fn finish_stride<O: Observer>(&mut self, now: SimTime, queue: &mut impl Queue, observer: &mut O) {
        let Some(stride) = self.stride.take() else { return };
        debug_assert_eq!(stride.end, now, "a stride ends when it was planned to");
        self.last_step_start = stride.last_step_start();
        let running = self.running.len() as u32;
        let span = now.since(stride.start);
        let written_before = self.written;
        if stride.rows > 0 {
            self.advance_decode(&stride);
        }
        let prefill_tokens = stride.prefill_tokens;
        if prefill_tokens > 0 {
            self.advance_prefill(now);
        } else {
            self.host_free_at = self.last_step_start;
        }
        self.counters.steps += stride.steps;
        self.counters.running_time += span.0 * u128::from(running);
        self.counters.limit_time[stride.limit as usize] += span;
        self.counters.peak_running = self.counters.peak_running.max(running);
        self.busy_until = now;
        if observer.wants_strides() {
            let view = StrideView {
                replica: self.index,
                start: stride.start,
                end: now,
                steps: stride.steps,
                running,
                prefill_tokens,
                output_tokens: ((self.written - written_before) >> CONTEXT_UNIT_BITS) as u64,
                waiting: queue.waiting(),
                used_pages: self.used_pages().min(self.pool_pages),
                limit: stride.limit,
            };
            observer.stride(&view);
        }
        let last_context = self.context - if stride.rows > 0 { self.growth } else { 0 };
        let completed_before = self.counters.completed;
        self.collect_finished(now, queue, observer);
        self.idle_step = None;
        let ended = self.counters.completed > completed_before && stride.rows > 0 && prefill_tokens == 0;
        if ended && self.nothing_to_run() && !self.finished_in(self.step) {
            let slope = u128::from(stride.segment.slope_attoseconds);
            self.idle_step = Some(IdleStep {
                rows: stride.rows,
                kv: Span(u128::from(last_context) * slope + self.window_attoseconds),
                extra: Span(stride.segment.extra_attoseconds),
                limit: stride.limit,
                running,
            });
        }
    }

    /// True when a request that still holds its place ended with decode counter `step`.
    fn finished_in(&self, step: u64) -> bool {
        self.unreleased
            .iter()
            .filter_map(|&slot| self.slots[slot as usize].as_ref())
            .any(|sequence| sequence.finish_step == step)
    }

    /// Takes the last step out of the books when it computed only rows that had ended and nothing follows: the run
    /// ends with its last token.
    fn drop_idle_step(&mut self) {
        let Some(step) = self.idle_step.take() else { return };
        let span = self.busy_until.since(self.last_step_start);
        let counters = &mut self.counters;
        counters.steps -= 1;
        counters.decode_steps[step.rows as usize] -= 1;
        counters.ledger[Cause::Kv] = counters.ledger[Cause::Kv] - step.kv;
        counters.ledger[Cause::StepGap] = counters.ledger[Cause::StepGap] - step.extra;
        counters.running_time -= span.0 * u128::from(step.running);
        let limit_time = &mut counters.limit_time[step.limit as usize];
        *limit_time = *limit_time - span;
        self.busy_until = self.last_step_start;
    }

    fn advance_decode(&mut self, stride: &ActiveStride) {
        let steps = stride.steps;
        let rows = stride.rows as usize;
        if self.counters.decode_steps.len() <= rows {
            self.counters.decode_steps.resize(rows + 1, 0);
        }
        self.counters.decode_steps[rows] += steps;
        let contexts = u128::from(self.context) * u128::from(steps)
            + u128::from(self.growth) * (u128::from(steps) * u128::from(steps - 1) / 2);
        let kv = contexts * u128::from(stride.segment.slope_attoseconds) + self.window_attoseconds * u128::from(steps);
        self.counters.ledger[Cause::Kv] += Span(kv);
        self.counters.ledger[Cause::StepGap] += Span(stride.segment.extra_attoseconds * u128::from(steps));
        let pages_before = self.pages_by_sum();
        self.step += steps;
        // A padded batch runs to its longest request whatever is drawn.
        if self.settings.stride == Stride::TokenExact && self.policy.batch_steps.is_none() {
            self.draw_tokens();
        } else {
            self.context += self.growth * steps;
            self.written += u128::from(self.growth) * u128::from(steps);
        }
        let pages = self.pages_by_sum();
        self.counters.peak_pages = self.counters.peak_pages.max(pages.min(self.pool_pages));
        // Contexts grow evenly, so the mean of both ends is the mean of the stretch.
        self.counters.page_time += u128::from((pages_before + pages) / 2) * stride.end.since(stride.start).0;
    }

    /// The token-exact reference: every row draws the tokens of the step that just ran.
    fn draw_tokens(&mut self) {
        let step = self.step;
        for &slot in &self.running {
            let Some(sequence) = self.slots[slot as usize].as_mut().filter(|s| s.phase == Phase::Decode) else {
                continue;
            };
            if sequence.generated_before >= sequence.request.output_tokens {
                continue;
            }
            let tokens = match &self.settings.speculation {
                None => 1,
                Some(speculation) => {
                    // Keyed by request and output position, so the draws do not depend on who else runs.
                    let block = (sequence.request.id << 20) + u64::from(sequence.generated_before);
                    speculation.draw_step(sequence.request.acceptance_draw, self.exact_draws.draws(block)[0])
                }
            };
            sequence.generated_before += tokens;
            sequence.context_start += u64::from(tokens) << CONTEXT_UNIT_BITS;
            self.context += u64::from(tokens) << CONTEXT_UNIT_BITS;
            self.written += u128::from(tokens) << CONTEXT_UNIT_BITS;
            if sequence.generated_before >= sequence.request.output_tokens {
                sequence.finish_step = step;
                self.finish.push(Reverse((step, sequence.admission, slot)));
            }
        }
    }

    fn advance_prefill(&mut self, now: SimTime) {
        self.counters.prefill_steps += 1;
        let chunks = std::mem::take(&mut self.chunks);
        for chunk in &chunks {
            let slot = chunk.slot;
            let Some(sequence) = self.slots[slot as usize].as_mut() else { continue };
            self.counters.prefill_tokens += u64::from(chunk.tokens);
            if sequence.recomputes() {
                self.counters.recomputed_tokens += u64::from(chunk.tokens);
            }
            sequence.prefilled += chunk.tokens;
            if sequence.prefilled >= sequence.prefill_goal {
                self.begin_decode(slot, now);
            }
        }
        self.chunks = chunks;
        self.chunks.clear();
    }

    /// A prompt is read: its first (or next) token is written, and the rest is a matter of decode steps.
    fn begin_decode(&mut self, slot: u32, now: SimTime) {
        let step = self.step;
        let stride = self.settings.stride;
        let Some(sequence) = self.slots[slot as usize].as_mut() else { return };
        sequence.first_token_at.get_or_insert(now);
        self.held_pages -= std::mem::take(&mut sequence.held_pages);
        self.prefilling -= 1;
        self.written += 1 << CONTEXT_UNIT_BITS;
        sequence.generated_before += 1;
        sequence.start_step = step;
        sequence.phase = Phase::Decode;
        let context_tokens = self.policy.padded_prompt.unwrap_or(sequence.prefill_goal);
        sequence.context_start = (u64::from(context_tokens) + 1) << CONTEXT_UNIT_BITS;
        let left = sequence.request.output_tokens - sequence.generated_before;
        let left_units = u64::from(left) << CONTEXT_UNIT_BITS;
        let one_token = 1 << CONTEXT_UNIT_BITS;
        let steps = match (&self.settings.speculation, self.policy.batch_steps) {
            (_, Some(batch_steps)) => {
                sequence.growth = one_token;
                batch_steps
            }
            _ if left == 0 => {
                sequence.growth = 0;
                0
            }
            _ if stride == Stride::TokenExact => {
                sequence.growth = 0;
                NEVER_STEP
            }
            (None, None) => {
                sequence.growth = one_token;
                u64::from(left)
            }
            // After a preemption: the rest at the request's own pace.
            (Some(_), None) if sequence.growth > 0 => left_units.div_ceil(sequence.growth),
            (Some(speculation), None) => {
                let request = &sequence.request;
                let steps = u64::from(speculation.steps(left, request.acceptance_draw, request.steps_draw));
                sequence.growth = left_units / steps;
                steps
            }
        };
        sequence.finish_step = step.saturating_add(steps);
        let middle = f64::from(sequence.prefill_goal) + f64::from(left) / 2.0;
        sequence.window_attoseconds = self.cost.window_attoseconds(middle);
        self.rows += 1;
        self.context += sequence.context_start;
        self.growth += sequence.growth;
        self.window_attoseconds += sequence.window_attoseconds;
        self.final_context_tokens += self.policy.final_context_tokens(&sequence.request);
        if steps < NEVER_STEP {
            self.finish.push(Reverse((sequence.finish_step, sequence.admission, slot)));
        }
    }

    /// True when completions are looked at one step late, in the same stop that releases their slots: the finished rows
    /// are computed in between anyway, and nobody reacts to a completion earlier.
    fn defers(&self, queue: &mut impl Queue) -> bool {
        self.settings.overlap && self.settings.computes_finished_rows && !queue.reacts() && queue.more()
    }

    fn collect_finished<O: Observer>(&mut self, now: SimTime, queue: &mut impl Queue, observer: &mut O) {
        while let Some(&Reverse((finish_step, admission, slot))) = self.finish.peek() {
            let stale = self.slots[slot as usize]
                .as_ref()
                .is_none_or(|sequence| sequence.admission != admission || sequence.phase != Phase::Decode);
            if stale {
                self.finish.pop();
                continue;
            }
            if finish_step > self.step || finish_step == self.step && self.defers(queue) {
                break;
            }
            self.finish.pop();
            let at = if finish_step == self.step { now } else { self.last_step_start };
            self.complete(slot, at, queue, observer);
        }
    }

    fn complete<O: Observer>(&mut self, slot: u32, at: SimTime, queue: &mut impl Queue, observer: &mut O) {
        let computes = self.settings.computes_finished_rows;
        let step = self.step;
        let Some(sequence) = self.slots[slot as usize].as_mut() else { return };
        sequence.finished_at = at;
        sequence.phase = Phase::Finished;
        let first = sequence.first_token_at.unwrap_or(at);
        let counters = &mut self.counters;
        counters.completed += 1;
        counters.output_tokens += u64::from(sequence.request.output_tokens);
        counters.prompt_tokens += u64::from(sequence.request.prompt_tokens);
        counters.request_steps += step.min(sequence.finish_step) - sequence.start_step;
        counters.ttft_sum += first.since(sequence.submitted_at);
        counters.sojourn_sum += at.since(sequence.submitted_at);
        if sequence.request.output_tokens > 1 {
            counters.tpot_sum_s += at.since(first).as_s() / f64::from(sequence.request.output_tokens - 1);
            counters.tpot_requests += 1;
        }
        // Rows computed beyond a request's end, and a last step's surplus, write nothing that counts.
        let phase_written = sequence.written(step) + (u64::from(sequence.generated_before) << CONTEXT_UNIT_BITS);
        let surplus = phase_written.saturating_sub(u64::from(sequence.request.output_tokens) << CONTEXT_UNIT_BITS);
        self.written -= u128::from(surplus).min(self.written);
        observer.completed(self.index, sequence);
        if !computes {
            let left = sequence.clone();
            sequence.held_pages = left.pages(step, self.settings.page_tokens, 0);
            self.held_pages += sequence.held_pages;
            self.leave_rows(&left);
        }
        self.unreleased.push(slot);
        queue.completed(at);
    }

    /// Frees the places of finished requests that the host knows of by `known`.
    fn release(&mut self, known: SimTime) {
        let mut index = 0;
        while index < self.unreleased.len() {
            let slot = self.unreleased[index];
            let finished_at = self.slots[slot as usize].as_ref().map_or(SimTime::ZERO, |s| s.finished_at);
            if finished_at > known {
                index += 1;
                continue;
            }
            self.unreleased.swap_remove(index);
            if let Some(sequence) = self.vacate(slot) {
                if self.settings.computes_finished_rows {
                    self.leave_rows(&sequence);
                } else {
                    self.held_pages -= sequence.held_pages;
                }
            }
            self.policy.full = None;
        }
    }

    /// Takes a sequence out of the batch and frees its slot.
    fn vacate(&mut self, slot: u32) -> Option<Sequence> {
        let sequence = self.slots[slot as usize].take();
        self.free_slots.push(slot);
        if let Some(at) = self.running.iter().position(|&other| other == slot) {
            self.running.remove(at);
        }
        sequence
    }

    fn leave_rows(&mut self, sequence: &Sequence) {
        self.context -= sequence.context(self.step);
        self.growth -= sequence.growth;
        self.window_attoseconds -= sequence.window_attoseconds;
        self.final_context_tokens -= self.policy.final_context_tokens(&sequence.request);
        self.rows -= 1;
    }

    /// Sends a running sequence back to the queue, to be recomputed.
    pub(super) fn preempt<O: Observer>(
        &mut self,
        slot: u32,
        now: SimTime,
        first: bool,
        queue: &mut impl Queue,
        observer: &mut O,
    ) {
        let step = self.step;
        let Some(mut sequence) = self.vacate(slot) else { return };
        self.counters.preemptions += 1;
        let generated = sequence.generated(step);
        if sequence.phase == Phase::Prefill {
            self.prefilling -= 1;
            self.held_pages -= sequence.held_pages;
        } else {
            self.leave_rows(&sequence);
        }
        self.policy.full = None;
        sequence.preemptions += 1;
        observer.preempted(self.index, &sequence, now);
        let progress = Progress {
            generated_tokens: generated,
            growth: sequence.growth,
            admitted_at: sequence.admitted_at,
            first_token_at: sequence.first_token_at.unwrap_or(SimTime::NEVER),
            preemptions: sequence.preemptions,
        };
        let waiting =
            Waiting { request: sequence.request, submitted_at: sequence.submitted_at, progress: Some(progress) };
        queue.put_back(waiting, first);
    }

    /// Pages that `tokens` fill.
    pub(super) fn pages(&self, tokens: u64) -> u64 {
        match self.settings.page_tokens {
            // The usual case of token-sized pages is spared a division.
            1 => tokens,
            page => tokens.div_ceil(u64::from(page)),
        }
    }

    /// Pages that the decode rows and everything held fill at the coming step, by their sum.
    fn pages_by_sum(&self) -> u64 {
        self.pages(self.context_tokens()) + self.held_pages
    }

    /// Gives a waiting request a place and `held_tokens` of the pool; it starts to read its prompt in the coming step.
    pub(super) fn admit(&mut self, waiting: Waiting, held_tokens: u32, now: SimTime) -> u32 {
        self.admissions += 1;
        let generated = waiting.progress.map_or(0, |progress| progress.generated_tokens);
        let prefill_goal = waiting.request.prompt_tokens + generated;
        let held_pages = self.pages(u64::from(held_tokens));
        let sequence = Sequence {
            request: waiting.request,
            admission: self.admissions,
            phase: Phase::Prefill,
            prefill_goal,
            prefilled: 0,
            generated_before: generated,
            start_step: self.step,
            finish_step: 0,
            context_start: 0,
            growth: waiting.progress.map_or(0, |progress| progress.growth),
            window_attoseconds: 0,
            held_pages,
            submitted_at: waiting.submitted_at,
            admitted_at: waiting.progress.map_or(now, |progress| progress.admitted_at),
            first_token_at: waiting.progress.map(|p| p.first_token_at).filter(|at| *at != SimTime::NEVER),
            finished_at: SimTime::NEVER,
            preemptions: waiting.progress.map_or(0, |progress| progress.preemptions),
        };
        self.held_pages += held_pages;
        self.prefilling += 1;
        let slot = match self.free_slots.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(sequence);
                slot
            }
            None => {
                self.slots.push(Some(sequence));
                self.slots.len() as u32 - 1
            }
        };
        self.running.push(slot);
        slot
    }

    /// Which limit the running cap is.
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
        let was_busy = self.busy_until == now && self.first_work.is_some();
        let mut known =
            if self.settings.overlap && was_busy { self.host_free_at.max(self.last_step_start) } else { now };
        self.release(known);
        let mut verdict = policy::plan(self, now, known, queue, observer)?;
        if self.nothing_to_run() && (known < now || !self.unreleased.is_empty()) {
            // Nothing to overlap with: the host catches up at once.
            known = now;
            self.release(known);
            verdict = policy::plan(self, now, known, queue, observer)?;
        }
        if self.nothing_to_run() {
            self.policy.idle(self.step);
            if !queue.more() {
                self.drop_idle_step();
            }
            return Ok(());
        }
        if self.busy_until < now {
            let gap = now.since(self.busy_until);
            if self.first_work.is_none() { self.ramp += gap } else { self.starved += gap }
        }
        self.first_work.get_or_insert(now);
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

    /// True when no prompt is to be read and every row has ended already.
    fn nothing_to_run(&self) -> bool {
        let ended = if self.settings.computes_finished_rows { self.unreleased.len() as u32 } else { 0 };
        self.chunks.is_empty() && self.rows == ended
    }

    fn start_decode(&mut self, now: SimTime, limit: Limit, at_most: u64, queue: &mut impl Queue) {
        let price: std::rc::Rc<DecodeCost> = self.cost.decode(self.rows);
        let segment = price.segment(self.context);
        let slope = u128::from(segment.slope_attoseconds);
        let first = price.fixed_attoseconds
            + segment.extra_attoseconds
            + self.window_attoseconds
            + slope * u128::from(self.context);
        let increment = slope * u128::from(self.growth);
        let steps = if self.settings.stride == Stride::Longest && at_most > 1 {
            self.longest_stride(&segment, queue)
        } else {
            1
        };
        let next_finish = self.finish.peek().map(|Reverse((finish_step, ..))| *finish_step);
        let deferred = next_finish.is_some_and(|finish_step| finish_step < self.step + steps);
        let mut stride = ActiveStride {
            start: now,
            end: now,
            steps,
            first,
            increment,
            rows: self.rows,
            segment,
            limit,
            prefill_tokens: 0,
            deferred,
        };
        stride.end = now + Span(stride.span(steps));
        self.stride = Some(stride);
    }

    /// For how many steps the plan stays valid.
    fn longest_stride(&self, segment: &Segment, queue: &mut impl Queue) -> u64 {
        if !self.unreleased.is_empty() {
            return 1;
        }
        let Some(Reverse((finish_step, ..))) = self.finish.peek() else { return 1 };
        let mut steps = finish_step + u64::from(self.defers(queue)) - self.step;
        debug_assert!(steps > 0, "finished requests are collected before a stride");
        if self.growth > 0 && segment.last_context < u64::MAX {
            let crossing = segment.last_context.saturating_sub(self.context) / self.growth + 1;
            steps = steps.min(crossing.max(1));
        }
        self.steps_that_fit(steps)
    }

    fn start_prefill(&mut self, now: SimTime, decode_rows: u32, limit: Limit, known: SimTime) {
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
        let mut decode = 0;
        if decode_rows > 0 {
            let price = self.cost.decode(decode_rows);
            segment = price.segment(self.context);
            decode = price.fixed_attoseconds
                + segment.extra_attoseconds
                + self.window_attoseconds
                + u128::from(segment.slope_attoseconds) * u128::from(self.context);
        }
        let recompute_part = if recomputed == 0 { 0 } else { gpu / u128::from(tokens) * u128::from(recomputed) };
        self.counters.ledger[Cause::Recompute] += Span(recompute_part);
        self.counters.ledger[Cause::Prefill] += Span(gpu - recompute_part);
        let total_tokens = tokens + u64::from(decode_rows) * u64::from(self.cost.verify_width());
        let launch_end = known + Span(attoseconds(self.cost.prefill_launch_s(total_tokens)));
        let gpu_end = now + Span(gpu + decode);
        let end = gpu_end.max(launch_end);
        self.counters.ledger[Cause::StepGap] += end.since(gpu_end);
        self.host_free_at = launch_end;
        self.stride = Some(ActiveStride {
            start: now,
            end,
            steps: 1,
            first: end.since(now).0,
            increment: 0,
            rows: decode_rows,
            segment,
            limit,
            prefill_tokens: tokens,
            deferred: false,
        });
    }

    /// New work became known at `at`, in the middle of a stretch: ends it as soon as the engine could act on it.
    pub fn interrupt(&mut self, at: SimTime) {
        let open = (self.running.len() as u32) < self.settings.running_cap && self.policy.full.is_none();
        let lag = u64::from(self.settings.overlap);
        let Some(stride) = self.stride.as_mut() else { return };
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
