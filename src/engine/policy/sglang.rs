//! SGLang: prefill first, admission by the new-token ratio, retraction by recompute.
//!
//! Rules of `managers/scheduler.py` (one batch kind a step), `managers/schedule_policy.py` (`PrefillAdder`),
//! `scheduler_components/new_token_ratio_tracker.py` and `schedule_batch.py` (`retract_decode`).

use std::cmp::Reverse;

use crate::engine::observe::{Limit, Observer};
use crate::engine::policy::Verdict;
use crate::engine::replica::{Chunk, Queue, Replica, Start};
use crate::engine::sequence::Phase;
use crate::engine::settings::SglangSettings;
use crate::error::{Error, Result};
use crate::units::SimTime;
use crate::workload::Request;

pub(super) fn plan<O: Observer>(
    replica: &mut Replica,
    rules: &SglangSettings,
    now: SimTime,
    known: SimTime,
    queue: &mut impl Queue,
    observer: &mut O,
) -> Result<Verdict> {
    let mut chunk_left = rules.chunked_prefill_tokens.unwrap_or(u64::MAX);
    continue_chunked(replica, &mut chunk_left);
    let limit = admit(replica, rules, chunk_left, now, known, queue)?;
    if !replica.chunks.is_empty() {
        return Ok(Verdict { limit, ..Verdict::default() });
    }
    let lacks_room = replica.rows > 0 && !replica.fits() && !(replica.wait_for_writes() && replica.fits());
    let retracted = lacks_room && retract(replica, rules, now, queue, observer)?;
    Ok(Verdict { limit, replan: retracted, ..Verdict::default() })
}

/// A prompt that was cut goes on before others are admitted.
#[inline]
fn continue_chunked(replica: &mut Replica, chunk_left: &mut u64) {
    let Some(slot) = replica.policy.chunked else { return };
    let Some(sequence) = replica.slots[slot as usize].as_ref() else { return };
    let left = u64::from(sequence.prefill_goal - sequence.prefilled);
    let tokens = left.min(*chunk_left);
    if tokens == left {
        replica.policy.chunked = None;
    }
    *chunk_left -= tokens;
    replica.chunks.push(Chunk { slot, tokens: tokens as u32 });
}

/// Fills a prefill batch; returns why the next waiting request was left out.
#[inline]
fn admit(
    replica: &mut Replica,
    rules: &SglangSettings,
    mut chunk_left: u64,
    now: SimTime,
    known: SimTime,
    queue: &mut impl Queue,
) -> Result<Option<Limit>> {
    if replica.policy.full.is_some() {
        return Ok(replica.policy.full);
    }
    let mut input_left = rules.max_prefill_tokens;
    let mut tokens_left: Option<f64> = None;
    loop {
        let Some(head) = queue.peek(known) else { return Ok(None) };
        if chunk_left == 0 || input_left == 0 || replica.policy.chunked.is_some() {
            return Ok(Some(Limit::PrefillBudget));
        }
        if replica.occupied() >= replica.settings.running_cap {
            replica.policy.full = Some(replica.cap_limit());
            return Ok(replica.policy.full);
        }
        let generated = head.progress.as_ref().map_or(0, |progress| progress.generated_tokens);
        let goal = u64::from(head.request.prompt_tokens + generated);
        let pool_tokens = replica.pool_pages * u64::from(replica.settings.page_tokens);
        let longest = u64::from(head.request.prompt_tokens) + u64::from(head.request.output_tokens);
        if longest + u64::from(replica.settings.lookahead_tokens) + 1 > pool_tokens {
            return Err(too_large(&head.request, pool_tokens));
        }
        // The engine clips what a request may write to what could ever fit.
        let reserve = (replica.policy.max_new_tokens(&head.request).saturating_sub(u64::from(generated)))
            .min(rules.reserve_clip_tokens)
            .min(pool_tokens.saturating_sub(goal + u64::from(replica.settings.page_tokens) + 1));
        let uncached = head.progress.as_ref().is_some_and(|progress| progress.uncached);
        let locked = replica.open_pages();
        let hit = if uncached || !replica.reuses() { None } else { replica.find_prefix(&head.request, goal) };
        // What a hit keeps from eviction is no longer free; what it has on the device is not charged.
        let page_tokens = u64::from(replica.settings.page_tokens);
        let newly_locked = (locked - replica.open_pages()) * page_tokens;
        let charged = goal - hit.map_or(0, |hit| hit.device_pages * page_tokens);
        let needed = charged + reserve + page_tokens;
        let left = match tokens_left {
            Some(left) => left - newly_locked as f64,
            None => free_tokens(replica, rules),
        };
        if needed as f64 >= left && replica.occupied() > 0 {
            replica.decline(hit);
            replica.policy.full = Some(Limit::KvPool);
            return Ok(replica.policy.full);
        }
        tokens_left = Some(left - (charged + reserve) as f64);
        let Some(waiting) = queue.take() else { return Ok(None) };
        let start = if replica.reuses() { replica.resume(&waiting, hit, now) } else { Start::default() };
        let left_to_read = goal - u64::from(start.tokens);
        let slot = replica.admit(waiting, goal as u32, start, now);
        let tokens = left_to_read.min(chunk_left);
        if tokens < left_to_read {
            replica.policy.chunked = Some(slot);
        }
        chunk_left -= tokens;
        input_left = input_left.saturating_sub(tokens);
        replica.chunks.push(Chunk { slot, tokens: tokens as u32 });
    }
}

#[cold]
fn too_large(request: &Request, pool_tokens: u64) -> Error {
    let Request { id, prompt_tokens, output_tokens, .. } = request;
    let longest = u64::from(*prompt_tokens) + u64::from(*output_tokens);
    Error::Impossible(format!(
        "request {id} needs {longest} tokens of KV cache (prompt {prompt_tokens} + output {output_tokens}) and the pool holds {pool_tokens}; \
         cap max_tokens, drop it, or enlarge the pool (a larger mem_fraction_static, fp8 KV, more GPUs per replica)"
    ))
}

/// Free tokens less what the running requests are expected to write.
#[inline]
fn free_tokens(replica: &Replica, rules: &SglangSettings) -> f64 {
    let page_tokens = u64::from(replica.settings.page_tokens);
    let pool = (replica.open_pages() * page_tokens) as f64;
    let used = (replica.context_tokens() + replica.held_pages * page_tokens) as f64
        - (replica.shared_pages() * page_tokens) as f64
        + f64::from(replica.rows) * f64::from(1 + replica.settings.lookahead_tokens);
    let ratio = if rules.ignore_eos { 1.0 } else { ratio(replica, rules) };
    pool - used - ratio * reserved_tokens(replica, rules)
}

/// Tokens that the decoding requests may still write, each clipped.
fn reserved_tokens(replica: &Replica, rules: &SglangSettings) -> f64 {
    if rules.max_new_tokens.is_some_and(|max| max <= rules.reserve_clip_tokens) {
        return (replica.final_context_tokens.saturating_sub(replica.context_tokens())) as f64;
    }
    replica
        .running
        .iter()
        .filter_map(|&slot| replica.slots[slot as usize].as_ref())
        .filter(|sequence| sequence.phase == Phase::Decode)
        .map(|sequence| {
            let written = u64::from(sequence.generated(replica.step));
            let left = replica.policy.max_new_tokens(&sequence.request).saturating_sub(written);
            left.min(rules.reserve_clip_tokens) as f64
        })
        .sum()
}

/// The new-token ratio at the replica's decode counter: a linear decay from where it last was set.
#[inline]
fn ratio(replica: &Replica, rules: &SglangSettings) -> f64 {
    let per_step = (rules.initial_ratio - rules.least_ratio) / rules.decay_steps.max(1) as f64;
    let steps = (replica.step - replica.policy.ratio_step) as f64;
    (replica.policy.ratio - per_step * steps).max(rules.least_ratio)
}

/// Sends back the requests with the fewest tokens written (of those the longest prompt) until the next step fits with
/// room for every request that stays. Always sends at least one.
fn retract<O: Observer>(
    replica: &mut Replica,
    rules: &SglangSettings,
    now: SimTime,
    queue: &mut impl Queue,
    observer: &mut O,
) -> Result<bool> {
    loop {
        let step = replica.step;
        let live = |replica: &Replica| -> Vec<u32> {
            let decoding = |slot: &u32| {
                replica.slots[*slot as usize]
                    .as_ref()
                    .is_some_and(|sequence| sequence.phase == Phase::Decode && sequence.finish_step > step)
            };
            replica.running.iter().copied().filter(decoding).collect()
        };
        let candidates = live(replica);
        // Rows that have ended give their pages back within a step: they write nothing that needs room, and what is left
        // beside them need not go for their sake.
        let alone = |replica: &Replica, live: &[u32]| live.len() <= 1 && replica.rows as usize > live.len();
        if replica.held_pages == 0 && alone(replica, &candidates) {
            return Ok(true);
        }
        let sequence = |slot: u32| replica.slots[slot as usize].as_ref();
        let victim = candidates
            .iter()
            .copied()
            .filter_map(|slot| {
                sequence(slot)
                    .map(|s| (s.generated(step), Reverse(s.request.prompt_tokens), Reverse(s.admission), slot))
            })
            .min()
            .map(|(.., slot)| slot);
        let others = candidates.len() > 1 || replica.held_pages > 0;
        let Some(victim) = victim.filter(|&victim| others || replica.give_up_reuse(victim)) else {
            return Err(Error::Impossible(format!(
                "a single request does not fit the KV pool of {} tokens; cap max_tokens or enlarge the pool",
                replica.pool_pages * u64::from(replica.settings.page_tokens)
            )));
        };
        replica.preempt(victim, now, false, queue, observer);
        let stay = live(replica);
        let free = replica.open_pages().saturating_sub(replica.used_pages()) * u64::from(replica.settings.page_tokens);
        if replica.fits() && free >= rules.retract_tokens * stay.len() as u64
            || stay.len() == 1 && replica.fits()
            || alone(replica, &stay)
        {
            let sequences = stay.iter().filter_map(|&slot| replica.slots[slot as usize].as_ref());
            let (mut written, mut most) = (0, 0);
            for sequence in sequences {
                written += u64::from(sequence.generated(step));
                most += replica.policy.max_new_tokens(&sequence.request);
            }
            let expected = written + rules.retract_tokens * stay.len() as u64;
            replica.policy.ratio = (expected as f64 / (most + 1) as f64).min(1.0);
            replica.policy.ratio_step = step;
            return Ok(true);
        }
    }
}
