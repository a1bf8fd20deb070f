//! Texts counted with a model's tokenizer, or refused by a build without one.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use assert_cmd::Command;

/// Words and punctuation are the tokens of this vocabulary.
const TOKENIZER: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "Name": 1, "a": 2, "colour": 3, ".": 4}, "unk_token": "[UNK]"}}"#;

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples").join(name)
}

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::cargo_bin("makespan").unwrap().args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn scenario(folder: &Path, tokenizer: &str) -> String {
    let path = folder.join("texts.toml");
    let trace = sample("sglang_custom.jsonl");
    let text = format!(
        "title = \"t\"\n[job]\ntrace = '{}'\n{tokenizer}\n[fleet]\ngpus = 1\n[engine]\nname = \"fixed-rate\"\n\
         tok_per_s_per_gpu = 100\n",
        trace.display()
    );
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn without_a_tokenizer_texts_are_estimates_and_said_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, error) = run(&["simulate", &scenario(folder.path(), ""), "--json"]);
    assert_eq!(code, Some(0), "{error}");
    assert!(error.starts_with("warning: lengths of texts in ") && error.contains("4 characters a token"), "{error}");
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    // "Blue." and "Red." are 5 and 4 characters.
    assert_eq!(json["output_tokens"], 3);
    let (_, out, _) = run(&["inspect", sample("sharegpt.json").to_str().unwrap()]);
    assert!(out.contains("some lengths are estimates, 4 characters a token"), "{out}");
}

#[test]
fn a_tokenizer_that_nothing_needs_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, TOKENIZER).unwrap();
    let tokenizer = path.to_str().unwrap();
    let log = sample("sglang.log");
    let trace = sample("mooncake.jsonl");
    let (code, _, error) = run(&["inspect", log.to_str().unwrap(), "--job", "total=5"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("this is an engine log; --job, --inputs, --running and --tokenizer belong"), "{error}");
    let (code, _, error) = run(&["inspect", trace.to_str().unwrap(), "--tokenizer", tokenizer]);
    assert_eq!(code, Some(2), "{error}");
}

#[cfg(not(feature = "tokenizers"))]
#[test]
fn a_build_without_tokenizers_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, TOKENIZER).unwrap();
    let texts = sample("sharegpt.json");
    let (code, _, error) = run(&["inspect", texts.to_str().unwrap(), "--tokenizer", path.to_str().unwrap()]);
    assert_eq!(code, Some(2));
    assert!(error.contains("this build has no tokenizers; build with `--features tokenizers`"), "{error}");
    let (code, _, error) = run(&["simulate", &scenario(folder.path(), "tokenizer = 'tokenizer.json'")]);
    assert_eq!(code, Some(2));
    assert!(error.contains("this build has no tokenizers"), "{error}");
}

#[cfg(feature = "tokenizers")]
#[test]
fn texts_are_counted_in_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, TOKENIZER).unwrap();
    let tokenizer = path.to_str().unwrap();
    // "Name a colour." is 4 words and marks, "Blue." and "Red." are 2.
    for (name, input, output) in [("sharegpt.json", 4.0, 2.0), ("sglang_custom.jsonl", 4.0, 2.0)] {
        // One of the conversations has a single turn, which is a fault.
        let path = sample(name);
        let arguments = ["inspect", path.to_str().unwrap(), "--tokenizer", tokenizer, "--json", "--accept-faults"];
        let (code, out, error) = run(&arguments);
        assert_eq!(code, Some(0), "{error}");
        let json: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(json["lengths"]["input"]["mean"], input, "{name}");
        assert_eq!(json["lengths"]["output"]["mean"], output, "{name}");
        assert_eq!(json["lengths"]["estimated"], false, "{name}");
    }
    let (code, out, error) = run(&["simulate", &scenario(folder.path(), "tokenizer = 'tokenizer.json'"), "--json"]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["output_tokens"], 4);
    let broken = folder.path().join("broken.json");
    std::fs::write(&broken, "{}").unwrap();
    let texts = sample("sharegpt.json");
    let (code, _, error) = run(&["inspect", texts.to_str().unwrap(), "--tokenizer", broken.to_str().unwrap()]);
    assert_eq!(code, Some(2));
    assert!(error.contains("broken.json: ") && error.contains("give the tokenizer.json"), "{error}");
}
