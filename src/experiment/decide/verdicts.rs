//! From rows to verdicts: a pure function of what was run.

use crate::experiment::decide::runs::{Candidate, Row};
use crate::experiment::decide::{CONFIDENCE, Keep, Terms};
use crate::stats::{Paired, mean, paired, quantile, sorted};

/// What one option comes to; counts are means over the replications.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// The option.
    pub name: String,
    /// Why it cannot be done, if so; everything else is then empty.
    pub impossible: Option<String>,
    /// Completion times by replication, days.
    pub days: Vec<f64>,
    /// What is to be kept, by replication.
    pub kept: Vec<f64>,
    /// Share that is done by the deadline.
    pub p_deadline: Option<f64>,
    /// Days more than running it as is, pair by pair.
    pub difference: Option<Paired>,
    /// Answers that ended by themselves.
    pub complete: f64,
    /// Requests cut by a limit.
    pub truncated: f64,
    /// Of those, cut by the end of the context before `max_tokens`.
    pub cut_by_context: f64,
    /// Of the cut ones, cut before their answer began.
    pub cut_thinking: f64,
    /// Output tokens.
    pub tokens: f64,
    /// Of those, tokens of requests cut before their answer began.
    pub tokens_without_answer: f64,
    /// GPUs that it takes.
    pub gpus: u32,
    /// GPUs × completion time, hours.
    pub gpu_hours: f64,
    /// Energy at the power given, kWh.
    pub energy_kwh: Option<f64>,
    /// At the prices given.
    pub cost: Option<f64>,
    /// An option that is nowhere clearly worse and somewhere clearly better.
    pub dominated_by: Option<String>,
}

impl Verdict {
    /// A quantile of the completion time, days.
    pub fn quantile(&self, p: f64) -> Option<f64> {
        quantile(&sorted(&self.days), p)
    }

    /// How much of what is wanted it keeps, on average.
    fn mean_kept(&self) -> f64 {
        mean(&self.kept).unwrap_or(0.0)
    }
}

/// Verdicts on every candidate from the rows of a comparison, whole replications in the order of their units.
pub fn verdicts(candidates: &[Candidate], rows: &[Row], terms: Terms) -> Vec<Verdict> {
    let of = |place: usize| rows.iter().skip(place).step_by(candidates.len().max(1));
    let mut found: Vec<Verdict> =
        candidates.iter().enumerate().map(|(place, it)| verdict(it, &of(place).collect::<Vec<_>>(), terms)).collect();
    let as_is = found.first().map(|first| first.days.clone()).unwrap_or_default();
    for verdict in &mut found {
        verdict.difference = paired(&verdict.days, &as_is, CONFIDENCE);
    }
    let by = dominating(&found);
    found.iter_mut().zip(by).for_each(|(verdict, by)| verdict.dominated_by = by);
    found
}

fn verdict(candidate: &Candidate, rows: &[&Row], terms: Terms) -> Verdict {
    let name = candidate.name.clone();
    let refused = candidate.job.as_ref().err().or_else(|| rows.iter().find_map(|row| row.impossible.as_ref()));
    let job = match (&candidate.job, refused) {
        (Ok(job), None) => job,
        (_, reason) => return Verdict { name, impossible: reason.cloned(), ..Verdict::default() },
    };
    let factor = job.factor();
    let kept = |row: &Row| match terms.keep {
        Keep::Complete => row.complete as f64,
        Keep::Samples => (row.complete + row.truncated) as f64,
        Keep::Tokens => row.tokens as f64 - row.tokens_without_answer,
    };
    let days: Vec<f64> = rows.iter().map(|row| row.days()).collect();
    let average = |value: &dyn Fn(&Row) -> f64| {
        mean(&rows.iter().map(|row| value(row)).collect::<Vec<_>>()).unwrap_or(0.0) * factor
    };
    let gpu_hours = f64::from(candidate.gpus) * mean(&days).unwrap_or(0.0) * 24.0;
    let idle_share = mean(&rows.iter().map(|row| row.idle_share).collect::<Vec<_>>()).unwrap_or(0.0);
    let energy_kwh = terms.prices.kwh(gpu_hours, idle_share);
    let in_time = |deadline| days.iter().filter(|day| **day <= deadline).count() as f64 / days.len().max(1) as f64;
    Verdict {
        name,
        impossible: None,
        kept: rows.iter().map(|row| kept(row) * factor).collect(),
        p_deadline: terms.deadline_days.map(in_time),
        difference: None,
        complete: average(&|row| row.complete as f64),
        truncated: average(&|row| row.truncated as f64),
        cut_by_context: average(&|row| row.cut_by_context as f64),
        cut_thinking: average(&|row| row.cut_thinking),
        tokens: average(&|row| row.tokens as f64),
        tokens_without_answer: average(&|row| row.tokens_without_answer),
        gpus: candidate.gpus,
        gpu_hours,
        energy_kwh,
        cost: terms.prices.cost(gpu_hours, energy_kwh),
        dominated_by: None,
        days,
    }
}

/// Differences of less than this share are the same to anyone.
const ALIKE: f64 = 0.001;

/// How two things compare, pair by pair.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Compared {
    Less,
    Alike,
    More,
}

/// A difference counts when its paired interval leaves out 0 and when it is large enough for anyone to care.
fn compare(a: &[f64], b: &[f64]) -> Option<Compared> {
    let pair = paired(a, b, CONFIDENCE)?;
    let least = pair.half_width?.max(ALIKE * mean(b)?.abs());
    Some(if pair.mean < -least {
        Compared::Less
    } else if pair.mean > least {
        Compared::More
    } else {
        Compared::Alike
    })
}

/// Whether `a` is nowhere clearly worse than `b`, in time, GPU time and what is kept, and somewhere clearly better.
fn dominates(a: &Verdict, b: &Verdict) -> bool {
    let scaled = |verdict: &Verdict| verdict.days.iter().map(|day| f64::from(verdict.gpus) * day).collect::<Vec<_>>();
    let found = [compare(&a.days, &b.days), compare(&scaled(a), &scaled(b)), compare(&b.kept, &a.kept)];
    let all: Option<Vec<Compared>> = found.into_iter().collect();
    all.is_some_and(|all| !all.contains(&Compared::More) && all.contains(&Compared::Less))
}

/// For each, what dominates it: one that nothing dominates itself where there is such, of them the one with the fewest
/// GPU-hours.
fn dominating(verdicts: &[Verdict]) -> Vec<Option<String>> {
    let by = |own: &Verdict| -> Vec<usize> {
        (0..verdicts.len()).filter(|&other| dominates(&verdicts[other], own)).collect()
    };
    let all: Vec<Vec<usize>> = verdicts.iter().map(by).collect();
    let best = |own: &Vec<usize>| {
        let least = own.iter().min_by(|&&a, &&b| {
            let beaten = |place: usize| !all[place].is_empty();
            beaten(a).cmp(&beaten(b)).then(verdicts[a].gpu_hours.total_cmp(&verdicts[b].gpu_hours))
        });
        least.map(|place| verdicts[*place].name.clone())
    };
    all.iter().map(best).collect()
}

/// Options whose kept parts differ by less than this share keep the same.
const AS_MUCH: f64 = 0.005;

/// Which to take: the most kept among those in time, else the likeliest in time, else, where none ever is, the one whose
/// completion time at the confidence asked for is soonest. Fewer GPU-hours, then less time decide between equals.
pub fn recommend(verdicts: &[Verdict], terms: Terms) -> usize {
    let possible: Vec<usize> = (0..verdicts.len()).filter(|&place| verdicts[place].impossible.is_none()).collect();
    let chance = |place: usize| verdicts[place].p_deadline.unwrap_or(1.0);
    let in_time: Vec<usize> = possible
        .iter()
        .copied()
        .filter(|&place| verdicts[place].p_deadline.is_none_or(|p| p >= terms.confidence))
        .collect();
    if !in_time.is_empty() {
        return frugal(verdicts, &in_time);
    }
    let likeliest = possible.iter().map(|&place| chance(place)).fold(0.0, f64::max);
    if likeliest > 0.0 {
        let nearest: Vec<usize> = possible.into_iter().filter(|&place| chance(place) >= likeliest).collect();
        return frugal(verdicts, &nearest);
    }
    let late = |place: usize| verdicts[place].quantile(terms.confidence).unwrap_or(f64::INFINITY);
    possible.into_iter().min_by(|a, b| late(*a).total_cmp(&late(*b))).unwrap_or(0)
}

/// Of those that keep the most, or as much, the one with the fewest GPU-hours, then the least time.
fn frugal(verdicts: &[Verdict], places: &[usize]) -> usize {
    let most = places.iter().map(|&place| verdicts[place].mean_kept()).fold(0.0, f64::max);
    let alike = places.iter().copied().filter(|&place| verdicts[place].mean_kept() >= (1.0 - AS_MUCH) * most);
    let spent = |place: usize| (verdicts[place].gpu_hours, verdicts[place].quantile(0.5).unwrap_or(f64::INFINITY));
    let order = |a: &usize, b: &usize| {
        let (a, b) = (spent(*a), spent(*b));
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
    };
    alike.min_by(order).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::account::Thinking;
    use crate::experiment::decide::Prices;

    fn terms(deadline_days: Option<f64>) -> Terms {
        let thinking = Thinking::None;
        let (keep, prices) = (Keep::Complete, Prices::default());
        Terms { seed: 1, replications: 4, deadline_days, confidence: 0.9, thinking, keep, prices }
    }

    fn option(name: &str, days: [f64; 4], kept: f64) -> Verdict {
        let gpu_hours = days.iter().sum::<f64>() / 4.0 * 24.0;
        let p_deadline = Some(days.iter().filter(|day| **day <= 2.0).count() as f64 / 4.0);
        Verdict {
            name: name.to_owned(),
            days: days.to_vec(),
            kept: vec![kept; 4],
            gpus: 1,
            gpu_hours,
            p_deadline,
            ..Verdict::default()
        }
    }

    #[test]
    fn a_difference_within_its_paired_interval_dominates_nothing() {
        let as_is = option("as is", [10.0, 12.0, 11.0, 9.0], 100.0);
        // On average 0.05 days less, but by pairs that disagree.
        let alike = option("alike", [9.0, 12.9, 10.1, 9.8], 100.0);
        let faster = option("faster", [8.0, 9.9, 9.1, 7.0], 100.0);
        assert!(!dominates(&alike, &as_is) && !dominates(&as_is, &alike));
        assert!(dominates(&faster, &as_is) && !dominates(&as_is, &faster));
        let fewer = Verdict { kept: vec![90.0; 4], ..faster.clone() };
        assert!(!dominates(&fewer, &as_is), "it keeps less");
        let found = dominating(&[as_is, alike, faster]);
        assert_eq!(found, [Some("faster".to_owned()), Some("faster".to_owned()), None]);
    }

    #[test]
    fn where_no_option_is_ever_in_time_the_soonest_is_named() {
        let slow = option("keeps all", [10.0, 12.0, 11.0, 9.0], 100.0);
        let fast = option("keeps half", [4.0, 5.0, 4.5, 3.9], 50.0);
        assert_eq!(recommend(&[slow.clone(), fast.clone()], terms(Some(2.0))), 1);
        // Without a deadline what is kept decides.
        let free = |verdict: Verdict| Verdict { p_deadline: None, ..verdict };
        assert_eq!(recommend(&[free(slow.clone()), free(fast)], terms(None)), 0);
        let in_time = option("in time", [1.5, 1.6, 1.7, 1.8], 20.0);
        assert_eq!(recommend(&[slow, in_time], terms(Some(2.0))), 1);
    }
}
