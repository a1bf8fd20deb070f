use std::path::Path;

use super::log::EngineReadings;
use super::prometheus::read_metrics;

const SGLANG: &str = "\
[2026-01-01 00:00:00] Load weight end. type=X, dtype=torch.bfloat16, avail mem=40.0 GB, mem usage=51.7 GB.
[2026-01-01 00:00:01] Mamba Cache is allocated. max_mamba_cache_size: 40, conv_state size: 0.1GB, ssm_state size: 5.6GB
[2026-01-01 00:00:02] max_total_num_tokens=215,040, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=8, context_len=32768, available_gpu_mem=4.1 GB
[2026-01-01 00:00:03] Prefill batch, #new-seq: 1, #new-token: 128, #cached-token: 0, token usage: 0.0, #running-req: 7, #queue-req: 41
[2026-01-01 00:00:04] Decode batch, #running-req: 8, #full token: 15000, full token usage: 0.07, mamba num: 32, mamba usage: 0.80, accept len: 2.40, accept rate: 0.47, cuda graph: True, gen throughput (token/s): 400.0, #queue-req: 40
[2026-01-01 00:00:05] Decode batch, #running-req: 8, #full token: 15100, full token usage: 0.07, mamba num: 32, mamba usage: 0.80, accept len: 2.60, accept rate: 0.47, cuda graph: True, gen throughput (token/s): 416.0, #queue-req: 39
[2026-01-01 00:00:06] KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_tokens_gained: 100, #new_token_ratio: 0.5 -> 0.6
";

#[test]
fn an_sglang_log_settles_the_plateau() {
    let readings = EngineReadings::of_log(SGLANG.as_bytes(), Path::new("log")).unwrap();
    assert_eq!((readings.engine, readings.max_running, readings.kv_pool_tokens), ("SGLang", Some(8), Some(215_040)));
    assert_eq!((readings.state_slots, readings.context_tokens), (Some(40), Some(32_768)));
    assert_eq!((readings.moments, readings.preemptions, readings.most_queued), (2, 2, 40));
    assert!((readings.acceptance.unwrap() - 2.5).abs() < 1e-9);
    assert!((readings.step_ms.unwrap() - 0.5 * (48.0 + 50.0)).abs() < 1e-9, "{:?}", readings.step_ms);
    assert_eq!(
        readings.verdict[0],
        "running 8 with 40 queued: an admission cap of 8; the engine resolved its cap to 8 at start-up"
    );
    assert!(readings.verdict[1].starts_with("2 requests were taken back"));
}

#[test]
fn a_vllm_log_is_read() {
    let log = "\
INFO non-default args: {'model': 'm', 'max_num_seqs': 16, 'max_model_len': 32768}
INFO GPU KV cache size: 1,234,560 tokens
INFO Engine 000: Avg prompt throughput: 100.0 tokens/s, Avg generation throughput: 285.7 tokens/s, Running: 16 reqs, Waiting: 24 reqs, GPU KV cache usage: 12.5%, Prefix cache hit rate: 30.0%
INFO SpecDecoding metrics: Mean acceptance length: 2.41, Per-position acceptance rate: 0.850, 0.560, Avg Draft acceptance rate: 70.5%
INFO Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%, Prefix cache hit rate: 31.0%
";
    let readings = EngineReadings::of_log(log.as_bytes(), Path::new("log")).unwrap();
    assert_eq!((readings.engine, readings.max_running, readings.kv_pool_tokens), ("vLLM", Some(16), Some(1_234_560)));
    assert_eq!(readings.acceptance, Some(2.41));
    assert_eq!(readings.acceptance_by_place, [0.85, 0.56]);
    assert_eq!(readings.points[0].kv_used, Some(0.125));
    assert!(readings.verdict[0].starts_with("running 16 with 24 queued: an admission cap of 16"));
    assert!(EngineReadings::of_log("hello\n".as_bytes(), Path::new("log")).is_err());
}

#[test]
fn snapshots_are_read() {
    let vllm = "\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 8.0
vllm:num_requests_waiting{engine=\"0\"} 40
vllm:kv_cache_usage_perc{engine=\"0\"} 0.2
vllm:prefix_cache_queries_total{engine=\"0\"} 1000
vllm:prefix_cache_hits_total{engine=\"0\"} 370
vllm:spec_decode_num_drafts_total{engine=\"0\"} 100
vllm:spec_decode_num_accepted_tokens_total{engine=\"0\"} 141
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",position=\"0\"} 85
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",position=\"1\"} 56
";
    let readings = read_metrics(vllm).unwrap();
    assert_eq!((readings.most_running, readings.most_queued), (8, 40));
    assert!((readings.acceptance.unwrap() - 2.41).abs() < 1e-9);
    assert_eq!(readings.acceptance_by_place, [0.85, 0.56]);
    assert_eq!(readings.prefix_hit_share, Some(0.37));
    assert!(readings.verdict[0].contains("an admission cap of 8"));
    let sglang = "sglang:num_running_reqs{tp_rank=\"0\"} 4\nsglang:num_queue_reqs 0\nsglang:spec_accept_length 2.5\n\
                  sglang:max_total_num_tokens 5e4\nsglang:mamba_used_tokens 4\nsglang:mamba_available_tokens 36\n";
    let readings = read_metrics(sglang).unwrap();
    assert_eq!((readings.engine, readings.state_slots, readings.kv_pool_tokens), ("SGLang", Some(40), Some(50_000)));
    assert!(readings.verdict[0].starts_with("nothing ever waited and at most 4 ran"));
    assert!(read_metrics("up 1\n").is_err());
}
