//! `[fleet.pcie_root]`: cards that copy through one root of the host.

use crate::engine::link::Rates;
use crate::error::Result;
use crate::model::hardware::HostLink;
use crate::model::scenario::Scenario;

/// What a root leaves to the links behind it. GPUs of one replica copy their parts of the same blocks at the same time, so
/// each gets an equal share; replicas get what those that copy at the time leave them.
#[derive(Clone, Copy, Debug)]
pub(super) struct PcieRoot {
    /// Replicas behind one root, at least 2.
    pub replicas: usize,
    /// What it lets through for one GPU of each, bytes per second.
    pub rates: Rates,
}

/// A host link with what its root takes off it, and the root if several replicas share it.
pub(super) fn behind_root(
    scenario: &Scenario,
    link: &HostLink,
    tensor_parallel: u32,
) -> Result<(HostLink, Option<PcieRoot>)> {
    let Some(root) = &scenario.tables.fleet.pcie_root else { return Ok((link.clone(), None)) };
    let (more, fewer) = (root.gpus.max(tensor_parallel), root.gpus.min(tensor_parallel));
    if more % fewer != 0 {
        let found = format!("{} GPUs behind a root, {tensor_parallel} in a replica", root.gpus);
        return Err(scenario.error("fleet.pcie_root.gpus", found, "one must be a multiple of the other"));
    }
    let each = |rate: f64| rate / f64::from(fewer);
    let alone = [each(root.h2d_bytes_per_s), each(root.d2h_bytes_per_s)];
    let both = each(root.both_bytes_per_s);
    if root.gpus > tensor_parallel {
        let kept = (both / (alone[0] + alone[1])).min(1.0);
        let rates = Rates { alone: alone.map(|rate| rate as u64), both: alone.map(|rate| (rate * kept) as u64) };
        return Ok((link.clone(), Some(PcieRoot { replicas: (root.gpus / tensor_parallel) as usize, rates })));
    }
    let limited = HostLink {
        h2d_bytes_per_s: link.h2d_bytes_per_s.min(alone[0]),
        d2h_bytes_per_s: link.d2h_bytes_per_s.min(alone[1]),
        both_bytes_per_s: link.both_bytes_per_s.min(both),
        ..link.clone()
    };
    Ok((limited, None))
}
