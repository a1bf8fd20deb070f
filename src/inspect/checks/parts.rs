//! Checks 7 to 10 and 16: the parts of a request against each other.

use std::hash::{DefaultHasher, Hasher};

use super::{Declared, Findings, rows};
use crate::format::{percent, thousands};
use crate::inspect::gather::{Gathered, PAIRS};
use crate::measured::Severity::{Error, Note, Warning};

pub(super) fn run(gathered: &Gathered, declared: Declared, findings: &mut Findings) {
    empty_answers(gathered, findings);
    thinking(gathered, declared, findings);
    sums(gathered, findings);
    duplicates(gathered, findings);
    context(gathered, declared, findings);
}

fn empty_answers(gathered: &Gathered, findings: &mut Findings) {
    if gathered.answers_known == 0 {
        return;
    }
    findings.check(7);
    let used = gathered.used();
    if gathered.empty.rows > 0 {
        let share = gathered.empty.rows as f64 / used;
        let severity = if share > 0.05 { Error } else { Warning };
        let what =
            format!("{} have an empty answer without a cap having cut them", rows(gathered.empty.rows as f64, used));
        let effect = "the request was paid for and answered nothing: count it as failed, and run it again";
        findings.add(7, severity, what, effect).share(share).line(Some(gathered.empty.line));
    }
    if gathered.empty_after_cut > 0 {
        let count = gathered.empty_after_cut as f64;
        let what = format!("{} were cut before an answer began", rows(count, used));
        let effect = "still thinking at the cap: their tokens bought no answer; plan with the share without an answer";
        findings.add(7, Warning, what, effect).share(count / used);
    }
}

fn thinking(gathered: &Gathered, declared: Declared, findings: &mut Findings) {
    let known = gathered.thinking_known.rows;
    if known > 0 || declared.thinking || gathered.characters_tokens > 0.0 {
        findings.check(8);
    }
    // A column that says which rows think tells models without thinking apart.
    let (thinkers, thought) = if gathered.asked_to_think > 0 {
        (gathered.asked_to_think, gathered.thought)
    } else {
        (known, gathered.with_thinking)
    };
    let thinks = thought > 0 || declared.thinking;
    if thinkers > 0 && thinks && thought < thinkers {
        let missing = (thinkers - thought) as f64;
        let share = missing / thinkers as f64;
        let severity = if share > 0.01 { Error } else { Warning };
        let what = format!("{} of {} rows have no thinking tokens", percent(share), thousands(thinkers));
        let effect = "either the model did not think there, or the thinking was not counted and the output is \
                      understated several times";
        findings.add(8, severity, what, effect).share(share).line(Some(gathered.thinking_known.line));
    }
    let same = gathered.answer_is_output as f64;
    if declared.thinking && same > 0.01 * gathered.used() {
        let what = format!("{}: the output is the answer alone", rows(same, gathered.used()));
        findings.add(8, Error, what, "the thinking is not in the output: it is understated several times");
    }
    if gathered.characters_tokens > 100.0 && gathered.used() >= 50.0 {
        let ratio = gathered.characters / gathered.characters_tokens;
        if !(2.0..=6.0).contains(&ratio) {
            let what = format!("the answers have {ratio:.1} characters a token");
            let effect = "2 to 6 is usual: below, tokens hold more than the stored text (thinking); above, tokens \
                          were not all counted";
            findings.add(8, Error, what, effect);
        }
    }
}

fn sums(gathered: &Gathered, findings: &mut Findings) {
    if gathered.thinking_known.rows > 0 || gathered.totals_known > 0 {
        findings.check(9);
    }
    for (seen, of, what) in [
        (gathered.thinking_over_output, gathered.used(), "have more thinking, or a longer answer, than output"),
        (gathered.wrong_total, gathered.totals_known as f64, "have a total that is not input + output"),
    ] {
        if seen.rows > 0 {
            let effect = "the parts come from different counts; lengths are taken from the output column";
            findings
                .add(9, Warning, format!("{} {what}", rows(seen.rows as f64, of)), effect)
                .share(seen.rows as f64 / of)
                .line(Some(seen.line));
        }
    }
}

/// Share of the pairs that were there before.
fn repeated(mut pairs: Vec<(u32, u32)>) -> f64 {
    pairs.sort_unstable();
    let distinct = pairs.chunk_by(|a, b| a == b).count();
    1.0 - distinct as f64 / pairs.len() as f64
}

/// The same inputs with the outputs in an order that a hash of their place gives: what chance would repeat.
fn shuffled(pairs: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let mut order: Vec<(u64, u32)> = pairs
        .iter()
        .enumerate()
        .map(|(place, (_, output))| {
            let mut hasher = DefaultHasher::new();
            hasher.write_usize(place);
            (hasher.finish(), *output)
        })
        .collect();
    order.sort_unstable();
    pairs.iter().zip(order).map(|((input, _), (_, output))| (*input, output)).collect()
}

fn duplicates(gathered: &Gathered, findings: &mut Findings) {
    if gathered.ids.len() > 1 {
        findings.check(10);
        let mut ids = gathered.ids.clone();
        ids.sort_unstable();
        let twice = ids.windows(2).filter(|pair| pair[0] == pair[1]).count();
        if twice > 0 {
            let what = format!("{} repeat an id", rows(twice as f64, ids.len() as f64));
            let effect = "retries or files joined twice: such requests count more than once";
            findings.add(10, Warning, what, effect).share(twice as f64 / ids.len() as f64);
        }
    }
    if gathered.pairs.len() < 1000 {
        return;
    }
    findings.check(10);
    // Rows with equal outputs all over are named by checks 2 and 11, and repeat pairs by chance.
    let share = repeated(gathered.pairs.clone());
    if share <= 0.01 {
        return;
    }
    let by_chance = repeated(shuffled(&gathered.pairs));
    if share > 2.0 * by_chance {
        let part = if gathered.pairs.len() == PAIRS { " of the first million rows" } else { "" };
        let what = format!(
            "{} of the rows{part} repeat a pair of input and output, {} by chance",
            percent(share),
            percent(by_chance)
        );
        let effect = "the same prompts again: a prefix cache helps more, and the rows tell less than their number says";
        findings.add(10, Warning, what, effect).share(share);
    }
}

fn context(gathered: &Gathered, declared: Declared, findings: &mut Findings) {
    let Some(context) = declared.context_tokens else { return };
    findings.check(16);
    if gathered.longest_sum > u64::from(context) {
        let what = format!(
            "a request has {} tokens of input and output, the context {}",
            thousands(gathered.longest_sum),
            thousands(u64::from(context))
        );
        let severity = if gathered.histogram { Note } else { Error };
        let effect = "wrong columns, another model, or requests that the engine would refuse";
        findings.add(16, severity, what, effect).line(Some(gathered.longest_sum_line));
    }
}
