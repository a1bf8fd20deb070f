//! What must hold between the values of an LLM's description.

use crate::error::Result;
use crate::model::llm::{Indexer, Llm};
use crate::model::parse::Place;

impl Llm {
    /// Checks what the types cannot: counts of at least 1, and tables that agree with each other.
    pub(super) fn check(&self, place: Place<'_>) -> Result<()> {
        for (key, value) in [("layers", self.layers), ("hidden", self.hidden), ("vocab", self.vocab)] {
            place.at_least_one(key, value)?;
        }
        let mut mixers = 0;
        let mut mixer = |key: &str, layers: u32, dims: &[(&str, u32)]| {
            mixers += u64::from(layers);
            dims.iter().try_for_each(|(name, value)| place.at_least_one(&format!("{key}.{name}"), *value))
        };
        if let Some(a) = &self.full_attention {
            mixer("full_attention", a.layers, &[("layers", a.layers), ("head_dim", a.head_dim)])?;
            heads(place, "full_attention", a.heads, a.kv_heads)?;
            indexer(place, "full_attention", a.indexer.as_ref())?;
        }
        if let Some(a) = &self.sliding_attention {
            let dims = [("layers", a.layers), ("window", a.window), ("head_dim", a.head_dim)];
            mixer("sliding_attention", a.layers, &dims)?;
            heads(place, "sliding_attention", a.heads, a.kv_heads)?;
        }
        if let Some(a) = &self.latent_attention {
            let ranks = [("layers", a.layers), ("heads", a.heads), ("q_lora_rank", a.q_lora_rank)];
            let dims = [("kv_lora_rank", a.kv_lora_rank), ("nope_dim", a.nope_dim), ("value_dim", a.value_dim)];
            mixer("latent_attention", a.layers, &[ranks, dims].concat())?;
            indexer(place, "latent_attention", a.indexer.as_ref())?;
        }
        if let Some(a) = &self.compressed_attention {
            let ranks = [("layers", a.layers), ("heads", a.heads), ("head_dim", a.head_dim), ("window", a.window)];
            let outputs = [("q_lora_rank", a.q_lora_rank), ("output_groups", a.output_groups)];
            mixer(
                "compressed_attention",
                a.layers,
                &[&ranks[..], &outputs, &[("output_rank", a.output_rank)]].concat(),
            )?;
            for (index, compression) in a.compression.iter().enumerate() {
                let key = format!("compressed_attention.compression[{index}]");
                place.at_least_one(&format!("{key}.tokens"), compression.tokens)?;
                indexer(place, &key, compression.indexer.as_ref())?;
            }
        }
        if let Some(a) = &self.linear_attention {
            let heads = [("layers", a.layers), ("key_heads", a.key_heads), ("value_heads", a.value_heads)];
            mixer("linear_attention", a.layers, &[&heads[..], &[("head_dim", a.head_dim)]].concat())?;
            place.at_least_one("linear_attention.conv_kernel", a.conv_kernel)?;
        }
        if mixers != u64::from(self.layers) {
            let found = format!("{} layers, but the attention tables have {mixers} together", self.layers);
            return Err(place.error("layers", found, "make them agree"));
        }
        self.check_feed_forward(place)
    }

    fn check_feed_forward(&self, place: Place<'_>) -> Result<()> {
        let mut layers = 0;
        if let Some(mlp) = &self.mlp {
            place.at_least_one("mlp.width", mlp.width)?;
            layers += u64::from(mlp.layers);
        }
        if let Some(experts) = &self.experts {
            place.at_least_one("experts.experts", experts.experts)?;
            place.at_least_one("experts.routed", experts.routed)?;
            place.at_least_one("experts.width", experts.width)?;
            if experts.routed > experts.experts {
                let found = format!("{} routed of {} experts", experts.routed, experts.experts);
                return Err(place.error("experts.routed", found, "route to at most all experts"));
            }
            layers += u64::from(experts.layers);
        }
        if layers < u64::from(self.layers) {
            let found = format!("{} layers, but only {layers} in [mlp] and [experts] together", self.layers);
            return Err(place.error("layers", found, "give every layer a feed-forward part"));
        }
        if let Some(vision) = &self.vision {
            place.positive("vision.parameters", vision.parameters)?;
        }
        if let Some(table) = &self.ngram_table {
            place.positive("ngram_table.projection_parameters", table.projection_parameters)?;
        }
        match &self.mtp {
            Some(mtp) => place.at_least_one("mtp.layers", mtp.layers),
            None => Ok(()),
        }
    }
}

fn heads(place: Place<'_>, key: &str, heads: u32, kv_heads: u32) -> Result<()> {
    place.at_least_one(&format!("{key}.heads"), heads)?;
    place.at_least_one(&format!("{key}.kv_heads"), kv_heads)?;
    if heads.is_multiple_of(kv_heads) {
        return Ok(());
    }
    let found = format!("{heads} query heads do not divide among {kv_heads} KV heads");
    Err(place.error(&format!("{key}.heads"), found, "give a multiple of `kv_heads`"))
}

fn indexer(place: Place<'_>, key: &str, indexer: Option<&Indexer>) -> Result<()> {
    let Some(indexer) = indexer else { return Ok(()) };
    for (name, value) in [
        ("heads", indexer.heads),
        ("head_dim", indexer.head_dim),
        ("pooled_tokens", indexer.pooled_tokens),
        ("top_tokens", indexer.top_tokens),
        ("key_bytes", indexer.key_bytes),
    ] {
        place.at_least_one(&format!("{key}.indexer.{name}"), value)?;
    }
    Ok(())
}
