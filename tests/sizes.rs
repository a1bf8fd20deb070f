//! Bytes and parameters derived from shapes, against published totals and tables worked out by hand from the same
//! public configs.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers too")]

use makespan::model::builtin::{Kind, names};
use makespan::model::llm::Llm;
use makespan::model::quantisation::{KvDtype, Quantisation, StateDtype};
use makespan::model::sizes::{ExpertSizes, ModelSizes};

fn sizes(llm: &str, weights: &str) -> ModelSizes {
    sizes_with(llm, weights, KvDtype::Bf16, StateDtype::Float32)
}

fn sizes_with(llm: &str, weights: &str, kv: KvDtype, state: StateDtype) -> ModelSizes {
    Llm::find(llm).unwrap().sizes(&Quantisation::find(weights).unwrap(), kv, state).unwrap()
}

fn all_experts(experts: Option<&ExpertSizes>, size: fn(&ExpertSizes) -> f64) -> f64 {
    experts.map_or(0.0, |experts| f64::from(experts.layers) * f64::from(experts.experts) * size(experts))
}

fn mtp_parameters(sizes: &ModelSizes) -> f64 {
    sizes.draft.as_ref().map_or(0.0, |d| d.body_parameters + all_experts(d.experts.as_ref(), |e| e.parameters))
}

fn active_parameters(sizes: &ModelSizes) -> f64 {
    let routed = sizes.experts.as_ref().map_or(0.0, |e| f64::from(e.layers) * f64::from(e.routed) * e.parameters);
    sizes.body_parameters + sizes.head_parameters + routed
}

/// Bytes of all non-routed weights that a pass reads, head included.
fn fixed_read_bytes(sizes: &ModelSizes) -> f64 {
    sizes.body_read_bytes + sizes.head_bytes
}

#[track_caller]
fn close(what: &str, found: f64, expected: f64, tolerance: f64) {
    assert!((found / expected - 1.0).abs() <= tolerance, "{what}: {found}, expected {expected} ± {tolerance}");
}

#[test]
fn every_built_in_llm_fits_its_own_weights() {
    let llms = names(Kind::Llm);
    assert_eq!(llms.len(), 28);
    for name in llms {
        let llm = Llm::find(&name).unwrap();
        assert_eq!(llm.name, name);
        assert_eq!(sizes(&name, &llm.default_weights).name, name);
    }
    for name in names(Kind::Quantisation) {
        let quantisation = Quantisation::find(&name).unwrap();
        assert_eq!(quantisation.name, name);
        for llm in &quantisation.llms {
            assert_eq!(sizes(llm, &name).name, *llm);
        }
    }
}

/// Billions of parameters of the text model.
#[test]
fn totals_match_published_ones() {
    for (llm, billions) in [
        ("qwen3.6-27b", 26.90),
        ("qwen3.8-27b", 26.90),
        ("qwen3.6-35b-a3b", 34.66),
        ("qwen3.5-9b", 8.95),
        ("qwen3.5-397b-a17b", 396.35),
        ("qwen3.8-flash-next", 125.7),
        ("qwen3-8b", 8.19),
        ("qwen3-14b", 14.77),
        ("qwen3-32b", 32.76),
        ("qwen3-30b-a3b", 30.53),
        ("qwen3-coder-30b-a3b", 30.53),
        ("qwen3-235b-a22b", 235.09),
        ("qwen3-coder-480b-a35b", 480.15),
        ("llama-3.1-8b", 8.03),
        ("llama-3.1-70b", 70.55),
        ("llama-3.3-70b", 70.55),
        ("deepseek-v3", 671.0),
        ("deepseek-v4-flash", 284.44),
        ("gpt-oss-20b", 20.91),
        ("gpt-oss-120b", 116.8),
        ("glm-4.5-air", 106.85),
        ("glm-4.6", 352.80),
        ("glm-5.1", 743.91),
        ("glm-5.3-flash", 313.3),
        ("minimax-m2.5", 228.69),
        ("hy3", 295.03),
        ("laguna-s-2.1", 117.56),
        ("gemma-4-26b-a4b", 25.23),
    ] {
        close(llm, sizes(llm, "bf16").total_parameters / 1e9, billions, 0.005);
    }
}

/// bf16 gigabytes of the whole file, and billions of parameters of the MTP layer.
#[test]
fn files_and_mtp_layers() {
    let qwen = sizes("qwen3.6-27b", "bf16");
    close("file", (qwen.resident_bytes + qwen.draft_resident_bytes + qwen.vision_resident_bytes) / 1e9, 55.56, 0.001);
    let llm = sizes("qwen3.5-9b", "bf16");
    close("file", (llm.resident_bytes + llm.draft_resident_bytes + llm.vision_resident_bytes) / 1e9, 19.3, 0.005);
    // 3.39 GB for one draft pass: the layer and the head.
    let draft = qwen.draft.as_ref().unwrap();
    close("draft pass", (draft.body_read_bytes + qwen.head_bytes) / 1e9, 3.39, 0.005);
    for (llm, billions) in [
        ("qwen3.6-27b", 0.4247),
        ("qwen3.5-9b", 0.243),
        ("qwen3.5-397b-a17b", 6.60),
        ("qwen3.8-flash-next", 2.58),
        ("glm-4.5-air", 2.38),
        ("glm-4.6", 3.99),
        ("glm-5.1", 9.95),
        ("glm-5.3-flash", 7.43),
        ("deepseek-v4-flash", 6.61),
        ("hy3", 3.75),
    ] {
        close(llm, mtp_parameters(&sizes(llm, "bf16")) / 1e9, billions, 0.005);
    }
}

/// Cache bytes for each token, exactly: stored in bf16, and with the MTP layer's own.
#[test]
fn cache_bytes_per_token() {
    for (llm, stored, with_mtp) in [
        ("qwen3.6-27b", 65_536.0, 69_632.0),
        ("qwen3.8-27b", 65_536.0, 69_632.0),
        ("qwen3.6-35b-a3b", 20_480.0, 22_528.0),
        ("qwen3.5-9b", 32_768.0, 36_864.0),
        ("qwen3.5-397b-a17b", 30_720.0, 32_768.0),
        ("qwen3-8b", 147_456.0, 147_456.0),
        ("qwen3-14b", 163_840.0, 163_840.0),
        ("qwen3-32b", 262_144.0, 262_144.0),
        ("qwen3-30b-a3b", 98_304.0, 98_304.0),
        ("qwen3-235b-a22b", 192_512.0, 192_512.0),
        ("qwen3-coder-480b-a35b", 253_952.0, 253_952.0),
        ("llama-3.1-8b", 131_072.0, 131_072.0),
        ("llama-3.1-70b", 327_680.0, 327_680.0),
        ("gpt-oss-20b", 24_576.0, 24_576.0),
        ("gpt-oss-120b", 36_864.0, 36_864.0),
        ("minimax-m2.5", 253_952.0, 253_952.0),
        ("laguna-s-2.1", 49_152.0, 49_152.0),
        ("gemma-4-26b-a4b", 20_480.0, 20_480.0),
        ("glm-5.1", 89_856.0 + 10_296.0, 89_856.0 + 10_296.0 + 1152.0 + 132.0),
        ("glm-5.3-flash", 11_264.0 + 363.0, 11_264.0 + 363.0 + 1024.0 + 33.0),
        ("qwen3.8-flash-next", 24_576.0 + 768.0, 24_576.0 + 768.0 + 2048.0 + 64.0),
        ("deepseek-v4-flash", 6_880.0, 6_880.0),
    ] {
        let sizes = sizes(llm, "bf16");
        let mtp = sizes.draft.as_ref().map_or(0.0, |draft| draft.kv_bytes_per_token);
        assert_eq!(
            (sizes.kv.stored_bytes_per_token, sizes.kv.stored_bytes_per_token + mtp),
            (stored, with_mtp),
            "{llm}"
        );
    }
    for (llm, stored) in
        [("deepseek-v3", 70_272.0), ("glm-4.5-air", 188_416.0), ("glm-4.6", 376_832.0), ("hy3", 327_680.0)]
    {
        assert_eq!(sizes(llm, "bf16").kv.stored_bytes_per_token, stored, "{llm}");
    }
    let fp8 = |llm| sizes_with(llm, "bf16", KvDtype::Fp8, StateDtype::Float32);
    assert_eq!(fp8("minimax-m2.5").kv.stored_bytes_per_token, 126_976.0);
    let glm = fp8("glm-5.1");
    assert_eq!(glm.kv.stored_bytes_per_token, 61_464.0);
    assert_eq!(glm.kv.stored_bytes_per_token + glm.draft.unwrap().kv_bytes_per_token, 62_252.0);
    close("deepseek-v4-flash in fp8", fp8("deepseek-v4-flash").kv.stored_bytes_per_token, 3850.0, 0.001);
}

/// What a step reads of the cache, and what a request stores besides.
#[test]
fn sparse_and_windowed_attention() {
    let windows = |sizes: &ModelSizes| -> Vec<(u32, f64)> {
        sizes.kv.windows.iter().map(|window| (window.tokens, window.bytes_per_token)).collect()
    };
    let gpt_oss = sizes("gpt-oss-20b", "mxfp4");
    assert_eq!(gpt_oss.kv.read_bytes_per_token, gpt_oss.kv.stored_bytes_per_token);
    close("gpt-oss-20b windows", gpt_oss.kv.stored_bytes_per_request / 1e6, 3.1, 0.02);
    close("gpt-oss-120b windows", sizes("gpt-oss-120b", "mxfp4").kv.stored_bytes_per_request / 1e6, 4.7, 0.02);
    let gemma = sizes("gemma-4-26b-a4b", "bf16");
    assert_eq!(windows(&gemma), [(1024, 204_800.0)]);
    close("gemma windows", gemma.kv.stored_bytes_per_request / 1e6, 209.7, 0.001);
    let laguna = sizes("laguna-s-2.1", "bf16");
    assert_eq!(windows(&laguna), [(512, 147_456.0)]);
    close("laguna windows", laguna.kv.stored_bytes_per_request / 1e6, 75.5, 0.001);
    let glm = sizes_with("glm-5.1", "bf16", KvDtype::Fp8, StateDtype::Float32);
    assert_eq!(glm.kv.read_bytes_per_token, 10_296.0);
    assert!(glm.kv.replicated);
    close("chosen latents", 2048.0 * glm.kv.windows[0].bytes_per_token / 1e6, 105.0, 0.01);
    assert_eq!(glm.kv.stored_bytes_per_request, 0.0);
    let flash = sizes("glm-5.3-flash", "bf16");
    assert_eq!((flash.kv.read_bytes_per_token, windows(&flash)), (363.0, vec![(2048, 11_264.0)]));
    let next = sizes("qwen3.8-flash-next", "bf16");
    assert_eq!((next.kv.read_bytes_per_token, windows(&next)), (768.0, vec![(2048, 24_576.0)]));
    let v4 = sizes("deepseek-v4-flash", "deepseek-v4-flash-mxfp4");
    close("V4 windows", v4.kv.stored_bytes_per_request / 1e6, 5.6, 0.01);
    // Index keys of 21 layers and the entries of 20, for each token of context.
    assert_eq!(v4.kv.read_bytes_per_token, 21.0 * 64.0 + 20.0 * 8.0);
}

/// Recurrent state of one request, exactly.
#[test]
fn state_bytes() {
    for (llm, bytes) in [
        ("qwen3.6-27b", 153_944_064.0),
        ("qwen3.6-35b-a3b", 64_389_120.0),
        ("qwen3.5-9b", 51_511_296.0),
        ("qwen3.5-397b-a17b", 192_061_440.0),
        ("qwen3.8-flash-next", 115_642_368.0),
        ("glm-5.3-flash", 147_619_840.0),
    ] {
        let state = sizes(llm, "bf16").state.unwrap();
        assert_eq!(state.bytes_per_request, bytes, "{llm}");
        assert_eq!(state.ssm_bytes_per_request + state.conv_bytes_per_request, bytes, "{llm}");
    }
    let half = sizes_with("qwen3.6-27b", "bf16", KvDtype::Bf16, StateDtype::Bfloat16).state.unwrap();
    assert_eq!(half.bytes_per_request, 78_446_592.0);
    assert!(sizes("qwen3-8b", "bf16").state.is_none());
}

/// Gigabytes of bf16 that one pass reads besides routed experts (for dense models: everything), megabytes of an
/// expert, and billions of active parameters, head included.
#[test]
fn reads_and_active_parameters() {
    for (llm, fixed_gb, expert_mb, active) in [
        ("qwen3.6-27b", 51.25, None, None),
        ("qwen3.5-9b", 15.87, None, None),
        ("qwen3-8b", 15.1, None, None),
        ("qwen3-14b", 28.0, None, None),
        ("qwen3-32b", 64.0, None, None),
        ("llama-3.1-8b", 15.0, None, None),
        ("llama-3.1-70b", 139.0, None, None),
        ("qwen3.6-35b-a3b", 3.88, Some(6.29), Some(2.95)),
        ("qwen3-30b-a3b", 2.46, Some(9.44), Some(3.03)),
        ("qwen3.5-397b-a17b", 17.6, Some(25.2), Some(16.3)),
        ("qwen3.8-flash-next", 8.62, Some(9.83), Some(6.67)),
        ("qwen3-235b-a22b", 14.7, Some(37.7), Some(21.6)),
        ("qwen3-coder-480b-a35b", 22.3, Some(94.4), Some(34.5)),
        ("glm-4.5-air", 13.15, Some(34.6), Some(12.8)),
        ("glm-4.6", 32.1, Some(47.2), Some(32.9)),
        ("glm-5.1", 36.4, Some(75.5), Some(40.8)),
        ("glm-5.3-flash", 16.6, Some(50.3), Some(16.7)),
        ("deepseek-v4-flash", 13.55, Some(50.34), Some(13.3)),
        ("minimax-m2.5", 6.79, Some(28.3), Some(10.4)),
        ("hy3", 16.5, Some(37.7), Some(20.2)),
        ("laguna-s-2.1", 7.41, Some(18.9), Some(8.14)),
        ("gemma-4-26b-a4b", 4.79, Some(11.9), Some(3.82)),
        ("deepseek-v3", 32.4, Some(88.1), Some(36.6)),
    ] {
        let sizes = sizes(llm, "bf16");
        close(llm, fixed_read_bytes(&sizes) / 1e9, fixed_gb, 0.01);
        if let Some(expert_mb) = expert_mb {
            close(llm, sizes.experts.as_ref().unwrap().bytes / 1e6, expert_mb, 0.01);
        }
        if let Some(active) = active {
            close(llm, active_parameters(&sizes) / 1e9, active, 0.01);
        }
    }
}

/// Quantised variants: gigabytes of fixed reads, megabytes of an expert, resident gigabytes without MTP and vision.
#[test]
fn quantised_variants() {
    for (llm, weights, fixed_gb, expert_mb, resident_gb) in [
        ("qwen3.6-27b", "fp8", Some(26.9), None, Some(29.4)),
        ("qwen3.8-27b", "nvfp4-w4a4", Some(16.2), None, Some(18.8)),
        ("qwen3.6-27b", "nvfp4-nvidia-qwen3.6-27b", Some(17.6), None, Some(20.1)),
        ("qwen3.8-27b", "q6_k", Some(21.0), None, Some(22.1)),
        ("qwen3.8-27b", "int4-autoround", Some(15.1), None, Some(17.7)),
        ("qwen3.5-9b", "gptq-int4", Some(5.6), None, Some(7.6)),
        ("qwen3.6-35b-a3b", "fp8", Some(2.47), Some(3.15), Some(35.7)),
        ("qwen3.6-35b-a3b", "nvfp4-nvidia-qwen3.6-35b-a3b", Some(1.68), Some(1.77), Some(20.8)),
        ("llama-3.1-70b", "fp8", Some(70.6), None, Some(72.7)),
        ("llama-3.1-70b", "nvfp4-w4a4", Some(40.6), None, Some(42.7)),
        ("llama-3.3-70b", "awq", Some(37.7), None, Some(39.8)),
        ("qwen3-coder-30b-a3b", "awq", Some(1.10), Some(2.45), Some(16.8)),
        ("qwen3-coder-480b-a35b", "awq", Some(7.2), Some(24.5), Some(252.0)),
        ("qwen3-235b-a22b", "fp8", Some(8.0), Some(18.9), Some(236.3)),
        ("qwen3.5-397b-a17b", "fp8", Some(9.8), Some(12.6), Some(398.4)),
        ("qwen3.5-397b-a17b", "nvfp4-experts", Some(17.6), Some(7.08), Some(237.0)),
        ("qwen3.5-397b-a17b", "awq-experts", Some(17.6), Some(6.54), Some(220.0)),
        // By hand 6.1: that counts the routers and small gates as quantised too, which no file does.
        ("qwen3.5-397b-a17b", "awq", Some(6.3), Some(6.54), None),
        ("qwen3.8-flash-next", "fp8", Some(4.95), Some(4.92), Some(127.0)),
        ("qwen3.8-flash-next", "nvfp4-experts", Some(8.6), Some(2.76), Some(77.8)),
        ("qwen3.8-flash-next", "nvfp4-experts-fp8", Some(4.95), Some(2.76), Some(74.2)),
        ("glm-4.5-air", "awq", Some(4.3), Some(9.0), Some(57.4)),
        ("glm-4.6", "fp8", Some(16.8), Some(23.6), Some(354.4)),
        ("glm-5.1", "nvfp4-experts", Some(36.4), Some(21.2), Some(446.0)),
        ("glm-5.3-flash", "nvfp4-nvidia-glm-5.3-flash", Some(15.9), Some(14.2), Some(188.4)),
        ("deepseek-v4-flash", "deepseek-v4-flash-mxfp4", Some(7.3), Some(13.4), Some(155.5)),
        ("deepseek-v4-flash", "deepseek-v4-flash-nvfp4", Some(7.3), Some(14.2), Some(164.2)),
        ("minimax-m2.5", "fp8", Some(4.0), Some(14.2), Some(229.9)),
        ("gemma-4-26b-a4b", "nvfp4-experts", Some(4.8), Some(3.35), Some(17.6)),
        ("hy3", "fp8", Some(8.8), Some(18.9), Some(296.0)),
        ("gpt-oss-120b", "mxfp4", Some(3.07), Some(13.2), Some(65.0)),
        ("deepseek-v3", "fp8", None, Some(44.0), Some(671.0)),
    ] {
        let what = format!("{llm} as {weights}");
        let sizes = sizes(llm, weights);
        if let Some(fixed_gb) = fixed_gb {
            close(&what, fixed_read_bytes(&sizes) / 1e9, fixed_gb, 0.03);
        }
        if let Some(expert_mb) = expert_mb {
            close(&what, sizes.experts.as_ref().unwrap().bytes / 1e6, expert_mb, 0.03);
        }
        if let Some(resident_gb) = resident_gb {
            close(&what, sizes.resident_bytes / 1e9, resident_gb, 0.03);
        }
    }
    // Beside: MTP and vision of the 27B in bf16, the MTP stage of V4, the table of Flash-Next.
    let qwen = sizes("qwen3.6-27b", "fp8");
    close("MTP and vision", (qwen.draft_resident_bytes + qwen.vision_resident_bytes) / 1e9, 1.8, 0.03);
    let v4 = sizes("deepseek-v4-flash", "deepseek-v4-flash-mxfp4");
    close("MTP stage", v4.draft_resident_bytes / 1e9, 3.6, 0.03);
    for (weights, gb) in [("bf16", 102.4), ("fp8", 51.2), ("nvfp4-experts-fp8", 51.2)] {
        close("table", sizes("qwen3.8-flash-next", weights).table.unwrap().bytes / 1e9, gb, 0.001);
    }
}

/// GLM-5.1 in NVFP4 at tp 8: 55.67 GiB of weights a rank were measured, which is more than an eighth.
#[test]
fn latent_projections_are_replicated() {
    let glm = sizes("glm-5.1", "nvfp4-experts");
    let rank = (glm.resident_bytes - glm.replicated_bytes) / 8.0 + glm.replicated_bytes;
    close("bytes of a rank", rank, 55.67 * 1024_f64.powi(3), 0.015);
    // 25.5 M parameters a layer, beside norms and routers.
    close("replicated", glm.replicated_bytes / 2.0 / 78.0, 25.5e6 + 75.0 / 78.0 * 6144.0 * 256.0, 0.01);
}

/// Experts touched by 1, 2, 4, … tokens, rounded.
#[test]
fn experts_touched() {
    let rows: [(u32, u32, &[f64]); 9] = [
        (128, 8, &[8.0, 15.5, 29.0, 52.0, 82.0, 112.0, 126.0, 128.0]),
        (256, 8, &[8.0, 16.0, 30.0, 57.0, 102.0, 163.0, 222.0, 252.0]),
        (32, 4, &[4.0, 7.5, 13.0, 21.0, 28.0, 32.0]),
        (128, 4, &[4.0, 8.0, 15.0, 29.0, 51.0, 82.0, 111.0, 126.0, 128.0]),
        (160, 8, &[8.0, 16.0, 30.0, 54.0, 90.0, 129.0, 154.0, 160.0]),
        (192, 8, &[8.0, 16.0, 30.0, 55.0, 95.0, 143.0, 179.0, 191.0, 192.0]),
        (256, 6, &[6.0, 12.0, 23.0, 44.0, 81.0, 136.0, 200.0, 244.0, 255.0]),
        (288, 8, &[8.0, 16.0, 31.0, 58.0, 104.0, 171.0, 241.0, 280.0, 288.0]),
        (512, 10, &[10.0, 20.0, 39.0, 75.0, 139.0, 240.0, 367.0, 471.0, 509.0]),
    ];
    for (experts, routed, expected) in rows {
        let sizes = ExpertSizes { layers: 1, experts, routed, bytes: 1.0, parameters: 1.0 };
        for (power, expected) in expected.iter().enumerate() {
            let touched = sizes.touched(2_f64.powi(power as i32));
            assert!((touched - expected).abs() <= 0.6, "{routed} of {experts}, 2^{power}: {touched}, {expected}");
        }
    }
}

#[test]
fn attention_flops() {
    assert_eq!(sizes("qwen3.6-27b", "bf16").attention_flops_per_pair, 4.0 * 24.0 * 256.0 * 16.0);
    let v3 = sizes("deepseek-v3", "fp8");
    assert_eq!(v3.attention_flops_per_pair, 2.0 * 128.0 * 1088.0 * 61.0);
    assert_eq!(v3.prefill_attention_flops_per_pair, 2.0 * 128.0 * 320.0 * 61.0);
}

#[test]
fn wrong_descriptions_name_line_and_remedy() {
    let text = include_str!("../models/llm/qwen3.6-27b.toml");
    let shown = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        Llm::parse(&text.replace(from, to), "mine.toml").unwrap_err().to_string()
    };
    let heads = shown("heads = 24", "heds = 24");
    assert!(
        heads.starts_with("mine.toml:12: full_attention.heds: unknown key `heds`; did you mean `heads`?"),
        "{heads}"
    );
    let zero = shown("width = 17408", "width = 0");
    assert!(zero.ends_with("mlp.width: 0 is too small; give a whole number of at least 1"), "{zero}");
    let layers = shown("layers = 64\nhidden", "layers = 63\nhidden");
    assert!(layers.starts_with("mine.toml:5: layers: 63 layers, but the attention tables have 64"), "{layers}");
    let heads = shown("kv_heads = 4", "kv_heads = 5");
    assert!(heads.contains("24 query heads do not divide among 5 KV heads"), "{heads}");
    for number in ["nan", "-1", "0"] {
        let error = shown("parameters = 459000000", &format!("parameters = {number}"));
        assert!(error.contains("vision.parameters: "), "{error}");
    }
    let text = include_str!("../models/quantisation/fp8.toml").replace("mlp = 1.0", "mlp = 8.0");
    let error = Quantisation::parse(&text, "mine.toml").unwrap_err().to_string();
    assert!(error.contains("bytes_per_parameter.mlp: 8 bytes per parameter is out of range; give 0.1 to 4"), "{error}");
}

#[test]
fn weights_that_say_nothing_about_an_llm_are_refused() {
    let refused = |llm: &str, weights: &str| {
        let quantisation = Quantisation::find(weights).unwrap();
        let sizes = Llm::find(llm).unwrap().sizes(&quantisation, KvDtype::Bf16, StateDtype::Float32);
        sizes.unwrap_err().to_string()
    };
    assert_eq!(
        refused("qwen3-8b", "mxfp4"),
        "weights `mxfp4` for qwen3-8b: it quantises nothing that this model has; it was released as `bf16`; `makespan \
         list quantisation` shows all"
    );
    let error = refused("qwen3-8b", "nvfp4-nvidia-qwen3.6-27b");
    assert!(error.contains("this mix belongs to qwen3.6-27b, qwen3.8-27b"), "{error}");
}
