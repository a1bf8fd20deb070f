//! How a checkpoint stores its weights, key-value cache and recurrent state: bytes per value, and the arithmetic.

use serde::Deserialize;

use crate::error::Result;
use crate::model::builtin::{Kind, find};
use crate::model::parse::Place;
use crate::model::sizes::Arithmetic;

/// How the keys and values of the cache are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KvDtype {
    /// 2 bytes a value.
    #[default]
    Bf16,
    /// 1 byte a value, or the model's own fp8 layout.
    Fp8,
}

/// How the SSM part of the recurrent state is stored; the convolution part is always bf16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateDtype {
    /// 4 bytes a value, the engines' default.
    #[default]
    Float32,
    /// 2 bytes a value.
    Bfloat16,
}

/// Bytes per parameter, scales included, of each group of weights.
///
/// Norms, routers, convolutions, biases and the small gates of linear attention stay in bf16 in every format.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BytesPerParameter {
    /// Input embedding.
    pub embedding: f64,
    /// Output head, unless tied to the embedding.
    pub head: f64,
    /// Attention projections, indexers included.
    pub attention: f64,
    /// Projections of linear attention.
    pub linear_attention: f64,
    /// Dense feed-forward layers, and the projections from an n-gram table.
    pub mlp: f64,
    /// Shared experts.
    pub shared_experts: f64,
    /// Routed experts.
    pub routed_experts: f64,
    /// MTP layers without their routed experts.
    pub mtp: f64,
    /// Routed experts of MTP layers.
    pub mtp_experts: f64,
    /// Vision tower.
    pub vision: f64,
    /// Table of n-grams.
    pub ngram_table: f64,
}

/// A quantisation format, or the mix of one family of checkpoints.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quantisation {
    /// Name, as in `models/quantisation`.
    pub name: String,
    /// What the format is, in one sentence.
    pub title: String,
    /// Which peak rate the bulk of the products runs at, on hardware that has it.
    pub arithmetic: Arithmetic,
    /// The cache dtype that the checkpoint declares and engines follow.
    #[serde(default)]
    pub kv: KvDtype,
    /// The LLMs that have this mix; empty for a format of any LLM.
    #[serde(default)]
    pub llms: Vec<String>,
    /// Bytes per parameter of each group.
    pub bytes_per_parameter: BytesPerParameter,
}

impl BytesPerParameter {
    /// Every group with its key.
    fn all(&self) -> [(&'static str, f64); 11] {
        [
            ("embedding", self.embedding),
            ("head", self.head),
            ("attention", self.attention),
            ("linear_attention", self.linear_attention),
            ("mlp", self.mlp),
            ("shared_experts", self.shared_experts),
            ("routed_experts", self.routed_experts),
            ("mtp", self.mtp),
            ("mtp_experts", self.mtp_experts),
            ("vision", self.vision),
            ("ngram_table", self.ngram_table),
        ]
    }
}

impl Quantisation {
    /// Reads and checks a description.
    pub fn parse(text: &str, file: &str) -> Result<Quantisation> {
        let place = Place { file, text };
        let quantisation: Quantisation = place.parse()?;
        for (group, bytes) in quantisation.bytes_per_parameter.all() {
            if !(0.1..=4.0).contains(&bytes) {
                let found = format!("{bytes} bytes per parameter is out of range");
                let key = format!("bytes_per_parameter.{group}");
                return Err(place.error(&key, found, "give 0.1 to 4, as in 2.0 for bf16 or 0.5625 for NVFP4"));
            }
        }
        Ok(quantisation)
    }

    /// Finds a description by path, or else by built-in name.
    pub fn find(name_or_path: &str) -> Result<Quantisation> {
        let found = find(Kind::Quantisation, name_or_path)?;
        Quantisation::parse(found.text()?, &found.file)
    }
}
