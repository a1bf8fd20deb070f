//! A run over time: one row per replica and interval, as CSV.

use std::fmt::Write as _;

use crate::cost::Cause;
use crate::engine::observe::{LIMITS, Limit, StrideView};

/// Intervals of a replica before neighbours are merged: a file that a spreadsheet opens.
const MOST_INTERVALS: usize = 4096;

/// Width of an interval at first, seconds.
const FIRST_WIDTH_S: f64 = 1.0;

/// What a run's numbers are held against.
#[derive(Clone, Copy, Debug, Default)]
pub struct TimelineScale {
    /// Pages in the pool of a replica.
    pub pool_pages: u64,
    /// State slots that a running request holds; 0 without states.
    pub slots_per_request: u64,
    /// Bytes per second of the link, to device and to host; 0 without one.
    pub link_bytes_per_s: [f64; 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct Interval {
    busy_s: f64,
    running: f64,
    waiting: f64,
    pages: f64,
    steps: f64,
    prefill_tokens: f64,
    output_tokens: f64,
    bytes: [f64; 2],
    limit_s: [f64; LIMITS],
}

impl Interval {
    fn merge(&mut self, other: &Interval) {
        self.busy_s += other.busy_s;
        self.running += other.running;
        self.waiting += other.waiting;
        self.pages += other.pages;
        self.steps += other.steps;
        self.prefill_tokens += other.prefill_tokens;
        self.output_tokens += other.output_tokens;
        self.bytes.iter_mut().zip(other.bytes).for_each(|(mine, theirs)| *mine += theirs);
        self.limit_s.iter_mut().zip(other.limit_s).for_each(|(mine, theirs)| *mine += theirs);
    }
}

#[derive(Clone, Debug, Default)]
struct Lane {
    intervals: Vec<Interval>,
    bytes: [u64; 2],
}

/// Gathers the stretches of a run.
#[derive(Clone, Debug)]
pub struct Timeline {
    scale: TimelineScale,
    width_s: f64,
    lanes: Vec<Lane>,
}

impl Timeline {
    /// Nothing yet.
    pub fn new(scale: TimelineScale) -> Timeline {
        Timeline { scale, width_s: FIRST_WIDTH_S, lanes: Vec::new() }
    }

    /// Adds a stretch, spread evenly over the intervals that it covers.
    pub fn stride(&mut self, view: &StrideView) {
        if self.lanes.len() <= view.replica {
            self.lanes.resize(view.replica + 1, Lane::default());
        }
        let (start, end) = (view.start.as_s(), view.end.as_s());
        while end / self.width_s >= MOST_INTERVALS as f64 {
            self.coarsen();
        }
        let lane = &mut self.lanes[view.replica];
        let bytes = [0, 1].map(|way| (view.link_bytes[way] - lane.bytes[way]) as f64);
        lane.bytes = view.link_bytes;
        let (first, last) = ((start / self.width_s) as usize, (end / self.width_s) as usize);
        if lane.intervals.len() <= last {
            lane.intervals.resize(last + 1, Interval::default());
        }
        for index in first..=last {
            let from = start.max(index as f64 * self.width_s);
            let to = end.min((index + 1) as f64 * self.width_s);
            let span = (to - from).max(0.0);
            let share = if end > start { span / (end - start) } else { f64::from(u8::from(index == last)) };
            let interval = &mut lane.intervals[index];
            interval.busy_s += span;
            interval.running += f64::from(view.running) * span;
            interval.waiting += view.waiting as f64 * span;
            interval.pages += view.used_pages as f64 * span;
            interval.steps += view.steps as f64 * share;
            interval.prefill_tokens += view.prefill_tokens as f64 * share;
            interval.output_tokens += view.output_tokens as f64 * share;
            interval.limit_s[view.limit as usize] += span;
            (0..2).for_each(|way| interval.bytes[way] += bytes[way] * share);
        }
    }

    fn coarsen(&mut self) {
        self.width_s *= 2.0;
        for lane in &mut self.lanes {
            lane.intervals = lane
                .intervals
                .chunks(2)
                .map(|pair| {
                    let mut merged = pair[0];
                    pair.iter().skip(1).for_each(|other| merged.merge(other));
                    merged
                })
                .collect();
        }
    }

    /// The rows. Means of running, waiting and KV are over the time at work, rates over the whole interval.
    pub fn csv(&self) -> String {
        let mut text = String::from(
            "t_s,width_s,replica,busy_share,running,waiting,kv_share,state_slots,steps,prefill_tok_per_s,output_tok_per_s,\
             h2d_utilisation,d2h_utilisation,limit\n",
        );
        let longest = self.lanes.iter().map(|lane| lane.intervals.len()).max().unwrap_or(0);
        for index in 0..longest {
            for (replica, lane) in self.lanes.iter().enumerate() {
                let Some(interval) = lane.intervals.get(index) else { continue };
                let busy = interval.busy_s.max(f64::MIN_POSITIVE);
                let running = interval.running / busy;
                let link = [0, 1].map(|way| {
                    let possible = self.scale.link_bytes_per_s[way] * self.width_s;
                    if possible > 0.0 { interval.bytes[way] / possible } else { 0.0 }
                });
                let limit = Limit::ALL
                    .into_iter()
                    .max_by(|a, b| interval.limit_s[*a as usize].total_cmp(&interval.limit_s[*b as usize]))
                    .filter(|limit| interval.limit_s[*limit as usize] > 0.0);
                let _ = writeln!(
                    text,
                    "{},{},{replica},{:.4},{:.3},{:.1},{:.4},{:.2},{:.1},{:.1},{:.1},{:.5},{:.5},{}",
                    index as f64 * self.width_s,
                    self.width_s,
                    interval.busy_s / self.width_s,
                    running,
                    interval.waiting / busy,
                    interval.pages / busy / self.scale.pool_pages.max(1) as f64,
                    running * self.scale.slots_per_request as f64,
                    interval.steps,
                    interval.prefill_tokens / self.width_s,
                    interval.output_tokens / self.width_s,
                    link[0],
                    link[1],
                    limit.map_or("", Limit::key),
                );
            }
        }
        text
    }
}

/// Slices after which a trace ends: viewers refuse more.
const MOST_SLICES: u64 = 500_000;

/// Writes the stretches of a run as a trace of the Chrome / Perfetto viewers: a track per replica, a slice per stretch.
#[derive(Clone, Debug, Default)]
pub struct SliceTrace {
    text: String,
    slices: u64,
}

impl SliceTrace {
    /// Adds a stretch.
    pub fn stride(&mut self, view: &StrideView) {
        if self.slices >= MOST_SLICES {
            return;
        }
        let name = match (view.steps, view.prefill_tokens) {
            (0, _) => Cause::Transfer.words().to_owned(),
            (_, 0) => format!("decode x{}", view.steps),
            (_, tokens) => format!("prefill {tokens}"),
        };
        let start = view.start.as_s() * 1e6;
        let separator = if self.slices > 0 { ",\n" } else { "" };
        let _ = write!(
            self.text,
            "{separator}{{\"name\":\"{name}\",\"ph\":\"X\",\"pid\":0,\"tid\":{},\"ts\":{start:.3},\"dur\":{:.3},\"args\":\
             {{\"steps\":{},\"running\":{},\"waiting\":{},\"prefill_tokens\":{},\"output_tokens\":{},\"kv_pages\":{},\
             \"limit\":\"{}\"}}}}",
            view.replica,
            view.end.as_s() * 1e6 - start,
            view.steps,
            view.running,
            view.waiting,
            view.prefill_tokens,
            view.output_tokens,
            view.used_pages,
            view.limit.key(),
        );
        self.slices += 1;
    }

    /// The file; it says so when the run had more stretches than a trace holds.
    pub fn json(&self) -> String {
        let cut = self.slices >= MOST_SLICES;
        format!(
            "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"slices\":{},\"cut\":{cut}}},\"traceEvents\":[\n{}\n]}}\n",
            self.slices, self.text
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::SimTime;

    fn view(start: f64, end: f64) -> StrideView {
        StrideView {
            replica: 1,
            start: SimTime::from_s(start).unwrap(),
            end: SimTime::from_s(end).unwrap(),
            steps: 10,
            running: 4,
            prefill_tokens: 0,
            output_tokens: 40,
            waiting: 3,
            used_pages: 50,
            limit: Limit::KvPool,
            link_bytes: [0, 2000],
        }
    }

    #[test]
    fn a_stretch_is_spread_over_its_intervals_and_nothing_is_lost_by_merging() {
        let scale = TimelineScale { pool_pages: 100, slots_per_request: 5, link_bytes_per_s: [1000.0, 1000.0] };
        let mut timeline = Timeline::new(scale);
        timeline.stride(&view(0.5, 2.5));
        let text = timeline.csv();
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows[1], "0,1,1,0.5000,4.000,3.0,0.5000,20.00,2.5,0.0,10.0,0.00000,0.50000,kv_pool");
        assert_eq!(rows[2], "1,1,1,1.0000,4.000,3.0,0.5000,20.00,5.0,0.0,20.0,0.00000,1.00000,kv_pool");
        timeline.stride(&view(5000.0, 5001.0));
        let total = |timeline: &Timeline| timeline.lanes[1].intervals.iter().map(|it| it.output_tokens).sum::<f64>();
        assert_eq!(timeline.width_s, 2.0);
        assert!((total(&timeline) - 80.0).abs() < 1e-9);
        assert!(timeline.lanes[1].intervals.len() <= MOST_INTERVALS);
    }

    #[test]
    fn a_trace_is_json_with_a_slice_per_stretch() {
        let mut trace = SliceTrace::default();
        trace.stride(&view(0.5, 2.5));
        trace.stride(&StrideView { steps: 0, ..view(2.5, 3.0) });
        let parsed: serde_json::Value = serde_json::from_str(&trace.json()).unwrap();
        let slices = parsed["traceEvents"].as_array().unwrap();
        assert_eq!(slices.len(), 2);
        assert_eq!((&slices[0]["ts"], &slices[0]["dur"]), (&0.5e6.into(), &2e6.into()));
        assert_eq!(slices[0]["name"], "decode x10");
        assert_eq!(slices[1]["name"], "host transfers");
    }
}
