//! What a job's answers are worth: complete, cut, cut while still thinking, and the tokens behind them.

use statrs::distribution::{ContinuousCDF, Normal};

use crate::engine::observe::Observer;
use crate::engine::sequence::Sequence;
use crate::units::SimTime;

/// Mean and median of the answer that follows the thinking, tokens: replies of Qwen3 thinking models and of plain models
/// to short instructions have 390 to 450 and 330 to 470. The answer is far tamer than the thinking, so that an
/// output is long because its thinking is: a share of the whole drawn independently of the length would call half of
/// the requests cut at a cap answered.
const ANSWER_MEAN: f64 = 400.0;
const ANSWER_MEDIAN: f64 = 350.0;

/// Whether outputs begin with thinking, of which a reader gets nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinking {
    /// They do: what remains for the answer is lognormal, mean 400 and median 350 tokens, given that it is shorter than
    /// the output.
    BeforeAnswer,
    /// They are answers from the first token.
    None,
}

impl Thinking {
    /// Probability that the thinking of an output of `length` tokens is not over after `written` of them.
    pub fn outlasts(self, written: f64, length: f64) -> f64 {
        match self {
            Thinking::None => 0.0,
            Thinking::BeforeAnswer if written >= length => 0.0,
            Thinking::BeforeAnswer => {
                let sigma = (2.0 * (ANSWER_MEAN / ANSWER_MEDIAN).ln()).sqrt();
                let below = |tokens: f64| Normal::standard().cdf((tokens / ANSWER_MEDIAN).ln() / sigma);
                (below(length - written) / below(length)).min(1.0)
            }
        }
    }
}

/// Counts over the requests of a run. Whether a cut request was still thinking is not simulated: its probability is
/// added up.
#[derive(Clone, Copy, Debug)]
pub struct Account {
    thinking: Thinking,
    max_tokens: Option<u64>,
    /// Requests that end later do not count.
    until: SimTime,
    /// Requests that ended by themselves.
    pub complete: u64,
    /// Requests cut by a limit.
    pub truncated: u64,
    /// Of those, cut by the end of the context before `max_tokens`.
    pub cut_by_context: u64,
    /// Of the cut ones, cut before their answer began.
    pub cut_thinking: f64,
    /// Output tokens.
    pub tokens: u64,
    /// Of those, tokens of requests cut before their answer began.
    pub tokens_without_answer: f64,
}

impl Account {
    /// Of requests that end by `until`, in a job with this limit of output tokens.
    pub fn new(thinking: Thinking, max_tokens: Option<u64>, until: SimTime) -> Account {
        Account {
            thinking,
            max_tokens,
            until,
            complete: 0,
            truncated: 0,
            cut_by_context: 0,
            cut_thinking: 0.0,
            tokens: 0,
            tokens_without_answer: 0.0,
        }
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
            let below_cap = self.max_tokens.is_none_or(|cap| u64::from(request.output_tokens) < cap);
            self.cut_by_context += u64::from(below_cap);
            let unanswered = self.thinking.outlasts(written, f64::from(request.uncapped_output_tokens));
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
    fn thinking_outlasts_less_and_less_of_an_output() {
        assert_eq!(Thinking::BeforeAnswer.outlasts(0.0, 1000.0), 1.0);
        assert_eq!(Thinking::BeforeAnswer.outlasts(1000.0, 1000.0), 0.0);
        // With the median of an answer left, half of what is not longer than the output.
        assert!((Thinking::BeforeAnswer.outlasts(99_650.0, 100_000.0) - 0.5).abs() < 1e-6);
        assert_eq!(Thinking::None.outlasts(10.0, 100.0), 0.0);
    }

    /// Outputs of which the cut, the unanswered and their tokens were counted. The laws are fits to the same outputs, and
    /// the length of the answer is what is put to the test.
    #[test]
    fn unanswered_requests_as_counted() {
        let counted = [
            ("deepseek-r1-short-inputs", 2048.0, 0.21, 0.18, 0.35),
            ("deepseek-r1-short-inputs", 4096.0, 0.12, 0.09, 0.27),
            ("qwen3-30b-thinking-puzzles", 2048.0, 0.48, 0.44, 0.57),
            ("qwen3-30b-thinking-puzzles", 4096.0, 0.30, 0.25, 0.44),
        ];
        for (name, cap, cut, unanswered, wasted) in counted {
            let law = LengthLaw::from_toml(&toml::Value::String(name.to_owned()), "law", Path::new("")).unwrap();
            let law = Law::from_description(&law, "law").unwrap();
            let mut blocks = Streams::new(1, 0).blocks(Purpose::Request);
            let (mut n_cut, mut n_unanswered, mut tokens) = (0.0, 0.0, 0.0);
            let n = 50_000;
            for id in 0..n {
                let draws = blocks.draws(id);
                let length = law.sample(draws[0], draws[1]);
                tokens += length.min(cap);
                if length > cap {
                    n_cut += 1.0;
                    n_unanswered += Thinking::BeforeAnswer.outlasts(cap, length);
                }
            }
            let found = [n_cut / n as f64, n_unanswered / n as f64, n_unanswered * cap / tokens];
            for (found, counted) in found.into_iter().zip([cut, unanswered, wasted]) {
                assert!((found - counted).abs() < 0.06, "{name} at {cap}: {found} of {counted}");
            }
        }
    }
}
