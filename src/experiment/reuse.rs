//! What follows from a scenario for prefix cache, host tier and swapping.

use std::sync::Arc;

use crate::engine::host_tier::{DevicePools, HostSize, HostTierSettings, WritePolicy};
use crate::engine::link::{Copier, LinkSettings};
use crate::engine::memory::Limits;
use crate::engine::prefix_cache::Prompts;
use crate::engine::settings::{HostSettings, PrefixCacheSettings, Spill};
use crate::error::{Error, Result};
use crate::experiment::pcie_root::{PcieRoot, behind_root};
use crate::model::engine::Policy;
use crate::model::hardware::Hardware;
use crate::model::scenario::{HicacheTable, IoBackend, Rows, Scenario, SpillWord, WriteWord};
use crate::model::sizes::ModelSizes;
use crate::workload::trace::Trace;

/// Tokens between state checkpoints of hybrids under SGLang (`mamba_track_interval`).
const TRACK_TOKENS: u32 = 256;

/// `--hicache-ratio` unless given.
const HICACHE_RATIO: f64 = 2.0;

/// Millionths by which decode steps are longer while SM kernels copy, beside the memory bandwidth they take. Reported
/// are "a few per cent" in all for grouped-query attention; nobody measured the parts.
const KERNEL_COPY_PPM: u32 = 20_000;

/// vLLM before V1 set 4 GiB of host memory aside for each GPU (`--swap-space`).
const SWAP_SPACE_BYTES: u64 = 4 << 30;

/// Cache and host of a scenario's replicas, before it is known which prompts they read.
#[derive(Clone, Debug)]
pub(super) struct ReusePlan {
    /// `None` where the engine caches but nothing asks for it: it is left out where no prompt could hit.
    wanted: Option<bool>,
    checkpoint_pages: Option<u32>,
    state_slots: Option<(u64, u64)>,
    pub(super) host: Option<HostSettings>,
    pub(super) spill: Spill,
    pub(super) state_pages_per_request: u64,
    /// The root that the replicas' links share.
    pub(super) root: Option<PcieRoot>,
}

/// What the plan is made from, beside the scenario.
pub(super) struct Basis<'a> {
    pub policy: Policy,
    pub limits: &'a Limits,
    pub sizes: &'a ModelSizes,
    pub linear_layers: u32,
    pub hardware: &'a Hardware,
    pub tensor_parallel: u32,
    pub drafts: bool,
}

impl ReusePlan {
    /// For engines that keep nothing.
    pub(super) const NOTHING: ReusePlan = ReusePlan {
        wanted: Some(false),
        checkpoint_pages: None,
        state_slots: None,
        host: None,
        spill: Spill::Recompute,
        state_pages_per_request: 0,
        root: None,
    };

    pub(super) fn new(scenario: &Scenario, basis: &Basis<'_>) -> Result<ReusePlan> {
        let table = &scenario.tables.engine;
        let hicache = hicache(scenario);
        let off = match basis.policy {
            Policy::PrefillFirst => table.disable_radix_cache == Some(true),
            Policy::TokenBudget => table.enable_prefix_caching == Some(false),
            Policy::StaticBatch | Policy::FixedRate => true,
        };
        if off && table.prefix_cache == Some(true) {
            let (found, remedy) = match basis.policy {
                Policy::PrefillFirst | Policy::TokenBudget => {
                    ("the engine's own flag turns the cache off", "keep one of the two")
                }
                _ => ("the engine has no prefix cache", "leave it out: it would change nothing"),
            };
            return Err(scenario.error("engine.prefix_cache", found, remedy));
        }
        refuse_sharing_without_cache(scenario, basis.policy)?;
        let cached = !off && table.prefix_cache != Some(false);
        let tier = tier(scenario, basis)?;
        if tier.is_some() && !cached {
            let key = if hicache.is_some() { "engine.hicache" } else { "engine.kv_offloading_bytes" };
            return Err(scenario.error(
                key,
                "the prefix cache is off",
                "it stores what the cache evicts: turn that on",
            ));
        }
        let spill = match table.spill {
            Some(SpillWord::Running) => Spill::Running,
            Some(SpillWord::Recompute) | None => Spill::Recompute,
        };
        if spill == Spill::Running && tier.is_some() {
            let found = "running requests are swapped and the host tier is on";
            return Err(scenario.error("engine.spill", found, "keep one: no engine does both"));
        }
        let swap = (spill == Spill::Running).then(|| {
            let bytes = table.swap_space_bytes.map_or(SWAP_SPACE_BYTES, |bytes| bytes as u64);
            HostTierSettings::vllm_offload(pools(basis), bytes)
        });
        if swap.is_none() && table.swap_space_bytes.is_some() {
            let remedy = "set engine.spill = \"running\", or leave it out: it would change nothing";
            return Err(scenario.error("engine.swap_space_bytes", "nothing is swapped", remedy));
        }
        let copier = match hicache.map(|table| table.io_backend.unwrap_or(IoBackend::Kernel)) {
            Some(IoBackend::Kernel) => Copier::SmKernel { share_ppm: KERNEL_COPY_PPM },
            Some(IoBackend::Direct) | None => Copier::CopyEngine,
        };
        let hardware = basis.hardware;
        let (link, root) = behind_root(scenario, &hardware.host_link, basis.tensor_parallel)?;
        let host = tier
            .or(swap)
            .map(|tier| HostSettings { link: LinkSettings::new(&link, hardware.hbm_bytes_per_s, copier, true), tier });
        if scenario.tables.fleet.pcie_root.is_some() && host.is_none() {
            let remedy = "turn a host tier or swapping on, or leave it out: it would change nothing";
            return Err(scenario.error("fleet.pcie_root", "nothing is copied between host and GPUs", remedy));
        }
        let state = basis.limits.state.as_ref();
        let page_tokens = basis.limits.page_tokens.value.max(1) as u32;
        Ok(ReusePlan {
            wanted: match (cached, table.prefix_cache, hicache, table.kv_offloading_bytes) {
                (false, ..) => Some(false),
                (true, None, None, None) => None,
                _ => Some(true),
            },
            checkpoint_pages: state.map(|_| match basis.policy {
                Policy::PrefillFirst => (TRACK_TOKENS / page_tokens).max(1),
                _ => 1,
            }),
            // One of the slots that a running request holds is the checkpoint of its prefix, which is in the cache.
            state_slots: state
                .filter(|state| !state.shares_token_pool)
                .map(|state| (state.slots.value, state.held_per_request.value.saturating_sub(1))),
            host,
            spill,
            state_pages_per_request: state
                .filter(|state| state.shares_token_pool)
                .map_or(0, |state| state.reserved_per_request.value),
            root,
        })
    }

    /// The cache for a job with these prompts.
    pub(super) fn cache(&self, prompts: Arc<Prompts>) -> Option<PrefixCacheSettings> {
        // Prompts that share nothing never hit; only preempted requests would find their own again.
        let wanted = self.wanted.unwrap_or(*prompts != Prompts::Distinct);
        let &ReusePlan { checkpoint_pages, state_slots, .. } = self;
        wanted.then_some(PrefixCacheSettings { prompts, checkpoint_pages, state_slots })
    }
}

/// What prompts share would be ignored by engines that have no prefix cache: refused.
pub(super) fn refuse_sharing_without_cache(scenario: &Scenario, policy: Policy) -> Result<()> {
    let job = &scenario.tables.job;
    let key = match (job.shared_prefix_tokens, &job.sessions) {
        (Some(_), _) => "job.shared_prefix_tokens",
        (_, Some(_)) => "job.sessions",
        _ => return Ok(()),
    };
    match policy {
        Policy::PrefillFirst | Policy::TokenBudget => Ok(()),
        Policy::StaticBatch | Policy::FixedRate => {
            let remedy = "leave it out: it would change nothing";
            Err(scenario.error(key, "the engine has no prefix cache", remedy))
        }
    }
}

fn hicache(scenario: &Scenario) -> Option<&HicacheTable> {
    scenario.tables.engine.hicache.as_ref().filter(|table| table.enabled != Some(false))
}

fn pools(basis: &Basis<'_>) -> DevicePools {
    let Basis { limits, sizes, tensor_parallel, .. } = basis;
    let draft_kv = sizes.draft.as_ref().filter(|_| basis.drafts).map_or(0.0, |draft| draft.kv_bytes_per_token);
    let split = if sizes.kv.replicated { 1 } else { (*tensor_parallel).min(sizes.kv.heads.max(1)) };
    let token_bytes = (sizes.kv.stored_bytes_per_token + draft_kv) / f64::from(split);
    let page_tokens = limits.page_tokens.value.max(1);
    let state = sizes.state.as_ref();
    DevicePools {
        page_tokens: page_tokens as u32,
        page_bytes: (token_bytes * page_tokens as f64).round() as u64,
        pages: limits.kv_pool_tokens.value / page_tokens,
        layers: sizes.layers.saturating_sub(basis.linear_layers) + u32::from(draft_kv > 0.0),
        state_bytes: state.map_or(0, |state| (state.bytes_per_request / f64::from(*tensor_parallel)).round() as u64),
        state_layers: state.map_or(0, |_| basis.linear_layers),
        state_slots: limits.state.as_ref().map_or(0, |state| state.slots.value),
    }
}

fn tier(scenario: &Scenario, basis: &Basis<'_>) -> Result<Option<HostTierSettings>> {
    let table = &scenario.tables.engine;
    let positive = |key: &str, value: Option<f64>| match value {
        Some(value) if !(value.is_finite() && value > 0.0) => {
            Err(scenario.error(key, format!("found {value}"), "a number above 0"))
        }
        _ => Ok(()),
    };
    positive("engine.kv_offloading_bytes", table.kv_offloading_bytes)?;
    positive("engine.swap_space_bytes", table.swap_space_bytes)?;
    if let Some(hicache) = hicache(scenario) {
        positive("engine.hicache.ratio", hicache.ratio)?;
        positive("engine.hicache.bytes", hicache.bytes)?;
        let size = match (hicache.ratio, hicache.bytes) {
            (Some(_), Some(_)) => {
                let remedy = "give ratio (of the device pools) or bytes (of each host pool)";
                return Err(scenario.error("engine.hicache.bytes", "the size is given twice", remedy));
            }
            (None, Some(bytes)) => HostSize::Bytes(bytes as u64),
            (ratio, None) => HostSize::Ratio(ratio.unwrap_or(HICACHE_RATIO)),
        };
        let write = match hicache.write_policy.unwrap_or(WriteWord::WriteThrough) {
            WriteWord::WriteThrough => WritePolicy::Through,
            WriteWord::WriteThroughSelective => WritePolicy::ThroughSelective,
            WriteWord::WriteBack => WritePolicy::Back,
        };
        let kernel_copies = hicache.io_backend.unwrap_or(IoBackend::Kernel) == IoBackend::Kernel;
        let tier = HostTierSettings { kernel_copies, ..HostTierSettings::hicache(pools(basis), size, write) };
        return Ok(Some(tier));
    }
    // The flag counts all GPUs of a replica.
    let each = |bytes: f64| (bytes / f64::from(basis.tensor_parallel)) as u64;
    Ok(table.kv_offloading_bytes.map(|bytes| HostTierSettings::vllm_offload(pools(basis), each(bytes))))
}

/// What the prompts of a job share: what the scenario says, or what its trace recorded.
pub(super) fn prompts(scenario: &Scenario, trace: Option<&Trace>) -> Result<Prompts> {
    let job = &scenario.tables.job;
    let recorded = trace.and_then(|trace| trace.prefix_blocks.as_ref());
    let tokens = |key: &str, tokens: u64| -> Result<u32> {
        u32::try_from(tokens)
            .ok()
            .filter(|tokens| *tokens < 1 << 30)
            .ok_or_else(|| scenario.error(key, format!("found {tokens}"), "tokens below 2^30"))
    };
    let count = |key: &str, count: u64| -> Result<u64> {
        if count == 0 { Err(scenario.error(key, "found 0", "a whole number of at least 1")) } else { Ok(count) }
    };
    let twice = |key: &str, other: &str| -> Error {
        scenario.error(key, format!("it stands beside {other}, which says something else"), "keep one of the two")
    };
    match (&job.sessions, job.shared_prefix_tokens) {
        (Some(_), Some(_)) => Err(twice("job.sessions", "shared_prefix_tokens")),
        (Some(sessions), None) => Ok(Prompts::Sessions {
            sessions: count("job.sessions.sessions", sessions.sessions)?,
            turns: count("job.sessions.turns", sessions.turns)?,
            system_tokens: tokens("job.sessions.system_tokens", sessions.system_tokens.unwrap_or(0))?,
            turn_tokens: tokens("job.sessions.turn_tokens", sessions.turn_tokens)?,
        }),
        (None, Some(prefix)) => Ok(Prompts::SharedPrefix {
            prompts_per_prefix: count("job.prompts_per_prefix", job.prompts_per_prefix.unwrap_or(u64::MAX))?,
            prefix_tokens: tokens("job.shared_prefix_tokens", prefix)?,
        }),
        (None, None) if job.prompts_per_prefix.is_some() => {
            let remedy = "give job.shared_prefix_tokens too, or leave it out: it would change nothing";
            Err(scenario.error("job.prompts_per_prefix", "no prefix is shared", remedy))
        }
        // Rows drawn at random would repeat whole conversations that nobody had.
        (None, None) if job.rows == Some(Rows::WithReplacement) => Ok(Prompts::Distinct),
        (None, None) => Ok(recorded.map_or(Prompts::Distinct, |blocks| Prompts::Recorded(blocks.clone()))),
    }
}
