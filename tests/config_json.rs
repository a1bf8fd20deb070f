//! Models from the `config.json` of each public family, against totals and bytes that were worked out by hand from the
//! layer shapes, and against the built-in descriptions.
#![allow(missing_docs, clippy::unwrap_used)]

use makespan::model::llm::Llm;
use makespan::model::quantisation::{KvDtype, Quantisation, StateDtype};
use makespan::model::sizes::ModelSizes;
use serde_json::{Value, json};

fn sizes(llm: &Llm) -> ModelSizes {
    let quantisation = Quantisation::find(&llm.default_weights).unwrap();
    llm.sizes(&quantisation, KvDtype::Bf16, StateDtype::Float32).unwrap()
}

/// `base` with the keys of `more` over it.
fn with(mut base: Value, more: Value) -> Value {
    base.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    base
}

/// Keys that every family has: layers, hidden width, vocabulary, query and KV heads, head dimension.
fn shape(family: &str, layers: u32, hidden: u32, vocab: u32, heads: [u32; 3]) -> Value {
    json!({
        "model_type": family, "num_hidden_layers": layers, "hidden_size": hidden, "vocab_size": vocab,
        "num_attention_heads": heads[0], "num_key_value_heads": heads[1], "head_dim": heads[2],
        "tie_word_embeddings": false, "max_position_embeddings": 131_072, "dtype": "bfloat16"
    })
}

/// The hybrids of Qwen3.5 and later: every fourth layer attends in full, in a list of kinds.
fn hybrid(family: &str, layers: u32, hidden: u32, heads: [u32; 3], value_heads: u32, rest: Value) -> Value {
    let kinds: Vec<&str> =
        (1..=layers).map(|layer| if layer % 4 == 0 { "full_attention" } else { "linear_attention" }).collect();
    let text = with(
        shape(&format!("{family}_text"), layers, hidden, 248_320, heads),
        json!({
            "layer_types": kinds, "attn_output_gate": true, "linear_num_key_heads": 16,
            "linear_num_value_heads": value_heads, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4, "mtp_num_hidden_layers": 1
        }),
    );
    json!({ "model_type": family, "text_config": with(text, rest) })
}

fn qwen3_moe(layers: u32, hidden: u32, heads: [u32; 3], experts: u32, width: u32) -> Value {
    with(
        shape("qwen3_moe", layers, hidden, 151_936, heads),
        json!({
            "num_experts": experts, "num_experts_per_tok": 8, "moe_intermediate_size": width,
            "intermediate_size": 6144, "decoder_sparse_step": 1, "mlp_only_layers": [],
            "use_sliding_window": false, "sliding_window": null
        }),
    )
}

fn glm4_moe(layers: u32, hidden: u32, dense: [u32; 2], experts: u32, width: u32) -> Value {
    with(
        shape("glm4_moe", layers, hidden, 151_552, [96, 8, 128]),
        json!({
            "attention_bias": true, "first_k_dense_replace": dense[0], "intermediate_size": dense[1],
            "n_routed_experts": experts, "num_experts_per_tok": 8, "n_shared_experts": 1,
            "moe_intermediate_size": width, "num_nextn_predict_layers": 1, "n_group": 1, "topk_group": 1
        }),
    )
}

fn glm_5_1() -> Value {
    with(
        shape("glm_moe_dsa", 78, 6144, 154_880, [64, 64, 64]),
        json!({
            "q_lora_rank": 2048, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192,
            "v_head_dim": 256, "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048,
            "first_k_dense_replace": 3, "intermediate_size": 12_288, "n_routed_experts": 256,
            "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048,
            "num_nextn_predict_layers": 1
        }),
    )
}

fn gpt_oss_120b() -> Value {
    let kinds: Vec<&str> =
        (0..36).map(|layer| if layer % 2 == 0 { "sliding_attention" } else { "full_attention" }).collect();
    with(
        shape("gpt_oss", 36, 2880, 201_088, [64, 8, 64]),
        json!({
            "layer_types": kinds, "sliding_window": 128, "attention_bias": true, "num_local_experts": 128,
            "num_experts_per_tok": 4, "experts_per_token": 4, "intermediate_size": 2880,
            "quantization_config": {
                "quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]
            }
        }),
    )
}

fn minimax() -> Value {
    with(
        shape("minimax_m2", 62, 3072, 200_064, [48, 8, 128]),
        json!({
            "intermediate_size": 1536, "num_local_experts": 256, "num_experts_per_tok": 8, "rotary_dim": 64,
            "shared_intermediate_size": 0, "use_mtp": true, "num_mtp_modules": 3, "attention_bias": false,
            "attn_type_list": vec![1; 62], "use_qk_norm": true,
            "quantization_config": {
                "quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["gate", "lm_head"]
            }
        }),
    )
}

/// A configuration by the name of its built-in description: billions of parameters without MTP layers and tower,
/// gigabytes of its own weights, bytes of KV in bf16 a token, bytes of recurrent state a request.
#[test]
fn every_family_has_the_sizes_worked_out_by_hand() {
    let dense = |family, layers, hidden, vocab, heads, width: u32| {
        with(shape(family, layers, hidden, vocab, heads), json!({ "intermediate_size": width }))
    };
    let experts = |experts: u32, routed: u32, width: u32| {
        json!({
            "num_experts": experts, "num_experts_per_tok": routed, "moe_intermediate_size": width,
            "shared_expert_intermediate_size": width
        })
    };
    let hy3 = json!({
        "first_k_dense_replace": 1, "intermediate_size": 13_312, "num_experts": 192, "num_experts_per_tok": 8,
        "num_shared_experts": 1, "expert_hidden_dim": 1536, "num_nextn_predict_layers": 1
    });
    for (name, config, billions, gigabytes, kv, state) in [
        ("qwen3-14b", dense("qwen3", 40, 5120, 151_936, [40, 8, 128], 17_408), 14.77, 29.5, 163_840.0, 0.0),
        ("qwen3-32b", dense("qwen3", 64, 5120, 151_936, [64, 8, 128], 25_600), 32.76, 65.5, 262_144.0, 0.0),
        ("llama-3.1-70b", dense("llama", 80, 8192, 128_256, [64, 8, 128], 28_672), 70.55, 141.1, 327_680.0, 0.0),
        ("qwen3-235b-a22b", qwen3_moe(94, 4096, [64, 4, 128], 128, 1536), 235.09, 470.2, 192_512.0, 0.0),
        ("qwen3-coder-480b-a35b", qwen3_moe(62, 6144, [96, 8, 128], 160, 2560), 480.15, 960.3, 253_952.0, 0.0),
        (
            "qwen3.5-9b",
            hybrid("qwen3_5", 32, 4096, [16, 4, 256], 32, json!({ "intermediate_size": 12_288 })),
            8.95,
            17.9,
            32_768.0,
            51_511_296.0,
        ),
        (
            "qwen3.6-35b-a3b",
            hybrid("qwen3_5_moe", 40, 2048, [16, 2, 256], 32, experts(256, 8, 512)),
            34.66,
            69.3,
            20_480.0,
            64_389_120.0,
        ),
        (
            "qwen3.5-397b-a17b",
            hybrid("qwen3_5_moe", 60, 4096, [32, 2, 256], 64, experts(512, 10, 1024)),
            396.35,
            792.7,
            30_720.0,
            192_061_440.0,
        ),
        ("glm-4.5-air", glm4_moe(46, 4096, [1, 10_944], 128, 1408), 106.85, 213.7, 188_416.0, 0.0),
        ("glm-4.6", glm4_moe(92, 5120, [3, 12_288], 160, 1536), 352.80, 705.6, 376_832.0, 0.0),
        ("glm-5.1", glm_5_1(), 743.91, 1487.8, 89_856.0 + 10_296.0, 0.0),
        // MXFP4 experts of 13.2 MB, the rest in bf16.
        ("gpt-oss-120b", gpt_oss_120b(), 116.8, 65.0, 36_864.0, 0.0),
        ("minimax-m2.5", minimax(), 228.69, 229.9, 253_952.0, 0.0),
        ("hy3", with(shape("hy_v3", 80, 4096, 120_832, [64, 8, 128]), hy3), 295.03, 590.1, 327_680.0, 0.0),
    ] {
        let configured = Llm::from_config(&config.to_string(), &format!("{name}/config.json")).unwrap();
        let mut found = sizes(&configured.llm);
        for (what, found, expected) in
            [("parameters", found.total_parameters, billions), ("bytes", found.resident_bytes, gigabytes)]
        {
            assert!((found / 1e9 / expected - 1.0).abs() < 0.005, "{name}: {what} {found:.4e}, expected {expected}e9");
        }
        assert_eq!(found.kv.stored_bytes_per_token, kv, "{name}");
        assert_eq!(found.state.as_ref().map_or(0.0, |state| state.bytes_per_request), state, "{name}");
        // Windows, drafter and arithmetic too; a text configuration has no tower.
        let built_in = sizes(&Llm::find(name).unwrap());
        found.vision_resident_bytes = built_in.vision_resident_bytes;
        assert_eq!(found, built_in, "{name}");
        assert!(configured.derivation.iter().any(|line| line.starts_with("layers = ")), "{name}");
    }
}

/// Which layers have experts may be a list instead of a number.
#[test]
fn dense_layers_are_counted_in_a_list_of_kinds() {
    let kinds: Vec<&str> = (0..80).map(|layer| if layer < 1 { "dense" } else { "sparse" }).collect();
    let config = with(
        shape("hy_v3", 80, 4096, 120_832, [64, 8, 128]),
        json!({
            "mlp_layer_types": kinds, "first_k_dense_replace": 0, "intermediate_size": 13_312, "num_experts": 192, "num_experts_per_tok": 8,
            "num_shared_experts": 1, "expert_hidden_dim": 1536, "num_nextn_predict_layers": 1
        }),
    );
    let llm = Llm::from_config(&config.to_string(), "hy3/config.json").unwrap().llm;
    assert_eq!(sizes(&llm), sizes(&Llm::find("hy3").unwrap()));
}

/// Families whose parts a configuration does not size name the description to start from.
#[test]
fn families_that_cannot_be_derived_name_a_built_in_model() {
    for (family, name) in [
        ("deepseek_v4", "deepseek-v4-flash"),
        ("glm5_next", "glm-5.3-flash"),
        ("qwen3_8_flash_next", "qwen3.8-flash-next"),
        ("qwen4_exp", "qwen3.8-flash-next"),
        ("gemma4", "gemma-4-26b-a4b"),
    ] {
        let config = shape(family, 4, 256, 1000, [4, 4, 64]).to_string();
        let error = Llm::from_config(&config, "m/config.json").unwrap_err().to_string();
        assert!(error.contains(&format!("start from the built-in `{name}`")), "{error}");
        assert!(Llm::find(name).is_ok());
    }
}
