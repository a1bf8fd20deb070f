//! How often each length was seen: exact statistics of any number of rows in bounded memory.

use std::collections::BTreeMap;

/// Lengths below this are counted in a plain list.
const DENSE: usize = 1 << 17;

/// Distinct lengths above [`DENSE`] that are kept apart; beyond, they are rounded to 3 digits. No context is that long,
/// so only a wrong column gets here.
const MOST_SPARSE: usize = 1 << 18;

/// Counts of lengths, tokens. Weights are rows, or any weights of a histogram.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    dense: Vec<f64>,
    sparse: BTreeMap<u32, f64>,
    total: f64,
}

impl Counts {
    /// Counts `weight` rows of length `tokens`.
    #[inline]
    pub fn add(&mut self, tokens: u32, weight: f64) {
        self.total += weight;
        let place = tokens as usize;
        if place < self.dense.len() {
            self.dense[place] += weight;
        } else if place < DENSE {
            self.dense.resize((place + 1).next_power_of_two().min(DENSE), 0.0);
            self.dense[place] += weight;
        } else {
            let full = self.sparse.len() >= MOST_SPARSE;
            let digit = 10u32.pow(tokens.ilog10().saturating_sub(2));
            let key = if full { tokens / digit * digit } else { tokens };
            *self.sparse.entry(key).or_default() += weight;
        }
    }

    /// All rows.
    pub fn total(&self) -> f64 {
        self.total
    }

    /// Each length that was seen with its count, rising.
    pub fn iter(&self) -> impl Iterator<Item = (u32, f64)> + Clone + '_ {
        let dense = self.dense.iter().enumerate().filter(|(_, count)| **count > 0.0);
        dense
            .map(|(tokens, count)| (tokens as u32, *count))
            .chain(self.sparse.iter().map(|(key, count)| (*key, *count)))
    }

    /// Rows of exactly `tokens`.
    pub fn at(&self, tokens: u32) -> f64 {
        match self.dense.get(tokens as usize) {
            Some(count) => *count,
            None => self.sparse.get(&tokens).copied().unwrap_or(0.0),
        }
    }

    /// Rows from `low` to `high`, both included.
    pub fn between(&self, low: u32, high: u32) -> f64 {
        let end = (high as usize + 1).min(self.dense.len());
        let dense: f64 = self.dense.get(low as usize..end).into_iter().flatten().sum();
        dense + if high as usize >= DENSE { self.sparse.range(low..=high).map(|(_, count)| count).sum() } else { 0.0 }
    }

    /// Share of rows above `tokens`.
    pub fn share_above(&self, tokens: u32) -> f64 {
        self.between(tokens.saturating_add(1), u32::MAX) / self.total.max(f64::MIN_POSITIVE)
    }

    /// Mean of min(X, cap).
    pub fn mean_capped(&self, cap: f64) -> f64 {
        self.iter().map(|(tokens, count)| f64::from(tokens).min(cap) * count).sum::<f64>() / self.total
    }

    /// Mean length.
    pub fn mean(&self) -> f64 {
        self.mean_capped(f64::INFINITY)
    }

    /// Standard deviation over mean.
    pub fn cv(&self) -> f64 {
        let mean = self.mean();
        let square = self.iter().map(|(tokens, count)| (f64::from(tokens) - mean).powi(2) * count).sum::<f64>();
        (square / self.total).sqrt() / mean
    }

    /// The least length with at least a share `p` of the rows at or below it.
    pub fn quantile(&self, p: f64) -> u32 {
        let wanted = p * self.total;
        let mut below = 0.0;
        let mut last = 0;
        for (tokens, count) in self.iter() {
            below += count;
            last = tokens;
            if below >= wanted {
                break;
            }
        }
        last
    }

    /// The longest.
    pub fn max(&self) -> Option<u32> {
        let dense = || self.dense.iter().rposition(|count| *count > 0.0).map(|place| place as u32);
        self.sparse.keys().next_back().copied().or_else(dense)
    }

    /// The most frequent length and its count.
    pub fn top(&self) -> Option<(u32, f64)> {
        self.iter().fold(None, |best, it| if best.is_some_and(|(_, count)| count >= it.1) { best } else { Some(it) })
    }

    /// How many lengths differ.
    pub fn distinct(&self) -> usize {
        self.iter().count()
    }

    /// Entropy of the length, bits.
    pub fn entropy_bits(&self) -> f64 {
        self.iter().map(|(_, count)| count / self.total).map(|share| -share * share.log2()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_those_of_the_rows() {
        let mut counts = Counts::default();
        for tokens in [6, 6, 6, 2, 300_000, 100] {
            counts.add(tokens, 1.0);
        }
        assert_eq!((counts.total(), counts.max(), counts.top()), (6.0, Some(300_000), Some((6, 3.0))));
        assert_eq!((counts.quantile(0.5), counts.quantile(1.0), counts.distinct()), (6, 300_000, 4));
        assert_eq!((counts.between(2, 100), counts.between(101, 400_000), counts.at(6)), (5.0, 1.0, 3.0));
        assert!((counts.share_above(6) - 2.0 / 6.0).abs() < 1e-12);
        assert!((counts.mean_capped(50.0) - (18.0 + 2.0 + 100.0) / 6.0).abs() < 1e-12);
        assert!((counts.entropy_bits() - (0.5 + 3.0 / 6.0 * 6f64.log2())).abs() < 1e-12);
    }
}
