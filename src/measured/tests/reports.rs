//! Reduced inputs from public reports, with the answer each should give.

use super::super::*;
use super::{of, only, table};

fn close(value: f64, expected: f64, tolerance: f64) {
    assert!((value - expected).abs() <= tolerance * expected, "{value} is not within {tolerance} of {expected}");
}

/// 52 state slots, 4 a request, configured 40: 13 run, and points 13, 20 and 40 differ in ttft alone.
#[test]
fn a_state_slot_cap_shows_as_flat_rate_and_tpot_with_growing_ttft() {
    let table = table(
        "4,148,output,1500,600,40,300,26.5,\n8,280,output,1500,600,80,420,27.9,\n13,433,output,1500,600,130,600,29.8,\n\
         20,434,output,1500,600,200,10400,29.9,\n40,433,output,1500,600,400,38000,30.0,",
    );
    let curve = &table.curves()[0];
    assert_eq!(knee(&curve.points), Some(13));
    let running: Vec<f64> = capped(&curve.points).iter().map(|batch| batch.running).collect();
    assert_eq!(running.len(), 3);
    running.iter().for_each(|running| close(*running, 13.0, 0.02));
    let cap = only(&table, Severity::Warning);
    assert!(cap.what.contains("capped: about 13 requests run"), "{cap}");
    assert_eq!(cap.lines, [4, 5, 6]);
}

#[test]
fn the_effective_batch_is_found_without_being_told_the_cap() {
    let table =
        table("1,300,output,,,,,3.1,\n16,2000,output,,,,,7.6,\n512,1900,output,,,,,12,\n2048,1950,output,,,,,12,");
    let curve = &table.curves()[0];
    let batches = capped(&curve.points);
    assert_eq!(batches.iter().map(|batch| batch.concurrency).collect::<Vec<_>>(), [512, 2048]);
    close(batches[0].running, 22.8, 1e-9);
    close(batches[1].running, 23.4, 1e-9);
    let cap = only(&table, Severity::Warning);
    assert_eq!(cap.lines, [4, 5]);
    assert!(cap.what.contains("about 23 requests run"), "{cap}");
    assert!(check(&table).iter().any(|finding| finding.what.contains("95 % reached by concurrency 16")));
}

#[test]
fn a_curve_that_is_flat_from_16_streams_has_its_knee_there() {
    let table = table("1,2000,total,,,,,,\n16,6500,total,,,,,,\n512,6900,total,,,,,,\n2048,6900,total,,,,,,");
    let curve = &table.curves()[0];
    assert_eq!(knee(&curve.points), Some(16));
    close(plateau(&curve.points).unwrap().tok_per_s, 6764.0, 1e-3);
    assert_eq!(curve.kind, Some(RateKind::Total));
    assert!(capped(&curve.points).is_empty());
    let note = only(&table, Severity::Note);
    assert!(note.what.contains("total tok/s, 95 % reached by concurrency 16"), "{note}");
}

#[test]
fn a_dip_that_nobody_reproduces_is_named_and_left_out() {
    let per_stream = [80.0, 40.0, 70.0, 66.0, 60.0, 55.0];
    let rows: Vec<String> = per_stream
        .iter()
        .zip(1..)
        .map(|(rate, c)| format!("{c},{},output,4096,256,,,,", rate * f64::from(c)))
        .collect();
    let dip = only(&table(&rows.join("\n")), Severity::Warning);
    assert_eq!(dip.lines, [3]);
    assert!(dip.what.contains("concurrency 2: 80.0 tok/s"), "{dip}");
}

#[test]
fn an_outlier_on_the_plateau_does_not_move_it() {
    let sound = "1,62,output,,1024,,,,\n4,207,output,,1024,,,,\n8,370,output,,1024,,,,\n16,385,output,,1024,,,,\n";
    let end = "48,409,output,,1024,,,,";
    let level = |rows: String| {
        let findings = check(&table(&rows));
        let notes = of(&findings, Severity::Note);
        notes.iter().find(|note| note.what.contains("plateau of")).unwrap().what.clone()
    };
    assert_eq!(level(format!("{sound}{end}")), level(format!("{sound}32,190,output,,1024,,,,\n{end}")));
}

#[test]
fn the_table_of_the_built_in_job_has_its_knee_at_8() {
    let table = table(
        "1,62,output,,1024,,,,\n4,207,output,,1024,,,,\n8,370,output,,1024,,,,\n16,385,output,,1024,,,,\n\
         32,393,output,,1024,,,,\n48,409,output,,1024,,,,",
    );
    assert_eq!(knee(&table.curves()[0].points), Some(8));
}

#[test]
fn two_rates_for_one_concurrency_are_a_warning_and_never_a_mean() {
    let table = table("8,520,output,1000,1000,,,,\n8,80,output,1000,1000,,,,");
    let warning = only(&table, Severity::Warning);
    assert_eq!(warning.lines, [2, 3]);
    assert!(warning.what.contains("80.0 and 520 tok/s"), "{warning}");
    let rates: Vec<f64> = table.curves()[0].points.iter().map(|point| point.tok_per_s).collect();
    assert_eq!(rates, [520.0, 80.0]);
    assert_eq!(plateau(&table.curves()[0].points), None);
}

#[test]
fn repeats_within_scatter_are_not_two_states() {
    assert_eq!(check(&table("8,520,output,1000,1000,,,,\n8,505,output,1000,1000,,,,")), []);
}

const SWEEP: &str = "ISL,OSL,Concurrency,N Req,TTFT (ms),TPOT (ms),Tput User (TPS),Tput Decode (TPS),Tput Prefill (TPS),E2EL (ms),Req Tput (RPS)
128,128,1,8,52.5,24.3,41.2,41.2,2438.1,3138.6,0.319
1024,128,4,4,210.0,25.1,39.8,159.4,19504.8,3397.7,1.15
2048,128,1,2,300.0,22.8,43.9,43.9,6826.7,3195.6,0.31
";

#[test]
fn foreign_columns_are_read_by_meaning() {
    let table = read_table(SWEEP, "sweep.csv").unwrap();
    let row = &table.rows[0];
    // Request rate × output length, not the 41.2 that are 1000 / tpot.
    close(output_tok_per_s(row).unwrap(), 40.8, 1e-3);
    assert_eq!((row.kind, row.concurrency, row.num_requests), (RateKind::Output, 1, Some(8)));
    assert_eq!((row.ttft_ms, row.tpot_ms), (Some(52.5), Some(24.3)));
    assert_eq!(table.unused_columns.len(), 4);
    let findings = check(&table);
    assert!(of(&findings, Severity::Error).is_empty(), "{findings:#?}");
    assert!(
        findings.iter().any(|finding| finding.lines == [4] && finding.what.contains("(2): noise of up to about 25 %"))
    );
    assert!(findings.iter().any(|finding| finding.what.contains("Tput Decode")));
}

#[test]
fn plain_names_and_units_in_headers_do() {
    let table = read_table("streams,output tok/s,ttft_s\n4,120,0.5\n", "t.csv").unwrap();
    assert_eq!((table.rows[0].tok_per_s, table.rows[0].ttft_ms), (120.0, Some(500.0)));
    let total = read_table("Concurrency,Total token throughput (tok/s)\n4,120\n", "t.csv").unwrap();
    assert_eq!(total.rows[0].kind, RateKind::Total);
}

#[test]
fn a_total_rate_called_output_is_an_error_that_says_so() {
    let error = only(&table("1,1300,output,4096,512,,,7,"), Severity::Error);
    assert!(error.what.contains("at most 143 output tok/s"), "{error}");
    assert!(error.done.contains("`total`") && error.done.contains("1286 total"), "{error}");
    assert!(check(&table("1,1280,total,4096,512,20,,7,")).is_empty());
}

#[test]
fn an_output_rate_called_total_is_an_error_that_says_so() {
    let error = only(&table("1,155,total,1024,1024,64,79,6.4,"), Severity::Error);
    assert!(error.done.contains("`output`"), "{error}");
}

#[test]
fn without_lengths_the_error_asks_for_them() {
    let error = only(&table("1,1300,output,,,,,7,"), Severity::Error);
    assert!(error.done.contains("is it `total`?"), "{error}");
    let neither = only(&table("1,9000,output,100,900,,,7,"), Severity::Error);
    assert!(neither.done.contains("neither kind fits"), "{neither}");
}

#[test]
fn kinds_are_joined_by_their_lengths_or_refused() {
    let joined = table("1,100,output,512,512,,,,\n2,400,total,512,512,,,,");
    assert_eq!(joined.curves()[0].points[1].tok_per_s, 200.0);
    let mixed = only(&table("1,100,output,,,,,,\n2,400,total,,,,,,"), Severity::Error);
    assert_eq!(mixed.lines, [2, 3]);
}

#[test]
fn a_curve_that_falls_for_good_has_a_cliff_and_no_outlier() {
    let warning = only(
        &table(
            "16,477,output,1000,1000,,,,\n32,811,output,1000,1000,,,,\n64,1326,output,1000,1000,,,,\n128,646,output,1000,1000,,,,",
        ),
        Severity::Warning,
    );
    assert_eq!(warning.lines, [5]);
    assert!(warning.what.contains("falls from 1326 to 646"), "{warning}");
}

#[test]
fn waves_and_unreached_concurrency_are_told_apart() {
    let findings = check(&table("64,100,output,10,10,64,,,\n128,150,output,10,10,96,,,\n256,200,output,10,10,2048,,,"));
    assert_eq!(of(&findings, Severity::Note)[0].lines, [2]);
    assert_eq!(of(&findings, Severity::Warning)[0].lines, [3]);
}
