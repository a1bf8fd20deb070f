//! What a job's answers are worth: complete, cut, cut while still thinking, and the tokens behind them.

use crate::engine::observe::Observer;
use crate::engine::sequence::Sequence;
use crate::units::SimTime;

/// Share of the output that is thinking, over production requests to DeepSeek-R1 in ten bins of 0.1 (ServeGen data,
/// alibaba/ServeGen): an assumption for any other model, and taken to be independent of the length.
const THINKING_SHARES: [f64; 10] = [0.0, 0.0, 3.0, 12.0, 10.0, 7.0, 9.0, 15.0, 19.0, 24.0];

/// Whether outputs begin with thinking, of which a reader gets nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinking {
    /// They do, by the law of shares seen in production.
    Production,
    /// They are answers from the first token.
    None,
}

impl Thinking {
    /// Probability that the thinking of an output takes more than `share` of it.
    pub fn longer_than(self, share: f64) -> f64 {
        match self {
            Thinking::None => 0.0,
            Thinking::Production => {
                let total: f64 = THINKING_SHARES.iter().sum();
                let place = share.clamp(0.0, 1.0) * THINKING_SHARES.len() as f64;
                let bin = (place as usize).min(THINKING_SHARES.len() - 1);
                let above: f64 = THINKING_SHARES[bin + 1..].iter().sum();
                (above + THINKING_SHARES[bin] * (bin as f64 + 1.0 - place)) / total
            }
        }
    }
}

/// Counts over the requests of a run. Whether a cut request was still thinking is not simulated: its probability is
/// added up.
#[derive(Clone, Copy, Debug)]
pub struct Account {
    thinking: Thinking,
    /// Requests that end later do not count.
    until: SimTime,
    /// Requests that ended by themselves.
    pub complete: u64,
    /// Requests cut by a limit.
    pub truncated: u64,
    /// Of those, cut before their answer began.
    pub cut_thinking: f64,
    /// Output tokens.
    pub tokens: u64,
    /// Of those, tokens of requests cut before their answer began.
    pub tokens_without_answer: f64,
}

impl Account {
    /// Of requests that end by `until`.
    pub fn new(thinking: Thinking, until: SimTime) -> Account {
        Account { thinking, until, complete: 0, truncated: 0, cut_thinking: 0.0, tokens: 0, tokens_without_answer: 0.0 }
    }
}

impl Observer for Account {
    fn completed(&mut self, _replica: usize, sequence: &Sequence) {
        if sequence.finished_at > self.until {
            return;
        }
        let request = &sequence.request;
        let written = f64::from(request.output_tokens);
        self.tokens += u64::from(request.output_tokens);
        if request.output_tokens < request.uncapped_output_tokens {
            self.truncated += 1;
            let unanswered = self.thinking.longer_than(written / f64::from(request.uncapped_output_tokens));
            self.cut_thinking += unanswered;
            self.tokens_without_answer += unanswered * written;
        } else {
            self.complete += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::workload::LengthLaw;
    use crate::random::{Purpose, Streams};
    use crate::workload::law::Law;
    use std::path::Path;

    #[test]
    fn thinking_shares_fall_from_one_to_none() {
        assert_eq!(Thinking::Production.longer_than(0.0), 1.0);
        assert_eq!(Thinking::Production.longer_than(1.0), 0.0);
        assert!((Thinking::Production.longer_than(0.9) - 24.0 / 99.0).abs() < 1e-12);
        assert_eq!(Thinking::None.longer_than(0.1), 0.0);
        // Mean share 0.70.
        let mean = (0..1000).map(|i| Thinking::Production.longer_than(f64::from(i) / 1000.0)).sum::<f64>() / 1000.0;
        assert!((mean - 0.70).abs() < 0.01, "{mean}");
    }

    /// The law of R1's outputs for short inputs, of which the cut, the unanswered and their tokens were counted: 21%, 18%
    /// and 35% at a cap of 2,048; 12%, 9% and 27% at 4,096. The independence of share and length is what is put to the
    /// test; the fitted law itself cuts 4% more than was counted at 2,048.
    #[test]
    fn unanswered_requests_as_counted_in_production() {
        let name = toml::Value::String("deepseek-r1-short-inputs".to_owned());
        let law = LengthLaw::from_toml(&name, "law", Path::new("")).unwrap();
        let law = Law::from_description(&law, "law").unwrap();
        let mut blocks = Streams::new(1, 0).blocks(Purpose::Request);
        for (cap, cut, unanswered, wasted) in [(2048.0, 0.21, 0.18, 0.35), (4096.0, 0.12, 0.09, 0.27)] {
            let (mut n_cut, mut n_unanswered, mut tokens) = (0.0, 0.0, 0.0);
            let n = 50_000;
            for id in 0..n {
                let draws = blocks.draws(id);
                let length = law.sample(draws[0], draws[1]);
                tokens += length.min(cap);
                if length > cap {
                    n_cut += 1.0;
                    n_unanswered += Thinking::Production.longer_than(cap / length);
                }
            }
            assert!((n_cut / n as f64 - cut).abs() < 0.05, "cut {}", n_cut / n as f64);
            assert!((n_unanswered / n as f64 - unanswered).abs() < 0.05, "unanswered {}", n_unanswered / n as f64);
            assert!((n_unanswered * cap / tokens - wasted).abs() < 0.08, "wasted {}", n_unanswered * cap / tokens);
        }
    }
}
