//! One pass over a file of requests: counters, sums and samples, in memory that does not grow with the file.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::counts::Counts;
use super::order::Order;
use crate::error::{InputError, Result};
use crate::workload::trace::{Finish, Record, RecordSink, TraceFormat};

/// Rows whose pairs of lengths are kept, from the start: 8 bytes each.
pub(crate) const PAIRS: usize = 1_000_000;

/// Rows whose ids are kept, from the start: 8 bytes each.
const IDS: usize = 2_000_000;

/// Different gaps that are counted.
const MOST_GAPS: usize = 4096;

/// Kinds of refusal that are told apart.
const MOST_REASONS: usize = 20;

/// Rows that were not used, for one reason.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Refusal {
    /// How many.
    pub rows: u64,
    /// Line of the first, from 1.
    pub line: Option<u64>,
    /// What the first was and what would be right.
    pub what: String,
}

/// Rows of one property, with an example.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub rows: u64,
    pub line: u64,
}

impl Seen {
    fn add(&mut self, line: u64) {
        if self.rows == 0 {
            self.line = line;
        }
        self.rows += 1;
    }
}

/// Sums for a mean and correlations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub n: f64,
    x: f64,
    y: f64,
    xx: f64,
    yy: f64,
    xy: f64,
}

impl Sums {
    fn add(&mut self, x: f64, y: f64) {
        self.n += 1.0;
        self.x += x;
        self.y += y;
        self.xx += x * x;
        self.yy += y * y;
        self.xy += x * y;
    }

    /// Pearson's correlation; 0 where one side is constant.
    pub fn correlation(&self) -> f64 {
        let covariance = self.xy - self.x * self.y / self.n;
        let spread = (self.xx - self.x * self.x / self.n) * (self.yy - self.y * self.y / self.n);
        if spread > 0.0 { covariance / spread.sqrt() } else { 0.0 }
    }
}

/// Gaps between arrivals in file order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrivals {
    pub rows: u64,
    pub first_ns: i64,
    pub least_ns: i64,
    pub most_ns: i64,
    last_ns: i64,
    pub zero_gaps: u64,
    pub backward: u64,
    /// Greatest common divisor of the gaps, ns.
    pub step_ns: u64,
    /// Gaps above zero, ms; the first [`MOST_GAPS`] different ones.
    steps_ms: HashMap<u32, u64>,
    gaps: f64,
    sum: f64,
    squares: f64,
}

impl Arrivals {
    fn add(&mut self, time_ns: i64) {
        if self.rows == 0 {
            (self.first_ns, self.least_ns, self.most_ns) = (time_ns, time_ns, time_ns);
        } else {
            let gap = time_ns - self.last_ns;
            self.zero_gaps += u64::from(gap == 0);
            self.backward += u64::from(gap < 0);
            if self.step_ns != 1 {
                self.step_ns = gcd(self.step_ns, gap.unsigned_abs());
            }
            if gap >= 1_000_000 {
                let ms = u32::try_from(gap / 1_000_000).unwrap_or(u32::MAX);
                if self.steps_ms.len() < MOST_GAPS || self.steps_ms.contains_key(&ms) {
                    *self.steps_ms.entry(ms).or_default() += 1;
                }
            }
            let seconds = gap as f64 * 1e-9;
            self.gaps += 1.0;
            self.sum += seconds;
            self.squares += seconds * seconds;
        }
        self.least_ns = self.least_ns.min(time_ns);
        self.most_ns = self.most_ns.max(time_ns);
        self.last_ns = time_ns;
        self.rows += 1;
    }

    /// From the first to the last arrival, s.
    pub fn span_s(&self) -> f64 {
        (self.most_ns - self.least_ns) as f64 * 1e-9
    }

    /// The most frequent gap above zero, ms, with its share of those.
    pub fn usual_gap_ms(&self) -> Option<(u32, f64)> {
        let all = self.gaps - self.zero_gaps as f64 - self.backward as f64;
        // Ties go to the shorter: the order of a hash map is not part of the result.
        let usual = self.steps_ms.iter().max_by_key(|(ms, count)| (**count, std::cmp::Reverse(**ms)))?;
        Some((*usual.0, *usual.1 as f64 / all))
    }

    /// Standard deviation over mean of the gaps; nothing where times go backward.
    pub fn gap_cv(&self) -> Option<f64> {
        let mean = self.sum / self.gaps;
        let cv = (self.squares / self.gaps - mean * mean).max(0.0).sqrt() / mean;
        (self.backward == 0 && cv.is_finite()).then_some(cv)
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Everything that the checks and the report need of a file of requests.
#[derive(Clone, Debug, Default)]
pub struct Gathered {
    /// The format it was read as.
    pub format: Option<TraceFormat>,
    pub(crate) output_name: String,
    /// Rows in the file, refused ones included.
    pub rows: u64,
    /// Rows without an output length that are requests all the same: prompts and caps.
    pub without_output: u64,
    /// Refused rows by reason.
    pub refusals: BTreeMap<String, Refusal>,
    pub(crate) reasons_left_out: u64,
    /// Prompt lengths.
    pub input: Counts,
    /// Output lengths, as recorded.
    pub output: Counts,
    /// Output lengths of requests that were cut.
    pub cut: Counts,
    /// Lengths so far of requests that run.
    pub running: Counts,
    /// Rows whose finish is known.
    pub finished: u64,
    pub(crate) caps: Counts,
    pub(crate) over_cap: Seen,
    /// Outputs of 2^12 and more, powers of two, whose requests asked for more.
    pub(crate) at_limit: Counts,
    pub(crate) zero_output: Seen,
    pub(crate) zero_input: Seen,
    pub(crate) with_thinking: u64,
    pub(crate) thinking_known: Seen,
    pub(crate) asked_to_think: u64,
    pub(crate) thought: u64,
    pub(crate) empty: Seen,
    pub(crate) empty_after_cut: u64,
    pub(crate) answers_known: u64,
    pub(crate) thinking_over_output: Seen,
    pub(crate) wrong_total: Seen,
    pub(crate) totals_known: u64,
    pub(crate) equal: u64,
    pub(crate) ratio: Option<f64>,
    pub(crate) ratio_kept: u64,
    pub(crate) input_bits: u32,
    pub(crate) output_bits: u32,
    pub(crate) answer_is_output: u64,
    pub(crate) both: Sums,
    pub(crate) longest_sum: u64,
    pub(crate) longest_sum_line: u64,
    pub(crate) characters: f64,
    pub(crate) characters_tokens: f64,
    pub(crate) arrivals: Arrivals,
    pub(crate) input_order: Order,
    pub(crate) output_order: Order,
    pub(crate) pairs: Vec<(u32, u32)>,
    pub(crate) ids: Vec<u64>,
    pub(crate) lines_of: BTreeMap<u32, u64>,
    pub(crate) histogram: bool,
}

impl Gathered {
    /// Rows with an output length.
    pub fn used(&self) -> f64 {
        self.output.total()
    }

    /// Rows that were refused.
    pub fn refused_rows(&self) -> u64 {
        self.refusals.values().map(|refusal| refusal.rows).sum::<u64>() + self.reasons_left_out
    }

    /// A line on which the output is `tokens`, where one was kept.
    pub(crate) fn example(&self, tokens: u32) -> Option<u64> {
        self.lines_of.get(&tokens).copied()
    }

    fn parts(&mut self, record: &Record, output: u32) {
        if let Some(thinking) = record.thinking {
            self.thinking_known.add(record.line);
            self.with_thinking += u64::from(thinking > 0);
        }
        if record.thinking.is_some_and(|tokens| tokens > output) || record.answer.is_some_and(|tokens| tokens > output)
        {
            self.thinking_over_output.add(record.line);
        }
        if record.asked_to_think == Some(true) {
            self.asked_to_think += 1;
            self.thought += u64::from(record.thinking.is_some_and(|tokens| tokens > 0));
        }
        if let Some(answer) = record.answer {
            self.answer_is_output += u64::from(answer == output && output > 0);
        }
        if let Some(empty) = record.empty_answer {
            self.answers_known += 1;
            if empty && record.finish == Finish::Cut {
                self.empty_after_cut += 1;
            } else if empty {
                self.empty.add(record.line);
            }
        }
        if let (Some(total), Some(input)) = (record.total, record.input) {
            self.totals_known += 1;
            if u64::from(total) != u64::from(input) + u64::from(output) {
                self.wrong_total.add(record.line);
            }
        }
        if let Some(characters) = record.characters.filter(|characters| *characters > 0) {
            self.characters += f64::from(characters);
            self.characters_tokens += f64::from(output.saturating_sub(record.thinking.unwrap_or(0)));
        }
    }

    fn together(&mut self, record: &Record, input: u32, output: u32) {
        self.both.add(f64::from(input), f64::from(output));
        self.equal += u64::from(input == output);
        let ratio = f64::from(output) / f64::from(input);
        match self.ratio {
            None => self.ratio = Some(ratio),
            Some(first) => self.ratio_kept += u64::from((ratio / first - 1.0).abs() < 1e-3),
        }
        let sum = u64::from(input) + u64::from(output);
        if sum > self.longest_sum {
            (self.longest_sum, self.longest_sum_line) = (sum, record.line);
        }
        if self.pairs.len() < PAIRS {
            self.pairs.push((input, output));
        }
    }
}

impl RecordSink for Gathered {
    fn start(&mut self, format: TraceFormat, _timed: bool, names: [&str; 2]) {
        self.format = Some(format);
        self.output_name = names[1].to_owned();
    }

    fn record(&mut self, record: &Record, _prefix: Option<&Value>) -> std::result::Result<(), InputError> {
        if record.finish == Finish::Failed {
            return Err(InputError::new("an error", "a failed request has no length").key("errors"));
        }
        self.rows += 1;
        if let Some(time) = record.time_ns {
            self.arrivals.add(time);
        }
        if let Some(id) = record.id.filter(|_| self.ids.len() < IDS) {
            self.ids.push(id);
        }
        if let Some(cap) = record.cap {
            self.caps.add(cap, 1.0);
        }
        if let Some(input) = record.input {
            self.input.add(input, 1.0);
            self.input_order.add(input);
            self.input_bits |= input;
            if input == 0 {
                self.zero_input.add(record.line);
            }
        }
        let Some(output) = record.output else {
            self.without_output += 1;
            return Ok(());
        };
        self.finished += u64::from(record.finish != Finish::Unknown);
        if record.finish == Finish::Running {
            self.running.add(output, 1.0);
            return Ok(());
        }
        if record.cap.is_some_and(|cap| output > cap) {
            self.over_cap.add(record.line);
        }
        if output >= 1 << 12 && output.is_power_of_two() && record.cap.is_some_and(|cap| output < cap) {
            self.at_limit.add(output, 1.0);
        }
        // Where a file does not say how a request ended, an output as long as the cap that it asked for was cut.
        if record.finish == Finish::Cut || record.finish == Finish::Unknown && record.cap == Some(output) {
            self.cut.add(output, 1.0);
        }
        if self.output.at(output) == 0.0 && self.lines_of.len() < 1 << 16 {
            self.lines_of.insert(output, record.line);
        }
        self.output.add(output, 1.0);
        self.output_order.add(output);
        self.output_bits |= output;
        if output == 0 {
            self.zero_output.add(record.line);
        }
        self.parts(record, output);
        if let Some(input) = record.input {
            self.together(record, input, output);
        }
        Ok(())
    }

    fn refused(&mut self, error: InputError) -> Result<()> {
        self.rows += 1;
        let what = error.to_string();
        let reason = format!("{}: {}", error.key.as_deref().unwrap_or("row"), error.remedy);
        if self.refusals.len() >= MOST_REASONS && !self.refusals.contains_key(&reason) {
            self.reasons_left_out += 1;
            return Ok(());
        }
        let refusal = self.refusals.entry(reason).or_insert(Refusal { rows: 0, line: error.line, what });
        refusal.rows += 1;
        Ok(())
    }
}
