//! A model from the `config.json` that lies beside its weights.
//!
//! Keys are those of transformers' configurations, read from the nested `text_config` where there is one. What a file
//! does not say and no family's rule gives is asked for by name.

use serde_json::{Map, Value};

use crate::error::{Error, InputError, Result};
use crate::model::llm::{
    Bias, Experts, GroupedAttention, Indexer, LatentAttention, LinearAttention, LinearKind, Llm, Mlp, Mtp, OutputGate,
    SlidingAttention, Vision,
};

type Object = Map<String, Value>;

/// A model read from its configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Configured {
    /// The model.
    pub llm: Llm,
    /// Each size with the key or rule that it was found by.
    pub derivation: Vec<String>,
}

/// Reads keys, notes where each value came from, and collects what is missing.
struct Config<'a> {
    text: &'a Object,
    whole: &'a Object,
    family: String,
    derivation: Vec<String>,
    missing: Vec<String>,
}

impl<'a> Config<'a> {
    fn value(&self, key: &str) -> Option<&'a Value> {
        self.text.get(key).or_else(|| self.whole.get(key)).filter(|value| !value.is_null())
    }

    /// The first of `keys` that holds a whole number.
    fn find(&self, keys: &[&'static str]) -> Option<(u32, &'static str)> {
        keys.iter().find_map(|key| {
            let number = self.value(key)?;
            let whole = number.as_u64().or_else(|| number.as_f64().filter(|n| n.fract() == 0.0).map(|n| n as u64))?;
            Some((u32::try_from(whole).ok()?, *key))
        })
    }

    fn optional(&mut self, what: &str, keys: &[&'static str]) -> Option<u32> {
        let (number, key) = self.find(keys)?;
        self.derivation.push(format!("{what} = {number}, from {key}"));
        Some(number)
    }

    /// A number that must be there; asked for by name when it is not.
    fn needed(&mut self, what: &str, keys: &[&'static str]) -> u32 {
        self.optional(what, keys).unwrap_or_else(|| {
            self.missing.push(keys.join(" or "));
            1
        })
    }

    fn derived(&mut self, what: &str, number: u32, rule: &str) -> u32 {
        self.derivation.push(format!("{what} = {number}, {rule}"));
        number
    }

    fn flag(&self, key: &str) -> bool {
        self.value(key).and_then(Value::as_bool).unwrap_or(false)
    }

    fn is(&self, families: &[&str]) -> bool {
        families.iter().any(|family| self.family.starts_with(family))
    }
}

/// How many layers are of each kind.
#[derive(Clone, Copy, Debug, Default)]
struct Layers {
    full: u32,
    sliding: u32,
    linear: u32,
}

impl Llm {
    /// Reads a `config.json`; `file` names it in errors, and its folder names the model.
    ///
    /// # Errors
    ///
    /// Broken JSON, a configuration of no language model, or sizes that it does not state (named).
    pub fn from_config(text: &str, file: &str) -> Result<Configured> {
        let in_file = |error: InputError| Error::from(error.file(file));
        let whole: Object = serde_json::from_str(text.trim_start_matches('\u{feff}')).map_err(|error| {
            let line = error.line() as u64;
            in_file(InputError::new(error.to_string(), "give the model's whole config.json").line(line))
        })?;
        let inner =
            ["text_config", "llm_config", "language_config"].iter().find_map(|key| whole.get(*key)?.as_object());
        let text = inner.unwrap_or(&whole);
        let family = text.get("model_type").or_else(|| whole.get("model_type")).and_then(Value::as_str).unwrap_or("");
        let mut config =
            Config { text, whole: &whole, family: family.to_owned(), derivation: Vec::new(), missing: Vec::new() };
        if !family.is_empty() {
            config.derivation.push(format!("family {family}, from model_type"));
        }
        refuse_unknown(&config).map_err(in_file)?;
        let llm = config.llm(name(&whole, file));
        if !config.missing.is_empty() {
            let remedy = "add them to the file, or describe the model in TOML as `makespan show qwen3-8b` does";
            return Err(in_file(InputError::new(format!("does not say {}", config.missing.join(", ")), remedy)));
        }
        let place = crate::model::parse::Place { file, text: "" };
        llm.check(place)?;
        Ok(Configured { llm, derivation: config.derivation })
    }
}

/// Families whose cache or weights the keys of a configuration do not tell.
fn refuse_unknown(config: &Config<'_>) -> std::result::Result<(), InputError> {
    let built_in = match config.family.as_str() {
        "deepseek_v4" => "deepseek-v4-flash",
        "glm5_next" => "glm-5.3-flash",
        "qwen3_8_flash_next" | "qwen4_exp" => "qwen3.8-flash-next",
        "gemma4" | "gemma4_text" => "gemma-4-26b-a4b",
        _ => return Ok(()),
    };
    let found = format!("the family {} has parts that its configuration does not size", config.family);
    Err(InputError::new(found, format!("start from the built-in `{built_in}` (`makespan show {built_in}`)"))
        .key("model_type"))
}

/// `_name_or_path`, else the folder that holds the file.
fn name(whole: &Object, file: &str) -> String {
    let path = std::path::Path::new(file);
    let folder = path.parent().and_then(|folder| folder.file_name()).map(|name| name.to_string_lossy().into_owned());
    let stem = || path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let given = whole.get("_name_or_path").and_then(Value::as_str).filter(|name| !name.is_empty());
    let given = given.and_then(|name| name.rsplit('/').next()).map(str::to_owned);
    let named = if stem().as_deref() == Some("config") { folder } else { stem() };
    given.or(named).filter(|name| !name.is_empty()).unwrap_or_else(|| "model".to_owned())
}

impl Config<'_> {
    fn llm(&mut self, name: String) -> Llm {
        let layers = self.needed("layers", &["num_hidden_layers", "n_layer", "num_layers"]);
        let hidden = self.needed("hidden", &["hidden_size", "n_embd", "d_model"]);
        let vocab = self.needed("vocab", &["vocab_size"]);
        let kinds = self.layer_kinds(layers);
        let latent = self.find(&["kv_lora_rank"]).is_some();
        let grouped = if latent && kinds.sliding == 0 { None } else { Some(self.grouped(hidden)) };
        let full = kinds.full;
        let full_attention = grouped.clone().filter(|_| full > 0).map(|it| GroupedAttention { layers: full, ..it });
        let sliding_attention = grouped.filter(|_| kinds.sliding > 0).map(|it| SlidingAttention {
            layers: kinds.sliding,
            window: self.needed("window", &["sliding_window"]),
            heads: it.heads,
            kv_heads: it.kv_heads,
            head_dim: it.head_dim,
            output_gate: it.output_gate,
            bias: it.bias,
        });
        let latent_attention = (latent && full > 0).then(|| self.latent(full));
        let linear_attention = (kinds.linear > 0).then(|| self.linear(kinds.linear));
        let (mlp, experts) = self.feed_forward(layers);
        let mtp = self.optional("MTP layers", &["mtp_num_hidden_layers", "num_nextn_predict_layers"]);
        Llm {
            name,
            layers,
            hidden,
            vocab,
            tied_head: self.flag("tie_word_embeddings"),
            default_weights: self.weights(),
            residual_streams: None,
            full_attention: if latent { None } else { full_attention },
            sliding_attention,
            latent_attention,
            compressed_attention: None,
            linear_attention,
            mlp,
            experts,
            mtp: mtp.filter(|layers| *layers > 0).map(|layers| Mtp { layers }),
            vision: self.vision(),
            ngram_table: None,
        }
    }

    /// From the list of layer types, else from the interval of full layers, else from the window.
    fn layer_kinds(&mut self, layers: u32) -> Layers {
        if let Some(types) = self.value("layer_types").and_then(Value::as_array) {
            let count = |part: &str| {
                let named = types.iter().filter_map(Value::as_str).filter(|kind| kind.contains(part));
                named.count() as u32
            };
            let kinds = Layers { full: count("full"), sliding: count("sliding"), linear: count("linear") };
            if kinds.full + kinds.sliding + kinds.linear != layers || types.len() != layers as usize {
                self.missing.push(format!("the kind of each of {layers} layers in layer_types"));
            }
            let (full, sliding, linear) = (kinds.full, kinds.sliding, kinds.linear);
            self.derivation.push(format!("{full} full, {sliding} sliding, {linear} linear layers, from layer_types"));
            return kinds;
        }
        let every = |full: u32, key: &str, other: &str| {
            format!("{full} full and {} {other} layers, every {key} is full", layers - full)
        };
        let hybrid = self.find(&["linear_num_value_heads"]).is_some();
        if let Some((interval, _)) = self.find(&["full_attention_interval"]).filter(|(n, _)| *n > 0 && hybrid) {
            let full = layers / interval;
            self.derivation.push(every(full, &format!("{interval}th"), "linear"));
            return Layers { full, sliding: 0, linear: layers - full };
        }
        if hybrid {
            // Qwen3-Next and its successors: 4 where the key is left out.
            let full = layers / 4;
            self.derivation.push(every(full, "4th (the family's default)", "linear"));
            return Layers { full, sliding: 0, linear: layers - full };
        }
        let windowed =
            self.find(&["sliding_window"]).is_some() && self.value("use_sliding_window") != Some(&Value::Bool(false));
        if !windowed || self.is(&["qwen2", "qwen3"]) && !self.flag("use_sliding_window") {
            return Layers { full: layers, ..Layers::default() };
        }
        let interval = match self.find(&["sliding_window_pattern"]) {
            Some((interval, _)) => interval,
            None if self.is(&["gemma3"]) => 6,
            None if self.is(&["gemma2", "gpt_oss"]) => 2,
            None => 0,
        };
        let full = layers.checked_div(interval).unwrap_or(0);
        self.derivation.push(every(full, &format!("{interval}th"), "sliding"));
        Layers { full, sliding: layers - full, linear: 0 }
    }

    fn grouped(&mut self, hidden: u32) -> GroupedAttention {
        let heads = self.needed("query heads", &["num_attention_heads", "n_head"]);
        let kv_heads = match self.optional("KV heads", &["num_key_value_heads"]) {
            Some(kv_heads) => kv_heads,
            None => self.derived("KV heads", heads, "as query heads: num_key_value_heads is not given"),
        };
        let head_dim = match self.optional("head dimension", &["head_dim"]) {
            Some(head_dim) => head_dim,
            None => self.derived("head dimension", hidden / heads.max(1), "hidden / query heads"),
        };
        let gated = self
            .value("attn_output_gate")
            .map_or(self.is(&["qwen3_next", "qwen3_5"]), |_| self.flag("attn_output_gate"));
        let bias = if self.is(&["qwen2"]) {
            Bias::Qkv
        } else if !self.flag("attention_bias") {
            Bias::None
        } else if self.is(&["glm4", "qwen"]) {
            Bias::Qkv
        } else {
            Bias::All
        };
        if gated {
            self.derivation.push("a gate for each value of the attention's output".to_owned());
        }
        let output_gate = if gated { OutputGate::PerValue } else { OutputGate::None };
        GroupedAttention { layers: 0, heads, kv_heads, head_dim, output_gate, bias, value_is_key: false, indexer: None }
    }

    fn latent(&mut self, layers: u32) -> LatentAttention {
        let indexer = self.find(&["index_n_heads"]).map(|_| {
            let head_dim = self.needed("indexer head dimension", &["index_head_dim"]);
            Indexer {
                heads: self.needed("indexer heads", &["index_n_heads"]),
                head_dim,
                pooled_tokens: 1,
                top_tokens: self.needed("indexer budget, tokens", &["index_topk"]),
                // One fp8 byte a value and an fp32 scale.
                key_bytes: head_dim + 4,
                fp8_key_bytes: None,
            }
        });
        let kv_lora_rank = self.needed("KV rank", &["kv_lora_rank"]);
        let rope_dim = self.needed("rotary dimension", &["qk_rope_head_dim"]);
        // Sparse MLA kernels store 4 scales of 4 bytes beside the fp8 values, and the rotary part in bf16.
        let fp8_entry_bytes = indexer.is_some().then(|| kv_lora_rank + 16 + 2 * rope_dim);
        LatentAttention {
            layers,
            heads: self.needed("query heads", &["num_attention_heads"]),
            q_lora_rank: self.needed("query rank", &["q_lora_rank"]),
            kv_lora_rank,
            rope_dim,
            nope_dim: self.needed("query dimension without position", &["qk_nope_head_dim"]),
            value_dim: self.needed("value dimension", &["v_head_dim"]),
            fp8_entry_bytes,
            indexer,
        }
    }

    fn linear(&mut self, layers: u32) -> LinearAttention {
        LinearAttention {
            layers,
            kind: LinearKind::GatedDeltaNet,
            key_heads: self.needed("linear key heads", &["linear_num_key_heads"]),
            value_heads: self.needed("linear value heads", &["linear_num_value_heads"]),
            head_dim: self.needed("linear head dimension", &["linear_value_head_dim", "linear_key_head_dim"]),
            conv_kernel: self.needed("convolution kernel", &["linear_conv_kernel_dim"]),
        }
    }

    fn feed_forward(&mut self, layers: u32) -> (Option<Mlp>, Option<Experts>) {
        const EXPERTS: [&str; 3] = ["num_experts", "n_routed_experts", "num_local_experts"];
        if self.find(&EXPERTS).is_none_or(|(experts, _)| experts <= 1) {
            let width = self.needed("feed-forward width", &["intermediate_size", "n_inner"]);
            return (Some(Mlp { layers, width }), None);
        }
        let experts = self.needed("experts", &EXPERTS);
        let routed = self.needed("routed experts", &["num_experts_per_tok", "experts_per_token", "moe_top_k"]);
        let width = self.needed("expert width", &["moe_intermediate_size", "expert_hidden_dim", "intermediate_size"]);
        let shared = match self.optional("shared experts", &["n_shared_experts", "num_shared_experts"]) {
            Some(shared) => shared,
            None => self
                .optional("shared expert width", &["shared_expert_intermediate_size"])
                .map_or(0, |shared| shared / width.max(1)),
        };
        let list = |key: &str| self.value(key).and_then(Value::as_array);
        let is_dense = |kind: &Value| kind.as_str() == Some("dense");
        let kinds = list("mlp_layer_types").map(|kinds| kinds.iter().filter(|kind| is_dense(kind)).count() as u32);
        let listed = list("mlp_only_layers").map_or(0, |list| list.len() as u32);
        let dense = match kinds {
            Some(dense) => self.derived("dense layers", dense, "from mlp_layer_types"),
            None => self.optional("dense layers", &["first_k_dense_replace"]).unwrap_or(listed),
        };
        // Every n-th layer has experts.
        let step = self.find(&["decoder_sparse_step", "moe_layer_freq"]).map_or(1, |(step, _)| step.max(1));
        let sparse = layers.saturating_sub(dense) / step;
        let dense = layers.saturating_sub(sparse);
        let mlp = (dense > 0)
            .then(|| Mlp { layers: dense, width: self.needed("dense feed-forward width", &["intermediate_size"]) });
        let bias = self.is(&["gpt_oss"]);
        (mlp, Some(Experts { layers: sparse, experts, routed, shared, width, bias }))
    }

    /// The quantisation that `quantization_config` declares.
    fn weights(&mut self) -> String {
        let Some(quantization) = self.value("quantization_config").or_else(|| self.value("compression_config")) else {
            let dtype = self.value("dtype").or_else(|| self.value("torch_dtype")).and_then(Value::as_str);
            self.derivation.push(format!("weights bf16, {}", dtype.unwrap_or("no quantization_config")));
            return "bf16".to_owned();
        };
        let said = quantization.to_string().to_lowercase();
        let method = quantization.get("quant_method").and_then(Value::as_str).unwrap_or("").to_lowercase();
        let mtp = self.find(&["mtp_num_hidden_layers", "num_nextn_predict_layers"]).is_some_and(|(n, _)| n > 0);
        let name = if said.contains("nvfp4") {
            let weight_only = said.contains("w4a16") || said.contains("nvfp4a16");
            if weight_only { "nvfp4-w4a16" } else { "nvfp4-w4a4" }
        } else if said.contains("mxfp4") {
            "mxfp4"
        } else if method == "awq" {
            "awq"
        } else if method.contains("auto-round") || said.contains("auto_round") {
            "int4-autoround"
        } else if method == "gptq" || said.contains("\"num_bits\":4") {
            "gptq-int4"
        } else if said.contains("fp8") || said.contains("\"num_bits\":8") {
            // DeepSeek's files quantise the MTP layer with the rest; Qwen's list it among what is kept.
            if mtp && !said.contains("mtp") && self.is(&["deepseek"]) { "fp8-mtp" } else { "fp8" }
        } else {
            self.missing.push(format!("a known quant_method (found `{method}`)"));
            "bf16"
        };
        self.derivation.push(format!("weights {name}, from quantization_config ({method})"));
        name.to_owned()
    }

    /// The tower of Qwen's vision models: blocks of attention and a two-matrix MLP, and a merger of 2 × 2 patches.
    fn vision(&mut self) -> Option<Vision> {
        let vision = self.whole.get("vision_config")?.as_object()?;
        let get = |keys: &[&str]| keys.iter().find_map(|key| vision.get(*key)?.as_f64());
        let depth = get(&["depth", "num_hidden_layers"])?;
        let hidden = get(&["hidden_size"])?;
        let inner = get(&["intermediate_size"])?;
        let out = get(&["out_hidden_size"]).unwrap_or(hidden);
        let patch = get(&["patch_size"]).unwrap_or(16.0);
        let frames = get(&["temporal_patch_size"]).unwrap_or(2.0);
        let merged = get(&["spatial_merge_size"]).unwrap_or(2.0).powi(2) * hidden;
        let positions = get(&["num_position_embeddings"]).unwrap_or(0.0);
        let blocks = depth * (4.0 * hidden * hidden + 2.0 * hidden * inner);
        let ends = merged * merged + merged * out + hidden * (3.0 * patch * patch * frames + positions);
        let parameters = (blocks + ends).round();
        self.derivation.push(format!("vision tower of {:.2} B parameters, from vision_config", parameters / 1e9));
        (parameters > 0.0).then_some(Vision { parameters })
    }
}

#[cfg(test)]
#[path = "config_json_tests.rs"]
mod tests;
