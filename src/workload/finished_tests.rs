use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::Path;

use super::*;
use crate::model::workload::LengthLaw;
use crate::random::{Purpose, Streams};
use crate::workload::Law;

fn law(name: &str) -> Law {
    let description = LengthLaw::from_toml(&toml::Value::String(name.into()), "law", Path::new("")).unwrap();
    Law::from_description(&description, "law").unwrap()
}

fn seen(tokens: u32, complete: f64, censored: f64) -> Seen {
    Seen { tokens, complete, censored }
}

#[test]
fn the_estimate_of_a_textbook() {
    // Of 6 at risk one ends at 3, one is censored at 4, then one of 4 ends at 5, one is censored, one of 2 ends at 9.
    let rows = [(9, 1.0, 0.0), (3, 1.0, 0.0), (4, 0.0, 1.0), (5, 1.0, 0.0), (6, 0.0, 1.0), (9, 0.0, 1.0)];
    let survival = Survival::kaplan_meier(rows.map(|(t, c, l)| seen(t, c, l)).to_vec()).unwrap();
    let expected = [(3.0, 1.0 / 6.0), (5.0, 5.0 / 24.0), (9.0, 5.0 / 16.0)];
    for ((value, mass), (expected_value, expected_mass)) in survival.steps().iter().zip(expected) {
        assert_eq!(*value, expected_value);
        assert!((mass - expected_mass).abs() < 1e-12, "{value}: {mass}");
    }
    assert!((survival.beyond() - 5.0 / 16.0).abs() < 1e-12);
    assert!((survival.share_above(5.0) - 0.625).abs() < 1e-12);
    assert!(Survival::kaplan_meier(vec![seen(0, 3.0, 0.0)]).is_err());
}

/// Plain and corrected mean of min(X, cap) over the true one, when `finished` requests of a job on 256 slots are done
/// and a token takes as long for each.
fn estimates(finished: usize, cap: f64, replication: u64) -> (f64, f64) {
    let law = law("central");
    let mut draws = Streams::new(1, replication).blocks(Purpose::Request);
    let mut next = 0u64;
    let mut draw = || {
        next += 1;
        let block = draws.draws(next);
        law.sample(block[2], block[3]).round().max(1.0)
    };
    let mut running: BinaryHeap<Reverse<(u64, u64, u64)>> = BinaryHeap::new();
    let mut rows = Vec::new();
    let mut now = 0;
    for _ in 0..256 {
        let length = draw();
        running.push(Reverse((length.min(cap) as u64, 0, length as u64)));
    }
    let (mut sum, limit) = (0.0, cap as u64);
    while rows.len() < finished {
        let Reverse((end, _, length)) = running.pop().unwrap();
        now = end;
        sum += (length.min(limit)) as f64;
        rows.push(if length > limit { seen(limit as u32, 0.0, 1.0) } else { seen(length as u32, 1.0, 0.0) });
        let length = draw();
        running.push(Reverse((now + length.min(cap) as u64, now, length as u64)));
    }
    rows.extend(running.iter().map(|Reverse((_, start, _))| seen((now - start) as u32, 0.0, 1.0)));
    let truth = law.mean_capped(cap);
    (sum / finished as f64 / truth, Survival::kaplan_meier(rows).unwrap().mean_capped(cap) / truth)
}

#[test]
fn kaplan_meier_corrects_the_published_bias_of_a_finished_part() {
    // The table of biases for the "central" law: finished, cap, plain mean, Kaplan-Meier. Without a cap the context of
    // 32,768 tokens is one. Runs so many that their mean is known within half a per cent.
    for (finished, cap, plain, corrected, runs) in [
        (64, 4096.0, 0.28, 0.37, 200),
        (256, 4096.0, 0.49, 0.74, 200),
        (512, 4096.0, 0.74, 1.00, 100),
        (1024, 4096.0, 0.86, 1.00, 100),
        (4096, 4096.0, 0.97, 1.00, 40),
        (16_384, 4096.0, 0.99, 1.00, 20),
        (64, 32_768.0, 0.20, 0.26, 400),
        (256, 32_768.0, 0.35, 0.53, 400),
        (512, 32_768.0, 0.48, 0.74, 400),
        (1024, 32_768.0, 0.64, 0.91, 400),
        (4096, 32_768.0, 0.90, 1.00, 100),
        (16_384, 32_768.0, 0.97, 1.00, 40),
    ] {
        let (mut a, mut b) = (0.0, 0.0);
        for run in 0..runs {
            let (plain, corrected) = estimates(finished, cap, run);
            a += plain / runs as f64;
            b += corrected / runs as f64;
        }
        assert!((a - plain).abs() < 0.02, "{finished} at {cap}: plain {a}, expected {plain}");
        assert!((b - corrected).abs() < 0.02, "{finished} at {cap}: corrected {b}, expected {corrected}");
    }
}

fn from_toml(text: &str, folder: &Path) -> Result<Law> {
    let table: toml::Table = text.parse().unwrap();
    let description = LengthLaw::from_toml(&table["law"], "job.output_tokens", folder)?;
    Law::from_description(&description, "job.output_tokens")
}

#[test]
fn a_scenario_plans_from_a_finished_part() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = String::from("output_tokens,finish_reason\n");
    for row in 0..100 {
        text += if row % 10 == 0 { "4096,length\n" } else { "1000,stop\n" };
    }
    std::fs::write(folder.path().join("done.csv"), text).unwrap();
    std::fs::write(folder.path().join("running.csv"), "output_tokens\n2000\n2500\n").unwrap();
    let error = from_toml("law = { finished = 'done.csv' }", folder.path()).unwrap_err().to_string();
    assert_eq!(
        error,
        "job.output_tokens.beyond: 10.0% of the lengths are above 4096, the longest that was seen; name a law for \
         them, as in beyond = \"central\", or plan for a cap of at most that: truncate_tokens = 4096"
    );
    let cut = from_toml("law = { finished = 'done.csv', truncate_tokens = 4096 }", folder.path()).unwrap();
    assert!((cut.mean() - (0.9 * 1000.0 + 0.1 * 4096.0)).abs() < 1e-6);
    let longer = from_toml("law = { finished = 'done.csv', beyond = 'heavy' }", folder.path()).unwrap();
    assert!((longer.survival(4096.0) - 0.1).abs() < 1e-9);
    let heavy = law("heavy");
    assert!((longer.survival(9000.0) - 0.1 * heavy.survival(9000.0) / heavy.survival(4096.0)).abs() < 1e-9);
    assert!(longer.sample(0.95, 0.5) > 4096.0 && longer.sample(0.5, 0.5) == 1000.0);
    let running = "law = { finished = 'done.csv', running = 'running.csv', truncate_tokens = 4096 }";
    let running = from_toml(running, folder.path()).unwrap();
    assert!((running.cdf(1000.0) - 90.0 / 102.0).abs() < 1e-9, "{}", running.cdf(1000.0));
    let error = from_toml("law = { finished = 'done.csv', beyond = 500 }", folder.path()).unwrap_err().to_string();
    assert!(error.contains("a law without lengths above 4096"), "{error}");
}
