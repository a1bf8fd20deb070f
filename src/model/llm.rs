//! The shapes of an LLM, as its description in `models/llm` gives them. Bytes and FLOPs follow from them in
//! `weights` and `llm_sizes`.

use serde::Deserialize;

use crate::error::Result;
use crate::model::Configured;
use crate::model::builtin::{Kind, find};
use crate::model::parse::Place;

/// An LLM.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Llm {
    /// Name, as in `models/llm`.
    pub name: String,
    /// Layers of the target model.
    pub layers: u32,
    /// Hidden width.
    pub hidden: u32,
    /// Vocabulary.
    pub vocab: u32,
    /// True when the output head is the embedding.
    #[serde(default)]
    pub tied_head: bool,
    /// The quantisation in which it was released.
    pub default_weights: String,
    /// Residual streams of hyper-connections; absent for the plain residual.
    pub residual_streams: Option<u32>,
    /// Layers that attend to the whole context.
    pub full_attention: Option<GroupedAttention>,
    /// Layers that attend to a window.
    pub sliding_attention: Option<SlidingAttention>,
    /// MLA layers.
    pub latent_attention: Option<LatentAttention>,
    /// Layers with compressed entries beside a window.
    pub compressed_attention: Option<CompressedAttention>,
    /// Layers with a recurrent state in place of a cache.
    pub linear_attention: Option<LinearAttention>,
    /// Dense feed-forward layers.
    pub mlp: Option<Mlp>,
    /// MoE layers.
    pub experts: Option<Experts>,
    /// Built-in multi-token-prediction layers.
    pub mtp: Option<Mtp>,
    /// Vision tower.
    pub vision: Option<Vision>,
    /// Table of n-gram embeddings.
    pub ngram_table: Option<NgramTable>,
}

/// Grouped-query attention over the whole context.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupedAttention {
    /// Layers of this kind.
    pub layers: u32,
    /// Query heads.
    pub heads: u32,
    /// Key-value heads.
    pub kv_heads: u32,
    /// Values in a head.
    pub head_dim: u32,
    /// Gate on the output.
    #[serde(default)]
    pub output_gate: OutputGate,
    /// Which projections have a bias.
    #[serde(default)]
    pub bias: Bias,
    /// True when one projection yields keys and values; both are stored all the same.
    #[serde(default)]
    pub value_is_key: bool,
    /// Chooses the tokens that are read; absent when all are.
    pub indexer: Option<Indexer>,
}

/// Grouped-query attention over the last tokens.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlidingAttention {
    /// Layers of this kind.
    pub layers: u32,
    /// Tokens in the window.
    pub window: u32,
    /// Query heads.
    pub heads: u32,
    /// Key-value heads.
    pub kv_heads: u32,
    /// Values in a head.
    pub head_dim: u32,
    /// Gate on the output.
    #[serde(default)]
    pub output_gate: OutputGate,
    /// Which projections have a bias.
    #[serde(default)]
    pub bias: Bias,
}

/// Gate on the output of an attention layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutputGate {
    /// No gate.
    #[default]
    None,
    /// A value for each value of the output: the query projection is twice as wide.
    PerValue,
    /// A value for each head.
    PerHead,
}

/// Projections with a bias.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bias {
    /// None of them.
    #[default]
    None,
    /// Queries, keys and values.
    Qkv,
    /// Queries, keys, values and output.
    All,
}

/// Scores cheap keys of all tokens and lets attention read only the best.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Indexer {
    /// Heads that score.
    pub heads: u32,
    /// Values in a key.
    pub head_dim: u32,
    /// Tokens that share a key.
    pub pooled_tokens: u32,
    /// Tokens of context that attention reads.
    pub top_tokens: u32,
    /// Bytes of a stored key, scales included.
    pub key_bytes: u32,
    /// Bytes of a stored key with an fp8 cache, where that differs.
    pub fp8_key_bytes: Option<u32>,
}

/// Multi-head latent attention (MLA): one low-rank entry a token for all heads.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatentAttention {
    /// Layers of this kind.
    pub layers: u32,
    /// Query heads.
    pub heads: u32,
    /// Rank of the query projection.
    pub q_lora_rank: u32,
    /// Rank of keys and values, stored for each token.
    pub kv_lora_rank: u32,
    /// Values with rotary position, stored for each token; 0 without.
    pub rope_dim: u32,
    /// Values of a query head without position.
    pub nope_dim: u32,
    /// Values of an output head.
    pub value_dim: u32,
    /// Bytes of an entry in the fp8 cache, scales and unquantised parts included; absent for 1 byte a value.
    pub fp8_entry_bytes: Option<u32>,
    /// Chooses the tokens that are read; absent when all are.
    pub indexer: Option<Indexer>,
}

/// A window of single-head entries (key = value), beside entries that each stand for several tokens (DeepSeek-V4).
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompressedAttention {
    /// Layers of this kind.
    pub layers: u32,
    /// Query heads.
    pub heads: u32,
    /// Values in a head and in an entry.
    pub head_dim: u32,
    /// Rank of the query projection.
    pub q_lora_rank: u32,
    /// Groups of the output projection.
    pub output_groups: u32,
    /// Rank of each group.
    pub output_rank: u32,
    /// Tokens in the window of every layer.
    pub window: u32,
    /// Bytes of an entry in the fp8 cache, scales and unquantised parts included.
    pub fp8_entry_bytes: u32,
    /// What stands beside the window, for the layers that have more.
    pub compression: Vec<Compression>,
}

/// Layers whose entries each stand for some tokens.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compression {
    /// Layers of this kind.
    pub layers: u32,
    /// Tokens in an entry.
    pub tokens: u32,
    /// Tokens that one entry is made of, in units of `tokens`: 2 when neighbours overlap.
    pub overlap: u32,
    /// Chooses the entries that are read; absent when all are.
    pub indexer: Option<Indexer>,
}

/// Linear attention: a state of fixed size.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinearAttention {
    /// Layers of this kind.
    pub layers: u32,
    /// Which recurrence.
    pub kind: LinearKind,
    /// Key heads.
    pub key_heads: u32,
    /// Value heads, which hold the state.
    pub value_heads: u32,
    /// Values in a key or value head.
    pub head_dim: u32,
    /// Tokens under the short convolution.
    pub conv_kernel: u32,
}

/// The recurrence of linear attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinearKind {
    /// Gated DeltaNet.
    GatedDeltaNet,
    /// Kimi delta attention: decay for each channel, through low-rank projections.
    KimiDelta,
}

/// Dense feed-forward layers (SwiGLU: three matrices).
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mlp {
    /// Layers of this kind.
    pub layers: u32,
    /// Inner width.
    pub width: u32,
}

/// MoE layers.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experts {
    /// Layers of this kind.
    pub layers: u32,
    /// Routed experts in a layer.
    pub experts: u32,
    /// Routed experts that a token passes.
    pub routed: u32,
    /// Shared experts that every token passes.
    pub shared: u32,
    /// Inner width of an expert.
    pub width: u32,
    /// True when the experts have biases.
    #[serde(default)]
    pub bias: bool,
}

/// Multi-token-prediction layers: a block as in the target and a projection from twice the hidden width.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mtp {
    /// Layers.
    pub layers: u32,
}

/// Vision tower: held in memory, not read while text is decoded.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vision {
    /// Parameters.
    pub parameters: f64,
}

/// A table of n-gram embeddings, of which a token reads a few rows.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NgramTable {
    /// Rows.
    pub rows: u32,
    /// Values in a row.
    pub width: u32,
    /// Rows read for each token.
    pub rows_per_token: u32,
    /// Parameters of the projections from the table into the model, read in every pass.
    pub projection_parameters: f64,
    /// Bytes of its convolution state for each request.
    pub state_bytes_per_request: u32,
}

impl Llm {
    /// Reads and checks a description.
    pub fn parse(text: &str, file: &str) -> Result<Llm> {
        let place = Place { file, text };
        let llm: Llm = place.parse()?;
        llm.check(place)?;
        Ok(llm)
    }

    /// Finds a description by path, or else by built-in name. A path that ends in `.json` is a model's own
    /// configuration.
    pub fn find(name_or_path: &str) -> Result<Llm> {
        Ok(Llm::configured(name_or_path)?.llm)
    }

    /// The same with how each size was found; a description states its sizes, so for one there is nothing to say.
    pub fn configured(name_or_path: &str) -> Result<Configured> {
        let found = find(Kind::Llm, name_or_path)?;
        if !found.built_in && name_or_path.ends_with(".json") {
            return Llm::from_config(found.text()?, &found.file);
        }
        Ok(Configured { llm: Llm::parse(found.text()?, &found.file)?, derivation: Vec::new() })
    }
}
