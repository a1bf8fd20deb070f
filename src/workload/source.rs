//! The requests of a job, made one by one: request *i* is the same whatever the cap, the order or the fleet.

use std::sync::Arc;

use super::Request;
use super::law::{Law, normal_quantile, tokens};
use super::trace::Trace;
use crate::error::InputError;
use crate::model::workload::Order;
use crate::random::{Blocks, Purpose, Streams, open_unit};
use rand::Rng;

/// Slots of a request's block of draws. The numbers are part of the results: never renumber. Slot 7 is spare.
mod slot {
    pub(super) const PROMPT_PICK: usize = 0;
    pub(super) const PROMPT: usize = 1;
    pub(super) const OUTPUT_PICK: usize = 2;
    pub(super) const OUTPUT: usize = 3;
    pub(super) const ACCEPTANCE: usize = 4;
    pub(super) const STEPS: usize = 5;
    pub(super) const ROW: usize = 6;
}

/// Where lengths come from.
#[derive(Clone, Debug)]
pub enum Lengths {
    /// Laws of the prompt and the output.
    Laws {
        /// Prompt length.
        prompt: Law,
        /// Output length without cap.
        output: Law,
        /// Spearman's rank correlation of the two, in [-1, 1], by a Gaussian copula; ties in a law weaken it. 0 draws
        /// them independently.
        rank_correlation: f64,
    },
    /// Whole rows of a trace, which keeps their joint law.
    Trace {
        /// The rows.
        trace: Arc<Trace>,
        /// Which rows.
        draw: RowDraw,
    },
}

/// How rows of a trace become requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowDraw {
    /// Row *i* is request *i*.
    InOrder,
    /// Each request is a row drawn at random, with replacement.
    WithReplacement,
}

/// Limits on one request, tokens. `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Longest output.
    pub max_tokens: Option<u32>,
    /// Longest prompt and output together.
    pub context_tokens: Option<u32>,
}

/// A request whose prompt leaves no room for an output in the context: never served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Position in the job file, from 0.
    pub id: u64,
    /// Prompt length, tokens.
    pub prompt_tokens: u32,
}

/// The requests of a job. Laws in file order store nothing, so 1e8 requests cost no memory.
#[derive(Clone, Debug)]
pub struct Workload {
    lengths: Lengths,
    copula: Option<Copula>,
    requests: u64,
    limits: Limits,
    streams: Streams,
    /// Ids in submission order, when that is not the file's.
    permutation: Option<Vec<u32>>,
}

/// Gaussian copula: the output's score is r · (the prompt's) + √(1 - r²) · (one of its own).
#[derive(Clone, Copy, Debug)]
struct Copula {
    r: f64,
    rest: f64,
}

impl Workload {
    /// `requests` requests from `lengths`, submitted in `order`.
    ///
    /// # Errors
    ///
    /// No requests; more than the rows of a trace that is replayed in order; a limit of 0; a correlation outside
    /// [-1, 1]; an order other than the file's for more than 2^32 - 1 requests.
    pub fn new(
        lengths: Lengths,
        requests: u64,
        limits: Limits,
        order: Order,
        streams: Streams,
    ) -> Result<Workload, InputError> {
        if requests == 0 {
            return Err(InputError::new("0", "give at least 1 request").key("requests"));
        }
        for (key, limit) in [("max_tokens", limits.max_tokens), ("context_tokens", limits.context_tokens)] {
            if limit == Some(0) {
                return Err(InputError::new("0", "give at least 1 token").key(key));
            }
        }
        let mut copula = None;
        match &lengths {
            Lengths::Laws { rank_correlation, .. } => {
                if !(-1.0..=1.0).contains(rank_correlation) {
                    let remedy = "a rank correlation is between -1 and 1";
                    return Err(InputError::new(format!("{rank_correlation}"), remedy).key("rank_correlation"));
                }
                if *rank_correlation != 0.0 {
                    // Pearson's correlation of the scores for Spearman's of the lengths (Kruskal 1958).
                    let r = 2.0 * (std::f64::consts::PI * rank_correlation / 6.0).sin();
                    copula = Some(Copula { r, rest: (1.0 - r * r).max(0.0).sqrt() });
                }
            }
            Lengths::Trace { trace, draw: RowDraw::InOrder } if requests > trace.rows.len() as u64 => {
                let found = format!("{requests} requests from a trace of {} rows", trace.rows.len());
                return Err(InputError::new(found, "ask for fewer, or draw rows with replacement").key("requests"));
            }
            Lengths::Trace { trace, .. } if trace.rows.is_empty() => {
                return Err(InputError::new("a trace without rows", "give at least one row").key("requests"));
            }
            Lengths::Trace { .. } => {}
        }
        let mut workload = Workload { lengths, copula, requests, limits, streams, permutation: None };
        if order != Order::File {
            let Ok(count) = u32::try_from(requests) else {
                let remedy = "file order has no limit; other orders take up to 4294967295 requests";
                return Err(InputError::new(format!("{requests} requests"), remedy).key("order"));
            };
            workload.permutation = Some(match order {
                Order::LongestFirst => workload.longest_first(count),
                Order::File | Order::Shuffled => shuffled(count, streams),
            });
        }
        Ok(workload)
    }

    /// Number of requests, rejected ones included.
    pub fn len(&self) -> u64 {
        self.requests
    }

    /// Never: a job has at least one request.
    pub fn is_empty(&self) -> bool {
        self.requests == 0
    }

    /// Reads requests; in file order, one after another, costs least.
    pub fn cursor(&self) -> Cursor<'_> {
        Cursor { workload: self, blocks: self.streams.blocks(Purpose::Request) }
    }

    fn longest_first(&self, count: u32) -> Vec<u32> {
        let mut cursor = self.cursor();
        let length = |id: u32, cursor: &mut Cursor<'_>| cursor.by_id(u64::from(id)).map_or(0, |it| it.output_tokens);
        // Complement of the length above the id: one sort of integers is longest first, ties by id.
        let mut keys: Vec<u64> =
            (0..count).map(|id| (u64::from(!length(id, &mut cursor)) << 32) | u64::from(id)).collect();
        keys.sort_unstable();
        keys.into_iter().map(|key| key as u32).collect()
    }
}

/// Fisher–Yates.
fn shuffled(count: u32, streams: Streams) -> Vec<u32> {
    let mut generator = streams.endless(Purpose::Order, 0);
    let mut ids: Vec<u32> = (0..count).collect();
    for last in (1..ids.len()).rev() {
        // The high half of the product: biased by less than 2^-32 in 2^32 places, at one draw a swap.
        let other = (u128::from(generator.next_u64()) * (last as u128 + 1)) >> 64;
        ids.swap(last, other as usize);
    }
    ids
}

/// Makes requests of a [`Workload`].
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    workload: &'a Workload,
    blocks: Blocks,
}

impl Cursor<'_> {
    /// The request submitted at `position`, from 0 and below [`Workload::len`].
    ///
    /// # Errors
    ///
    /// [`Rejected`] when its prompt fills the context: an answer, not a fault.
    #[inline]
    pub fn request(&mut self, position: u64) -> Result<Request, Rejected> {
        let id = match &self.workload.permutation {
            None => position,
            Some(ids) => u64::from(ids[position as usize]),
        };
        self.by_id(id)
    }

    /// The request with number `id` in the job file.
    ///
    /// # Errors
    ///
    /// As [`Cursor::request`].
    #[inline]
    pub fn by_id(&mut self, id: u64) -> Result<Request, Rejected> {
        let workload = self.workload;
        let bits = self.blocks.bits(id);
        // Of eight draws most laws use half.
        let drawn = |slot: usize| open_unit(bits[slot]);
        let (prompt_tokens, uncapped_output_tokens) = match (&workload.lengths, workload.copula) {
            (Lengths::Laws { prompt, output, .. }, None) => (
                tokens(prompt.sample(drawn(slot::PROMPT_PICK), drawn(slot::PROMPT))),
                tokens(output.sample(drawn(slot::OUTPUT_PICK), drawn(slot::OUTPUT))),
            ),
            (Lengths::Laws { prompt, output, .. }, Some(Copula { r, rest })) => {
                let score = normal_quantile(drawn(slot::PROMPT));
                let output_score = r * score + rest * normal_quantile(drawn(slot::OUTPUT));
                (tokens(prompt.score_quantile(score)), tokens(output.score_quantile(output_score)))
            }
            (Lengths::Trace { trace, draw }, _) => {
                let place = match draw {
                    RowDraw::InOrder => id as usize,
                    // A draw is below 1, so the product is below the count.
                    RowDraw::WithReplacement => (drawn(slot::ROW) * trace.rows.len() as f64) as usize,
                };
                let row = trace.rows[place.min(trace.rows.len() - 1)];
                (row.prompt_tokens, row.output_tokens)
            }
        };
        let room = match workload.limits.context_tokens {
            Some(context) if prompt_tokens >= context => return Err(Rejected { id, prompt_tokens }),
            Some(context) => context - prompt_tokens,
            None => u32::MAX,
        };
        let longest = room.min(workload.limits.max_tokens.unwrap_or(u32::MAX));
        Ok(Request {
            id,
            prompt_tokens,
            output_tokens: uncapped_output_tokens.min(longest),
            uncapped_output_tokens,
            acceptance_draw: drawn(slot::ACCEPTANCE),
            steps_draw: drawn(slot::STEPS),
        })
    }
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
