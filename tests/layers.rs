//! The layers of the library: a module uses only those above it in `src/lib.rs`.
#![allow(clippy::panic, reason = "a panic is how a test fails, in its helpers too")]

use std::fs;
use std::path::{Path, PathBuf};

/// Modules in import order, a row for those that do not know each other.
const LAYERS: [&[&str]; 13] = [
    &["error"],
    &["files", "random", "stats", "units"],
    &["format", "shard"],
    &["measured", "model"],
    &["workload"],
    &["inspect"],
    &["cost"],
    &["engine"],
    &["simulation"],
    &["experiment"],
    &["calibrate"],
    &["plan"],
    &["report"],
];

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the sources") {
        let path = entry.expect("an entry of the sources").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Tests beside the code may look down as well as up.
fn is_test(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests")
        || path.file_stem().is_some_and(|stem| stem == "tests" || stem.to_string_lossy().ends_with("_tests"))
}

/// Names that follow `crate::` in code, `use crate::{a, b}` included; comments, and unit tests at the end, left out.
fn used(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    for (number, line) in code.lines().enumerate() {
        let line = line.split("//").next().unwrap_or(line);
        for (at, prefix) in line.match_indices("crate::") {
            let rest = &line[at + prefix.len()..];
            let names = match rest.strip_prefix('{') {
                Some(list) => list.split(['}', ';']).next().unwrap_or(list).split(',').map(str::trim).collect(),
                None => vec![rest],
            };
            let word = |name: &str| name.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            found.extend(names.into_iter().map(|name| (number + 1, word(name))));
        }
    }
    found
}

#[test]
fn a_module_uses_only_those_above_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut wrong = Vec::new();
    let mut uses = 0;
    for path in files.iter().filter(|path| !is_test(path)) {
        let inside = path.strip_prefix(&root).expect("a file below src");
        let first = inside.components().next().expect("a file below src").as_os_str().to_string_lossy();
        let module = first.trim_end_matches(".rs");
        if ["lib", "main", "cli"].contains(&module) {
            continue;
        }
        let Some(own) = layer(module) else {
            wrong.push(format!("{module} has no layer: give it one here and a line in src/lib.rs"));
            continue;
        };
        let text = fs::read_to_string(path).expect("a source file");
        for (line, name) in used(&text) {
            uses += 1;
            match layer(&name) {
                Some(other) if name == module || other < own => {}
                _ => wrong.push(format!("{}:{line}: {module} uses {name}", inside.display())),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(uses > 100, "only {uses} uses were read: the search is broken");
}

#[test]
fn the_library_lists_its_modules_in_import_order() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
    let text = fs::read_to_string(path).expect("src/lib.rs");
    let listed: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("pub mod ")).map(|name| name.trim_end_matches(';')).collect();
    let layers: Vec<usize> =
        listed.iter().map(|name| layer(name).unwrap_or_else(|| panic!("{name} has no layer"))).collect();
    assert!(layers.is_sorted(), "{listed:?}");
    assert_eq!(listed.len(), LAYERS.iter().map(|modules| modules.len()).sum::<usize>());
}

#[test]
fn the_program_is_the_only_part_that_prints_or_reads_arguments() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    for path in files.iter().filter(|path| !is_test(path) && !path.starts_with(root.join("cli"))) {
        let text = fs::read_to_string(path).expect("a source file");
        for forbidden in ["io::stdout", "io::stderr", "println!", "env::args", "clap::", "indicatif::"] {
            assert!(!text.contains(forbidden), "{} has {forbidden}", path.display());
        }
    }
}
