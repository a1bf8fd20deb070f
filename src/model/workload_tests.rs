use super::*;
use crate::workload::Law;

fn law(text: &str) -> Result<Law> {
    let table: Table = format!("x = {text}").parse().unwrap();
    let description = LengthLaw::from_toml(&table["x"], "job.output_tokens", Path::new("."))?;
    Law::from_description(&description, "job.output_tokens")
}

#[test]
fn every_description_is_read() {
    for (text, mean) in [
        ("133", 133.0),
        ("133.0", 133.0),
        (r#"{ law = "constant", tokens = 5 }"#, 5.0),
        (r#"{ law = "lognormal", mean = 1000, sigma = 0.5 }"#, 1000.0),
        (r#"{ law = "gamma", mean = 1000, cv = 0.5 }"#, 1000.0),
        (r#"{ law = "weibull", shape = 1, mean = 1000 }"#, 1000.0),
        (r#"{ law = "weibull", shape = 1, scale = 1000 }"#, 1000.0),
        (r#"{ law = "weibull", shape = 1, median = 693.14718056 }"#, 1000.0),
        (r#"{ law = "pareto", minimum = 10, index = 2 }"#, 20.0),
        (r#"{ law = "histogram", edges = [1, 3, 5], counts = [1, 1] }"#, 3.0),
        (r#"{ law = "empirical", values = [1, 3] }"#, 2.0),
        (
            r#"{ law = "mixture", parts = [{ share = 1, law = "constant", tokens = 2 }, { share = 3, law = "constant", tokens = 6 }], truncate_tokens = 4 }"#,
            3.5,
        ),
    ] {
        assert!((law(text).unwrap().mean() / mean - 1.0).abs() < 1e-9, "{text}");
    }
    for name in LengthLaw::built_in() {
        assert!(law(&format!("\"{name}\"")).unwrap().mean() > 10.0, "{name}");
    }
    assert!(LengthLaw::built_in().contains(&"central"));
}

#[test]
fn a_column_of_a_file_is_a_law() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("lengths.csv"), "id,output_tokens\n1,10\n2,20\n").unwrap();
    let read = |text: &str| {
        let table: Table = format!("x = {text}").parse().unwrap();
        let description = LengthLaw::from_toml(&table["x"], "job.output_tokens", folder.path())?;
        Law::from_description(&description, "job.output_tokens")
    };
    assert_eq!(read(r#"{ file = "lengths.csv", column = "output_tokens" }"#).unwrap().mean(), 15.0);
    let error = read(r#"{ file = "lengths.csv", column = "output_token" }"#).unwrap_err().to_string();
    assert!(
        error.ends_with(
            "lengths.csv:1: output_token: no such column; did you mean output_tokens? the file has id, output_tokens"
        ),
        "{error}"
    );
    std::fs::write(folder.path().join("own.toml"), "law = \"gamma\"\nmean = 5\ncv = \"a\"\n").unwrap();
    let error = read("\"own.toml\"").unwrap_err().to_string();
    assert!(error.ends_with("own.toml: cv: string \"a\"; a number is needed"), "{error}");
}

#[test]
fn bad_descriptions_name_key_and_remedy() {
    for (text, expected) in [
        ("true", "job.output_tokens: boolean true; a number, a name or a table"),
        ("-3", "job.output_tokens: -3; a length is between 1 and 1e9 tokens"),
        ("nan", "job.output_tokens: NaN; a length"),
        ("\"centrall\"", "job.output_tokens: no length law named \"centrall\"; did you mean \"central\"?"),
        ("{ }", "job.output_tokens: no law; law = one of constant"),
        (
            r#"{ law = "lognormall", median = 3 }"#,
            "job.output_tokens.law: no law \"lognormall\"; did you mean \"lognormal\"?",
        ),
        (r#"{ law = 3 }"#, "job.output_tokens.law: integer 3; a text in quotes is needed"),
        (r#"{ law = "lognormal", median = 3 }"#, "job.output_tokens.sigma: missing; give a number"),
        (
            r#"{ law = "lognormal", median = 3, sigmma = 1 }"#,
            "job.output_tokens.sigmma: unknown key; did you mean sigma?",
        ),
        (r#"{ law = "lognormal", sigma = 1 }"#, "job.output_tokens.median: missing; give a median or a mean"),
        (
            r#"{ law = "lognormal", median = 1, mean = 2, sigma = 1 }"#,
            "job.output_tokens.mean: both median and mean; give one",
        ),
        (
            r#"{ law = "lognormal", median = "x", sigma = 1 }"#,
            "job.output_tokens.median: string \"x\"; a number is needed",
        ),
        (
            r#"{ law = "lognormal", median = 10, sigma = 1, truncate = 5 }"#,
            "job.output_tokens.truncate: unknown key; did you mean truncate_tokens?",
        ),
        (r#"{ law = "lognormal", median = 10, sigma = -1 }"#, "job.output_tokens.sigma: -1; the standard deviation"),
        (r#"{ law = "mixture", parts = 3 }"#, "job.output_tokens.parts: integer 3; a list"),
        (r#"{ law = "mixture", parts = [] }"#, "job.output_tokens.parts: no parts"),
        (r#"{ law = "mixture", parts = [3] }"#, "job.output_tokens.parts[0]: integer 3; a table"),
        (
            r#"{ law = "mixture", parts = [{ law = "constant", tokens = 2 }] }"#,
            "job.output_tokens.parts[0].share: missing",
        ),
        (
            r#"{ law = "mixture", parts = [{ share = 0, law = "constant", tokens = 2 }] }"#,
            "job.output_tokens.parts[0].share: the shares add up to 0",
        ),
        (
            r#"{ law = "mixture", parts = [{ share = 1, law = "constant", tokens = 2 }, { share = 1, law = "lognormal", median = 5, sigma = inf }] }"#,
            "job.output_tokens.parts[1].sigma: inf; the standard",
        ),
        (
            r#"{ law = "histogram", edges = [1, 2], counts = ["a"] }"#,
            "job.output_tokens.counts[0]: string \"a\"; a number",
        ),
        (r#"{ law = "histogram", edges = [], counts = [] }"#, "job.output_tokens.counts: no counts"),
        (r#"{ file = "x.csv" }"#, "job.output_tokens.column: missing; give the column"),
    ] {
        let error = law(text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{text}: {error:?} does not start with {expected:?}");
    }
}

#[test]
fn arrivals_and_orders_are_read() {
    let arrivals = |text: &str| {
        let table: Table = format!("x = {text}").parse().unwrap();
        ArrivalLaw::from_toml(&table["x"], "job.arrivals")
    };
    assert_eq!(arrivals("\"at_once\"").unwrap(), ArrivalLaw::AtOnce);
    assert_eq!(arrivals("\"trace\"").unwrap(), ArrivalLaw::Trace { time_scale: 1.0 });
    let gamma = arrivals(r#"{ law = "gamma", rate_per_s = 5, cv = 3 }"#).unwrap();
    assert_eq!(gamma, ArrivalLaw::Gamma { rate_per_s: 5.0, cv: 3.0 });
    for (text, expected) in [
        ("\"poison\"", "job.arrivals: \"poison\" is not known; did you mean \"poisson\"?"),
        ("\"poisson\"", "job.arrivals.rate_per_s: missing; give a number"),
        (r#"{ law = "poisson", rate = 5 }"#, "job.arrivals.rate: unknown key; did you mean rate_per_s?"),
        ("5", "job.arrivals: integer 5; a name or a table"),
    ] {
        let error = arrivals(text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{text}: {error}");
    }
    assert_eq!(Order::from_word("longest_first", "job.order").unwrap(), Order::LongestFirst);
    let error = Order::from_word("suffled", "job.order").unwrap_err().to_string();
    assert_eq!(error, "job.order: \"suffled\" is not known; did you mean \"shuffled\"?");
}
