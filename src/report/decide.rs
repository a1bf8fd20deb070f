//! Options side by side.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::experiment::{Choice, Decision, Keep, Terms, Thinking, Verdict};
use crate::model::scenario::Scenario;
use crate::report::format::{percent, thousands};
use crate::stats::{mean, paired};

/// Columns that a terminal has, at least.
const WIDTH: usize = 100;

/// What `decide` says.
#[derive(Clone, Debug, Serialize)]
pub struct DecideReport {
    scenario: String,
    seed: u64,
    replications: u64,
    deadline_days: Option<f64>,
    confidence: f64,
    keep: &'static str,
    requests_per_run: u64,
    requests: u64,
    options: Vec<OptionReport>,
    recommended: String,
    advice: String,
    best_max_tokens: Option<u64>,
    best_requests: Option<u64>,
    stop_at_deadline: Option<Value>,
    #[serde(skip)]
    title: String,
    #[serde(skip)]
    assumes_thinking: bool,
}

#[derive(Clone, Debug, Serialize)]
struct OptionReport {
    name: String,
    set: Map<String, Value>,
    impossible: Option<String>,
    makespan_days: Map<String, Value>,
    difference_days: Option<f64>,
    difference_half_width: Option<f64>,
    p_deadline: Option<f64>,
    complete_answers: f64,
    truncated: f64,
    cut_while_thinking: f64,
    output_tokens: f64,
    tokens_kept: f64,
    tokens_without_answer: f64,
    cut_by_context: f64,
    gpu_hours: f64,
    energy_kwh: Option<f64>,
    cost: Option<f64>,
    dominated_by: Option<String>,
}

impl OptionReport {
    fn new(verdict: &Verdict, choice: &Choice) -> Self {
        let mut makespan_days = Map::new();
        if let Some(mean) = mean(&verdict.days) {
            makespan_days.insert("mean".to_owned(), json!(mean));
        }
        for p in [5, 25, 50, 75, 95] {
            if let Some(days) = verdict.quantile(f64::from(p) / 100.0) {
                makespan_days.insert(format!("p{p}"), json!(days));
            }
        }
        OptionReport {
            name: verdict.name.clone(),
            set: choice.set.iter().map(|over| (over.key().to_owned(), json!(over.value()))).collect(),
            impossible: verdict.impossible.clone(),
            makespan_days,
            difference_days: verdict.difference.map(|pair| pair.mean),
            difference_half_width: verdict.difference.and_then(|pair| pair.half_width),
            p_deadline: verdict.p_deadline,
            complete_answers: verdict.complete,
            truncated: verdict.truncated,
            cut_while_thinking: verdict.cut_thinking,
            output_tokens: verdict.tokens,
            tokens_kept: verdict.tokens - verdict.tokens_without_answer,
            tokens_without_answer: verdict.tokens_without_answer,
            cut_by_context: verdict.cut_by_context,
            gpu_hours: verdict.gpu_hours,
            energy_kwh: verdict.energy_kwh,
            cost: verdict.cost,
            dominated_by: verdict.dominated_by.clone(),
        }
    }
}

impl DecideReport {
    /// The report of a comparison.
    pub fn new(scenario: &Scenario, terms: Terms, choices: &[Choice], decision: &Decision) -> Self {
        let stop = decision.solved.map(|solved| {
            json!({
                "ended_share": solved.stopped.ended,
                "complete_answers": solved.stopped.complete,
                "length_bias": solved.stopped.length_bias,
            })
        });
        DecideReport {
            scenario: scenario.name.clone(),
            seed: terms.seed,
            replications: terms.replications,
            deadline_days: terms.deadline_days,
            confidence: terms.confidence,
            keep: match terms.keep {
                Keep::Complete => "complete",
                Keep::Samples => "samples",
                Keep::Tokens => "tokens",
            },
            requests_per_run: decision.requests.0,
            requests: decision.requests.1,
            options: decision.verdicts.iter().zip(choices).map(|(v, choice)| OptionReport::new(v, choice)).collect(),
            recommended: decision.verdicts[decision.recommended].name.clone(),
            advice: advice(decision, terms),
            best_max_tokens: decision.solved.and_then(|solved| solved.max_tokens),
            best_requests: decision.solved.map(|solved| solved.requests),
            stop_at_deadline: stop,
            title: scenario.tables.title.clone().unwrap_or_else(|| scenario.name.clone()),
            assumes_thinking: terms.thinking == Thinking::BeforeAnswer,
        }
    }

    /// Two sentences: what to do, and what that rests on.
    pub(super) fn advice(&self) -> &str {
        &self.advice
    }

    /// As JSON, one object.
    ///
    /// # Errors
    /// What writing gives.
    pub fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, self)?;
        writeln!(out)
    }

    /// As text.
    ///
    /// # Errors
    /// What writing gives.
    pub fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}", self.title)?;
        writeln!(
            out,
            "{} replications of each option on the same draws; each run of {} requests stands for the whole job\n",
            self.replications,
            thousands(self.requests_per_run)
        )?;
        self.write_table(out)?;
        writeln!(out, "\ncomplete: answers that ended by themselves; cut: share of the requests that a limit ended;")?;
        writeln!(
            out,
            "no answer: share cut before their answer began; wasted: share of the output tokens spent on those;"
        )?;
        writeln!(out, "better: the option that keeps as much, takes less time and no more GPU time")?;
        for option in self.options.iter().filter(|option| option.cut_by_context >= 1.0) {
            writeln!(
                out,
                "{}: {} of the cut requests end at the end of the context, not at max_tokens",
                option.name,
                thousands(option.cut_by_context.round() as u64)
            )?;
        }
        if self.assumes_thinking {
            writeln!(
                out,
                "assumed: thinking comes first and the answer is the last 400 tokens on average (median 350), as counted in \
                 replies of thinking models (--no-thinking for models that answer at once)"
            )?;
        }
        if let (Some(days), Some(requests)) = (self.deadline_days, self.best_requests) {
            let sure = percent(self.confidence);
            match self.best_max_tokens {
                Some(cap) => {
                    writeln!(out, "\nlargest max_tokens done in {days:.1} days at {sure}: {}", thousands(cap))?
                }
                None => writeln!(out, "\nno max_tokens of 64 or more is done in {days:.1} days at {sure}")?,
            }
            writeln!(out, "most requests done in {days:.1} days at {sure}: {}", thousands(requests))?;
        }
        if let Some(stop) = &self.stop_at_deadline {
            let number = |key: &str| stop.get(key).and_then(Value::as_f64).unwrap_or(0.0);
            writeln!(
                out,
                "stopping everything then: {} of the requests have ended on average, {} with a complete answer; their \
                 mean length is off by {:+.2}%",
                percent(number("ended_share")),
                thousands(number("complete_answers").round() as u64),
                number("length_bias") * 100.0
            )?;
        }
        writeln!(out, "\n{}", self.advice)
    }

    /// The options, a line each, with a letter by which the others name it.
    pub(super) fn write_table(&self, out: &mut impl Write) -> io::Result<()> {
        let whole = |number: f64| thousands(number.round() as u64);
        let priced = self.options.iter().any(|option| option.cost.is_some());
        let powered = self.options.iter().any(|option| option.energy_kwh.is_some());
        let mut head = format!("{:>6} {:>12}", "days", "90% between");
        if let Some(days) = self.deadline_days {
            head += &format!(" {:>9}", format!("in {days:.1} d"));
        }
        head += &format!(" {:>8} {:>4} {:>9} {:>6} {:>6}", "complete", "cut", "no answer", "wasted", "GPU-h");
        for (there, name) in [(powered, "kWh"), (priced, "cost")] {
            if there {
                head += &format!(" {name:>7}");
            }
        }
        head += " better";
        let longest = self.options.iter().map(|option| option.name.chars().count() + 3).max().unwrap_or(0);
        let width = longest.clamp(6, (WIDTH - 1 - head.chars().count()).max(6));
        writeln!(out, "{:<width$} {head}", "option")?;
        for (place, option) in self.options.iter().enumerate() {
            let name = format!("{}  {}", letter(place), option.name);
            if let Some(reason) = &option.impossible {
                writeln!(out, "{name:<width$} cannot be done: {reason}")?;
                continue;
            }
            // A long name has a line of its own, so that the columns stay where they are.
            let name =
                if name.chars().count() > width { format!("{name}\n{:width$}", "") } else { format!("{name:<width$}") };
            let day = |key: &str| option.makespan_days.get(key).and_then(Value::as_f64).unwrap_or(0.0);
            let asked = (option.complete_answers + option.truncated).max(1.0);
            let better = option.dominated_by.as_ref();
            let better = better.and_then(|name| self.options.iter().position(|other| other.name == *name));
            let line = format!(
                "{name} {:>6.2} {:>12}{} {:>8} {:>4} {:>9} {:>6} {:>6}{}{} {}",
                day("p50"),
                format!("{:.1} to {:.1}", day("p5"), day("p95")),
                option.p_deadline.map_or(String::new(), |share| format!(" {:>9}", percent(share))),
                whole(option.complete_answers),
                percent(option.truncated / asked),
                percent(option.cut_while_thinking / asked),
                percent(option.tokens_without_answer / option.output_tokens.max(1.0)),
                whole(option.gpu_hours),
                option.energy_kwh.map_or(String::new(), |kwh| format!(" {:>7}", whole(kwh))),
                option.cost.map_or(String::new(), |cost| format!(" {:>7}", whole(cost))),
                better.map_or(String::new(), letter)
            );
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// The letter of an option; beyond the alphabet its number, from 0.
pub(super) fn letter(place: usize) -> String {
    u8::try_from(place)
        .ok()
        .filter(|place| *place < 26)
        .map_or(place.to_string(), |place| char::from(b'a' + place).to_string())
}

/// Two sentences: what to do, and what that rests on.
fn advice(decision: &Decision, terms: Terms) -> String {
    let best = &decision.verdicts[decision.recommended];
    let days = best.quantile(0.5).unwrap_or(0.0);
    let what = match terms.keep {
        Keep::Complete => "complete answers",
        Keep::Samples => "samples",
        Keep::Tokens => "tokens",
    };
    let first = match (terms.deadline_days, best.p_deadline) {
        (Some(deadline), Some(p)) if p >= terms.confidence => format!(
            "Take \"{}\": {days:.1} days, done within {deadline:.1} days in {} of the replications, with the most {what} of \
             all options that are.",
            best.name,
            percent(p)
        ),
        (Some(deadline), Some(0.0)) => format!(
            "No option is ever done within {deadline:.1} days; \"{}\" is done soonest, within {:.1} days at {}.",
            best.name,
            best.quantile(terms.confidence).unwrap_or(0.0),
            percent(terms.confidence)
        ),
        (Some(deadline), Some(p)) => format!(
            "No option is done within {deadline:.1} days at {}; \"{}\" comes nearest with {} and {days:.1} days.",
            percent(terms.confidence),
            best.name,
            percent(p)
        ),
        _ => format!("\"{}\" keeps the most {what}, in {days:.1} days; give --deadline to weigh time.", best.name),
    };
    let as_is = &decision.verdicts[0];
    let second = match paired(&best.days, &as_is.days, 0.95) {
        Some(pair) if decision.recommended != 0 => format!(
            " It rests on {} paired replications, in which it takes {:+.2} ± {:.2} days against running the job as it is, \
             and on the scenario's law of lengths, which a pilot of some 1,000 prompts would settle.",
            terms.replications,
            pair.mean,
            pair.half_width.unwrap_or(0.0)
        ),
        _ => " It rests on the scenario's law of lengths, which a pilot of some 1,000 prompts would settle.".to_owned(),
    };
    first + &second
}
