//! Bad inputs: each names its place and what would be right.

use super::super::{read_about, read_jobs, read_table};
use super::HEADER;
use crate::error::InputError;

fn expect(error: InputError, line: Option<u64>, key: Option<&str>, remedy: &str) {
    assert_eq!(error.file.as_deref(), Some("bad"), "{error}");
    assert_eq!(error.line, line, "{error}");
    assert_eq!(error.key.as_deref(), key, "{error}");
    assert!(error.remedy.contains(remedy), "{error}: expected `{remedy}`");
}

#[test]
fn bad_rows_name_line_column_and_remedy() {
    let cases = [
        ("0,100,output,,,,,,", "concurrency", "whole number of at least 1"),
        ("-4,100,output,,,,,,", "concurrency", "whole number of at least 1"),
        ("2.5,100,output,,,,,,", "concurrency", "whole number of at least 1"),
        ("9999999999,100,output,,,,,,", "concurrency", "below 2^32"),
        (",100,output,,,,,,", "concurrency", "requests in flight"),
        ("1,fast,output,,,,,,", "throughput_tok_s", "number above 0"),
        ("1,-5,output,,,,,,", "throughput_tok_s", "number above 0"),
        ("1,0,output,,,,,,", "throughput_tok_s", "number above 0"),
        ("1,NaN,output,,,,,,", "throughput_tok_s", "number above 0"),
        ("1,inf,output,,,,,,", "throughput_tok_s", "number above 0"),
        ("1,\"1,300\",output,,,,,,", "throughput_tok_s", "thousands separator"),
        ("1,,output,,,,,,", "throughput_tok_s", "measured rate"),
        ("1,100,outputs,,,,,,", "throughput_kind", "did you mean `output`?"),
        ("1,100,Total,,,,,,", "throughput_kind", "did you mean `total`?"),
        ("1,100,,,,,,,", "throughput_kind", "write `output`"),
        ("1,100,output,-1,,,,,", "input_tokens", "at least 0"),
        ("1,100,output,10,0,,,,", "output_tokens", "number above 0"),
        ("1,100,output,10,10,0,,,", "num_requests", "whole number of at least 1"),
        ("1,100,output,10,10,8,-3,,", "ttft_ms", "number above 0"),
        ("1,100,output,10,10,8,3,12ms,", "tpot_ms", "without unit"),
    ];
    for (row, column, remedy) in cases {
        let text = format!("{HEADER}4,10,output,,,,,,\n\n{row}\n");
        expect(read_table(&text, "bad").unwrap_err(), Some(4), Some(column), remedy);
    }
}

#[test]
fn bad_shapes_of_a_table_name_what_is_missing() {
    let cases = [
        (HEADER, None, None, "at least one line"),
        ("", Some(1), Some("concurrency"), "kept in flight"),
        ("throughput_tok_s,throughput_kind\n1,output\n", Some(1), Some("concurrency"), "kept in flight"),
        ("concurency,output_tok_s\n1,5\n", Some(1), Some("concurrency"), "is it `concurency`?"),
        ("concurrency,ttft_ms\n1,5\n", Some(1), Some("throughput_tok_s"), "measured rate"),
        ("concurrency,throughput_tok_s\n1,5\n", Some(1), Some("throughput_kind"), "`total` if it counts prompts"),
        ("Concurrency,TPOT,Tput Decode\n1,24,41\n", Some(1), Some("throughput_tok_s"), "not a measured one"),
        ("concurrency,output_tok_s,ttft,TTFT (ms)\n1,5,1,1\n", Some(1), Some("TTFT (ms)"), "keep one"),
        ("concurrency,output_tok_s\n1,5\n2\n", Some(3), None, "one cell per column"),
    ];
    for (text, line, key, remedy) in cases {
        expect(read_table(text, "bad").unwrap_err(), line, key, remedy);
    }
}

#[test]
fn bad_descriptions_name_line_and_key() {
    let cases = [
        ("gpu = \"X\"\ngpus = 1\nmodle = \"Y\"\n", Some(3), Some("modle"), "did you mean `model`?"),
        ("gpu = \"X\"\ngpus = 1\nzzz = 1\n", Some(3), Some("zzz"), "remove it"),
        ("gpu = \"X\"\n", None, Some("gpus"), "add it"),
        ("gpu = \"X\"\ngpus = \"four\"\n", Some(2), None, "expected kind"),
        ("gpu = \"X\"\ngpus = 1\nmax_running_requests = true\n", Some(3), None, "expected kind"),
        ("gpu = \"X\"\ngpus = \n", Some(2), None, "expected kind"),
        ("gpu = \"X\"\ngpus = 1\n[[job]]\nrequest = 3\nseconds = 1.0\n", Some(4), Some("request"), "`requests`"),
    ];
    for (text, line, key, remedy) in cases {
        expect(read_about(text, "bad").unwrap_err(), line, key, remedy);
    }
}

#[test]
fn bad_jobs_name_line_and_column() {
    let header = "table,concurrency,requests,input_tokens_total,output_tokens_total,seconds\n";
    let cases = [
        ("a,1,,5,5,1\n", "requests", "every job needs"),
        ("a,1,2,5,5,-1\n", "seconds", "number above 0"),
        ("a,x,2,5,5,1\n", "concurrency", "whole number"),
    ];
    for (row, column, remedy) in cases {
        expect(read_jobs(&format!("{header}{row}"), "bad").unwrap_err(), Some(2), Some(column), remedy);
    }
    expect(read_jobs("table,seconds\n", "bad").unwrap_err(), Some(1), Some("concurrency"), "the columns are");
}
