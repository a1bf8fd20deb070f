//! The whole answer on one screen.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use crate::calibrate::{Explanation, Mechanism, Unmeasured};
use crate::cost::Cause;
use crate::experiment::{Choice, Driver, Terms, VARIATION, Verdict};
use crate::format::{labelled, percent, rate, thousands, tokens};
use crate::model::scenario::Scenario;
use crate::plan::Plan;
use crate::report::page::page;
use crate::report::{DecideReport, ForecastReport, ForecastRun};
use crate::units::SECONDS_PER_DAY;

/// Columns of text.
const WIDTH: usize = 100;

/// Columns of the labels on the left.
const INDENT: usize = 9;

/// Explanations less likely than this are not shown.
const SHOWN: f64 = 0.001;

/// Explanations that miss the rows by more than this explain nothing.
const UNEXPLAINED: f64 = 0.08;

/// Points of the drain at most.
const DRAIN_POINTS: usize = 128;

/// What `plan` says.
pub struct PlanReport<'a> {
    scenario: &'a Scenario,
    plan: &'a Plan,
    terms: Terms,
    forecast: ForecastReport,
    decide: DecideReport,
    wall_s: f64,
}

fn interval([p5, p50, p95]: [f64; 3]) -> Value {
    json!({"p5": p5, "p50": p50, "p95": p95})
}

impl<'a> PlanReport<'a> {
    /// The report of a plan that took `wall_s` seconds to make.
    pub fn new(scenario: &'a Scenario, terms: Terms, plan: &'a Plan, wall_s: f64) -> Self {
        let run = ForecastRun { seed: terms.seed, first: 0, deadline_days: terms.deadline_days };
        let forecast = ForecastReport::new(scenario, run, plan.forecast.clone(), plan.drivers.clone(), &plan.bridge);
        let decide = DecideReport::new(scenario, terms, &plan.choices, &plan.decision);
        PlanReport { scenario, plan, terms, forecast, decide, wall_s }
    }

    fn best(&self) -> Option<&Explanation> {
        self.plan.diagnosis.as_ref()?.explanations.first()
    }

    /// Whether the likeliest explanation of the table fits it.
    fn is_explained(&self) -> bool {
        self.best().is_some_and(|best| best.rms_log_error <= UNEXPLAINED)
    }

    fn shown(&self) -> impl Iterator<Item = &Explanation> {
        let all = self.plan.diagnosis.iter().flat_map(|diagnosis| &diagnosis.explanations);
        all.filter(|explanation| explanation.probability >= SHOWN)
    }

    fn napkin_days(&self) -> Option<f64> {
        self.scenario.tables.job.napkin?;
        self.plan.bridge.first().map(|step| step.days)
    }

    /// The flags of the engine that an option stands for, where there are such.
    fn flags(&self, choice: &Choice) -> Vec<String> {
        let flag = |key: &str, value: &toml::Value| {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            Some(match (self.plan.setup.engine.name.as_str(), key) {
                ("sglang", "engine.state_slots") => format!("--max-mamba-cache-size {value}"),
                ("sglang", "model.state") => format!("--mamba-ssm-dtype {value}"),
                ("sglang", "engine.max_running") => format!("--max-running-requests {value}"),
                ("vllm", "engine.max_running") => format!("--max-num-seqs {value}"),
                _ => return None,
            })
        };
        choice.set.iter().filter_map(|over| flag(over.key(), over.value())).collect()
    }

    /// All of it as one JSON object.
    pub fn value(&self) -> Value {
        let (plan, setup) = (self.plan, &self.plan.setup);
        let tables = &self.scenario.tables;
        let law = |law: &Option<toml::Value>| law.as_ref().map(toml::Value::to_string);
        let shares: Map<String, Value> =
            Cause::ALL.iter().map(|cause| (cause.key().to_owned(), json!(plan.whole.ledger.share(*cause)))).collect();
        let every = plan.drain.len().div_ceil(DRAIN_POINTS).max(1);
        let last = plan.drain.len().saturating_sub(1);
        let drain: Vec<Value> = plan
            .drain
            .iter()
            .enumerate()
            .filter(|(place, _)| place % every == 0 || *place == last)
            .map(|(_, (before_s, running))| json!({"seconds_before_end": before_s, "running": running}))
            .collect();
        json!({
            "scenario": self.scenario.name,
            "title": self.title(),
            "seed": self.terms.seed,
            "version": env!("CARGO_PKG_VERSION"),
            "inputs": {
                "requests": plan.whole.completed + plan.whole.rejected,
                "prompt_tokens": law(&tables.job.prompt_tokens),
                "output_tokens": law(&tables.job.output_tokens),
                "max_tokens": tables.job.max_tokens,
                "context_tokens": tables.job.context_tokens,
                "gpus": tables.fleet.gpus,
                "hardware": setup.hardware.as_ref().map(|hardware| hardware.title.clone()),
                "llm": setup.sizes.name,
                "engine": setup.engine.name,
                "engine_version": tables.engine.version.clone().unwrap_or_else(|| setup.engine.version.clone()),
                "deadline_days": self.terms.deadline_days,
                "replications": plan.forecast.days.len(),
                "replications_of_an_option": self.terms.replications,
                "requests_of_a_replication": plan.reduced_requests,
                "reduction_error": plan.reduction_error,
            },
            "napkin_days": self.napkin_days(),
            "plateau": self.plateau(),
            "owed_to_cap": self.owed(),
            "run": {
                "makespan_days": plan.whole.makespan.as_s() / SECONDS_PER_DAY,
                "output_tokens": plan.whole.output_tokens,
                "output_tok_per_s": plan.whole.output_tok_per_s(),
                "mean_running": plan.whole.mean_running,
                "running_cap": setup.settings.running_cap,
                "cap_note": setup.cap_note(),
                "limit": plan.whole.main_limit().map(|(limit, _)| limit.key()),
                "ledger": shares,
                "drain_s": plan.whole.drain.as_s(),
                "drain": drain,
            },
            "forecast": self.forecast,
            "completion_days": plan.forecast.days,
            "decide": self.decide,
            "lift": self.lift(),
            "advice": self.advice(),
            "wall_s": self.wall_s,
        })
    }

    fn title(&self) -> String {
        self.scenario.tables.title.clone().unwrap_or_else(|| self.scenario.name.clone())
    }

    fn plateau(&self) -> Value {
        let Some(diagnosis) = &self.plan.diagnosis else { return Value::Null };
        let rows: Vec<Value> = self
            .plan
            .rows
            .iter()
            .map(|row| json!({"concurrency": row.concurrency, "measured_tok_per_s": row.measured, "simulated_tok_per_s": interval(row.band)}))
            .collect();
        let mechanism = |explanation: &Explanation| {
            let points = &explanation.model.points;
            let rates: Vec<f64> = points
                .iter()
                .zip(&explanation.best.predictions)
                .filter(|(point, _)| point.measured.tok_per_s.is_some())
                .map(|(_, prediction)| prediction.tok_per_s)
                .collect();
            json!({
                "name": explanation.mechanism.key(),
                "words": explanation.mechanism.words(),
                "probability": explanation.probability,
                "rms_log_error": explanation.rms_log_error,
                "tok_per_s": rates,
            })
        };
        json!({
            "rows": rows,
            "mechanisms": diagnosis.explanations.iter().map(mechanism).collect::<Vec<_>>(),
            "running_cap": diagnosis.caps.iter().map(|(cap, p)| json!({"cap": cap, "probability": p})).collect::<Vec<_>>(),
            "explained": self.is_explained(),
            "check_first": diagnosis.measurements.first().map(|first| json!({
                "what": first.what,
                "minutes": first.minutes,
                "outcomes": first.outcomes.iter().map(|(who, what)| json!({"if": who, "then": what})).collect::<Vec<_>>(),
            })),
        })
    }

    fn owed(&self) -> Value {
        let Some(owed) = self.plan.owed.filter(|_| self.is_explained()) else { return Value::Null };
        json!({
            "cap": owed.cap,
            "probability": owed.probability,
            "concurrency": owed.concurrency,
            "capped_tok_per_s": interval(owed.capped),
            "uncapped_tok_per_s": interval(owed.uncapped),
            "share": interval(owed.share),
            "days_of_napkin": self.napkin_days().map(|days| interval(owed.share.map(|share| share * days))),
        })
    }

    fn lifted(&self) -> Option<(&Choice, &Verdict)> {
        let (place, _) = self.plan.lift?;
        Some((&self.plan.choices[place], &self.plan.decision.verdicts[place]))
    }

    fn lift(&self) -> Value {
        let Some((choice, verdict)) = self.lifted() else { return Value::Null };
        let [before, after] = [&self.plan.decision.verdicts[0], verdict].map(|verdict| {
            let at = |p| verdict.quantile(p).unwrap_or_default();
            interval([at(0.05), at(0.5), at(0.95)])
        });
        json!({
            "option": choice.name,
            "flags": self.flags(choice),
            "days": after,
            "days_as_is": before,
            "difference_days": verdict.difference.map(|pair| pair.mean),
            "difference_half_width": verdict.difference.and_then(|pair| pair.half_width),
            "test_tok_per_s": self.test_of_lift().map(interval),
        })
    }

    /// What one GPU should write at the largest concurrency measured once the cap is doubled.
    fn test_of_lift(&self) -> Option<[f64; 3]> {
        let best = self.best().filter(|best| best.mechanism == Mechanism::RunningCap && self.is_explained())?;
        best.predicts.iter().find(|(what, _)| *what == Unmeasured::CapDoubled).map(|(_, found)| *found)
    }

    /// What to do, in order.
    fn advice(&self) -> Vec<String> {
        let mut steps = Vec::new();
        if let Some(first) = self.plan.diagnosis.as_ref().and_then(|diagnosis| diagnosis.measurements.first())
            && self.is_explained()
        {
            let minutes =
                if first.minutes == 1.0 { "1 minute".to_owned() } else { format!("{} minutes", first.minutes) };
            let outcomes: Vec<String> =
                first.outcomes.iter().map(|(who, what)| format!("{}: {what}", who.replace('_', " "))).collect();
            steps.push(format!("First, {minutes}: {} What tells: {}.", first.what, outcomes.join("; ")));
        }
        if let Some((choice, verdict)) = self.lifted() {
            let at = |verdict: &Verdict, p| verdict.quantile(p).unwrap_or_default();
            let as_is = &self.plan.decision.verdicts[0];
            let flags = self.flags(choice);
            let flags = if flags.is_empty() { String::new() } else { format!(" ({})", flags.join(" ")) };
            let mut step = format!(
                "If it is the cap, lift it: \"{}\"{flags} takes {:.1} days ({:.1} to {:.1}) in place of {:.1}",
                choice.name,
                at(verdict, 0.5),
                at(verdict, 0.05),
                at(verdict, 0.95),
                at(as_is, 0.5)
            );
            if let Some((pair, half)) = verdict.difference.and_then(|pair| Some((pair, pair.half_width?))) {
                step += &format!(", {:.1} ± {half:.1} days less", -pair.mean);
            }
            if verdict.complete > 0.999 * as_is.complete {
                step += ", at no loss of answers";
            }
            step += ".";
            if let (Some([low, middle, high]), Some(owed), Some((_, running))) =
                (self.test_of_lift(), self.plan.owed, self.plan.lift)
                && running == 2 * owed.cap
            {
                step += &format!(
                    " Try it on one GPU: with {running} running at concurrency {} it should write {} tok/s ({} to {}).",
                    owed.concurrency,
                    rate(middle),
                    rate(low),
                    rate(high)
                );
            }
            steps.push(step);
        }
        if let Some(top) = self.drivers_by_total().first() {
            let share = share_of(top);
            steps.push(if top.name == "job.output_tokens" {
                format!(
                    "Run a pilot of 1,000 random prompts to their ends (`job.output_tokens = {{ file = … }}`): the law of \
                     output lengths makes {share} of the spread of the forecast."
                )
            } else {
                format!("Measure what {} is: it makes {share} of the spread of the forecast.", top.name)
            });
        }
        steps.extend(self.costs_of_cutting());
        // Without a deadline the lift has been advised already.
        if self.terms.deadline_days.is_some()
            || self.plan.lift.is_none_or(|(lift, _)| lift != self.plan.decision.recommended)
        {
            steps.push(self.decide.advice().to_owned());
        }
        steps
    }

    /// The unknowns by the share of the spread in which they have a part, which fewer runs tell than the share that each
    /// has alone.
    fn drivers_by_total(&self) -> Vec<&Driver> {
        let all = self.plan.drivers.iter().flat_map(|drivers| &drivers.drivers);
        let mut drivers: Vec<&Driver> = all.filter(|driver| driver.name != VARIATION).collect();
        drivers.sort_by(|a, b| b.index.total.total_cmp(&a.index.total));
        drivers
    }

    /// What caps and cuts would save and cost, beside the lift.
    fn costs_of_cutting(&self) -> Option<String> {
        let verdicts = &self.plan.decision.verdicts;
        let as_is = &verdicts[0];
        let listed: Vec<String> = self
            .plan
            .choices
            .iter()
            .zip(verdicts)
            .filter(|(choice, verdict)| {
                !choice.set.is_empty()
                    && verdict.impossible.is_none()
                    && choice.set.iter().all(|over| over.key().starts_with("job."))
                    && verdict.complete < as_is.complete
            })
            .filter_map(|(choice, verdict)| {
                let saved = as_is.quantile(0.5)? - verdict.quantile(0.5)?;
                let lost = (as_is.complete - verdict.complete).round() as u64;
                Some(format!(
                    "\"{}\" saves {saved:.1} days and costs {} complete answers",
                    choice.name,
                    thousands(lost)
                ))
            })
            .collect();
        let before =
            if self.lifted().is_some() { "Cap or cut only after that" } else { "Capping and cutting cost answers" };
        (!listed.is_empty()).then(|| format!("{before}: {}.", listed.join("; ")))
    }

    /// As JSON, one object.
    ///
    /// # Errors
    /// What writing gives.
    pub fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, &self.value())?;
        writeln!(out)
    }

    /// As a page of its own: HTML with its drawings inside.
    pub fn page(&self) -> String {
        page(&self.value())
    }

    /// As text.
    ///
    /// # Errors
    /// What writing gives.
    pub fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        let line = |label: &str, text: &str| labelled(label, text, INDENT, WIDTH);
        writeln!(out, "{}\n", self.title())?;
        self.write_table(out)?;
        write!(out, "{}", line("why", &self.why()))?;
        if let Some(text) = self.owed_in_words() {
            write!(out, "{}", line("owed", &text))?;
        }
        write!(out, "{}", line("time", &self.time_in_words()))?;
        if let Some(text) = self.spread_in_words() {
            write!(out, "{}", line("spread", &text))?;
        }
        self.forecast.write_bridge(out)?;
        writeln!(out)?;
        self.decide.write_table(out)?;
        writeln!(out, "\nwhat to do")?;
        for (place, step) in self.advice().iter().enumerate() {
            write!(out, "{}", labelled(&format!("  {}.", place + 1), step, 5, WIDTH))?;
        }
        writeln!(
            out,
            "\n{} replications of the forecast and {} of each option, {} explanations of the table: in {:.1} s, seed {}",
            thousands(self.plan.forecast.days.len() as u64),
            thousands(self.terms.replications),
            self.plan.diagnosis.as_ref().map_or(0, |diagnosis| diagnosis.explanations.len()),
            self.wall_s,
            self.terms.seed
        )
    }

    /// The measured rates beside the explanations that are left.
    fn write_table(&self, out: &mut impl Write) -> io::Result<()> {
        let rows = &self.plan.rows;
        if rows.is_empty() {
            return Ok(());
        }
        let cells = |values: &mut dyn Iterator<Item = f64>| {
            values.map(|value| format!("{:>7}", rate(value))).collect::<String>()
        };
        let heads: String = rows.iter().map(|row| format!("{:>7}", row.concurrency)).collect();
        writeln!(out, "{:<41}{heads}  probability", "one GPU, tok/s at concurrency")?;
        writeln!(out, "{:<41}{}", "  measured", cells(&mut rows.iter().map(|row| row.measured)))?;
        for (place, explanation) in self.shown().enumerate() {
            let points = explanation.model.points.iter().zip(&explanation.best.predictions);
            let mut rates = points
                .filter(|(point, _)| point.measured.tok_per_s.is_some())
                .map(|(_, prediction)| prediction.tok_per_s);
            let words = format!("  {}", explanation.mechanism.words());
            writeln!(out, "{words:<41}{}  {:.3}", cells(&mut rates), explanation.probability)?;
            if place == 0 {
                writeln!(out, "{:<41}{}", "    from (5%)", cells(&mut rows.iter().map(|row| row.band[0])))?;
                writeln!(out, "{:<41}{}", "    to (95%)", cells(&mut rows.iter().map(|row| row.band[2])))?;
            }
        }
        writeln!(out)
    }

    fn why(&self) -> String {
        let limit = format!("In the job: {}.", self.plan.setup.cap_note());
        let Some(best) = self.best() else { return format!("No benchmark table to explain. {limit}") };
        if !self.is_explained() {
            return format!(
                "The table is not explained: the likeliest reason of its shape, {}, misses its rows by {}. {limit}",
                best.mechanism.words(),
                percent(best.rms_log_error)
            );
        }
        let caps = match (best.mechanism, &self.plan.diagnosis) {
            (Mechanism::RunningCap, Some(diagnosis)) => {
                let likely = diagnosis.caps.iter().filter(|(_, probability)| *probability >= 0.03);
                let listed: Vec<String> =
                    likely.map(|(cap, probability)| format!("{cap} ({probability:.2})")).collect();
                format!(", of {}", listed.join(", "))
            }
            _ => String::new(),
        };
        format!("{}{caps}: probability {:.2}. {limit}", capital(best.mechanism.words()), best.probability)
    }

    fn owed_in_words(&self) -> Option<String> {
        let owed = self.plan.owed.filter(|_| self.is_explained())?;
        let [low, middle, high] = owed.share.map(percent);
        let mut text = format!(
            "At concurrency {} one GPU would write {} tok/s ({} to {}) without the cap of {}, not {}: {middle} of the time \
             ({low} to {high}) is owed to the cap",
            owed.concurrency,
            rate(owed.uncapped[1]),
            rate(owed.uncapped[0]),
            rate(owed.uncapped[2]),
            owed.cap,
            rate(owed.capped[1]),
        );
        if let Some(days) = self.napkin_days() {
            let [low, middle, high] = owed.share.map(|share| share * days);
            text += &format!(", or {middle:.1} of the napkin's {days:.1} days ({low:.1} to {high:.1})");
        }
        text += ".";
        if let Some((choice, verdict)) = self.lifted() {
            let at = |p| verdict.quantile(p).unwrap_or_default();
            text += &format!(
                " Memory allows part of that: \"{}\" takes {:.1} days ({:.1} to {:.1}).",
                choice.name,
                at(0.5),
                at(0.05),
                at(0.95)
            );
        }
        Some(text)
    }

    fn time_in_words(&self) -> String {
        let forecast = &self.plan.forecast;
        let mut text = format!(
            "{:.1} days (median), 90% between {:.1} and {:.1}, run as it is; {} output tokens, {} of the answers cut.",
            forecast.quantile(0.5),
            forecast.quantile(0.05),
            forecast.quantile(0.95),
            tokens(forecast.output_tokens.round() as u64),
            percent(forecast.truncated_share)
        );
        if let (Some(days), Some((share, (low, high)))) = (self.terms.deadline_days, forecast.in_time) {
            text += &format!(
                " Done within {days:.1} days with probability {} ({} to {}).",
                percent(share),
                percent(low),
                percent(high)
            );
        }
        text
    }

    fn spread_in_words(&self) -> Option<String> {
        let variation = self.plan.drivers.iter().flat_map(|it| &it.drivers).find(|driver| driver.name == VARIATION)?;
        let drivers = self.drivers_by_total();
        let listed: Vec<String> = drivers
            .iter()
            .filter(|driver| driver.index.total >= 0.01)
            .map(|driver| format!("{} {}", driver.name, share_of(driver)))
            .collect();
        Some(format!(
            "From what is uncertain, one value for the whole job: {}. From what varies between requests: {}.",
            listed.join(", "),
            share_of(variation)
        ))
    }
}

/// The share of the spread in which a driver has a part, with its standard error.
fn share_of(driver: &Driver) -> String {
    format!("{} (± {})", percent(driver.index.total.clamp(0.0, 1.0)), percent(driver.index.total_error))
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}
