//! Parameter counts of an LLM's blocks, by the groups that quantisation formats tell apart.
//!
//! Formulas: the shapes of the modules in each model's public implementation. Norms over single heads, attention
//! sinks and correction biases of routers are left out where they are below 0.001 % of a layer.

use std::ops::{Add, Mul};

use crate::model::llm::{
    Bias, CompressedAttention, Experts, GroupedAttention, Indexer, LatentAttention, LinearAttention, LinearKind, Llm,
    OutputGate, SlidingAttention,
};
use crate::model::quantisation::BytesPerParameter;

/// Bytes of a parameter that no format quantises.
const BF16_BYTES: f64 = 2.0;

/// Non-routed parameters that a token passes, by group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Body {
    /// Attention projections.
    pub attention: f64,
    /// Projections of linear attention.
    pub linear_attention: f64,
    /// Dense feed-forward layers, and the projections from an n-gram table.
    pub mlp: f64,
    /// Shared experts.
    pub shared_experts: f64,
    /// Norms, routers, convolutions, biases and small gates: bf16 in every format.
    pub unquantised: f64,
    /// Part of `attention` that every tensor-parallel rank holds whole: projections to latents and entries, indexers.
    pub replicated_attention: f64,
}

/// One routed expert of one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expert {
    /// Parameters of its matrices.
    pub matrices: f64,
    /// Parameters of its biases.
    pub biases: f64,
}

impl Add for Body {
    type Output = Body;
    fn add(self, other: Body) -> Body {
        Body {
            attention: self.attention + other.attention,
            linear_attention: self.linear_attention + other.linear_attention,
            mlp: self.mlp + other.mlp,
            shared_experts: self.shared_experts + other.shared_experts,
            unquantised: self.unquantised + other.unquantised,
            replicated_attention: self.replicated_attention + other.replicated_attention,
        }
    }
}

impl Mul<u32> for Body {
    type Output = Body;
    fn mul(self, times: u32) -> Body {
        let times = f64::from(times);
        Body {
            attention: self.attention * times,
            linear_attention: self.linear_attention * times,
            mlp: self.mlp * times,
            shared_experts: self.shared_experts * times,
            unquantised: self.unquantised * times,
            replicated_attention: self.replicated_attention * times,
        }
    }
}

impl Body {
    /// All parameters.
    pub fn parameters(&self) -> f64 {
        self.quantised() + self.unquantised
    }

    fn quantised(&self) -> f64 {
        self.attention + self.linear_attention + self.mlp + self.shared_experts
    }

    /// Bytes as part of the target model.
    pub fn bytes(&self, per: &BytesPerParameter) -> f64 {
        self.attention * per.attention
            + self.linear_attention * per.linear_attention
            + self.mlp * per.mlp
            + self.shared_experts * per.shared_experts
            + self.unquantised * BF16_BYTES
    }

    /// Bytes that every tensor-parallel rank holds whole.
    pub fn replicated_bytes(&self, per: &BytesPerParameter) -> f64 {
        self.replicated_attention * per.attention + self.unquantised * BF16_BYTES
    }

    /// Bytes as part of an MTP layer, which formats treat as one group.
    pub fn mtp_bytes(&self, per: &BytesPerParameter) -> f64 {
        self.quantised() * per.mtp + self.unquantised * BF16_BYTES
    }
}

impl Expert {
    /// All parameters.
    pub fn parameters(&self) -> f64 {
        self.matrices + self.biases
    }

    /// Bytes, with matrices at `bytes_per_parameter`.
    pub fn bytes(&self, bytes_per_parameter: f64) -> f64 {
        self.matrices * bytes_per_parameter + self.biases * BF16_BYTES
    }
}

impl Llm {
    /// Parameters of the embedding, and of the output head.
    pub fn embedding_parameters(&self) -> f64 {
        f64::from(self.vocab) * f64::from(self.hidden)
    }

    /// Non-routed parameters of the target model, without embedding and head.
    pub fn body(&self) -> Body {
        let hidden = f64::from(self.hidden);
        let mut body = Body { unquantised: hidden, ..Body::default() } + self.residual() * self.layers;
        if let Some(attention) = &self.full_attention {
            body = body + grouped(hidden, attention) * attention.layers;
        }
        if let Some(attention) = &self.sliding_attention {
            body = body + sliding(hidden, attention) * attention.layers;
        }
        if let Some(attention) = &self.latent_attention {
            body = body + latent(hidden, attention) * attention.layers;
        }
        if let Some(attention) = &self.compressed_attention {
            body = body + compressed(hidden, attention) * attention.layers;
            for compression in &attention.compression {
                let entry = compressor(hidden, attention.head_dim, compression.tokens, compression.overlap);
                let mut extra = entry;
                if let Some(index) = &compression.indexer {
                    extra += queries(f64::from(attention.q_lora_rank), index)
                        + hidden * f64::from(index.heads)
                        + compressor(hidden, index.head_dim, compression.tokens, compression.overlap);
                }
                let extra = Body { attention: extra, replicated_attention: extra, ..Body::default() };
                body = body + extra * compression.layers;
            }
        }
        if let Some(attention) = &self.linear_attention {
            body = body + linear(hidden, attention) * attention.layers;
        }
        if let Some(mlp) = &self.mlp {
            body.mlp += f64::from(mlp.layers) * swiglu(hidden, mlp.width);
        }
        if let Some(experts) = &self.experts {
            body = body + beside_experts(hidden, experts) * experts.layers;
        }
        if let Some(table) = &self.ngram_table {
            body.mlp += table.projection_parameters;
        }
        body
    }

    /// One routed expert.
    pub fn expert(&self) -> Option<Expert> {
        let experts = self.experts.as_ref()?;
        let hidden = f64::from(self.hidden);
        let biases = if experts.bias { 2.0 * f64::from(experts.width) + hidden } else { 0.0 };
        Some(Expert { matrices: swiglu(hidden, experts.width), biases })
    }

    /// Non-routed parameters of one MTP layer: an attention block and a feed-forward part as in the target, and the
    /// projection from twice the hidden width. Embedding and head are the target's.
    pub fn mtp_body(&self) -> Option<Body> {
        self.mtp.as_ref()?;
        let hidden = f64::from(self.hidden);
        let attention = match (&self.full_attention, &self.latent_attention, &self.compressed_attention) {
            (Some(attention), _, _) => grouped(hidden, attention),
            (_, Some(attention), _) => latent(hidden, attention),
            (_, _, Some(attention)) => compressed(hidden, attention),
            (None, None, None) => Body::default(),
        };
        let feed_forward = match (&self.experts, &self.mlp) {
            (Some(experts), _) => beside_experts(hidden, experts),
            (None, Some(mlp)) => Body { mlp: swiglu(hidden, mlp.width), ..Body::default() },
            (None, None) => Body::default(),
        };
        // Two norms of the inputs and one of the output.
        let input = Body { mlp: 2.0 * hidden * hidden, unquantised: 3.0 * hidden, ..Body::default() };
        Some(attention + feed_forward + self.residual() + input)
    }

    /// Norms of a layer, and the mixing of its residual streams: for each of two sub-layers a projection from all
    /// streams to weights of reading, writing and mixing (n² + 2n).
    fn residual(&self) -> Body {
        let hidden = f64::from(self.hidden);
        let mixing = self.residual_streams.map_or(0.0, |streams| {
            let streams = f64::from(streams);
            2.0 * streams * hidden * (streams * streams + 2.0 * streams)
        });
        Body { unquantised: 2.0 * hidden + mixing, ..Body::default() }
    }
}

fn swiglu(hidden: f64, width: u32) -> f64 {
    3.0 * hidden * f64::from(width)
}

/// Shared experts and router of an MoE layer.
fn beside_experts(hidden: f64, experts: &Experts) -> Body {
    let mut router = hidden * f64::from(experts.experts);
    if experts.bias {
        router += f64::from(experts.experts);
    }
    let shared_experts = f64::from(experts.shared) * swiglu(hidden, experts.width);
    Body { shared_experts, unquantised: router, ..Body::default() }
}

fn grouped(hidden: f64, attention: &GroupedAttention) -> Body {
    let kv_projections = if attention.value_is_key { 1.0 } else { 2.0 };
    let shape = (attention.heads, attention.kv_heads, attention.head_dim);
    let mut body = projections(hidden, shape, kv_projections, attention.output_gate, attention.bias);
    if let Some(index) = &attention.indexer {
        let indexer = queries(hidden, index) + keys(hidden, index);
        body.attention += indexer;
        body.replicated_attention += indexer;
    }
    body
}

fn sliding(hidden: f64, attention: &SlidingAttention) -> Body {
    let shape = (attention.heads, attention.kv_heads, attention.head_dim);
    projections(hidden, shape, 2.0, attention.output_gate, attention.bias)
}

fn projections(hidden: f64, shape: (u32, u32, u32), kv_projections: f64, gate: OutputGate, bias: Bias) -> Body {
    let (heads, kv_heads, head_dim) = shape;
    let queries = f64::from(heads) * f64::from(head_dim);
    let key_values = kv_projections * f64::from(kv_heads) * f64::from(head_dim);
    let gates = match gate {
        OutputGate::None => 0.0,
        OutputGate::PerValue => queries,
        OutputGate::PerHead => f64::from(heads),
    };
    let biases = match bias {
        Bias::None => 0.0,
        Bias::Qkv => queries + key_values,
        Bias::All => queries + key_values + hidden,
    };
    Body { attention: hidden * (2.0 * queries + gates + key_values), unquantised: biases, ..Body::default() }
}

fn latent(hidden: f64, attention: &LatentAttention) -> Body {
    let heads = f64::from(attention.heads);
    let [q_rank, kv_rank, rope] = [attention.q_lora_rank, attention.kv_lora_rank, attention.rope_dim].map(f64::from);
    let [nope, value] = [attention.nope_dim, attention.value_dim].map(f64::from);
    let split = q_rank * heads * (nope + rope) + kv_rank * heads * (nope + value) + heads * value * hidden;
    let mut whole = hidden * (q_rank + kv_rank + rope);
    if let Some(index) = &attention.indexer {
        whole += queries(q_rank, index) + keys(hidden, index);
    }
    let unquantised = q_rank + kv_rank;
    Body { attention: split + whole, replicated_attention: whole, unquantised, ..Body::default() }
}

fn compressed(hidden: f64, attention: &CompressedAttention) -> Body {
    let [heads, head_dim, q_rank] = [attention.heads, attention.head_dim, attention.q_lora_rank].map(f64::from);
    let output = f64::from(attention.output_groups) * f64::from(attention.output_rank);
    // The first output projection is block-diagonal: each group sees its own heads.
    let split = heads * head_dim * (q_rank + f64::from(attention.output_rank)) + output * hidden;
    let whole = hidden * (q_rank + head_dim);
    let unquantised = q_rank + head_dim;
    Body { attention: split + whole, replicated_attention: whole, unquantised, ..Body::default() }
}

/// Projections to entries and their gates, and a learnt position in the entry.
fn compressor(hidden: f64, head_dim: u32, tokens: u32, overlap: u32) -> f64 {
    let width = f64::from(head_dim) * f64::from(overlap);
    2.0 * hidden * width + f64::from(tokens) * width
}

fn queries(from: f64, index: &Indexer) -> f64 {
    from * f64::from(index.heads) * f64::from(index.head_dim)
}

fn keys(hidden: f64, index: &Indexer) -> f64 {
    hidden * (f64::from(index.head_dim) + f64::from(index.heads))
}

fn linear(hidden: f64, attention: &LinearAttention) -> Body {
    let [key_heads, value_heads, head_dim] =
        [attention.key_heads, attention.value_heads, attention.head_dim].map(f64::from);
    let [keys, values] = [key_heads * head_dim, value_heads * head_dim];
    let convolution = (2.0 * keys + values) * f64::from(attention.conv_kernel);
    let inputs = hidden * (2.0 * keys + values);
    match attention.kind {
        // Output gate z, decay a and step b, A and dt of each head, norm of a head.
        LinearKind::GatedDeltaNet => Body {
            linear_attention: inputs + hidden * values + values * hidden,
            unquantised: 2.0 * hidden * value_heads + convolution + 2.0 * value_heads + head_dim,
            ..Body::default()
        },
        // Decay and output gate through a rank of one head, step b, dt of each channel.
        LinearKind::KimiDelta => Body {
            linear_attention: inputs + 2.0 * head_dim * (hidden + values) + values * hidden,
            unquantised: hidden * value_heads + convolution + values + value_heads + head_dim,
            ..Body::default()
        },
    }
}
