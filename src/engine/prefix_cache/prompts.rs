//! Which prompts share what: block ids of each request's tokens, from a trace or from a rule.

use crate::workload::trace::PrefixBlocks;

/// A run of whole pages that is cached, hit and evicted as one. Under one parent, equal ids are equal tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// Names its tokens among the blocks that may follow the same prefix.
    pub id: u64,
    /// Pages of the pool that it fills, at least 1.
    pub pages: u32,
}

/// What the prompts of a job have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompts {
    /// Nothing.
    Distinct,
    /// Each `prompts_per_prefix` requests in a row begin with the same `prefix_tokens`.
    SharedPrefix {
        /// Requests that share one prefix, at least 1.
        prompts_per_prefix: u64,
        /// Tokens of it.
        prefix_tokens: u32,
    },
    /// Conversations. Requests go round: turn 0 of `sessions` of them, then turn 1 of each, and so on; after `turns`
    /// turns the next `sessions` begin. The prompt of turn t begins with the system prompt and t turns.
    Sessions {
        /// Conversations at a time, at least 1.
        sessions: u64,
        /// Turns of each, at least 1.
        turns: u64,
        /// Tokens that all conversations begin with.
        system_tokens: u32,
        /// Tokens by which a turn (message and answer) lengthens the conversation.
        turn_tokens: u32,
    },
    /// As a trace gives them; request i is row i.
    Recorded(PrefixBlocks),
}

/// The kinds of ids, in their two highest bits: siblings of different kinds never meet.
const PRIVATE: u64 = 0;
const SHARED: u64 = 1 << 62;
const TURN: u64 = 2 << 62;
const RECORDED: u64 = 3 << 62;

impl Prompts {
    /// The blocks of the first `tokens` tokens of `request` (its prompt, or prompt and output), in pages of
    /// `page_tokens`, into `blocks`. The tokens of a last page that is not full are in no block. A part that would
    /// reach beyond `tokens` is left out: what it shares is not known to be there yet.
    pub fn blocks(&self, request: u64, tokens: u32, page_tokens: u32, blocks: &mut Vec<Block>) {
        blocks.clear();
        let mut cut = Cut { blocks, page_tokens: u64::from(page_tokens.max(1)), tokens: u64::from(tokens), end: 0 };
        match self {
            Prompts::Distinct => {}
            &Prompts::SharedPrefix { prompts_per_prefix, prefix_tokens } => {
                cut.whole(SHARED | (request / prompts_per_prefix.max(1)), prefix_tokens);
            }
            &Prompts::Sessions { sessions, turns, system_tokens, turn_tokens } => {
                let (sessions, turns) = (sessions.max(1), turns.max(1));
                let (place, round) = (request % sessions, request / sessions);
                let session = (round / turns) * sessions + place;
                let turn = round % turns;
                cut.whole(SHARED, system_tokens);
                for earlier in 0..=turn {
                    if !cut.whole(TURN | (session * turns + earlier), turn_tokens) {
                        break;
                    }
                }
            }
            Prompts::Recorded(recorded) => {
                for &id in recorded.of_row(request as usize) {
                    // The last block of a prompt may hold fewer tokens.
                    cut.most(RECORDED | id, recorded.block_tokens);
                }
            }
        }
        let rest = cut.tokens - cut.end;
        cut.most(PRIVATE | request, rest.min(u64::from(u32::MAX)) as u32);
    }
}

/// Cuts tokens into blocks of whole pages; a page that two parts share belongs to the later one.
struct Cut<'a> {
    blocks: &'a mut Vec<Block>,
    page_tokens: u64,
    tokens: u64,
    end: u64,
}

impl Cut<'_> {
    /// Adds a part if all its tokens are there; says whether they are.
    fn whole(&mut self, id: u64, tokens: u32) -> bool {
        let fits = self.end + u64::from(tokens) <= self.tokens;
        if fits {
            self.most(id, tokens);
        }
        fits
    }

    /// Adds as much of a part as is there.
    fn most(&mut self, id: u64, tokens: u32) {
        let end = (self.end + u64::from(tokens)).min(self.tokens);
        let pages = end / self.page_tokens - self.end / self.page_tokens;
        if pages > 0 {
            self.blocks.push(Block { id, pages: pages as u32 });
        }
        self.end = end;
    }
}
