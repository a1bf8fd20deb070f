//! What the running cap may be, and how likely each is before a table is seen.

use crate::experiment::Setup;
use crate::model::scenario::{Override, Scenario};

use super::predict::Structure;

/// Memory fractions that operators set: from what the engine finds itself to the largest that starts.
const FRACTIONS: [f64; 5] = [0.80, 0.82, 0.85, 0.88, 0.90];

/// Largest cap on the grid, as a multiple of the largest concurrency: beyond it no point can tell.
const BEYOND: f64 = 1.0;

/// Deviation of the logarithm of the arithmetic's caps: memory fraction, version and buffers are unknown.
const ARITHMETIC_DEVIATION: f64 = 0.3;

/// A cap that never binds.
pub const UNCAPPED: u32 = 1 << 20;

/// One line of the engine's memory arithmetic under one set of flags.
#[derive(Clone, Debug, PartialEq)]
pub struct ArithmeticCap {
    /// The flags, in words.
    pub flags: String,
    /// Running requests at most.
    pub cap: u32,
    /// Tokens in the KV pool.
    pub kv_pool_tokens: u64,
}

/// The engine's arithmetic over the memory fractions that operators use, without anything that the scenario assumes of
/// slots or caps. Empty where the engine has no such arithmetic.
pub fn arithmetic_caps(setup: &Setup) -> Vec<ArithmeticCap> {
    let mut bare = setup.scenario.clone();
    let engine = &mut bare.tables.engine;
    engine.state_slots = None;
    engine.state_slots_per_request = None;
    engine.state_slots_held_per_request = None;
    engine.max_running = None;
    engine.max_running_requests = None;
    engine.kv_pool_tokens = None;
    engine.mem_fraction = None;
    let own = engine.mem_fraction_static.take().or(engine.gpu_memory_utilization.take());
    let fractions: Vec<Option<f64>> = match own {
        Some(fraction) => vec![Some(fraction)],
        None => std::iter::once(None).chain(FRACTIONS.into_iter().map(Some)).collect(),
    };
    let mut all: Vec<Option<f64>> = fractions;
    if own.is_some() {
        all.extend(FRACTIONS.into_iter().filter(|fraction| Some(*fraction) != own).map(Some));
    }
    all.into_iter().filter_map(|fraction| arithmetic_cap(&bare, fraction)).collect()
}

fn arithmetic_cap(bare: &Scenario, fraction: Option<f64>) -> Option<ArithmeticCap> {
    let mut scenario = bare.clone();
    scenario.tables.engine.mem_fraction = fraction;
    let setup = Setup::new(&scenario).ok()?;
    let flags = fraction.map_or("default memory fraction".to_owned(), |fraction| format!("memory fraction {fraction}"));
    Some(ArithmeticCap { flags, cap: setup.settings.running_cap, kv_pool_tokens: setup.settings.kv_pool_tokens })
}

/// The scenario without what it assumes of slots and caps, so that a fit may find them.
///
/// # Errors
/// As [`Setup::new`].
pub fn without_assumed_caps(setup: &Setup) -> crate::error::Result<Setup> {
    let tables = &setup.scenario.tables.engine;
    if tables.state_slots.is_none() && tables.state_slots_per_request.is_none() {
        return Ok(setup.clone());
    }
    let mut scenario = setup.scenario.with(&[] as &[Override])?;
    scenario.tables.engine.state_slots = None;
    scenario.tables.engine.state_slots_per_request = None;
    scenario.tables.engine.state_slots_held_per_request = None;
    Ok(Setup::new(&scenario).unwrap_or_else(|_| setup.clone()))
}

/// Caps to try with their prior probabilities: half a law around the engine's arithmetic, a third with equal weight for
/// each doubling, and the rest that nothing binds.
pub fn cap_prior(arithmetic: &[ArithmeticCap], most_in_flight: u32) -> Vec<(Option<u32>, f64)> {
    let end = (BEYOND * f64::from(most_in_flight)).max(2.0);
    let mut grid: Vec<u32> = Vec::new();
    let mut at = 1.0f64;
    while at < end {
        grid.push(at.round() as u32);
        // Every whole number as long as one request more is a tenth.
        at = (at + 1.0).max(at * 1.1);
    }
    grid.dedup();
    let law = |cap: u32| -> f64 {
        let near = |centre: u32| {
            let score = (f64::from(cap) / f64::from(centre.max(1))).ln() / ARITHMETIC_DEVIATION;
            (-0.5 * score * score).exp() / f64::from(cap)
        };
        arithmetic.iter().map(|line| near(line.cap)).sum::<f64>()
    };
    // Density times the width of the cell that a grid value stands for.
    let width = |index: usize| -> f64 {
        let next = grid.get(index + 1).map_or(end, |next| f64::from(*next));
        (next - f64::from(grid[index])).max(1.0)
    };
    let around: Vec<f64> = grid.iter().enumerate().map(|(index, cap)| law(*cap) * width(index)).collect();
    let flat: Vec<f64> = grid.iter().enumerate().map(|(index, cap)| width(index) / f64::from(*cap)).collect();
    let (around_sum, flat_sum) = (around.iter().sum::<f64>(), flat.iter().sum::<f64>());
    let inside = arithmetic.iter().filter(|line| line.cap < most_in_flight).count() as f64;
    let share = if arithmetic.is_empty() { 0.0 } else { 0.5 * inside / arithmetic.len() as f64 };
    let mut all: Vec<(Option<u32>, f64)> = grid
        .iter()
        .zip(around.iter().zip(&flat))
        .map(|(cap, (near, flat))| {
            let near = if around_sum > 0.0 { share * near / around_sum } else { 0.0 };
            (Some(*cap), near + 0.3 * flat / flat_sum)
        })
        .collect();
    all.push((None, 1.0 - share - 0.3));
    all
}

/// Requests per point as multiples of the concurrency: one wave, or a long run.
pub const WAVES: [(u32, f64); 2] = [(1, 0.55), (4, 0.45)];

/// Structures from caps and waves.
pub fn structures(caps: &[(Option<u32>, f64)], waves_known: bool) -> Vec<(Structure, f64)> {
    let waves: &[(u32, f64)] = if waves_known { &[(1, 1.0)] } else { &WAVES };
    caps.iter()
        .flat_map(|(running_cap, prior)| {
            waves.iter().map(move |(waves, share)| {
                (Structure { running_cap: *running_cap, waves: *waves, client_cap: None }, prior * share)
            })
        })
        .collect()
}
