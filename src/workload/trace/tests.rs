use super::*;

fn read_with(text: &str, options: TraceOptions) -> Result<Trace> {
    Trace::from_reader(text.as_bytes(), Path::new("t"), options)
}

fn read(text: &str) -> Result<Trace> {
    read_with(text, TraceOptions::default())
}

const MS: u64 = 1_000_000;

#[test]
fn every_format_is_recognised_and_read() {
    type Case = (&'static str, TraceFormat, &'static [(u32, u32, u64)]);
    let cases: [Case; 11] = [
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n",
            TraceFormat::Azure,
            &[(374, 44, 0), (396, 109, 4_314_579_000)],
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 02:00:00.509930+02:00,7,5\n",
            TraceFormat::Azure,
            &[(2162, 5, 0), (7, 5, 500 * MS)],
        ),
        (
            "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,17,1.4,ChatGPT,472,18,490,x\n118,,11.9,GPT-4,417,276,693,x\n",
            TraceFormat::BurstGpt,
            &[(472, 18, 0), (417, 276, 113_000 * MS)],
        ),
        (
            "num_decode_tokens,arrived_at,num_prefill_tokens\n44,0.0,374\n109,4.314579,396\n",
            TraceFormat::Vidur,
            &[(374, 44, 0), (396, 109, 4_314_579_000)],
        ),
        (
            "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n0,2,0,1,1,4096,32\n1,2,0,3,1,2048,8\n",
            TraceFormat::Splitwise,
            &[(4096, 32, 0), (2048, 8, 2000 * MS)],
        ),
        (
            "request,input_tokens,output_tokens,submit_s\n0,265,807,0.000064\n1,14,305,0.000462\n",
            TraceFormat::Recording,
            &[(265, 807, 0), (14, 305, 398_000)],
        ),
        (
            "\u{feff}output_tokens,prompt_tokens\r\n\"12\",1e3\r\n\r\n  \r\n5.0,3",
            TraceFormat::Lengths,
            &[(1000, 12, 0), (3, 5, 0)],
        ),
        (
            "{\"timestamp\": 0, \"input_length\": 1300, \"output_length\": 52, \"hash_ids\": [0, 1, 2]}\n\n{\"timestamp\": 3000, \"input_length\": 1100, \"output_length\": 26, \"hash_ids\": [0, 1, 3]}\n",
            TraceFormat::Mooncake,
            &[(1300, 52, 0), (1100, 26, 3000 * MS)],
        ),
        (
            "{\"chat_id\": 1, \"timestamp\": 0.0, \"input_length\": 40, \"output_length\": 132, \"hash_ids\": [1]}\r\n{\"chat_id\": 2, \"timestamp\": 61.1, \"input_length\": 200, \"output_length\": 88, \"hash_ids\": []}",
            TraceFormat::QwenBailian,
            &[(40, 132, 0), (200, 88, 61_100 * MS)],
        ),
        (
            "{\"input_toks\": 128, \"output_toks\": 512, \"arrival_time_ns\": 7}\n{\"input_toks\": 4, \"output_toks\": 2, \"arrival_time_ns\": 5000007}",
            TraceFormat::LlmServingSim,
            &[(128, 512, 0), (4, 2, 5 * MS)],
        ),
        (
            "{\"input_toks\": 128, \"output_toks\": 512, \"arrival_time\": 99, \"queued_ts\": 10.5}\n{\"input_toks\": 4, \"output_toks\": 2, \"arrival_time\": 9, \"queued_ts\": 10.75}",
            TraceFormat::LlmServingSim,
            &[(128, 512, 0), (4, 2, 250 * MS)],
        ),
    ];
    for (text, format, rows) in cases {
        let trace = read(text).unwrap_or_else(|error| panic!("{format}: {error}"));
        assert_eq!(trace.format, format);
        let found: Vec<_> =
            trace.rows.iter().map(|row| (row.prompt_tokens, row.output_tokens, row.arrival_ns)).collect();
        assert_eq!(found, rows, "{format}");
        assert_eq!(trace.timed, format != TraceFormat::Lengths);
    }
}

#[test]
fn prefix_blocks_follow_their_rows_into_arrival_order() {
    let row = |time: u32, ids: &str| {
        format!("{{\"timestamp\": {time}, \"input_length\": {time}, \"output_length\": 1, \"hash_ids\": {ids}}}\n")
    };
    let trace = read(&(row(30, "[1, 2]") + &row(10, "[]") + &row(20, "[7]"))).unwrap();
    let blocks = trace.prefix_blocks.as_ref().unwrap();
    assert_eq!((blocks.block_tokens, trace.moved), (512, 2));
    assert_eq!([0, 1, 2, 3].map(|row| blocks.of_row(row)), [&[][..], &[7], &[1, 2], &[]]);
    assert_eq!(trace.rows[2], TraceRow { prompt_tokens: 30, output_tokens: 1, arrival_ns: 20 * MS });
}

#[test]
fn empty_rows_are_refused_or_skipped() {
    let text = "Timestamp,Request tokens,Response tokens\n5,472,18\n45,1087,0\n";
    let error = read(text).unwrap_err().to_string();
    assert_eq!(
        error,
        "t:3: Response tokens: 0 tokens; every request has at least 1 token; skip_empty leaves such rows out"
    );
    let trace = read_with(text, TraceOptions { skip_empty: true, ..TraceOptions::default() }).unwrap();
    assert_eq!((trace.rows.len(), trace.skipped), (1, 1));
}

#[test]
fn a_quoted_field_may_span_lines_and_lines_still_count() {
    let text = "text,prompt_tokens,output_tokens\n\"a, \"\"b\"\"\nc\",1,2\n\nx,3,oops\n";
    assert_eq!(read(text).unwrap_err().to_string(), "t:5: output_tokens: \"oops\"; give a whole number of tokens");
}

#[test]
fn bad_traces_name_place_and_remedy() {
    let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,1,1\n";
    let mooncake = "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [0]}\n";
    for (text, expected) in [
        (String::new(), "t: an empty file; give a header line"),
        ("prompt_tokens,output_tokens\n".into(), "t:1: a header and no rows; give one row per request below it"),
        ("a,b\n1,2\n".into(), "t:1: no known token columns among a, b; looked for ContextTokens with GeneratedTokens"),
        (
            "prompt_token,output_tokens\n1,2\n".into(),
            "t:1: no known token columns among prompt_token, output_tokens; is prompt_token meant to be prompt_tokens?",
        ),
        (format!("{azure}yesterday,1,1\n"), "t:3: TIMESTAMP: \"yesterday\"; give a date and time, such as"),
        (format!("{azure}2023-11-16 18:15:47,x,1\n"), "t:3: ContextTokens: \"x\"; give a whole number"),
        (format!("{azure}2023-11-16 18:15:47,-4,1\n"), "t:3: ContextTokens: -4; give a whole number of tokens between"),
        (format!("{azure}2023-11-16 18:15:47,1.5,1\n"), "t:3: ContextTokens: 1.5; give a whole number"),
        (format!("{azure}2023-11-16 18:15:47,NaN,1\n"), "t:3: ContextTokens: NaN; give a whole number"),
        (format!("{azure}2023-11-16 18:15:47,1,1e12\n"), "t:3: GeneratedTokens: 1000000000000; give a whole number"),
        (format!("{azure}2023-11-16 18:15:47,1,\n"), "t:3: GeneratedTokens: empty; give a whole number"),
        (
            format!("{azure}2023-11-16 18:15:47,1\n"),
            "t:3: GeneratedTokens: a row of 2 fields; give every row the 3 fields of the header",
        ),
        (
            "arrived_at,num_prefill_tokens,num_decode_tokens\ninf,1,1\n".into(),
            "t:2: arrived_at: inf; give a finite time",
        ),
        ("prompt_tokens,output_tokens\n\"1,2\n".into(), "t:2: unfinished quoted field; close the quote"),
        ("[{\"input_length\": 1}]".into(), "t:1: no known token keys among input_length; looked for"),
        ("[{\"input_toks\": 1, \"output_toks\": 2}, 3]".into(), "t:1: a value that is no object"),
        ("{\"a\": 1}".into(), "t:1: no known token keys among a; looked for input_length"),
        (
            format!("{mooncake}{{\"timestamp\": 0"),
            "t:2: EOF while parsing an object at character 15; give one whole JSON object per line",
        ),
        (
            format!("{mooncake}{{\"timestamp\": 0, \"input_length\": 1}}"),
            "t:2: output_length: missing; every row needs it",
        ),
        (
            format!("{mooncake}{{\"timestamp\": 0, \"input_length\": 1, \"output_length\": [3]}}"),
            "t:2: output_length: [3]; give a whole",
        ),
        (format!("{mooncake}{{\"input_length\": 1, \"output_length\": 3}}"), "t:2: no time; the first row has a time"),
        (
            format!("{mooncake}{{\"timestamp\": \"x\", \"input_length\": 1, \"output_length\": 3}}"),
            "t:2: timestamp: \"x\"; give a number",
        ),
        (
            format!("{mooncake}{{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 3, \"hash_ids\": [-1]}}"),
            "t:2: hash_ids: -1; give a list",
        ),
        ("{\"session_id\": \"s\", \"sub_requests\": 3}".into(), "t:1: sub_requests: 3; give a list of requests"),
        (
            "{\"backend\":\"vllm\",\"completed\":4,\"duration\":2.0,\"output_throughput\":9.0}".into(),
            "t:1: this is a result of vllm bench serve, not a trace; use it as a table: benchmark.table",
        ),
        ("concurrency,output_tok_s\n1,2\n".into(), "t:1: this is a table of throughput against concurrency, not a"),
    ] {
        let error = read(&text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error:?} does not start with {expected:?}");
    }
}

#[test]
fn one_bad_line_in_a_long_trace_is_named() {
    let mut text = String::from("prompt_tokens,output_tokens\r\n");
    for row in 2..200_000 {
        text += if row == 123_456 { "7,seven\r\n" } else { "7,8\r\n" };
    }
    let error = read(&text).unwrap_err().to_string();
    assert!(error.starts_with("t:123456: output_tokens: \"seven\""), "{error}");
}

#[test]
fn shared_traces_have_the_published_counts_and_means() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/traces");
    if !folder.is_dir() {
        println!("skipped: no shared traces");
        return;
    }
    for (name, format, count, prompt, output, rate) in [
        ("azure_llm_2023_code.csv", TraceFormat::Azure, 8819, 2048.0, 28.0, 2.57),
        ("azure_llm_2023_conv.csv", TraceFormat::Azure, 19_366, 1155.0, 211.0, 5.53),
        ("vidur_splitwise_conv.csv", TraceFormat::Vidur, 19_366, 1155.0, 211.0, 5.53),
        ("mooncake_conversation.jsonl.gz", TraceFormat::Mooncake, 12_031, 12_035.0, 343.0, 3.40),
        ("servegen_deepseek_r1_sample.csv.gz", TraceFormat::Lengths, 100_000, 1268.0, 1527.0, f64::INFINITY),
        ("llmservingsim_mixed.jsonl", TraceFormat::LlmServingSim, 608, 9218.0, 3021.0, 9.97),
        ("vllm_run_qwen3_30b_a3b_rtxpro6000.jsonl", TraceFormat::LlmServingSim, 300, 862.0, 665.0, 10.3),
        ("vllm_run_llama31_8b_rtxpro6000.jsonl", TraceFormat::LlmServingSim, 300, 857.0, 653.0, 10.3),
        ("../measured/h200/qwen3-8b-job-s128.requests.csv", TraceFormat::Recording, 0, 0.0, 0.0, 0.0),
    ] {
        let trace = Trace::read(&folder.join(name), TraceOptions::default()).unwrap();
        assert_eq!(trace.format, format, "{name}");
        if count == 0 {
            continue;
        }
        assert_eq!(trace.rows.len(), count, "{name}");
        let mean =
            |key: fn(&TraceRow) -> u32| trace.rows.iter().map(|row| f64::from(key(row))).sum::<f64>() / count as f64;
        let (found_prompt, found_output) = (mean(|row| row.prompt_tokens), mean(|row| row.output_tokens));
        // The sample differs from its histograms by sampling; the others only by rounding in the table.
        let slack = if name.starts_with("servegen") { 0.02 } else { 0.5 / prompt };
        assert!((found_prompt / prompt - 1.0).abs() <= slack, "{name}: {found_prompt}");
        assert!((found_output / output - 1.0).abs() <= slack.max(0.5 / output), "{name}: {found_output}");
        let span_s = trace.rows[count - 1].arrival_ns as f64 * 1e-9;
        let found_rate = (count - 1) as f64 / span_s;
        assert!(found_rate == rate || (found_rate / rate - 1.0).abs() < 0.02, "{name}: {found_rate}");
    }
}
