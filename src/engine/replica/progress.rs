//! The end of a stretch of steps: what it wrote and read, who ended, and the books.

use crate::cost::{CONTEXT_UNIT_BITS, Cause};
use crate::engine::observe::{Observer, StrideView};
use crate::engine::replica::{ActiveStride, Beside, Finish, IdleStep, Queue, Replica};
use crate::engine::sequence::Phase;
use crate::engine::settings::Stride;
use crate::units::{SimTime, Span};

/// A decode counter that is never reached: the token-exact reference does not know when a request ends.
const NEVER_STEP: u64 = u64::MAX / 2;

impl Replica {
    /// Runs a stretch to its end at `now`: progress, completions, books.
    pub fn finish_stride<O: Observer>(&mut self, now: SimTime, queue: &mut impl Queue, observer: &mut O) {
        let Some(stride) = &self.stride else { return };
        debug_assert_eq!(stride.end, now, "a stride ends when it was planned to");
        let waits = stride.waits();
        let ActiveStride { start, steps, rows, limit, prefill_tokens, .. } = *stride;
        self.last_step_start = if waits { now } else { stride.last_step_start() };
        let running = self.running.len() as u32;
        let span = now.since(start);
        let written_before = self.written;
        if self.reuse.is_some() && steps > 1 {
            self.shrink_cache(steps);
        }
        if rows > 0 {
            self.advance_decode(span);
        }
        if waits {
            self.charge_wait(span);
            self.host_free_at = now;
        } else if prefill_tokens > 0 {
            self.advance_prefill(now);
        } else {
            self.host_free_at = self.last_step_start;
        }
        self.counters.steps += steps;
        self.counters.running_time += span.0 * u128::from(running);
        self.counters.limit_time[limit as usize] += span;
        self.counters.peak_running = self.counters.peak_running.max(running);
        self.busy_until = now;
        if observer.wants_strides() {
            let view = StrideView {
                replica: self.index,
                start,
                end: now,
                steps,
                running,
                prefill_tokens,
                output_tokens: ((self.written - written_before) >> CONTEXT_UNIT_BITS) as u64,
                waiting: queue.waiting(),
                used_pages: (self.used_pages() + self.locked_pages()).min(self.pool_pages),
                limit,
                link_bytes: self.link_bytes(now),
            };
            observer.stride(&view);
        }
        let last_context = self.context - if rows > 0 { self.growth } else { 0 };
        let completed_before = self.counters.completed;
        self.collect_finished(now, queue, observer);
        self.idle_step = None;
        let Some(stride) = self.stride.take() else { return };
        let ended = self.counters.completed > completed_before && rows > 0 && prefill_tokens == 0;
        if ended && self.nothing_to_run() && !self.finished_in(self.step) {
            let slope = u128::from(stride.segment.slope_attoseconds);
            let alone = steps == 1;
            let Beside { stall, slowed_once, slowed_fixed, slowed_slope, .. } = self.beside;
            self.idle_step = Some(IdleStep {
                rows,
                kv: Span(u128::from(last_context) * slope + self.window_attoseconds),
                extra: Span(stride.segment.extra_attoseconds),
                stall: if alone { stall } else { Span::ZERO },
                slowed: Span(slowed_fixed + slowed_slope * u128::from(last_context))
                    + if alone { slowed_once } else { Span::ZERO },
                limit,
                running,
            });
        }
    }

    /// True when a request that still holds its place ended with decode counter `step`.
    pub(super) fn finished_in(&self, step: u64) -> bool {
        self.unreleased
            .iter()
            .filter_map(|&slot| self.slots[slot as usize].as_ref())
            .any(|sequence| sequence.finish_step == step)
    }

    /// Takes the last step out of the books when it computed only rows that had ended and nothing follows: the run
    /// ends with its last token.
    pub(super) fn drop_idle_step(&mut self) {
        let Some(step) = self.idle_step.take() else { return };
        let span = self.busy_until.since(self.last_step_start);
        let counters = &mut self.counters;
        counters.steps -= 1;
        counters.decode_steps[step.rows as usize] -= 1;
        counters.ledger[Cause::Kv] = counters.ledger[Cause::Kv] - step.kv;
        counters.ledger[Cause::StepGap] = counters.ledger[Cause::StepGap] - step.extra;
        counters.ledger[Cause::Transfer] = counters.ledger[Cause::Transfer] - step.stall - step.slowed;
        counters.stall_time = counters.stall_time - step.stall;
        counters.slowed_time = counters.slowed_time - step.slowed;
        counters.running_time -= span.0 * u128::from(step.running);
        let limit_time = &mut counters.limit_time[step.limit as usize];
        *limit_time = *limit_time - span;
        self.busy_until = self.last_step_start;
    }

    #[inline]
    fn advance_decode(&mut self, span: Span) {
        let Some(stride) = &self.stride else { return };
        let ActiveStride { steps, segment, .. } = *stride;
        let rows = stride.rows as usize;
        if self.counters.decode_steps.len() <= rows {
            self.counters.decode_steps.resize(rows + 1, 0);
        }
        self.counters.decode_steps[rows] += steps;
        let contexts = u128::from(self.context) * u128::from(steps)
            + u128::from(self.growth) * (u128::from(steps) * u128::from(steps - 1) / 2);
        let kv = contexts * u128::from(segment.slope_attoseconds) + self.window_attoseconds * u128::from(steps);
        self.counters.ledger[Cause::Kv] += Span(kv);
        self.counters.ledger[Cause::StepGap] += Span(segment.extra_attoseconds * u128::from(steps));
        if self.reuse.is_some() {
            let Beside { slowed_once, slowed_fixed, slowed_slope, .. } = self.beside;
            let slowed = Span(contexts * slowed_slope + slowed_fixed * u128::from(steps)) + slowed_once;
            self.counters.ledger[Cause::Transfer] += slowed;
            self.counters.slowed_time += slowed;
        }
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
        self.counters.page_time += u128::from((pages_before + pages) / 2) * span.0;
    }

    /// The token-exact reference: every row draws the tokens of the step that just ran.
    pub(super) fn draw_tokens(&mut self) {
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
                self.finish.push(Finish::new(step, sequence.admission, slot));
            }
        }
    }

    #[inline]
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
            let whole = sequence.prefilled >= sequence.prefill_goal;
            if self.reuse.is_some() {
                self.cache_prompt(slot, now);
            }
            if whole {
                self.begin_decode(slot, now);
            }
        }
        self.chunks = chunks;
        self.chunks.clear();
    }

    /// A prompt is read: its first (or next) token is written, and the rest is a matter of decode steps.
    #[inline]
    fn begin_decode(&mut self, slot: u32, now: SimTime) {
        let Some(sequence) = self.slots[slot as usize].as_mut() else { return };
        sequence.first_token_at = sequence.first_token_at.min(now);
        sequence.generated_before += 1;
        self.written += 1 << CONTEXT_UNIT_BITS;
        let context_tokens = self.policy.padded_prompt.unwrap_or(sequence.prefill_goal) + 1;
        self.join_rows(slot, context_tokens);
    }

    /// A swapped request is back: its decode goes on.
    pub(super) fn go_on(&mut self, slot: u32) {
        let Some(sequence) = self.slots[slot as usize].as_mut() else { return };
        sequence.prefilled = sequence.prefill_goal;
        let context_tokens = sequence.prefill_goal;
        self.join_rows(slot, context_tokens);
    }

    /// A sequence becomes a decode row; its first step has a context of `context_tokens`.
    #[inline]
    fn join_rows(&mut self, slot: u32, context_tokens: u32) {
        let step = self.step;
        let stride = self.settings.stride;
        let Some(sequence) = self.slots[slot as usize].as_mut() else { return };
        self.held_pages -= std::mem::take(&mut sequence.held_pages);
        self.shared_pages += sequence.shared_pages;
        self.prefilling -= 1;
        sequence.start_step = step;
        sequence.phase = Phase::Decode;
        sequence.context_start = u64::from(context_tokens) << CONTEXT_UNIT_BITS;
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
            self.finish.push(Finish::new(sequence.finish_step, sequence.admission, slot));
        }
    }

    /// True when completions are looked at one step late, in the same stop that releases their slots: the finished rows
    /// are computed in between anyway, and nobody reacts to a completion earlier.
    #[inline]
    pub(super) fn defers(&self, queue: &mut impl Queue) -> bool {
        self.settings.overlap && self.settings.computes_finished_rows && !queue.reacts() && queue.more()
    }

    #[inline]
    fn collect_finished<O: Observer>(&mut self, now: SimTime, queue: &mut impl Queue, observer: &mut O) {
        while let Some(&finish) = self.finish.peek() {
            let finish_step = finish.step();
            if finish_step > self.step || finish_step == self.step && self.defers(queue) {
                break;
            }
            self.finish.pop();
            let at = if finish_step == self.step { now } else { self.last_step_start };
            self.complete(finish.slot, at, queue, observer);
        }
    }

    fn complete<O: Observer>(&mut self, slot: u32, at: SimTime, queue: &mut impl Queue, observer: &mut O) {
        let computes = self.settings.computes_finished_rows;
        let step = self.step;
        let Some(sequence) = self.slots[slot as usize].as_mut() else { return };
        sequence.finished_at = at;
        sequence.phase = Phase::Finished;
        let first = sequence.first_token_at.min(at);
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
            sequence.held_pages = sequence.pages(step, self.settings.page_tokens, 0);
            self.held_pages += sequence.held_pages;
            self.leave_rows(slot);
        }
        self.unreleased.push(slot);
        queue.completed(at);
    }
}
