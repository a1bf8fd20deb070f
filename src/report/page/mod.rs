//! The plan as one page of HTML. It is made from the plan's JSON: every number in its text names the key that it shows.

mod plots;

use std::fmt::Write as _;

use serde_json::Value;

use crate::format::{percent, rate, thousands, tokens};

use plots::Spot;

/// How a number is shown.
#[derive(Clone, Copy)]
enum As {
    Days,
    Rate,
    Share,
    Whole,
    Tokens,
    Probability,
}

/// The page, on its way.
struct Page<'a> {
    json: &'a Value,
    html: String,
}

/// Text with what HTML gives a meaning replaced.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The page of a plan's JSON.
pub(super) fn page(json: &Value) -> String {
    let mut page = Page { json, html: String::new() };
    page.head();
    page.answer();
    page.plateau();
    page.ledger();
    page.completion();
    page.bridge();
    page.drivers();
    page.options();
    page.drain();
    page.inputs();
    page.html.push_str("</body>\n</html>\n");
    page.html
}

impl Page<'_> {
    fn add(&mut self, html: &str) {
        self.html.push_str(html);
        self.html.push('\n');
    }

    fn at(&self, key: &str) -> &Value {
        self.json.pointer(key).unwrap_or(&Value::Null)
    }

    fn number(&self, key: &str) -> f64 {
        self.at(key).as_f64().unwrap_or(0.0)
    }

    fn text(&self, key: &str) -> String {
        escaped(self.at(key).as_str().unwrap_or_default())
    }

    fn length(&self, key: &str) -> usize {
        self.at(key).as_array().map_or(0, Vec::len)
    }

    fn numbers(&self, key: &str) -> Vec<f64> {
        self.at(key).as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
    }

    /// A number with its key; a dash where there is none.
    fn show(&self, key: &str, how: As) -> String {
        let found = self.at(key);
        let Some(number) = found.as_f64() else { return "–".to_owned() };
        let shown = match how {
            As::Days => format!("{number:.2}"),
            As::Rate => rate(number),
            As::Share => percent(number),
            As::Whole => thousands(number.round().max(0.0) as u64),
            As::Tokens => tokens(number.round().max(0.0) as u64),
            As::Probability => format!("{number:.3}"),
        };
        format!("<data data-key=\"{key}\" value=\"{found}\">{}</data>", escaped(&shown))
    }

    /// A median with the 5 and 95% quantiles behind it.
    fn interval(&self, key: &str, how: As) -> String {
        let [low, middle, high] = ["p5", "p50", "p95"].map(|p| self.show(&format!("{key}/{p}"), how));
        format!("{middle} ({low} to {high})")
    }

    fn figure(&mut self, svg: &str, caption: &str) {
        self.add(&format!("<figure><div class=\"wide\">{svg}</div><figcaption>{caption}</figcaption></figure>"));
    }

    fn table(&mut self, heads: &[&str], rows: &[Vec<String>]) {
        let mut html = String::from("<div class=\"wide\"><table><thead><tr>");
        heads.iter().for_each(|head| {
            let _ = write!(html, "<th scope=\"col\">{head}</th>");
        });
        html.push_str("</tr></thead><tbody>\n");
        for row in rows {
            html.push_str("<tr>");
            row.iter().for_each(|cell| {
                let _ = write!(html, "<td>{cell}</td>");
            });
            html.push_str("</tr>\n");
        }
        html.push_str("</tbody></table></div>");
        self.add(&html);
    }

    fn head(&mut self) {
        let title = self.text("/title");
        self.add("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">");
        self.add("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">");
        self.add(&format!("<title>Plan: {title}</title>"));
        self.add(&format!("<style>\n{}</style>\n</head>\n<body>", include_str!("page.css")));
        self.add(&format!("<h1>{title}</h1>"));
    }

    fn answer(&mut self) {
        let days = self.interval("/forecast/makespan_days", As::Days);
        let mut lead = format!("<p class=\"lead\">Run as it is, the job takes {days} days.");
        if self.at("/forecast/p_deadline").is_number() {
            let chance = self.show("/forecast/p_deadline", As::Share);
            let deadline = self.show("/forecast/deadline_days", As::Days);
            let _ = write!(lead, " It is done within {deadline} days with probability {chance}.");
        }
        if self.at("/napkin_days").is_number() {
            let _ = write!(lead, " The napkin says {}.", self.show("/napkin_days", As::Days));
        }
        if self.at("/owed_to_cap").is_object() {
            let cap = self.show("/owed_to_cap/cap", As::Whole);
            let share = self.interval("/owed_to_cap/share", As::Share);
            let _ = write!(
                lead,
                " A running cap of {cap} takes {share} of one GPU's time at the largest concurrency measured"
            );
            if self.at("/owed_to_cap/days_of_napkin").is_object() {
                let owed = self.interval("/owed_to_cap/days_of_napkin", As::Days);
                let _ = write!(lead, ": {owed} of the napkin's days");
            }
            lead.push('.');
        }
        if self.at("/lift").is_object() {
            let (name, days) = (self.text("/lift/option"), self.interval("/lift/days", As::Days));
            let _ = write!(lead, " Lifted as far as memory allows (“{name}”): {days} days.");
        }
        self.add(&format!("{lead}</p>"));
        self.add("<div class=\"advice\"><ol>");
        for place in 0..self.length("/advice") {
            let step = self.text(&format!("/advice/{place}"));
            self.add(&format!("<li>{step}</li>"));
        }
        self.add("</ol></div>");
    }

    fn plateau(&mut self) {
        let rows = self.length("/plateau/rows");
        if rows == 0 {
            return;
        }
        self.add("<h2>Why the measured throughput stops rising</h2>");
        let at = |place: usize, key: &str| self.number(&format!("/plateau/rows/{place}/{key}"));
        let concurrency: Vec<f64> = (0..rows).map(|place| at(place, "concurrency")).collect();
        let measured: Vec<(f64, f64)> =
            (0..rows).map(|place| (concurrency[place], at(place, "measured_tok_per_s"))).collect();
        let band: Vec<(f64, f64, f64)> = (0..rows)
            .map(|place| {
                (concurrency[place], at(place, "simulated_tok_per_s/p5"), at(place, "simulated_tok_per_s/p95"))
            })
            .collect();
        // Three that are likeliest, and what would be without any mechanism.
        let total = self.length("/plateau/mechanisms");
        let name = |place: usize| self.text(&format!("/plateau/mechanisms/{place}/name"));
        let drawn: Vec<usize> = (0..total).filter(|&place| place < 4 || name(place) == "none").collect();
        let rates = |place: &usize| self.numbers(&format!("/plateau/mechanisms/{place}/tok_per_s"));
        let lines: Vec<Vec<(f64, f64)>> =
            drawn.iter().map(|place| concurrency.iter().copied().zip(rates(place)).collect()).collect();
        let mut caption = String::from("<span class=\"key c7\"></span>measured");
        for (colour, place) in drawn.iter().enumerate() {
            let words = self.text(&format!("/plateau/mechanisms/{place}/words"));
            let _ = write!(caption, " <span class=\"key c{}\"></span>{words}", colour + 1);
        }
        caption.push_str(". Shaded: 90% of the posterior of the likeliest explanation.");
        let svg = plots::rates(&measured, &band, &lines);
        self.figure(&svg, &caption);
        let rows: Vec<Vec<String>> = (0..rows)
            .map(|place| {
                let key = |key: &str| format!("/plateau/rows/{place}/{key}");
                vec![
                    self.show(&key("concurrency"), As::Whole),
                    self.show(&key("measured_tok_per_s"), As::Rate),
                    self.interval(&key("simulated_tok_per_s"), As::Rate),
                ]
            })
            .collect();
        self.table(&["concurrency", "measured, tok/s", "simulated (5% to 95%)"], &rows);
        let rows: Vec<Vec<String>> = (0..total)
            .map(|place| {
                let key = |key: &str| format!("/plateau/mechanisms/{place}/{key}");
                vec![
                    self.text(&key("words")),
                    self.show(&key("probability"), As::Probability),
                    self.show(&key("rms_log_error"), As::Share),
                ]
            })
            .collect();
        self.add("<p></p>");
        self.table(&["explanation", "probability", "rms error"], &rows);
    }

    fn ledger(&mut self) {
        self.add("<h2>Where the GPU time goes</h2>");
        let Some(ledger) = self.at("/run/ledger").as_object() else { return };
        let mut shares: Vec<(String, f64)> =
            ledger.iter().map(|(cause, share)| (cause.clone(), share.as_f64().unwrap_or(0.0))).collect();
        shares.retain(|(_, share)| *share >= 0.0005);
        shares.sort_by(|a, b| b.1.total_cmp(&a.1));
        let bars: Vec<(String, f64, f64)> =
            shares.iter().map(|(cause, share)| (cause.replace('_', " "), 0.0, 100.0 * share)).collect();
        let listed: Vec<String> = shares
            .iter()
            .map(|(cause, _)| {
                format!("{} {}", cause.replace('_', " "), self.show(&format!("/run/ledger/{cause}"), As::Share))
            })
            .collect();
        let caption = format!("Every GPU-second of the job has one cause: {}.", listed.join(", "));
        self.figure(&plots::bars("GPU time by cause", "% of the GPU time", &bars), &caption);
        let limit = format!(
            "<p>{}: {} tok/s, {} running on each replica on average.</p>",
            self.text("/run/cap_note"),
            self.show("/run/output_tok_per_s", As::Rate),
            self.show("/run/mean_running", As::Rate)
        );
        self.add(&limit);
    }

    fn completion(&mut self) {
        self.add("<h2>How long it takes</h2>");
        let quantiles = ["p5", "p50", "p95"].map(|p| self.number(&format!("/forecast/makespan_days/{p}")));
        let deadline = self.at("/forecast/deadline_days").as_f64();
        let svg = plots::distribution(&self.numbers("/completion_days"), &quantiles, deadline);
        let mut caption = format!(
            "{} replications; lines at the 5, 50 and 95% quantiles: {} days",
            self.show("/inputs/replications", As::Whole),
            self.interval("/forecast/makespan_days", As::Days)
        );
        if deadline.is_some() {
            let shown = self.show("/forecast/deadline_days", As::Days);
            let _ = write!(caption, "; <span class=\"key c2\"></span>the deadline of {shown} days");
        }
        caption.push('.');
        self.figure(&svg, &caption);
    }

    fn bridge(&mut self) {
        let steps = self.length("/forecast/bridge");
        if steps == 0 {
            return;
        }
        self.add("<h2>From the napkin to the forecast</h2>");
        let days: Vec<f64> = (0..steps).map(|place| self.number(&format!("/forecast/bridge/{place}/days"))).collect();
        let name =
            |place: usize| self.at(&format!("/forecast/bridge/{place}/step")).as_str().unwrap_or_default().to_owned();
        let bars: Vec<(String, f64, f64)> = (0..steps)
            .map(|place| (name(place), if place == 0 { 0.0 } else { days[place - 1] }, days[place]))
            .collect();
        let caption = "Each step is a simulation. <span class=\"key c2\"></span>adds days \
                       <span class=\"key c3\"></span>takes days away";
        self.figure(&plots::bars("from the napkin to the forecast", "days", &bars), caption);
        let rows: Vec<Vec<String>> = (0..steps)
            .map(|place| vec![escaped(&bars[place].0), self.show(&format!("/forecast/bridge/{place}/days"), As::Days)])
            .collect();
        self.table(&["step", "days"], &rows);
    }

    fn drivers(&mut self) {
        let count = self.length("/forecast/drivers");
        if count == 0 {
            return;
        }
        self.add("<h2>What the spread comes from</h2>");
        let key = |place: usize, key: &str| format!("/forecast/drivers/{place}/{key}");
        let bars: Vec<(String, f64, f64)> = (0..count)
            .map(|place| {
                let name = self.at(&key(place, "name")).as_str().unwrap_or_default().to_owned();
                (name, 0.0, 100.0 * self.number(&key(place, "total")).clamp(0.0, 1.0))
            })
            .collect();
        self.figure(
            &plots::bars("shares of the spread", "% of the variance in which it has a part", &bars),
            "Uncertain: one value for the whole job. “requests (variation)”: what one draw for each request leaves.",
        );
        let rows: Vec<Vec<String>> = (0..count)
            .map(|place| {
                let name = self.text(&key(place, "name"));
                let law = self
                    .at("/forecast/uncertain")
                    .get(self.at(&key(place, "name")).as_str().unwrap_or_default())
                    .and_then(Value::as_str)
                    .map_or_else(|| "varies from request to request".to_owned(), escaped);
                vec![
                    name,
                    format!(
                        "{} ± {}",
                        self.show(&key(place, "total"), As::Share),
                        self.show(&key(place, "total_error"), As::Share)
                    ),
                    law,
                ]
            })
            .collect();
        self.table(&["", "share", "law"], &rows);
    }

    fn options(&mut self) {
        self.add("<h2>What can be done</h2>");
        let count = self.length("/decide/options");
        let key = |place: usize, key: &str| format!("/decide/options/{place}/{key}");
        let letter = |place: usize| super::decide::letter(place);
        let possible: Vec<usize> = (0..count).filter(|&place| self.at(&key(place, "impossible")).is_null()).collect();
        let spots: Vec<Spot> = possible
            .iter()
            .map(|&place| Spot {
                letter: letter(place),
                days: ["p5", "p50", "p95"].map(|p| self.number(&key(place, &format!("makespan_days/{p}")))),
                kept: self.number(&key(place, "complete_answers")),
                beaten: !self.at(&key(place, "dominated_by")).is_null(),
            })
            .collect();
        let deadline = self.at("/decide/deadline_days").as_f64();
        let svg = plots::frontier(&spots, deadline, "complete answers");
        let caption = "<span class=\"key c1\"></span>on the frontier <span class=\"key c2\"></span>another option keeps as \
                       much in less time and no more GPU time";
        self.figure(&svg, caption);
        let mut rows = Vec::new();
        let named =
            |name: &str| (0..count).find(|&place| self.at(&key(place, "name")).as_str() == Some(name)).map(letter);
        for place in 0..count {
            let mut row = vec![format!("{} {}", letter(place), self.text(&key(place, "name")))];
            if possible.contains(&place) {
                row.push(self.interval(&key(place, "makespan_days"), As::Days));
                if deadline.is_some() {
                    row.push(self.show(&key(place, "p_deadline"), As::Share));
                }
                row.push(self.show(&key(place, "complete_answers"), As::Whole));
                row.push(self.show(&key(place, "truncated"), As::Whole));
                row.push(self.show(&key(place, "cut_while_thinking"), As::Whole));
                row.push(self.show(&key(place, "tokens_without_answer"), As::Tokens));
                row.push(self.show(&key(place, "gpu_hours"), As::Whole));
                let better = self.at(&key(place, "dominated_by")).as_str().and_then(named);
                row.push(better.unwrap_or_default());
            } else {
                row.push(format!("cannot be done: {}", self.text(&key(place, "impossible"))));
            }
            rows.push(row);
        }
        let mut heads = vec!["option", "days (5% to 95%)"];
        if deadline.is_some() {
            heads.push("in time");
        }
        heads.extend(["complete", "cut", "cut thinking", "tokens lost", "GPU-h", "better"]);
        self.table(&heads, &rows);
    }

    fn drain(&mut self) {
        let count = self.length("/run/drain");
        if count < 2 {
            return;
        }
        self.add("<h2>How it ends</h2>");
        let points: Vec<(f64, f64)> = (0..count)
            .map(|place| {
                let at = |key: &str| self.number(&format!("/run/drain/{place}/{key}"));
                (at("seconds_before_end"), at("running"))
            })
            .collect();
        let caption = format!(
            "{} s from the last admission to the end of the job, run once at the scenario's own values.",
            self.show("/run/drain_s", As::Rate)
        );
        self.figure(&plots::drain(&points), &caption);
    }

    fn inputs(&mut self) {
        self.add("<h2>What it was made from</h2>");
        let mut rows = Vec::new();
        for (name, key, how) in [
            ("requests", "/inputs/requests", Some(As::Whole)),
            ("prompt tokens", "/inputs/prompt_tokens", None),
            ("output tokens", "/inputs/output_tokens", None),
            ("max_tokens", "/inputs/max_tokens", Some(As::Whole)),
            ("context, tokens", "/inputs/context_tokens", Some(As::Whole)),
            ("GPUs", "/inputs/gpus", Some(As::Whole)),
            ("hardware", "/inputs/hardware", None),
            ("model", "/inputs/llm", None),
            ("engine", "/inputs/engine", None),
            ("engine version", "/inputs/engine_version", None),
            ("makespan version", "/version", None),
            ("scenario", "/scenario", None),
            ("seed", "/seed", Some(As::Whole)),
        ] {
            if !self.at(key).is_null() {
                let shown = how.map_or_else(|| self.text(key), |how| self.show(key, how));
                rows.push(vec![name.to_owned(), shown]);
            }
        }
        self.table(&["", ""], &rows);
    }
}
