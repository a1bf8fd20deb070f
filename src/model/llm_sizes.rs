//! From shapes to bytes and FLOPs: weights, cache, state and attention of an LLM in one quantisation.

use crate::error::{InputError, Result};
use crate::model::llm::{Indexer, Llm};
use crate::model::quantisation::{BytesPerParameter, KvDtype, Quantisation, StateDtype};
use crate::model::sizes::{DraftSizes, ExpertSizes, KvSizes, ModelSizes, StateSizes, TableSizes, WindowKv};

/// Bytes of a bf16 value.
const BF16_BYTES: f64 = 2.0;

/// Bytes and FLOPs of the token mixers, summed over layers as they are met.
#[derive(Default)]
struct Mixers {
    stored_per_token: f64,
    stored_per_request: f64,
    read_per_token: f64,
    windows: Vec<WindowKv>,
    decode_flops_per_pair: f64,
    prefill_flops_per_pair: f64,
}

/// What one token leaves in the cache, and what a query spends on it, in all layers of a kind.
struct Entry {
    bytes: f64,
    decode_flops: f64,
    prefill_flops: f64,
}

impl Mixers {
    /// Entries of which all are stored; all are read, or those that an indexer chooses. An entry stands for
    /// `tokens` tokens.
    fn whole_context(&mut self, entry: &Entry, tokens: f64, indexer: Option<(&Indexer, f64)>, kv: KvDtype) {
        let bytes = entry.bytes / tokens;
        self.stored_per_token += bytes;
        let Some((index, layers)) = indexer else {
            self.read_per_token += bytes;
            self.decode_flops_per_pair += entry.decode_flops / tokens;
            self.prefill_flops_per_pair += entry.prefill_flops / tokens;
            return;
        };
        let key_bytes = layers * index_bytes(index, kv);
        self.stored_per_token += key_bytes;
        self.read_per_token += key_bytes;
        let [heads, dim, pooled] = [index.heads, index.head_dim, index.pooled_tokens].map(f64::from);
        let scoring = layers * 2.0 * heads * dim / pooled;
        self.decode_flops_per_pair += scoring;
        self.prefill_flops_per_pair += scoring;
        self.windows.push(WindowKv {
            tokens: index.top_tokens,
            bytes_per_token: bytes,
            flops_per_pair: entry.decode_flops / tokens,
        });
    }

    /// Entries of which only the last `tokens` are kept and read.
    fn window(&mut self, entry: &Entry, tokens: u32) {
        self.stored_per_request += entry.bytes * f64::from(tokens);
        self.windows.push(WindowKv { tokens, bytes_per_token: entry.bytes, flops_per_pair: entry.decode_flops });
    }
}

impl Llm {
    /// Bytes and FLOPs with these weights, cache and state.
    ///
    /// An error when the quantisation belongs to other LLMs, or quantises nothing that this one has.
    pub fn sizes(&self, quantisation: &Quantisation, kv: KvDtype, state: StateDtype) -> Result<ModelSizes> {
        let per = &quantisation.bytes_per_parameter;
        self.check_fits(quantisation)?;
        let body = self.body();
        let experts = self.expert_sizes(self.experts.as_ref().map_or(0, |experts| experts.layers), per.routed_experts);
        let embedding = self.embedding_parameters();
        let embedding_bytes = embedding * per.embedding;
        let head_bytes = if self.tied_head { embedding_bytes } else { embedding * per.head };
        let body_read_bytes = body.bytes(per);
        let all = |size: fn(&ExpertSizes) -> f64| {
            experts.as_ref().map_or(0.0, |e| f64::from(e.layers) * f64::from(e.experts) * size(e))
        };
        let own_heads = if self.tied_head { 0.0 } else { 1.0 };
        let draft = self.draft(per, kv);
        let mtp_layers = self.mtp.as_ref().map_or(0.0, |mtp| f64::from(mtp.layers));
        let mixers = self.mixers(kv);
        Ok(ModelSizes {
            name: self.name.clone(),
            layers: self.layers,
            hidden: self.hidden,
            vocab: self.vocab,
            total_parameters: embedding * (1.0 + own_heads) + body.parameters() + all(|e| e.parameters),
            resident_bytes: embedding_bytes + own_heads * head_bytes + body_read_bytes + all(|e| e.bytes),
            draft_resident_bytes: mtp_layers * draft.as_ref().map_or(0.0, DraftSizes::resident_bytes),
            vision_resident_bytes: self.vision.as_ref().map_or(0.0, |vision| vision.parameters * per.vision),
            embedding_bytes,
            head_bytes,
            head_parameters: embedding,
            body_read_bytes,
            replicated_bytes: body.replicated_bytes(per),
            body_parameters: body.parameters(),
            experts,
            kv: KvSizes {
                stored_bytes_per_token: mixers.stored_per_token,
                read_bytes_per_token: mixers.read_per_token,
                stored_bytes_per_request: mixers.stored_per_request,
                windows: mixers.windows,
                replicated: self.latent_attention.is_some() || self.compressed_attention.is_some(),
                heads: self.kv_heads(),
            },
            state: self.state(state),
            attention_flops_per_pair: mixers.decode_flops_per_pair,
            prefill_attention_flops_per_pair: mixers.prefill_flops_per_pair,
            draft,
            table: self.ngram_table.as_ref().map(|table| {
                let row = f64::from(table.width) * per.ngram_table;
                TableSizes {
                    bytes: f64::from(table.rows) * row,
                    read_bytes_per_token: f64::from(table.rows_per_token) * row,
                }
            }),
            arithmetic: quantisation.arithmetic,
        })
    }

    /// Refuses a quantisation that would say nothing about this LLM.
    fn check_fits(&self, quantisation: &Quantisation) -> Result<()> {
        let weights = format!("weights `{}` for {}", quantisation.name, self.name);
        let remedy = format!("it was released as `{}`; `makespan list quantisation` shows all", self.default_weights);
        if !quantisation.llms.is_empty() && !quantisation.llms.contains(&self.name) {
            let found = format!("{weights}: this mix belongs to {}", quantisation.llms.join(", "));
            return Err(InputError::new(found, remedy).into());
        }
        let per = &quantisation.bytes_per_parameter;
        let (body, embedding) = (self.body(), self.embedding_parameters());
        let groups = [
            (per.embedding, embedding),
            (per.head, if self.tied_head { 0.0 } else { embedding }),
            (per.attention, body.attention),
            (per.linear_attention, body.linear_attention),
            (per.mlp, body.mlp),
            (per.shared_experts, body.shared_experts),
            (per.routed_experts, self.expert().map_or(0.0, |expert| expert.matrices)),
        ];
        let quantises = |(bytes, _): &&(f64, f64)| *bytes < BF16_BYTES;
        let mut quantised = groups.iter().filter(quantises).peekable();
        if quantised.peek().is_some() && quantised.all(|(_, parameters)| *parameters == 0.0) {
            let found = format!("{weights}: it quantises nothing that this model has");
            return Err(InputError::new(found, remedy).into());
        }
        Ok(())
    }

    fn expert_sizes(&self, layers: u32, bytes_per_parameter: f64) -> Option<ExpertSizes> {
        let (experts, expert) = (self.experts.as_ref()?, self.expert()?);
        Some(ExpertSizes {
            layers,
            experts: experts.experts,
            routed: experts.routed,
            bytes: expert.bytes(bytes_per_parameter),
            parameters: expert.parameters(),
        })
    }

    /// One MTP layer. The window of a DeepSeek-V4 layer (128 entries a request) is left out of its KV.
    fn draft(&self, per: &BytesPerParameter, kv: KvDtype) -> Option<DraftSizes> {
        let body = self.mtp_body()?;
        let (whole, own) = match (&self.full_attention, &self.latent_attention) {
            (Some(attention), _) => (f64::from(attention.layers), self.grouped_kv(kv)),
            (None, Some(attention)) => (f64::from(attention.layers), self.latent_kv(kv)),
            (None, None) => (1.0, 0.0),
        };
        Some(DraftSizes {
            body_read_bytes: body.mtp_bytes(per),
            body_parameters: body.parameters(),
            experts: self.expert_sizes(1, per.mtp_experts),
            kv_bytes_per_token: own / whole,
        })
    }

    /// Stored bytes per token of the full-attention layers.
    fn grouped_kv(&self, kv: KvDtype) -> f64 {
        self.full_attention.as_ref().map_or(0.0, |attention| {
            let layers = f64::from(attention.layers);
            let entry = 2.0 * f64::from(attention.kv_heads) * f64::from(attention.head_dim) * value_bytes(kv);
            layers * (entry + attention.indexer.as_ref().map_or(0.0, |index| index_bytes(index, kv)))
        })
    }

    /// Stored bytes per token of the MLA layers.
    fn latent_kv(&self, kv: KvDtype) -> f64 {
        self.latent_attention.as_ref().map_or(0.0, |attention| {
            let values = f64::from(attention.kv_lora_rank) + f64::from(attention.rope_dim);
            let entry = match (kv, attention.fp8_entry_bytes) {
                (KvDtype::Fp8, Some(bytes)) => f64::from(bytes),
                _ => values * value_bytes(kv),
            };
            let index = attention.indexer.as_ref().map_or(0.0, |index| index_bytes(index, kv));
            f64::from(attention.layers) * (entry + index)
        })
    }

    fn mixers(&self, kv: KvDtype) -> Mixers {
        let mut mixers = Mixers::default();
        if let Some(attention) = &self.full_attention {
            let layers = f64::from(attention.layers);
            let flops = 4.0 * layers * f64::from(attention.heads) * f64::from(attention.head_dim);
            let index = attention.indexer.as_ref().map(|index| (index, layers));
            let index_keys = index.map_or(0.0, |(index, layers)| layers * index_bytes(index, kv));
            let bytes = self.grouped_kv(kv) - index_keys;
            mixers.whole_context(&Entry { bytes, decode_flops: flops, prefill_flops: flops }, 1.0, index, kv);
        }
        if let Some(attention) = &self.sliding_attention {
            let layers = f64::from(attention.layers);
            let [heads, kv_heads, dim] = [attention.heads, attention.kv_heads, attention.head_dim].map(f64::from);
            let flops = 4.0 * layers * heads * dim;
            let bytes = layers * 2.0 * kv_heads * dim * value_bytes(kv);
            mixers.window(&Entry { bytes, decode_flops: flops, prefill_flops: flops }, attention.window);
        }
        if let Some(attention) = &self.latent_attention {
            let layers = f64::from(attention.layers);
            let [heads, rank, rope] = [attention.heads, attention.kv_lora_rank, attention.rope_dim].map(f64::from);
            let [nope, value] = [attention.nope_dim, attention.value_dim].map(f64::from);
            let index = attention.indexer.as_ref().map(|index| (index, layers));
            let index_keys = index.map_or(0.0, |(index, layers)| layers * index_bytes(index, kv));
            let entry = Entry {
                bytes: self.latent_kv(kv) - index_keys,
                // Decode works on the latents themselves; prefill expands them to heads first.
                decode_flops: 2.0 * layers * heads * (2.0 * rank + rope),
                prefill_flops: 2.0 * layers * heads * (nope + rope + value),
            };
            mixers.whole_context(&entry, 1.0, index, kv);
        }
        if let Some(attention) = &self.compressed_attention {
            let dim = f64::from(attention.head_dim);
            let bytes = match kv {
                KvDtype::Bf16 => dim * BF16_BYTES,
                KvDtype::Fp8 => f64::from(attention.fp8_entry_bytes),
            };
            let entry = |layers: u32| {
                let flops = 4.0 * f64::from(layers) * f64::from(attention.heads) * dim;
                Entry { bytes: f64::from(layers) * bytes, decode_flops: flops, prefill_flops: flops }
            };
            mixers.window(&entry(attention.layers), attention.window);
            for compression in &attention.compression {
                let index = compression.indexer.as_ref().map(|index| (index, f64::from(compression.layers)));
                mixers.whole_context(&entry(compression.layers), f64::from(compression.tokens), index, kv);
            }
        }
        mixers
    }

    fn state(&self, dtype: StateDtype) -> Option<StateSizes> {
        let attention = self.linear_attention.as_ref()?;
        let [layers, key_heads, value_heads] =
            [attention.layers, attention.key_heads, attention.value_heads].map(f64::from);
        let dim = f64::from(attention.head_dim);
        let bytes = match dtype {
            StateDtype::Float32 => 4.0,
            StateDtype::Bfloat16 => BF16_BYTES,
        };
        let ssm = layers * value_heads * dim * dim * bytes;
        let channels = (2.0 * key_heads + value_heads) * dim;
        let ngram = self.ngram_table.as_ref().map_or(0.0, |table| f64::from(table.state_bytes_per_request));
        let conv = layers * channels * (f64::from(attention.conv_kernel) - 1.0) * BF16_BYTES + ngram;
        Some(StateSizes { bytes_per_request: ssm + conv, ssm_bytes_per_request: ssm, conv_bytes_per_request: conv })
    }

    fn kv_heads(&self) -> u32 {
        let full = self.full_attention.as_ref().map(|attention| attention.kv_heads);
        full.or(self.sliding_attention.as_ref().map(|attention| attention.kv_heads)).unwrap_or(1)
    }
}

/// Bytes of a value in the cache.
fn value_bytes(kv: KvDtype) -> f64 {
    match kv {
        KvDtype::Bf16 => BF16_BYTES,
        KvDtype::Fp8 => 1.0,
    }
}

/// Bytes of an indexer's keys in one layer for each token.
fn index_bytes(index: &Indexer, kv: KvDtype) -> f64 {
    let bytes = match (kv, index.fp8_key_bytes) {
        (KvDtype::Fp8, Some(bytes)) => bytes,
        _ => index.key_bytes,
    };
    f64::from(bytes) / f64::from(index.pooled_tokens)
}
