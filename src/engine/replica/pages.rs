//! Pages of the pool that sequences hold, at the coming step and at later ones.

use crate::cost::CONTEXT_UNIT_BITS;
use crate::engine::replica::Replica;
use crate::engine::sequence::{Phase, Sequence};

impl Replica {
    /// Context of all decode rows in the coming step, tokens.
    #[inline]
    pub(in crate::engine) fn context_tokens(&self) -> u64 {
        self.context >> CONTEXT_UNIT_BITS
    }

    /// Pages that the decode step at counter `step` needs, with everything else that is held.
    pub(super) fn pages_at(&self, step: u64) -> u64 {
        let (page, lookahead) = (self.settings.page_tokens, self.settings.lookahead_tokens);
        let decoding: u64 = self
            .running
            .iter()
            .filter_map(|&slot| self.slots[slot as usize].as_ref())
            .filter(|sequence| self.counts_as_row(sequence))
            .map(|sequence| sequence.pages(step, page, lookahead))
            .sum();
        decoding + self.held_pages + self.state_pages()
    }

    /// The same without what rows that have ended by then would grow by: nothing is evicted for a step that may be taken
    /// back.
    pub(super) fn lasting_pages_at(&self, step: u64) -> u64 {
        let (page, lookahead) = (self.settings.page_tokens, self.settings.lookahead_tokens);
        let last = |sequence: &Sequence| step.min(sequence.finish_step.saturating_sub(1)).max(sequence.start_step);
        let sequences = self.running.iter().filter_map(|&slot| self.slots[slot as usize].as_ref());
        let rows = sequences.filter(|sequence| self.counts_as_row(sequence));
        let decoding: u64 = rows.map(|sequence| sequence.pages(last(sequence), page, lookahead)).sum();
        decoding + self.held_pages + self.state_pages()
    }

    pub(super) fn counts_as_row(&self, sequence: &Sequence) -> bool {
        match sequence.phase {
            Phase::Prefill => false,
            Phase::Decode => true,
            Phase::Finished => self.settings.computes_finished_rows,
        }
    }

    /// An upper bound of `pages_at` that costs O(1).
    #[inline]
    pub(super) fn pages_bound(&self, steps_ahead: u64) -> u64 {
        let rows = u64::from(self.rows);
        let context = ((self.context + self.growth * steps_ahead) >> CONTEXT_UNIT_BITS) + 1;
        let tokens = context + rows * (1 + u64::from(self.settings.lookahead_tokens));
        (self.pages(tokens) + rows).saturating_sub(self.shared_pages) + self.held_pages + self.state_pages()
    }

    /// Pages of their own that sequences use for the coming step: exact near the pool's end, where it matters, an upper bound elsewhere.
    pub(in crate::engine) fn used_pages(&self) -> u64 {
        self.pages_at(self.step)
    }

    /// True when the coming decode step leaves `pages` free.
    #[inline]
    pub(in crate::engine) fn has_free_pages(&self, pages: u64) -> bool {
        self.pages_bound(0) + pages <= self.open_pages() || self.used_pages() + pages <= self.open_pages()
    }

    /// True when the coming decode step fits.
    #[inline]
    pub(in crate::engine) fn fits(&self) -> bool {
        self.has_free_pages(0)
    }

    /// Of `wanted` decode steps, how many run before the pool overflows; the first one is known to fit.
    #[inline]
    pub(super) fn steps_that_fit(&self, wanted: u64) -> u64 {
        let pool = self.pages_without_waiting();
        if self.pages_bound(wanted - 1) <= pool {
            return wanted;
        }
        let (mut fits, mut fails) = (1, wanted + 1);
        while fails - fits > 1 {
            let middle = fits + (fails - fits) / 2;
            if self.pages_at(self.step + middle - 1) <= pool { fits = middle } else { fails = middle }
        }
        fits
    }

    /// Pages of the prefix cache that decode rows begin with, each row's counted.
    #[inline]
    pub(in crate::engine) fn shared_pages(&self) -> u64 {
        self.shared_pages
    }

    /// Pages that recurrent states of the running requests take from the token pool.
    #[inline]
    fn state_pages(&self) -> u64 {
        self.settings.state_pages_per_request * self.running.len() as u64
    }

    /// Pages that running requests can have: all but those of the prefix cache that somebody reads or writes out.
    #[inline]
    pub(in crate::engine) fn open_pages(&self) -> u64 {
        self.pool_pages.saturating_sub(self.locked_pages())
    }

    /// Pages that `tokens` fill.
    #[inline]
    pub(in crate::engine) fn pages(&self, tokens: u64) -> u64 {
        match self.settings.page_tokens {
            // The usual case of token-sized pages is spared a division.
            1 => tokens,
            page => tokens.div_ceil(u64::from(page)),
        }
    }

    /// Pages that the decode rows and everything held fill at the coming step, by their sum.
    #[inline]
    pub(super) fn pages_by_sum(&self) -> u64 {
        (self.pages(self.context_tokens()) + self.held_pages + self.state_pages() + self.locked_pages())
            .saturating_sub(self.shared_pages)
    }
}
