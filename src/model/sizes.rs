//! What the cost model and the memory arithmetic need to know of an LLM: bytes and FLOPs, derived from its shapes.
//!
//! All sizes are of the whole model; tensor parallelism divides them where the cost model says so.

use serde::Deserialize;

/// The arithmetic that the matrix products run in: which peak of the GPU counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arithmetic {
    /// bf16 or fp16 products, also of weight-only quantised weights.
    Bf16,
    /// fp8 products.
    Fp8,
    /// fp4 products.
    Fp4,
}

/// Sizes of one LLM with one quantisation and one KV dtype.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSizes {
    /// Name of the LLM, as in `models/llm`.
    pub name: String,
    /// Layers of the target model.
    pub layers: u32,
    /// Hidden width.
    pub hidden: u32,
    /// Vocabulary.
    pub vocab: u32,
    /// Parameters of the text model, without MTP layers and vision tower.
    pub total_parameters: f64,
    /// Bytes of the text model in GPU memory, embedding and head included.
    pub resident_bytes: f64,
    /// Bytes of the MTP layers in GPU memory, without shared embedding and head; 0 without any.
    pub draft_resident_bytes: f64,
    /// Bytes of the vision tower in GPU memory; 0 without any.
    pub vision_resident_bytes: f64,
    /// Bytes of the input embedding.
    pub embedding_bytes: f64,
    /// Bytes of the output head (equal to the embedding when tied).
    pub head_bytes: f64,
    /// Parameters of the output head.
    pub head_parameters: f64,
    /// Bytes of every non-routed weight that a pass reads, without the head.
    pub body_read_bytes: f64,
    /// The part of it that every tensor-parallel rank holds and reads whole: projections to MLA latents, indexers,
    /// norms, routers.
    pub replicated_bytes: f64,
    /// Parameters of every non-routed weight that a token passes, without the head.
    pub body_parameters: f64,
    /// Routed experts; `None` for dense models.
    pub experts: Option<ExpertSizes>,
    /// Key-value cache.
    pub kv: KvSizes,
    /// Recurrent state; `None` without linear-attention layers.
    pub state: Option<StateSizes>,
    /// Attention FLOPs for one query token and one context token, summed over full-attention layers (4 · heads · head
    /// dimension · layers; both products, 2 FLOPs a multiply-add).
    ///
    /// With MLA: of decode, which works on the latents, 2 · heads · (2 · rank + rope dimension) · layers. With sparse
    /// attention: of the indexer, and the chosen tokens count in [`KvSizes::windows`].
    pub attention_flops_per_pair: f64,
    /// The same in prefill, where MLA expands its latents to heads: 2 · heads · (query + value dimension) · layers.
    pub prefill_attention_flops_per_pair: f64,
    /// The built-in MTP drafter; `None` without any.
    pub draft: Option<DraftSizes>,
    /// The n-gram table, which engines may keep in host memory; `None` without any.
    pub table: Option<TableSizes>,
    /// Which peak rate the bulk of the products runs at.
    pub arithmetic: Arithmetic,
}

/// Routed experts of all MoE layers.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertSizes {
    /// MoE layers.
    pub layers: u32,
    /// Routed experts in a layer.
    pub experts: u32,
    /// Routed experts that a token passes in a layer.
    pub routed: u32,
    /// Bytes of one expert in one layer.
    pub bytes: f64,
    /// Parameters of one expert in one layer.
    pub parameters: f64,
}

impl ExpertSizes {
    /// Expected experts touched in a layer by `tokens` tokens under uniform independent routing,
    /// E·(1 − (1 − k/E)^n): an upper estimate, since real routing is correlated.
    pub fn touched(&self, tokens: f64) -> f64 {
        let experts = f64::from(self.experts);
        experts * (1.0 - (1.0 - f64::from(self.routed) / experts).powf(tokens))
    }
}

/// Key-value cache: what is stored, and what a decode step reads.
#[derive(Clone, Debug, PartialEq)]
pub struct KvSizes {
    /// Bytes stored for each token of context, as the engine's pool counts them (full-attention layers).
    pub stored_bytes_per_token: f64,
    /// Bytes that one decode step reads for each token of context.
    pub read_bytes_per_token: f64,
    /// Bytes stored for each request besides, once its context is longer than the windows (sliding-window layers).
    pub stored_bytes_per_request: f64,
    /// Layers that read at most a window of tokens (sliding-window and sparse attention).
    pub windows: Vec<WindowKv>,
    /// True when every tensor-parallel rank holds all of it (MLA latents).
    pub replicated: bool,
    /// KV heads, which tensor parallelism can split at most this many ways.
    pub heads: u32,
}

/// Layers that look back over a bounded number of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowKv {
    /// The window, in tokens.
    pub tokens: u32,
    /// Bytes read for each token inside the window, all such layers together.
    pub bytes_per_token: f64,
    /// Attention FLOPs for one query token and one token inside the window, all such layers together.
    pub flops_per_pair: f64,
}

/// A table of n-gram embeddings: resident somewhere, gathered row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct TableSizes {
    /// Bytes of the table.
    pub bytes: f64,
    /// Bytes gathered for each token of a pass.
    pub read_bytes_per_token: f64,
}

/// Recurrent state of linear-attention layers.
#[derive(Clone, Debug, PartialEq)]
pub struct StateSizes {
    /// Bytes for one request: SSM and convolution state over all linear layers.
    pub bytes_per_request: f64,
    /// The SSM part of it.
    pub ssm_bytes_per_request: f64,
    /// The convolution part of it.
    pub conv_bytes_per_request: f64,
}

/// One built-in MTP layer, as read by one draft pass (the head is read as well and counted apart).
#[derive(Clone, Debug, PartialEq)]
pub struct DraftSizes {
    /// Bytes of its non-routed weights.
    pub body_read_bytes: f64,
    /// Parameters of its non-routed weights.
    pub body_parameters: f64,
    /// Its routed experts, for MoE models.
    pub experts: Option<ExpertSizes>,
    /// Bytes of its own KV for each token.
    pub kv_bytes_per_token: f64,
}

impl DraftSizes {
    /// Bytes of the layer in GPU memory.
    pub fn resident_bytes(&self) -> f64 {
        let experts = self.experts.as_ref();
        self.body_read_bytes + experts.map_or(0.0, |e| f64::from(e.layers) * f64::from(e.experts) * e.bytes)
    }
}
