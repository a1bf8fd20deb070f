//! Whether a file's rows drift or are sorted: a sketch of the lengths over the file, in fixed memory.

/// Bins per doubling of the length. Lengths up to this are bins of their own.
const PER_OCTAVE: u32 = 32;

/// Bins: 27 doublings above [`PER_OCTAVE`].
const BINS: usize = (PER_OCTAVE * 28) as usize;

/// Parts of the file that are kept apart.
const PARTS: usize = 64;

/// Counts of one column, part by part. Parts hold equally many rows, which double when there are too many.
#[derive(Clone, Debug)]
pub struct Order {
    parts: Vec<Vec<u32>>,
    rows_per_part: u64,
    rows: u64,
    last: Option<u32>,
    rises: bool,
    falls: bool,
    first: Option<u32>,
}

impl Default for Order {
    fn default() -> Self {
        Order { parts: Vec::new(), rows_per_part: 16, rows: 0, last: None, rises: true, falls: true, first: None }
    }
}

fn bin(tokens: u32) -> usize {
    if tokens < PER_OCTAVE {
        return tokens as usize;
    }
    let octave = tokens.ilog2() - PER_OCTAVE.ilog2();
    let within = (tokens >> octave) - PER_OCTAVE;
    (PER_OCTAVE * (octave + 1) + within) as usize
}

impl Order {
    /// Takes the next row.
    #[inline]
    pub fn add(&mut self, tokens: u32) {
        if let Some(last) = self.last {
            self.rises &= tokens >= last;
            self.falls &= tokens <= last;
        } else {
            self.first = Some(tokens);
        }
        self.last = Some(tokens);
        if self.rows == self.rows_per_part * self.parts.len() as u64 {
            if self.parts.len() == PARTS {
                self.halve();
            }
            self.parts.push(vec![0; BINS]);
        }
        self.rows += 1;
        if let Some(part) = self.parts.last_mut() {
            part[bin(tokens).min(BINS - 1)] += 1;
        }
    }

    fn halve(&mut self) {
        let parts = std::mem::take(&mut self.parts);
        let mut pairs = parts.into_iter();
        while let (Some(mut left), Some(right)) = (pairs.next(), pairs.next()) {
            left.iter_mut().zip(right).for_each(|(sum, more)| *sum += more);
            self.parts.push(left);
        }
        self.rows_per_part *= 2;
    }

    /// Whether the rows rise or fall all along, without being all equal.
    pub fn monotone(&self) -> Option<&'static str> {
        match (self.rises, self.falls, self.first != self.last && self.rows > 20) {
            (true, false, true) => Some("rising"),
            (false, true, true) => Some("falling"),
            _ => None,
        }
    }

    /// Largest distance between the distribution functions of the two halves (Kolmogorov and Smirnov), to the
    /// resolution of the bins, which is 3%.
    pub fn ks_of_halves(&self) -> f64 {
        let half = self.parts.len() / 2;
        let sum = |parts: &[Vec<u32>]| {
            let mut bins = vec![0.0; BINS];
            parts.iter().for_each(|part| bins.iter_mut().zip(part).for_each(|(sum, count)| *sum += f64::from(*count)));
            let total: f64 = bins.iter().sum();
            (bins, total)
        };
        let ((left, left_total), (right, right_total)) = (sum(&self.parts[..half]), sum(&self.parts[half..]));
        if left_total == 0.0 || right_total == 0.0 {
            return 0.0;
        }
        let (mut a, mut b, mut distance) = (0.0, 0.0, 0f64);
        for (l, r) in left.iter().zip(&right) {
            a += l / left_total;
            b += r / right_total;
            distance = distance.max((a - b).abs());
        }
        distance
    }

    /// Rows taken.
    pub fn rows(&self) -> u64 {
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorted_rows_are_seen_and_equal_halves_agree() {
        let mut sorted = Order::default();
        (1..100_000).for_each(|tokens| sorted.add(tokens));
        assert_eq!(sorted.monotone(), Some("rising"));
        assert!(sorted.ks_of_halves() > 0.9);
        let mut mixed = Order::default();
        (1..100_000u32).for_each(|row| mixed.add(row.wrapping_mul(2_654_435_761) % 5000));
        assert_eq!(mixed.monotone(), None);
        assert!(mixed.ks_of_halves() < 0.01);
    }

    #[test]
    fn bins_never_fall() {
        let bins: Vec<usize> = (0..200_000).map(bin).collect();
        assert!(bins.windows(2).all(|pair| pair[0] == pair[1] || pair[0] + 1 == pair[1]));
        assert!(bin(u32::MAX) < BINS);
    }
}
