use super::*;
use crate::model::quantisation::{KvDtype, Quantisation, StateDtype};
use crate::model::sizes::ModelSizes;

const QWEN36_27B: &str = r#"{
  "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "tie_word_embeddings": false,
  "text_config": {
    "model_type": "qwen3_5_text", "num_hidden_layers": 64, "hidden_size": 5120, "vocab_size": 248320,
    "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256, "attn_output_gate": true,
    "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 48,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    "intermediate_size": 17408, "mtp_num_hidden_layers": 1, "dtype": "bfloat16"
  },
  "vision_config": {
    "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "out_hidden_size": 5120, "patch_size": 16,
    "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 2304
  }
}"#;

const QWEN3_8B: &str = r#"{
  "model_type": "qwen3", "num_hidden_layers": 36, "hidden_size": 4096, "vocab_size": 151936,
  "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288,
  "sliding_window": null, "use_sliding_window": false, "attention_bias": false, "torch_dtype": "bfloat16"
}"#;

const QWEN3_30B_A3B: &str = r#"{
  "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "vocab_size": 151936,
  "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144,
  "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1,
  "mlp_only_layers": [], "torch_dtype": "bfloat16"
}"#;

const LLAMA31_8B: &str = r#"{
  "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 128256,
  "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "tie_word_embeddings": false
}"#;

const GPT_OSS_20B: &str = r#"{
  "model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880, "vocab_size": 201088,
  "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "attention_bias": true,
  "sliding_window": 128, "num_local_experts": 32, "num_experts_per_tok": 4, "intermediate_size": 2880,
  "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
}"#;

const DEEPSEEK_V3: &str = r#"{
  "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "vocab_size": 129280,
  "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
  "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "intermediate_size": 18432,
  "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048,
  "first_k_dense_replace": 3, "moe_layer_freq": 1, "num_nextn_predict_layers": 1,
  "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
}"#;

fn sizes(llm: &Llm) -> ModelSizes {
    let quantisation = Quantisation::find(&llm.default_weights).unwrap();
    llm.sizes(&quantisation, KvDtype::Bf16, StateDtype::Float32).unwrap()
}

#[test]
fn configurations_give_the_built_in_sizes() {
    for (text, name) in [
        (QWEN36_27B, "qwen3.6-27b"),
        (QWEN3_8B, "qwen3-8b"),
        (QWEN3_30B_A3B, "qwen3-30b-a3b"),
        (LLAMA31_8B, "llama-3.1-8b"),
        (GPT_OSS_20B, "gpt-oss-20b"),
        (DEEPSEEK_V3, "deepseek-v3"),
    ] {
        let configured = Llm::from_config(text, &format!("{name}/config.json")).unwrap();
        let built_in = Llm::find(name).unwrap();
        assert_eq!(configured.llm.name, name);
        let (mut found, expected) = (sizes(&configured.llm), sizes(&built_in));
        // The tower's published size is rounded.
        assert!((found.vision_resident_bytes - expected.vision_resident_bytes).abs() < 0.005 * 0.92e9, "{name}");
        found.vision_resident_bytes = expected.vision_resident_bytes;
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn what_is_missing_is_asked_for_by_name() {
    let error = Llm::from_config(r#"{"model_type": "llama", "hidden_size": 64}"#, "m/config.json").unwrap_err();
    let text = error.to_string();
    assert!(text.contains("does not say num_hidden_layers or n_layer or num_layers, vocab_size"), "{text}");
    assert!(text.contains("intermediate_size"), "{text}");
    let text = Llm::from_config("{\n\"a\":", "m/config.json").unwrap_err().to_string();
    assert!(text.starts_with("m/config.json:2: EOF"), "{text}");
    let text = Llm::from_config(r#"{"model_type": "gemma4"}"#, "c.json").unwrap_err().to_string();
    assert!(text.contains("start from the built-in `gemma-4-26b-a4b`"), "{text}");
    let quantised = QWEN3_8B.replace("\"torch_dtype\"", "\"quantization_config\": {\"quant_method\": \"x\"}, \"d\"");
    let text = Llm::from_config(&quantised, "c.json").unwrap_err().to_string();
    assert!(text.contains("a known quant_method (found `x`)"), "{text}");
}

#[test]
fn quantised_files_name_their_format() {
    for (config, name) in [
        (r#"{"quant_method": "awq", "bits": 4}"#, "awq"),
        (r#"{"quant_method": "gptq", "bits": 4}"#, "gptq-int4"),
        (r#"{"quant_method": "fp8", "modules_to_not_convert": ["lm_head", "mtp.fc"]}"#, "fp8"),
        (r#"{"quant_method": "modelopt", "quant_algo": "NVFP4"}"#, "nvfp4-w4a4"),
    ] {
        let text = QWEN3_8B.replace("\"torch_dtype\"", &format!("\"quantization_config\": {config}, \"torch_dtype\""));
        assert_eq!(Llm::from_config(&text, "c.json").unwrap().llm.default_weights, name);
    }
}

#[test]
fn a_scenario_names_a_config_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("my-model").join("config.json");
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    std::fs::write(&path, QWEN3_8B).unwrap();
    let llm = Llm::find(path.to_str().unwrap()).unwrap();
    assert_eq!((llm.name.as_str(), llm.layers), ("my-model", 36));
}

#[test]
fn windows_and_sparse_latents_are_derived() {
    let gemma = r#"{"model_type": "gemma3_text", "num_hidden_layers": 26, "hidden_size": 1152, "vocab_size": 262144,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 6912,
        "sliding_window": 512, "tie_word_embeddings": true}"#;
    let llm = Llm::from_config(gemma, "c.json").unwrap().llm;
    assert_eq!((llm.full_attention.unwrap().layers, llm.sliding_attention.unwrap().layers), (4, 22));
    assert!(llm.tied_head);
    let sparse = DEEPSEEK_V3.replace(
        "\"q_lora_rank\"",
        "\"index_n_heads\": 64, \"index_head_dim\": 128, \"index_topk\": 2048, \"q_lora_rank\"",
    );
    let latent = Llm::from_config(&sparse, "c.json").unwrap().llm.latent_attention.unwrap();
    assert_eq!((latent.fp8_entry_bytes, latent.indexer.unwrap().key_bytes), (Some(656), 132));
}
