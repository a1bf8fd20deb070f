//! Prefix reuse and copies between host and GPU, as reports show them.

use serde::Serialize;

use crate::experiment::Setup;
use crate::report::format::percent;
use crate::simulation::ReuseTotals;

/// Shares of time and of prompts below which nothing is said.
const WORTH_MENTIONING: f64 = 0.01;

/// Share of a link's rate from which on it may be what limits.
const BUSY_LINK: f64 = 0.05;

/// Reuse and transfers of a run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ReuseReport {
    #[serde(skip)]
    is_cached: bool,
    device_hit_share: f64,
    host_hit_share: f64,
    resumed_pages: f64,
    evicted_pages: f64,
    h2d_gb_per_s: f64,
    d2h_gb_per_s: f64,
    link_h2d_gb_per_s: Option<f64>,
    link_d2h_gb_per_s: Option<f64>,
    stall_share: f64,
    slowed_share: f64,
}

impl ReuseReport {
    pub(super) fn new(setup: &Setup, totals: Option<ReuseTotals>) -> Option<ReuseReport> {
        let totals = totals?;
        let link = setup.settings.host.map(|host| host.link.rates.alone.map(|rate| rate as f64 / 1e9));
        Some(ReuseReport {
            is_cached: totals.asked_pages > 0.0,
            device_hit_share: totals.device_hit_share,
            host_hit_share: totals.host_hit_share,
            resumed_pages: totals.resumed_pages,
            evicted_pages: totals.evicted_pages,
            h2d_gb_per_s: totals.bytes_per_s[0] / 1e9,
            d2h_gb_per_s: totals.bytes_per_s[1] / 1e9,
            link_h2d_gb_per_s: link.map(|rates| rates[0]),
            link_d2h_gb_per_s: link.map(|rates| rates[1]),
            stall_share: totals.stall_share,
            slowed_share: totals.slowed_share,
        })
    }

    /// What the line is about.
    pub(super) fn title(&self) -> &'static str {
        if self.link_h2d_gb_per_s.is_some() { "host tier" } else { "prefix cache" }
    }

    /// True when copies or hits are worth a line of their own.
    pub(super) fn matters(&self) -> bool {
        let hits = self.device_hit_share + self.host_hit_share;
        hits >= WORTH_MENTIONING || self.link_share() >= BUSY_LINK || self.lost_share() >= WORTH_MENTIONING
    }

    /// The larger of what the link moves each way against what it could.
    pub(super) fn link_share(&self) -> f64 {
        let share = |rate: f64, most: Option<f64>| most.map_or(0.0, |most| rate / most);
        share(self.h2d_gb_per_s, self.link_h2d_gb_per_s).max(share(self.d2h_gb_per_s, self.link_d2h_gb_per_s))
    }

    /// Share of the time that steps wait for copies or take longer beside them.
    fn lost_share(&self) -> f64 {
        self.stall_share + self.slowed_share
    }

    /// What prompts found, what the link carried, what steps lost: what there is of them.
    pub(super) fn words(&self) -> String {
        let mut parts = Vec::new();
        if self.is_cached {
            let (device, host) = (percent(self.device_hit_share), percent(self.host_hit_share));
            match (self.device_hit_share > 0.0, self.host_hit_share > 0.0) {
                (false, false) => {}
                (_, false) => parts.push(format!("{device} of the prompts found on the GPU")),
                (false, true) => parts.push(format!("{host} of the prompts found on the host")),
                (true, true) => parts.push(format!("{device} of the prompts found on the GPU, {host} on the host")),
            }
        }
        if let (Some(to_device), Some(to_host)) = (self.link_h2d_gb_per_s, self.link_d2h_gb_per_s) {
            parts.push(self.traffic(to_device, to_host));
        }
        if self.lost_share() >= WORTH_MENTIONING {
            parts.push(format!("{} of the time lost to copies", percent(self.lost_share())));
        }
        if parts.is_empty() { "nothing was found again".to_owned() } else { parts.join("; ") }
    }

    fn traffic(&self, to_device: f64, to_host: f64) -> String {
        let way = |rate: f64, verb: &str, most: f64| {
            (rate > 0.0).then(|| format!("{} GB/s {verb} of {most:.0} GB/s", gb_per_s(rate)))
        };
        let ways = [way(self.d2h_gb_per_s, "written", to_host), way(self.h2d_gb_per_s, "read back", to_device)];
        let ways: Vec<String> = ways.into_iter().flatten().collect();
        if ways.is_empty() {
            return "nothing is copied".to_owned();
        }
        let verdict = if self.lost_share() < WORTH_MENTIONING && self.link_share() < BUSY_LINK {
            ", which is not the limit"
        } else {
            ""
        };
        format!("{}: {} of the link{verdict}", ways.join(" and "), percent(self.link_share()))
    }
}

/// Rates of a link with the digits that say something.
fn gb_per_s(rate: f64) -> String {
    if rate >= 10.0 {
        format!("{rate:.0}")
    } else if rate >= 1.0 {
        format!("{rate:.1}")
    } else if rate >= 0.01 {
        format!("{rate:.2}")
    } else {
        format!("{rate:.4}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(hits: [f64; 2], gb_per_s: [f64; 2], lost: f64) -> ReuseReport {
        ReuseReport {
            is_cached: true,
            device_hit_share: hits[0],
            host_hit_share: hits[1],
            resumed_pages: 0.0,
            evicted_pages: 0.0,
            h2d_gb_per_s: gb_per_s[0],
            d2h_gb_per_s: gb_per_s[1],
            link_h2d_gb_per_s: Some(55.0),
            link_d2h_gb_per_s: Some(54.0),
            stall_share: lost,
            slowed_share: 0.0,
        }
    }

    #[test]
    fn what_did_not_happen_is_left_out() {
        let quiet = report([0.0; 2], [0.0, 0.069], 0.0);
        assert_eq!(quiet.words(), "0.07 GB/s written of 54 GB/s: 0.1% of the link, which is not the limit");
        assert!(!quiet.matters());
        assert_eq!(report([0.0; 2], [0.0; 2], 0.0).words(), "nothing is copied");
        let busy = report([0.25, 0.5], [11.0, 2.0], 0.125);
        assert_eq!(
            busy.words(),
            "25% of the prompts found on the GPU, 50% on the host; 2.0 GB/s written of 54 GB/s and 11 GB/s read back of 55 \
             GB/s: 20% of the link; 12% of the time lost to copies"
        );
        assert!(busy.matters() && report([0.0; 2], [0.0, 3.0], 0.0).matters());
        let unlinked = ReuseReport { link_h2d_gb_per_s: None, ..report([0.0; 2], [0.0; 2], 0.0) };
        assert_eq!((unlinked.title(), unlinked.words().as_str()), ("prefix cache", "nothing was found again"));
    }
}
