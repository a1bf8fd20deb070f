//! Prefix reuse and copies between host and GPU, as reports show them.

use serde::Serialize;

use crate::experiment::Setup;
use crate::report::format::percent;
use crate::simulation::ReuseTotals;

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

    /// In a line: hits, then bytes each way against the link, then what steps lost.
    pub(super) fn words(&self) -> String {
        let hits = self.is_cached.then(|| {
            let (device, host) = (percent(self.device_hit_share), percent(self.host_hit_share));
            format!("prompts found {device} on the GPU, {host} on the host")
        });
        let (Some(to_device), Some(to_host)) = (self.link_h2d_gb_per_s, self.link_d2h_gb_per_s) else {
            return hits.unwrap_or_default();
        };
        format!(
            "{}{:.3} GB/s read back ({} of {to_device:.0}), {:.3} GB/s written ({} of {to_host:.0}); steps waited {} of the \
             time and were {} longer",
            hits.map_or(String::new(), |hits| format!("{hits}; ")),
            self.h2d_gb_per_s,
            percent(self.h2d_gb_per_s / to_device),
            self.d2h_gb_per_s,
            percent(self.d2h_gb_per_s / to_host),
            percent(self.stall_share),
            percent(self.slowed_share),
        )
    }
}
