//! The back of an envelope as a setup.

use super::Setup;
use crate::cost::{CapturedGraphs, CostParameters};
use crate::engine::settings::{EngineSettings, PolicySettings, RunningCap, Stride};
use crate::error::Result;
use crate::experiment::reuse::{ReusePlan, refuse_sharing_without_cache};
use crate::model::engine::Engine;
use crate::model::scenario::Scenario;
use crate::model::sizes::{Arithmetic, KvSizes, ModelSizes};

/// The back of an envelope: one request at a time on each GPU, each token the same time, prompts for nothing.
pub(super) fn fixed_rate(scenario: &Scenario, engine: Engine) -> Result<Setup> {
    let tables = &scenario.tables;
    let Some(rate) = tables.engine.tok_per_s_per_gpu else {
        return Err(scenario.error("engine.tok_per_s_per_gpu", "missing", "give the tokens per second of one GPU"));
    };
    refuse_sharing_without_cache(scenario, engine.policy)?;
    let unused = [
        ("model", tables.model.is_some()),
        ("fleet.hardware", tables.fleet.hardware.is_some()),
        ("fleet.power_limit_w", tables.fleet.power_limit_w.is_some()),
        ("fleet.pcie_root", tables.fleet.pcie_root.is_some()),
    ];
    if let Some((key, _)) = unused.iter().find(|(_, given)| *given) {
        return Err(scenario.error(key, "found beside a fixed rate", "leave it out: it would change nothing"));
    }
    let parameters = CostParameters {
        bandwidth_share: 1.0,
        flops_share: 1.0,
        prefill_flops_share: 1.0,
        smooth_exponent: 1.0,
        step_gap_s: 1.0 / (rate * f64::from(tables.fleet.tensor_parallel.unwrap_or(1))),
        draft_pass_gap_s: 0.0,
        per_request_s: 0.0,
        prefill_launch_s: 0.0,
        eager_launch_s: 0.0,
    };
    let sizes = ModelSizes {
        name: "fixed-rate".to_owned(),
        layers: 0,
        hidden: 0,
        vocab: 0,
        total_parameters: 0.0,
        resident_bytes: 0.0,
        draft_resident_bytes: 0.0,
        vision_resident_bytes: 0.0,
        embedding_bytes: 0.0,
        head_bytes: 0.0,
        head_parameters: 0.0,
        body_read_bytes: 0.0,
        replicated_bytes: 0.0,
        body_parameters: 0.0,
        experts: None,
        kv: KvSizes {
            stored_bytes_per_token: 0.0,
            read_bytes_per_token: 0.0,
            stored_bytes_per_request: 0.0,
            windows: Vec::new(),
            replicated: false,
            heads: 1,
        },
        state: None,
        attention_flops_per_pair: 0.0,
        prefill_attention_flops_per_pair: 0.0,
        draft: None,
        table: None,
        arithmetic: Arithmetic::Bf16,
    };
    let settings = EngineSettings {
        policy: PolicySettings::Static,
        running_cap: 1,
        cap_source: RunningCap::BatchSize,
        kv_pool_tokens: u64::MAX >> 8,
        page_tokens: 1,
        lookahead_tokens: 0,
        overlap: false,
        computes_finished_rows: false,
        speculation: None,
        stride: Stride::Longest,
        state_pages_per_request: 0,
        prefix_cache: None,
        host: None,
    };
    let tensor_parallel = tables.fleet.tensor_parallel.unwrap_or(1);
    Ok(Setup {
        scenario: scenario.clone(),
        engine,
        hardware: None,
        sizes,
        derivation: Vec::new(),
        limits: None,
        parameters,
        settings,
        tensor_parallel,
        replicas: tables.fleet.gpus / tensor_parallel,
        communication_scale: 1.0,
        slowness: Vec::new(),
        flops_per_s: 1.0,
        graphs: CapturedGraphs::new(vec![1], 0),
        all_reduce: None,
        step_table: None,
        draft_steps: 0,
        reuse: ReusePlan::NOTHING,
    })
}
