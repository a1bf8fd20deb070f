//! vLLM: one token budget a step for decodes and prefill together, prompt-only admission, the last admitted request is
//! preempted and recomputed. Rules of `v1/core/sched/scheduler.py`.

use crate::engine::observe::{Limit, Observer};
use crate::engine::policy::Verdict;
use crate::engine::prefix_cache::Hit;
use crate::engine::replica::{Chunk, Queue, Replica};
use crate::engine::sequence::Phase;
use crate::engine::settings::VllmSettings;
use crate::error::{Error, Result};
use crate::units::SimTime;

pub(super) fn plan<O: Observer>(
    replica: &mut Replica,
    rules: &VllmSettings,
    now: SimTime,
    known: SimTime,
    queue: &mut impl Queue,
    observer: &mut O,
) -> Result<Verdict> {
    let mut preempted = false;
    while !replica.fits() {
        if replica.wait_for_writes() {
            continue;
        }
        if !preempt_last(replica, now, queue, observer)? {
            break;
        }
        preempted = true;
    }
    let width = replica.settings.speculation.as_ref().map_or(1, |s| u64::from(s.draft_tokens()) + 1);
    let mut budget = rules.token_budget.saturating_sub(u64::from(replica.rows) * width);
    preempted |= continue_prompts(replica, rules, &mut budget, now, queue, observer)?;
    let limit = if preempted { Some(Limit::KvPool) } else { admit(replica, rules, budget, width, now, known, queue)? };
    Ok(Verdict { limit, decodes_beside_prefill: true, replan: preempted })
}

/// Sends the most recently admitted request that has not ended back to the front of the queue; false when all have ended.
/// Pages of requests whose end the host does not know of yet come free a step later: until then even a request that is
/// alone may have to go.
fn preempt_last<O: Observer>(
    replica: &mut Replica,
    now: SimTime,
    queue: &mut impl Queue,
    observer: &mut O,
) -> Result<bool> {
    let live = |slot: &&u32| replica.slots[**slot as usize].as_ref().is_some_and(|s| s.phase != Phase::Finished);
    let mut candidates = replica.running.iter().rev().filter(live);
    let Some(&victim) = candidates.next() else { return Ok(false) };
    if candidates.next().is_none() && replica.unreleased.is_empty() && !replica.give_up_reuse(victim) {
        let request = replica.slots[victim as usize]
            .as_ref()
            .map(|s| (s.request.id, s.request.prompt_tokens, s.request.output_tokens));
        let (id, prompt, output) = request.unwrap_or_default();
        return Err(too_large(id, prompt, output, replica));
    }
    replica.preempt(victim, now, true, queue, observer);
    Ok(true)
}

fn too_large(id: u64, prompt_tokens: u32, output_tokens: u32, replica: &Replica) -> Error {
    Error::Impossible(format!(
        "request {id} needs {} tokens of KV cache (prompt {prompt_tokens} + output {output_tokens}) and the pool holds {}; \
         cap max_tokens, drop it, or enlarge the pool (a larger gpu_memory_utilization, fp8 KV, more GPUs per replica)",
        u64::from(prompt_tokens) + u64::from(output_tokens),
        replica.pool_pages * u64::from(replica.settings.page_tokens)
    ))
}

/// Prompts that are being read go on, in order of admission.
fn continue_prompts<O: Observer>(
    replica: &mut Replica,
    rules: &VllmSettings,
    budget: &mut u64,
    now: SimTime,
    queue: &mut impl Queue,
    observer: &mut O,
) -> Result<bool> {
    if replica.prefilling == 0 {
        return Ok(false);
    }
    let mut preempted = false;
    for slot in replica.running.clone() {
        let Some(sequence) = replica.slots[slot as usize].as_ref().filter(|s| s.phase == Phase::Prefill && !s.loading)
        else {
            continue;
        };
        let admission = sequence.admission;
        let tokens = u64::from(sequence.prefill_goal - sequence.prefilled).min(*budget);
        if tokens == 0 {
            break;
        }
        if !rules.reserve_full_prompt {
            let wanted = replica.pages(u64::from(sequence.prefilled) + tokens);
            let grown = wanted.saturating_sub(sequence.held_pages + sequence.shared_pages);
            while replica.used_pages() + grown > replica.open_pages() {
                if replica.wait_for_writes() {
                    continue;
                }
                if !preempt_last(replica, now, queue, observer)? {
                    break;
                }
                preempted = true;
                if replica.slots[slot as usize].as_ref().is_none_or(|s| s.admission != admission) {
                    break;
                }
            }
            let Some(sequence) = replica.slots[slot as usize].as_mut().filter(|s| s.admission == admission) else {
                break;
            };
            sequence.held_pages += grown;
            replica.held_pages += grown;
        }
        *budget -= tokens;
        replica.chunks.push(Chunk { slot, tokens: tokens as u32 });
    }
    // A victim may have had its chunk planned before.
    let Replica { chunks, slots, .. } = replica;
    chunks.retain(|chunk| slots[chunk.slot as usize].is_some());
    Ok(preempted)
}

/// Admits waiting requests while budget, places and pages last; returns why the next one was left out.
fn admit(
    replica: &mut Replica,
    rules: &VllmSettings,
    mut budget: u64,
    width: u64,
    now: SimTime,
    known: SimTime,
    queue: &mut impl Queue,
) -> Result<Option<Limit>> {
    if replica.policy.full.is_some() {
        return Ok(replica.policy.full);
    }
    loop {
        let Some(head) = queue.peek(known) else { return Ok(None) };
        if replica.occupied() >= replica.settings.running_cap {
            replica.policy.full = Some(replica.cap_limit());
            return Ok(replica.policy.full);
        }
        let swapped = head.progress.as_ref().is_some_and(|progress| progress.swapped_pages > 0);
        let uncached = head.progress.as_ref().is_some_and(|progress| progress.uncached);
        if budget < if swapped { width } else { 1 } {
            return Ok(Some(Limit::PrefillBudget));
        }
        let generated = head.progress.as_ref().map_or(0, |progress| progress.generated_tokens);
        let goal = u64::from(head.request.prompt_tokens + generated);
        // The watermark keeps pages free when a new request is admitted, not when one resumes.
        let watermark = if head.progress.is_some() { 0.0 } else { rules.watermark * replica.pool_pages as f64 };
        let extra = watermark as u64 + replica.settings.state_pages_per_request;
        let request = head.request;
        let longest = u64::from(request.prompt_tokens) + u64::from(request.output_tokens);
        if replica.pages(longest) + replica.settings.state_pages_per_request > replica.pool_pages {
            return Err(too_large(request.id, request.prompt_tokens, request.output_tokens, replica));
        }
        let size = |replica: &Replica, hit: Option<Hit>| {
            let (device, all) = hit.map_or((0, 0), |hit| (hit.device_pages, hit.device_pages + hit.host_pages));
            let cached_tokens = all * u64::from(replica.settings.page_tokens);
            let whole = rules.reserve_full_prompt || swapped;
            let held = if whole { goal } else { cached_tokens + (goal - cached_tokens).min(budget) };
            (held, replica.pages(held) - device + extra)
        };
        let mut hit = if swapped || uncached { None } else { replica.find_prefix(&request, goal) };
        let (mut held, mut wanted) = size(replica, hit);
        if hit.is_some() && replica.occupied() == 0 && !replica.has_free_pages(wanted) {
            // A hit is kept with pages beside it that cannot be used (the rest of a block, what follows the last
            // checkpoint). With nobody to wait for, it is given up rather than the request.
            replica.decline(hit.take());
            (held, wanted) = size(replica, None);
        }
        if !replica.has_free_pages(wanted) {
            replica.decline(hit);
            // Free pages only shrink until a request leaves.
            replica.policy.full = Some(Limit::KvPool);
            return Ok(replica.policy.full);
        }
        let Some(waiting) = queue.take() else { return Ok(None) };
        let start = replica.resume(&waiting, hit, now);
        let tokens = (goal - u64::from(start.tokens)).min(budget);
        let loading = start.is_loading();
        let slot = replica.admit(waiting, held as u32, start, now);
        if swapped {
            budget -= width;
            continue;
        }
        if loading {
            continue;
        }
        budget -= tokens;
        replica.chunks.push(Chunk { slot, tokens: tokens as u32 });
    }
}
