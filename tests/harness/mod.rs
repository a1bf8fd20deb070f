//! Small made-up engines and jobs for tests of the core.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

use std::sync::Arc;

use makespan::cost::{CapturedGraphs, CostParameters, StepCost, StepCostInputs};
use makespan::engine::observe::Observer;
use makespan::engine::replica::Replica;
use makespan::engine::sequence::Sequence;
use makespan::engine::settings::{
    EngineSettings, PolicySettings, RunningCap, SglangSettings, Spill, Stride, VllmSettings,
};
use makespan::model::sizes::{Arithmetic, KvSizes, ModelSizes};
use makespan::random::Streams;
use makespan::simulation::{Dispatch, Fleet, InFlight, RequestStream};
use makespan::units::{SimTime, Span};
use makespan::workload::Request;

/// A dense toy model whose weights take `weights` bytes and whose KV takes `kv` bytes a token.
pub fn toy_model(weights: f64, kv: f64) -> ModelSizes {
    ModelSizes {
        name: "toy".to_owned(),
        layers: 10,
        hidden: 1024,
        vocab: 1000,
        total_parameters: weights / 2.0,
        resident_bytes: weights,
        draft_resident_bytes: 0.0,
        vision_resident_bytes: 0.0,
        embedding_bytes: 0.0,
        head_bytes: 0.0,
        head_parameters: 0.0,
        body_read_bytes: weights,
        body_parameters: weights / 2.0,
        experts: None,
        kv: KvSizes {
            stored_bytes_per_token: kv,
            read_bytes_per_token: kv,
            windows: Vec::new(),
            replicated: false,
            heads: 8,
            stored_bytes_per_request: 0.0,
        },
        replicated_bytes: 0.0,
        prefill_attention_flops_per_pair: 0.0,
        table: None,
        state: None,
        attention_flops_per_pair: 0.0,
        draft: None,
        arithmetic: Arithmetic::Bf16,
    }
}

pub fn parameters() -> CostParameters {
    CostParameters {
        bandwidth_share: 0.8,
        flops_share: 0.75,
        prefill_flops_share: 0.6,
        smooth_exponent: 3.0,
        step_gap_s: 1e-3,
        draft_pass_gap_s: 1e-4,
        per_request_s: 1e-5,
        prefill_launch_s: 3e-3,
        eager_launch_s: 9e-3,
    }
}

pub fn cost_of(model: &ModelSizes, parameters: &CostParameters, draft_steps: u32) -> StepCost {
    StepCost::new(StepCostInputs {
        sizes: model,
        hbm_bytes_per_s: 1e12,
        flops_per_s: 2e14,
        tensor_parallel: 1,
        communication_s: Box::new(|_, _| 0.0),
        parameters,
        draft_steps,
        state_moves: (2.0, 3.0),
        graphs: CapturedGraphs::new(vec![1, 2, 4, 8, 16, 24, 32, 64], 512),
        draft_prefill: true,
        step_table: None,
    })
}

/// A step that takes `seconds` whatever it holds.
pub fn constant_cost(seconds: f64) -> StepCost {
    let parameters = CostParameters {
        step_gap_s: seconds,
        per_request_s: 0.0,
        prefill_launch_s: 0.0,
        eager_launch_s: 0.0,
        draft_pass_gap_s: 0.0,
        ..parameters()
    };
    cost_of(&toy_model(0.0, 0.0), &parameters, 0)
}

pub fn vllm() -> VllmSettings {
    VllmSettings { token_budget: 2048, reserve_full_prompt: true, watermark: 0.0, spill: Spill::Recompute }
}

pub fn sglang() -> SglangSettings {
    SglangSettings {
        max_prefill_tokens: 16384,
        chunked_prefill_tokens: Some(2048),
        initial_ratio: 0.7,
        least_ratio: 0.098,
        decay_steps: 600,
        reserve_clip_tokens: 4096,
        retract_tokens: 20,
        max_new_tokens: None,
        ignore_eos: false,
    }
}

pub fn settings(policy: PolicySettings, running_cap: u32, kv_pool_tokens: u64) -> EngineSettings {
    let sglang = matches!(policy, PolicySettings::Sglang(_));
    EngineSettings {
        policy,
        running_cap,
        cap_source: RunningCap::MaxRunning,
        kv_pool_tokens,
        page_tokens: if sglang { 1 } else { 16 },
        lookahead_tokens: 0,
        overlap: !matches!(policy, PolicySettings::Static),
        computes_finished_rows: sglang,
        speculation: None,
        stride: Stride::Longest,
        state_pages_per_request: 0,
        prefix_cache: None,
        host: None,
    }
}

/// A job held in memory.
#[derive(Clone, Debug)]
pub struct Job {
    pub requests: Arc<Vec<Request>>,
    pub arrivals: Option<Arc<Vec<SimTime>>>,
}

impl Job {
    pub fn new(lengths: &[(u32, u32)]) -> Self {
        let requests = lengths
            .iter()
            .enumerate()
            .map(|(id, &(prompt_tokens, output_tokens))| Request {
                id: id as u64,
                prompt_tokens,
                output_tokens,
                uncapped_output_tokens: output_tokens,
                acceptance_draw: 0.5,
                steps_draw: 0.5,
            })
            .collect();
        Job { requests: Arc::new(requests), arrivals: None }
    }

    pub fn with_draws(mut self, seed: u64) -> Self {
        let mut blocks = Streams::new(seed, 0).blocks(makespan::random::Purpose::Request);
        let mut requests = (*self.requests).clone();
        for request in &mut requests {
            let draws = blocks.draws(request.id);
            (request.acceptance_draw, request.steps_draw) = (draws[4], draws[5]);
        }
        self.requests = Arc::new(requests);
        self
    }

    pub fn arriving(mut self, seconds: &[f64]) -> Self {
        self.arrivals = Some(Arc::new(seconds.iter().map(|s| SimTime::from_s(*s).unwrap()).collect()));
        self
    }
}

impl RequestStream for Job {
    fn len(&self) -> u64 {
        self.requests.len() as u64
    }
    fn request(&mut self, position: u64) -> Option<Request> {
        Some(self.requests[position as usize])
    }
    fn arrival(&mut self, position: u64) -> Option<SimTime> {
        self.arrivals.as_ref().map(|arrivals| arrivals[position as usize])
    }
}

pub fn fleet(settings: &EngineSettings, replicas: usize, cost: impl Fn() -> StepCost) -> Fleet {
    fleet_with(settings, replicas, Streams::new(1, 0), cost)
}

/// A fleet whose token-exact reference draws from `streams`.
pub fn fleet_with(settings: &EngineSettings, replicas: usize, streams: Streams, cost: impl Fn() -> StepCost) -> Fleet {
    Fleet {
        replicas: (0..replicas).map(|index| Replica::new(index, settings.clone(), cost(), streams)).collect(),
        gpus_per_replica: 1,
        dispatch: Dispatch::Shared,
        in_flight: InFlight::All,
        submit_interval: Span::ZERO,
        startup: Span::ZERO,
    }
}

/// Every completion in the order it happened, and every preemption.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Log {
    pub completed: Vec<(u64, usize, SimTime, SimTime)>,
    pub preempted: Vec<(u64, usize, SimTime)>,
    pub submitted: Vec<(u64, SimTime)>,
}

impl Observer for Log {
    fn completed(&mut self, replica: usize, sequence: &Sequence) {
        let first = sequence.first_token_at;
        self.completed.push((sequence.request.id, replica, first, sequence.finished_at));
        self.submitted.push((sequence.request.id, sequence.submitted_at));
    }
    fn preempted(&mut self, replica: usize, sequence: &Sequence, at: SimTime) {
        self.preempted.push((sequence.request.id, replica, at));
    }
}
