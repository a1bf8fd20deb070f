//! Transformers `generate`: prompts are padded to the longest, every row is computed until the longest request ends,
//! nothing is admitted meanwhile. Rules of `generation/utils.py`.

use crate::engine::observe::Limit;
use crate::engine::policy::Verdict;
use crate::engine::replica::{Chunk, Queue, Replica, Start};
use crate::error::{Error, Result};
use crate::units::SimTime;

pub(super) fn plan(replica: &mut Replica, now: SimTime, known: SimTime, queue: &mut impl Queue) -> Result<Verdict> {
    if replica.occupied() > 0 {
        let limit = queue.peek(known).map(|_| Limit::BatchSize);
        replica.policy.full = Some(Limit::BatchSize);
        return Ok(Verdict { limit, ..Verdict::default() });
    }
    let (mut longest_prompt, mut longest_output) = (0, 0);
    while replica.occupied() < replica.settings.running_cap {
        if queue.peek(known).is_none() {
            break;
        }
        let Some(waiting) = queue.take() else { break };
        longest_prompt = longest_prompt.max(waiting.request.prompt_tokens);
        longest_output = longest_output.max(waiting.request.output_tokens);
        let tokens = waiting.request.prompt_tokens;
        let slot = replica.admit(waiting, tokens, Start::default(), now);
        replica.chunks.push(Chunk { slot, tokens });
    }
    let rows = replica.chunks.len() as u64;
    let tokens = rows * (u64::from(longest_prompt) + u64::from(longest_output));
    if replica.pages(tokens) > replica.pool_pages {
        let pool = replica.pool_pages * u64::from(replica.settings.page_tokens);
        let fits = pool / (tokens / rows.max(1)).max(1);
        return Err(Error::Impossible(format!(
            "a batch of {rows} padded to {longest_prompt} + {longest_output} tokens holds {tokens} tokens of KV cache and the \
             memory left for it holds {pool}; a batch size of {fits} would fit"
        )));
    }
    replica.policy.padded_prompt = Some(longest_prompt);
    replica.policy.batch_steps = Some(u64::from(longest_output.saturating_sub(1)));
    let limit = queue.peek(known).map(|_| Limit::BatchSize);
    Ok(Verdict { limit, ..Verdict::default() })
}
