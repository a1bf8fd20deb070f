//! Tests of measured tables: the built-in ones, reduced public reports, and bad inputs.

mod bad_input;
mod built_in;
mod properties;
mod reports;

use super::{Finding, Severity, Table, check, read_table};

const HEADER: &str =
    "concurrency,throughput_tok_s,throughput_kind,input_tokens,output_tokens,num_requests,ttft_ms,tpot_ms,source\n";

/// A table in the project's own columns; `rows` stands one a line.
fn table(rows: &str) -> Table {
    read_table(&format!("{HEADER}{rows}\n"), "test.csv").unwrap()
}

fn of(findings: &[Finding], severity: Severity) -> Vec<&Finding> {
    findings.iter().filter(|finding| finding.severity == severity).collect()
}

/// The only finding of `severity`.
fn only(table: &Table, severity: Severity) -> Finding {
    let findings = check(table);
    let [one] = of(&findings, severity)[..] else { panic!("expected one {severity:?} in {findings:#?}") };
    one.clone()
}
