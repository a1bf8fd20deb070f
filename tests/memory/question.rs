//! Descriptions, model sizes and questions that the tests share.

use makespan::engine::memory::{
    EngineFlags, GIB, GpuMemory, LogReadings, MemoryQuestion, SglangFlags, VisionTower, VllmFlags,
};
use makespan::model::engine::{Engine, Version};
use makespan::model::sizes::{Arithmetic, DraftSizes, KvSizes, ModelSizes, StateSizes};

pub const NEW: Version = (0, 5, 23);
pub const OLD: Version = (0, 5, 12);
/// Free before loading on the 96 GB card: both ends of what is reported.
pub const FREE_GIB: [f64; 2] = [94.0, 94.6];
pub const PRO_6000_MIB: f64 = 97_887.0;
pub const H200_MIB: f64 = 143_771.0;

pub fn engine(text: &str) -> Engine {
    toml::from_str(text).unwrap()
}

pub fn sglang() -> Engine {
    engine(include_str!("../../models/engine/sglang.toml"))
}

pub fn vllm() -> Engine {
    engine(include_str!("../../models/engine/vllm.toml"))
}

pub fn transformers() -> Engine {
    engine(include_str!("../../models/engine/transformers.toml"))
}

/// Qwen3.6-27B in bf16: 55.56 GB with MTP layer and vision tower; states with SSM items of `ssm_item_bytes`.
pub fn hybrid_27b(ssm_item_bytes: f64) -> ModelSizes {
    let head = 248_320.0 * 5120.0;
    let ssm = 48.0 * 48.0 * 128.0 * 128.0 * ssm_item_bytes;
    let conv = 48.0 * 61_440.0;
    ModelSizes {
        name: "qwen3.6-27b".into(),
        layers: 64,
        hidden: 5120,
        vocab: 248_320,
        total_parameters: 26.896e9,
        resident_bytes: 55.56e9 - 0.849e9 - 0.918e9,
        draft_resident_bytes: 0.849e9,
        vision_resident_bytes: 0.918e9,
        embedding_bytes: 2.0 * head,
        head_bytes: 2.0 * head,
        head_parameters: head,
        body_read_bytes: 48.71e9,
        body_parameters: 24.35e9,
        experts: None,
        kv: KvSizes {
            stored_bytes_per_token: 65_536.0,
            read_bytes_per_token: 65_536.0,
            windows: vec![],
            stored_bytes_per_request: 0.0,
            replicated: false,
            heads: 4,
        },
        state: Some(StateSizes {
            bytes_per_request: ssm + conv,
            ssm_bytes_per_request: ssm,
            conv_bytes_per_request: conv,
        }),
        replicated_bytes: 0.0,
        attention_flops_per_pair: 4.0 * 24.0 * 256.0 * 16.0,
        prefill_attention_flops_per_pair: 4.0 * 24.0 * 256.0 * 16.0,
        table: None,
        draft: Some(DraftSizes {
            body_read_bytes: 0.849e9,
            body_parameters: 0.4247e9,
            experts: None,
            kv_bytes_per_token: 4096.0,
        }),
        arithmetic: Arithmetic::Bf16,
    }
}

/// Qwen3-8B in bf16.
pub fn dense_8b() -> ModelSizes {
    let mut model = hybrid_27b(4.0);
    model.name = "qwen3-8b".into();
    (model.layers, model.hidden, model.vocab) = (36, 4096, 151_936);
    model.resident_bytes = 15.27 * GIB;
    (model.draft_resident_bytes, model.vision_resident_bytes) = (0.0, 0.0);
    (model.kv.stored_bytes_per_token, model.kv.heads) = (147_456.0, 8);
    (model.state, model.draft) = (None, None);
    model
}

/// The 27B with MTP and vision on the 96 GB card, under SGLang.
pub fn on_pro_6000<'a>(
    engine: &'a Engine,
    model: &'a ModelSizes,
    free_gib: f64,
    flags: SglangFlags,
) -> MemoryQuestion<'a> {
    MemoryQuestion {
        engine,
        version: NEW,
        model,
        linear_layers: 48,
        vision: Some(VisionTower { hidden: 1152, num_hidden_layers: None }),
        gpu: GpuMemory { reported_mib: PRO_6000_MIB, free_bytes: free_gib * GIB },
        tensor_parallel: 1,
        draft_steps: Some(3),
        context_tokens: 262_144,
        log: LogReadings::default(),
        flags: EngineFlags::Sglang(flags),
    }
}

pub fn fraction(mem_fraction: f64) -> SglangFlags {
    SglangFlags { mem_fraction_static: Some(mem_fraction), ..SglangFlags::default() }
}

pub fn on_h200<'a>(engine: &'a Engine, model: &'a ModelSizes, flags: VllmFlags) -> MemoryQuestion<'a> {
    let mut question = on_pro_6000(engine, model, 139.0, SglangFlags::default());
    question.gpu.reported_mib = H200_MIB;
    question.linear_layers = if model.state.is_some() { 48 } else { 0 };
    (question.vision, question.draft_steps) = (None, None);
    question.context_tokens = 16_384;
    question.flags = EngineFlags::Vllm(flags);
    question
}

pub fn slots(limits: &makespan::engine::memory::Limits) -> u64 {
    limits.state.as_ref().unwrap().slots.value
}
