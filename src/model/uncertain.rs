//! What is not known about a scenario: keys that have a law in place of a number.
//!
//! *Uncertain* is one draw a replication: the same value for the whole job, such as the acceptance of drafted tokens or
//! the law that lengths follow. *Variable* is one draw a request, such as a length, and belongs to `workload`. A job of
//! a million requests averages out what varies and none of what is uncertain.
//!
//! A law stands in place of the value, or beside it in the table `[uncertain]`; there the value stays what commands of
//! one run use. Forms:
//!
//! | form | law | what one run takes |
//! |---|---|---|
//! | `{ p5 = 1400, p95 = 2400 }` | lognormal with these quantiles | the median √(p5 · p95) |
//! | `{ min = 0.7, mode = 0.8, max = 0.9 }` | PERT: a beta law on [min, max], mean (min + 4 mode + max) ÷ 6 | the mode |
//! | `{ values = ["light", "heavy"], weights = [2, 1] }` | one of these; equal weights unless given | the likeliest, the first of several |
//!
//! Shares that must not pass 1 take the second form: a lognormal has no upper end.

use statrs::distribution::{Beta, ContinuousCDF, Normal};
use toml::{Table, Value};

use crate::error::{Error, InputError, Result, nearest};
use crate::random::{Purpose, Streams, fnv1a, open_unit};

/// Tables of a scenario that hold no keys of it.
const APART: [&str; 3] = ["uncertain", "option", "forecast"];

/// Keys of laws. A table with one of these and no `law` or `file` is a law of uncertainty.
const LAW_KEYS: [&str; 7] = ["p5", "p95", "min", "mode", "max", "values", "weights"];

/// Draws lie between this and 1 − this, so that the ends can be checked before a long run: 2e-6 of the mass is moved.
const OUTERMOST: f64 = 1e-6;

/// z of the 95% quantile of the standard normal law.
const Z95: f64 = 1.644_853_626_951_472_2;

/// A quantity that is not known.
#[derive(Clone, Debug, PartialEq)]
pub struct Unknown {
    /// What it is called in reports: the key, or a name for several keys that go together.
    pub name: String,
    law: Law,
}

#[derive(Clone, Debug, PartialEq)]
enum Law {
    Lognormal {
        p5: f64,
        p95: f64,
        whole: bool,
    },
    Pert {
        min: f64,
        mode: f64,
        max: f64,
        whole: bool,
    },
    /// Values with the running sums of their shares.
    Choice {
        values: Vec<Value>,
        weights: Vec<f64>,
    },
    /// Keys that are drawn together: a row of values for each draw, all equally likely.
    Joint {
        keys: Vec<String>,
        rows: Vec<Vec<Value>>,
    },
}

impl Unknown {
    /// Several keys known together, as from a posterior: each row is one draw, all equally likely.
    ///
    /// # Errors
    /// Without rows or keys, or when a row has another number of values than there are keys.
    pub fn joint(name: &str, keys: Vec<String>, rows: Vec<Vec<Value>>) -> Result<Unknown> {
        if keys.is_empty() || rows.is_empty() {
            return Err(InputError::new("no draws", "give at least one key and one row of values").key(name).into());
        }
        if let Some(row) = rows.iter().position(|row| row.len() != keys.len()) {
            let found = format!("{} values in row {} for {} keys", rows[row].len(), row + 1, keys.len());
            return Err(InputError::new(found, "give one value for each key").key(name).into());
        }
        Ok(Unknown { name: name.to_owned(), law: Law::Joint { keys, rows } })
    }

    /// Reads a law of `key`; `place` is where it stands.
    fn read(key: &str, table: &Table, place: &str) -> Result<Unknown> {
        let wrong = |name: &str, found: String, remedy: &str| {
            let place = if name.is_empty() { place.to_owned() } else { format!("{place}.{name}") };
            InputError::new(found, remedy).key(place)
        };
        if let Some(unknown) = table.keys().find(|name| !LAW_KEYS.contains(&name.as_str())) {
            let remedy = match nearest(unknown, LAW_KEYS) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known here: {}", LAW_KEYS.join(", ")),
            };
            return Err(wrong(unknown, format!("unknown key `{unknown}`"), &remedy).into());
        }
        let forms = "give { p5, p95 }, { min, mode, max } or { values, weights }";
        let number = |name: &str| match table.get(name) {
            Some(Value::Integer(number)) => Ok(*number as f64),
            Some(Value::Float(number)) if number.is_finite() => Ok(*number),
            Some(other) => Err(wrong(name, format!("found {other}"), "give a finite number")),
            None => Err(wrong("", format!("`{name}` is missing"), forms)),
        };
        let has = |name: &str| table.contains_key(name);
        let groups =
            [has("p5") || has("p95"), has("min") || has("mode") || has("max"), has("values") || has("weights")];
        let law = match groups {
            [true, false, false] => {
                let (p5, p95) = (number("p5")?, number("p95")?);
                if !(p5 > 0.0 && p5 < p95) {
                    let remedy = "give 0 < p5 < p95: the law is lognormal. Use { min, mode, max } for 0 or less";
                    return Err(wrong("p5", format!("{p5} and {p95}"), remedy).into());
                }
                Law::Lognormal { p5, p95, whole: false }
            }
            [false, true, false] => {
                let (min, mode, max) = (number("min")?, number("mode")?, number("max")?);
                if !(min <= mode && mode <= max && min < max) {
                    let found = format!("{min}, {mode} and {max}");
                    return Err(wrong("min", found, "give min <= mode <= max, not all equal").into());
                }
                Law::Pert { min, mode, max, whole: false }
            }
            [false, false, true] => choice(table, &wrong)?,
            _ => return Err(wrong("", "keys of several forms".to_owned(), forms).into()),
        };
        Ok(Unknown { name: key.to_owned(), law })
    }

    /// The value of its keys at quantile `unit` of the law.
    pub fn at(&self, unit: f64) -> Vec<(&str, Value)> {
        let unit = unit.clamp(OUTERMOST, 1.0 - OUTERMOST);
        let one = |value| vec![(self.name.as_str(), value)];
        match &self.law {
            Law::Lognormal { p5, p95, whole } => {
                let sigma = (p95 / p5).ln() / (2.0 * Z95);
                let median = (p5 * p95).sqrt();
                one(numeric(median * (sigma * Normal::standard().inverse_cdf(unit)).exp(), *whole))
            }
            Law::Pert { min, mode, max, whole } => one(numeric(pert(*min, *mode, *max, unit), *whole)),
            Law::Choice { values, weights } => {
                let goal = unit * weights.iter().sum::<f64>();
                let mut sum = 0.0;
                let place = weights.iter().position(|weight| {
                    sum += weight;
                    *weight > 0.0 && goal < sum
                });
                one(values[place.unwrap_or(values.len() - 1)].clone())
            }
            Law::Joint { keys, rows } => {
                let row = &rows[((unit * rows.len() as f64) as usize).min(rows.len() - 1)];
                keys.iter().map(String::as_str).zip(row.iter().cloned()).collect()
            }
        }
    }

    /// What a single run takes: median, mode or likeliest value. A joint law has none: the scenario's own values hold.
    fn typical(&self) -> Option<Value> {
        match &self.law {
            Law::Lognormal { p5, p95, whole } => Some(numeric((p5 * p95).sqrt(), *whole)),
            Law::Pert { mode, whole, .. } => Some(numeric(*mode, *whole)),
            Law::Choice { values, weights } => {
                let most = weights.iter().copied().fold(0.0, f64::max);
                weights.iter().position(|weight| *weight == most).map(|place| values[place].clone())
            }
            Law::Joint { .. } => None,
        }
    }

    /// Draws at which every kind of value that can occur is seen: the ends of a range, or each choice.
    pub fn probes(&self) -> Vec<f64> {
        match &self.law {
            Law::Lognormal { .. } | Law::Pert { .. } => vec![OUTERMOST, 1.0 - OUTERMOST],
            Law::Choice { weights, .. } => {
                let total: f64 = weights.iter().sum();
                let mut sum = 0.0;
                let middle = |weight: &f64| {
                    sum += weight;
                    (sum - weight / 2.0) / total
                };
                weights.iter().filter(|weight| **weight > 0.0).map(middle).collect()
            }
            Law::Joint { rows, .. } => (0..rows.len()).map(|row| (row as f64 + 0.5) / rows.len() as f64).collect(),
        }
    }

    /// The draw of one replication: keyed by the name, so that another unknown more or less shifts none of the others.
    pub fn unit(&self, streams: Streams) -> f64 {
        use rand::Rng;
        open_unit(streams.endless(Purpose::Uncertainty, fnv1a(&self.name)).next_u64())
    }

    /// Whether setting `key` settles this one.
    pub(crate) fn is_settled_by(&self, key: &str) -> bool {
        let near = |own: &str| is_within(own, key) || is_within(key, own);
        match &self.law {
            Law::Joint { keys, .. } => keys.iter().any(|own| near(own)),
            _ => near(&self.name),
        }
    }

    /// The law in words.
    pub fn words(&self) -> String {
        match &self.law {
            Law::Lognormal { p5, p95, .. } => format!("lognormal, 5% below {p5} and 5% above {p95}"),
            Law::Pert { min, mode, max, .. } => format!("PERT from {min} over {mode} to {max}"),
            Law::Choice { values, weights } => {
                let total: f64 = weights.iter().sum();
                let part = |(value, weight): (&Value, &f64)| {
                    let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    format!("{value} {:.0}%", weight / total * 100.0)
                };
                values.iter().zip(weights).map(part).collect::<Vec<_>>().join(", ")
            }
            Law::Joint { keys, rows } => format!("{} draws of {}", rows.len(), keys.join(", ")),
        }
    }
}

fn choice(table: &Table, wrong: &dyn Fn(&str, String, &str) -> InputError) -> Result<Law> {
    let Some(Value::Array(values)) =
        table.get("values").filter(|values| values.as_array().is_some_and(|v| !v.is_empty()))
    else {
        return Err(wrong("values", "no values".to_owned(), "give a list of what it can be").into());
    };
    let weights = match table.get("weights") {
        None => vec![1.0; values.len()],
        Some(Value::Array(weights)) if weights.len() == values.len() => {
            let number = |weight: &Value| weight.as_float().or_else(|| weight.as_integer().map(|n| n as f64));
            weights
                .iter()
                .map(|weight| number(weight).filter(|w| w.is_finite() && *w >= 0.0))
                .collect::<Option<_>>()
                .ok_or_else(|| {
                    wrong(
                        "weights",
                        "not all are numbers of 0 or more".to_owned(),
                        "give a number of 0 or more for each value",
                    )
                })?
        }
        Some(other) => {
            let found = format!("found {other} for {} values", values.len());
            return Err(wrong("weights", found, "give one weight for each value").into());
        }
    };
    if weights.iter().sum::<f64>() <= 0.0 {
        return Err(wrong("weights", "all are 0".to_owned(), "give one above 0").into());
    }
    Ok(Law::Choice { values: values.clone(), weights })
}

/// Quantile of the PERT law: beta with parameters 1 + 4 (mode − min) ÷ (max − min) and 1 + 4 (max − mode) ÷ (max − min).
fn pert(min: f64, mode: f64, max: f64, unit: f64) -> f64 {
    let width = max - min;
    let (alpha, beta) = (1.0 + 4.0 * (mode - min) / width, 1.0 + 4.0 * (max - mode) / width);
    // Both parameters lie in [1, 5], so the law exists.
    Beta::new(alpha, beta).map_or(mode, |law| min + width * law.inverse_cdf(unit))
}

fn numeric(value: f64, whole: bool) -> Value {
    if whole { Value::Integer(value.round() as i64) } else { Value::Float(value) }
}

/// Whether `key` is `table` or stands below it.
pub(crate) fn is_within(key: &str, table: &str) -> bool {
    key.strip_prefix(table).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

fn is_law(table: &Table) -> bool {
    LAW_KEYS.iter().any(|key| table.contains_key(*key)) && !table.contains_key("law") && !table.contains_key("file")
}

/// Forgets what `[uncertain]` says of a key that is set to a value.
pub(crate) fn settle(tables: &mut Table, key: &str) {
    let parts: Vec<&str> = key.split('.').map(str::trim).collect();
    let Some(Value::Table(uncertain)) = tables.get_mut("uncertain") else { return };
    let mut table = uncertain;
    // From here on `table` is what stands at the parts walked so far.
    for (depth, part) in parts.iter().enumerate() {
        if depth + 1 == parts.len() || matches!(table.get(*part), Some(Value::Table(inner)) if is_law(inner)) {
            table.remove(*part);
            return;
        }
        match table.get_mut(*part) {
            Some(Value::Table(inner)) => table = inner,
            _ => return,
        }
    }
}

/// Takes the laws out of a scenario's tables: those in place of a value leave the value of a single run behind.
/// `accepts` tells whether the tables, with a value in place, are a scenario.
///
/// # Errors
/// A law that is none, or that draws values the scenario does not take, at the place of the law; whatever else is wrong
/// with the tables, as `accepts` says it.
pub(crate) fn take(tables: &mut Table, accepts: &dyn Fn(&Table) -> Result<()>) -> Result<Vec<Unknown>> {
    let mut found = Vec::new();
    for (name, value) in tables.iter() {
        if let Value::Table(inner) = value
            && !APART.contains(&name.as_str())
        {
            collect(inner, name, "", &mut found)?;
        }
    }
    let in_place = found.len();
    if let Some(Value::Table(inner)) = tables.get("uncertain") {
        collect(inner, "", "uncertain.", &mut found)?;
        if let Some((twice, place)) = found[in_place..]
            .iter()
            .find(|(one, _)| found[..in_place].iter().any(|(other, _)| other.is_settled_by(&one.name)))
        {
            let found = format!("`{}` has a law in its own place too", twice.name);
            return Err(InputError::new(found, "keep one of them").key(place.clone()).into());
        }
    }
    settle_typical(tables, &mut found[..in_place], accepts)?;
    for (unknown, place) in &mut found {
        let mut tried = tables.clone();
        if let Law::Lognormal { whole, .. } | Law::Pert { whole, .. } = &mut unknown.law {
            // A key that takes no fraction gets whole numbers.
            insert(&mut tried, &unknown.name, Some(Value::Float(1.5)));
            *whole |= unknown.name == "client.concurrency" || accepts(&tried).is_err();
        }
        for unit in unknown.probes() {
            for (key, value) in unknown.at(unit) {
                insert(&mut tried, key, Some(value));
            }
            accepts(&tried).map_err(|error| blamed(error, place))?;
        }
    }
    Ok(found.into_iter().map(|(unknown, _)| unknown).collect())
}

/// Puts what one run takes in place of each law. A key that takes no fraction is found by the refusal of one; what is
/// refused beside is wrong without any law.
fn settle_typical(
    tables: &mut Table,
    laws: &mut [(Unknown, String)],
    accepts: &dyn Fn(&Table) -> Result<()>,
) -> Result<()> {
    loop {
        for (unknown, _) in laws.iter() {
            insert(tables, &unknown.name, unknown.typical());
        }
        let Err(error) = accepts(tables) else { return Ok(()) };
        let key = match &error {
            Error::Input(input) => input.key.clone(),
            Error::Impossible(_) | Error::File { .. } => None,
        };
        let Some((unknown, place)) = laws.iter_mut().find(|(unknown, _)| key.as_ref() == Some(&unknown.name)) else {
            return Err(error);
        };
        match &mut unknown.law {
            Law::Lognormal { whole, .. } | Law::Pert { whole, .. } if !*whole => *whole = true,
            _ => return Err(blamed(error, place)),
        }
    }
}

/// An error about a value that a law drew, at the place of the law.
fn blamed(error: Error, place: &str) -> Error {
    match error {
        Error::Input(mut input) => {
            input.key = Some(place.to_owned());
            (input.file, input.line) = (None, None);
            Error::Input(input)
        }
        other => other,
    }
}

/// Finds laws below `table`; `prefix` is the key so far and `place` what stands before it in the file.
fn collect(table: &Table, prefix: &str, place: &str, found: &mut Vec<(Unknown, String)>) -> Result<()> {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            Value::Table(inner) if is_law(inner) => {
                let place = format!("{place}{key}");
                found.push((Unknown::read(&key, inner, &place)?, place));
            }
            Value::Table(inner) => collect(inner, &key, place, found)?,
            other if !place.is_empty() => {
                let remedy = "give { p5, p95 }, { min, mode, max } or { values, weights }";
                return Err(InputError::new(format!("found {other}"), remedy).key(format!("{place}{key}")).into());
            }
            _ => {}
        }
    }
    Ok(())
}

/// Puts a value at a dotted key, making tables on the way. A value of another kind on the way stays: the tables are
/// then refused for it.
fn insert(tables: &mut Table, key: &str, value: Option<Value>) {
    let Some(value) = value else { return };
    let mut parts: Vec<&str> = key.split('.').collect();
    let Some(last) = parts.pop() else { return };
    let mut table = tables;
    for part in parts {
        match table.entry(part).or_insert_with(|| Value::Table(Table::new())) {
            Value::Table(inner) => table = inner,
            _ => return,
        }
    }
    table.insert(last.to_owned(), value);
}

#[cfg(test)]
#[path = "uncertain_tests.rs"]
mod tests;
