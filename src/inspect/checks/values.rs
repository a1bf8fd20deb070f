//! Checks 1 to 6 and 11: the values of the output column.

use statrs::function::gamma::gamma_lr;

use super::spikes::{Spike, at, neighbours, spikes};
use super::{Declared, Findings, rows};
use crate::format::{percent, rate, thousands};
use crate::inspect::counts::Counts;
use crate::inspect::gather::Gathered;
use crate::measured::Severity::{Error, Note, Warning};

/// Rows below which shares of single lengths say nothing.
const FEW: f64 = 50.0;

/// Chance of as many rows at usual limits below which they are named.
const USUAL_LIMIT_CHANCE: f64 = 0.05;

/// Outputs this short are tiny.
const TINY: u32 = 8;

pub(super) fn run(gathered: &Gathered, declared: Declared, findings: &mut Findings) {
    bad_values(gathered, findings);
    if gathered.used() < 1.0 {
        return;
    }
    let spikes = spikes(&gathered.output);
    let caps = caps(gathered, declared, &spikes);
    dominance(gathered, declared, findings);
    tiny(gathered, declared, findings);
    if !gathered.histogram {
        few_values(gathered, declared, findings);
    }
    pile_up(gathered, declared, &caps, findings);
    cap_below(gathered, &caps, findings);
    above_the_asked(gathered, declared, findings);
    usual_limit(gathered, findings);
    let dominating = gathered.output.top().filter(|(_, count)| *count > 0.2 * gathered.used()).map(|(top, _)| top);
    findings.check(3);
    let max = gathered.output.max();
    for spike in spikes {
        let cap = caps.contains(&spike.tokens) || max == Some(spike.tokens);
        if !cap && dominating != Some(spike.tokens) {
            spike_found(gathered, spike, findings);
        }
    }
    band(gathered, findings);
}

fn bad_values(gathered: &Gathered, findings: &mut Findings) {
    findings.check(1);
    let all = gathered.rows as f64;
    for refusal in gathered.refusals.values() {
        let failed = refusal.what.contains("a failed request") || refusal.what.contains("the model's own");
        let severity = if failed { Warning } else { Error };
        let what = format!("{} refused: {}", rows(refusal.rows as f64, all), refusal.what);
        let effect = if failed { "they count as failures, not as lengths" } else { "they are left out" };
        findings.add(1, severity, what, effect).share(refusal.rows as f64 / all).line(refusal.line);
    }
    for (seen, column) in [(gathered.zero_output, gathered.output_name.as_str()), (gathered.zero_input, "the input")] {
        if seen.rows == 0 {
            continue;
        }
        let share = seen.rows as f64 / all;
        let severity = if share > 0.001 { Error } else { Warning };
        let what = format!("{} have 0 in {column}", rows(seen.rows as f64, all));
        let effect = "such rows are failures or were not counted; they pull the mean down and must be left out \
                      (skip_empty_rows)";
        findings.add(1, severity, what, effect).share(share).line(Some(seen.line));
    }
}

fn dominance(gathered: &Gathered, declared: Declared, findings: &mut Findings) {
    if gathered.used() < FEW {
        return;
    }
    findings.check(2);
    let Some((top, count)) = gathered.output.top() else { return };
    let share = count / gathered.used();
    // Outputs that a cap cut are no replies of one length: check 5 names them.
    if share <= 0.2 || gathered.cut.at(top) > 0.5 * count {
        return;
    }
    let mut what = format!("{} have exactly {top} output tokens", rows(count, gathered.used()));
    // `<think>\n\n</think>\n\n` is 4 tokens where the tags are single tokens, 6 where they are plain text.
    if (4..=6).contains(&top) {
        what += ": most likely an empty thinking block (<think></think>) and no answer. The block is 4 tokens where \
                 the tags are tokens of their own and 6 where a tokenizer counts them as plain text, so these replies \
                 hold nothing";
    }
    let rest = (gathered.output.mean() * gathered.used() - f64::from(top) * count) / (gathered.used() - count);
    let effect = if rest.is_finite() && count < gathered.used() {
        let times = rest / gathered.output.mean();
        format!(
            "without these rows the mean is {} tokens instead of {}: keeping them makes the job look {times:.1} times \
             cheaper than the replies that hold something",
            rate(rest),
            rate(gathered.output.mean())
        )
    } else {
        "every row is the same, so the file tells no law of lengths".to_owned()
    };
    let severity = if declared.short_answers { Note } else { Error };
    findings.add(2, severity, what, effect).share(share).line(gathered.example(top));
}

fn spike_found(gathered: &Gathered, spike: Spike, findings: &mut Findings) {
    let times = if spike.times.is_finite() { format!("{:.0} times its", spike.times) } else { "without any".into() };
    let what = format!(
        "{} have exactly {} output tokens, {times} neighbours",
        rows(spike.rows, gathered.used()),
        thousands(u64::from(spike.tokens))
    );
    let effect = "a canned reply, a retry or a limit of some client; harmless for the mean at this share";
    findings.add(3, Warning, what, effect).share(spike.share).line(gathered.example(spike.tokens));
}

/// A narrow band that holds a large share is no spike but is no smooth law either: Azure's chat trace has 28% of its
/// rows within a tenth of 406.
fn band(gathered: &Gathered, findings: &mut Findings) {
    let output = &gathered.output;
    if gathered.used() < 1000.0 || output.quantile(0.5) < 50 || output.distinct() < 50 {
        return;
    }
    let windows = output.iter().map(|(low, _)| {
        let high = (f64::from(low) * 1.1 / 0.9) as u32;
        (low, high)
    });
    let mass = |(low, high): (u32, u32)| output.between(low, high);
    let Some(best) = windows.filter(|(low, _)| *low > 100).max_by(|a, b| mass(*a).total_cmp(&mass(*b))) else { return };
    // Twice as dense, per doubling of the length, as the bands on both sides.
    let (low, high) = best;
    let width = high - low;
    let beside = mass((low.saturating_sub(width), low - 1)).max(mass((high + 1, high + width)));
    if mass(best) > 0.2 * gathered.used() && mass(best) > 2.5 * beside {
        // The rows are not even in the window: it is known by their mean.
        let inside = output.iter().filter(|(tokens, _)| (low..=high).contains(tokens));
        let mean = inside.map(|(tokens, count)| f64::from(tokens) * count).sum::<f64>() / mass(best);
        let centre = mean.round();
        let within = mass(((centre * 0.9).ceil() as u32, (centre * 1.1) as u32));
        let share = within / gathered.used();
        let what = format!(
            "{} lie within 10% of {}, {:.1} times the bands beside it",
            rows(within, gathered.used()),
            thousands(centre as u64),
            within / beside.max(1.0)
        );
        let effect = "replies of one kind; no single law fits, use the file itself as the law";
        findings.add(3, Warning, what, effect).share(share);
    }
}

fn tiny(gathered: &Gathered, declared: Declared, findings: &mut Findings) {
    if gathered.used() < FEW {
        return;
    }
    findings.check(4);
    let count = gathered.output.between(1, TINY);
    let share = count / gathered.used();
    let long = gathered.output.quantile(0.5) > 100;
    // A majority of tiny replies hides what the median of the others is.
    let rest = gathered.output.between(TINY + 1, u32::MAX);
    let long_rest = rest > 0.02 * gathered.used() && {
        let mean = gathered.output.mean() * gathered.used() / rest;
        mean > 100.0 && share > 0.5
    };
    if share <= 0.05 || !(long || long_rest || declared.thinking) {
        return;
    }
    let severity = if declared.short_answers { Note } else { Error };
    let what = format!("{} have at most {TINY} output tokens beside long ones", rows(count, gathered.used()));
    let effect = "failed or empty replies; each saves a whole reply in the estimate";
    findings.add(4, severity, what, effect).share(share);
}

/// Lengths at which some limit cut outputs: where many were cut, and spikes at round numbers or given caps.
fn caps(gathered: &Gathered, declared: Declared, spikes: &[Spike]) -> Vec<u32> {
    let max = gathered.output.max().unwrap_or(0);
    let mut caps: Vec<u32> = spikes.iter().map(|spike| spike.tokens).filter(|tokens| is_round(*tokens)).collect();
    let distinct = gathered.output.distinct();
    caps.extend((max.saturating_sub(4)..=max).filter(|tokens| at(&gathered.output, *tokens, distinct).is_some()));
    caps.extend(gathered.cut.iter().filter(|(_, count)| *count >= 5.0).map(|(tokens, _)| tokens));
    let given = gathered.caps.iter().map(|(cap, _)| cap).chain(declared.max_tokens);
    caps.extend(given.filter(|cap| gathered.output.at(*cap) >= 2.0).take(64));
    caps.sort_unstable();
    caps.dedup();
    caps
}

/// A limit that people set: a multiple of 500 or of 256.
fn is_round(tokens: u32) -> bool {
    tokens >= 256 && (tokens.is_multiple_of(500) || tokens.is_multiple_of(256))
}

fn pile_up(gathered: &Gathered, declared: Declared, caps: &[u32], findings: &mut Findings) {
    findings.check(5);
    let Some(max) = gathered.output.max() else { return };
    let used = gathered.used();
    let last = gathered.output.between((f64::from(max) * 0.99).ceil() as u32, max);
    let at_top = caps.iter().any(|cap| cap + 4 >= max);
    let thick = used >= 1000.0 && last > 0.005 * used;
    let given = declared.max_tokens.is_some_and(|cap| caps.contains(&cap));
    let cut = gathered.cut.total();
    if !(at_top || thick || given || cut > 0.0) {
        return;
    }
    let what = if cut > 0.0 {
        format!("{} were cut at a cap; the longest output is {}", rows(cut, used), thousands(u64::from(max)))
    } else {
        let count = gathered.output.at(max).max(if at_top { 0.0 } else { last });
        format!("outputs stop at {}: {} end there", thousands(u64::from(max)), rows(count, used))
    };
    let effect = format!(
        "these lengths are lower bounds: the file says nothing of outputs above {}, and a plan for a longer cap needs \
         a named law beyond it",
        thousands(u64::from(max))
    );
    findings.add(5, Warning, what, effect).share(last / used).line(gathered.example(max));
}

fn cap_below(gathered: &Gathered, caps: &[u32], findings: &mut Findings) {
    findings.check(6);
    let max = gathered.output.max().unwrap_or(0);
    for cap in caps.iter().filter(|cap| **cap + 4 < max) {
        let (count, above) = (gathered.output.at(*cap), gathered.output.share_above(*cap));
        let what = format!(
            "{} stop at exactly {}, and {} are longer",
            rows(count, gathered.used()),
            thousands(u64::from(*cap)),
            percent(above)
        );
        let effect = "several clients or backends with different limits; these rows are lower bounds";
        findings.add(6, Warning, what, effect).share(count / gathered.used()).line(gathered.example(*cap));
    }
}

/// No output passes the cap that its request asked for: where some do, the cap or the column is another one.
fn above_the_asked(gathered: &Gathered, declared: Declared, findings: &mut Findings) {
    let (output, running) = (&gathered.output, &gathered.running);
    if let Some(cap) = declared.max_tokens {
        let above = |counts: &Counts| counts.between(cap.saturating_add(1), u32::MAX);
        let (count, all) = (above(output) + above(running), output.total() + running.total());
        if count > 0.0 {
            let longest = output.max().max(running.max()).unwrap_or(0);
            let what = format!(
                "{} are above the {} tokens of --max-tokens, up to {}",
                rows(count, all),
                thousands(u64::from(cap)),
                thousands(u64::from(longest))
            );
            let effect = "the requests asked for another cap, or the column counts something else: correct one of them";
            findings.add(6, Error, what, effect).share(count / all).line(gathered.example(longest));
        }
    }
    if gathered.over_cap.rows > 0 {
        let (count, all) = (gathered.over_cap.rows as f64, gathered.used());
        let what = format!("{} are longer than the cap that the file says they asked for", rows(count, all));
        let effect = "the provider counts or caps otherwise: the cap of the file does not hold for a plan";
        findings.add(6, Warning, what, effect).share(count / all).line(Some(gathered.over_cap.line));
    }
}

/// Rows that end exactly at a limit of many providers although they asked for more. One such row in thousands is chance.
fn usual_limit(gathered: &Gathered, findings: &mut Findings) {
    let stopped = &gathered.at_limit;
    let Some(longest) = gathered.output.max().filter(|_| stopped.total() > 0.0) else { return };
    let limits = (12..=31).map(|power| 1u32 << power).take_while(|limit| *limit <= longest);
    let by_chance: f64 = limits.filter_map(|limit| neighbours(&gathered.output, limit)).sum();
    if by_chance > 0.0 && gamma_lr(stopped.total(), by_chance) > USUAL_LIMIT_CHANCE {
        return;
    }
    let named: Vec<String> = stopped.iter().map(|(tokens, _)| thousands(u64::from(tokens))).collect();
    let what = format!(
        "{} end at exactly {} though they asked for more, {by_chance:.1} by chance",
        rows(stopped.total(), gathered.used()),
        named.join(" or ")
    );
    let effect = "a provider's own limit, most likely: those rows are lower bounds";
    let line = stopped.iter().next().and_then(|(tokens, _)| gathered.example(tokens));
    findings.add(6, Note, what, effect).share(stopped.total() / gathered.used()).line(line);
}

fn few_values(gathered: &Gathered, declared: Declared, findings: &mut Findings) {
    let used = gathered.used();
    if used <= 1000.0 {
        return;
    }
    findings.check(11);
    let (entropy, distinct) = (gathered.output.entropy_bits(), gathered.output.distinct());
    if entropy >= 4.0 && distinct >= 50 {
        return;
    }
    let severity = if declared.short_answers { Note } else { Error };
    let what = format!("{distinct} different outputs in {} rows, {entropy:.1} bits", thousands(used as u64));
    let effect = "generated text varies far more: fixed lengths, a failed run, or a classifier (--short-answers)";
    findings.add(11, severity, what, effect);
}
