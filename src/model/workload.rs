//! Descriptions of what is asked of the fleet: length laws, arrivals and order, as they stand in a scenario.
//!
//! Read from [`toml::Value`] by hand: derived untagged enums would answer a misspelt key with "no variant matched".
//! Ranges are checked where the law is built.

use std::path::{Path, PathBuf};

use include_dir::{Dir, include_dir};
use toml::{Table, Value};

use super::fields::{Fields, number, wrong_type};
use crate::error::{Error, InputError, Result, nearest};

/// `models/lengths/`, compiled in.
static LENGTH_FILES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/models/lengths");

/// A law of lengths as described; all lengths in tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum LengthLaw {
    /// One length.
    Constant {
        /// The length.
        tokens: f64,
    },
    /// Lognormal.
    Lognormal {
        /// Median or mean.
        centre: Centre,
        /// Standard deviation of the natural logarithm.
        sigma: f64,
    },
    /// Gamma.
    Gamma {
        /// Mean.
        mean: f64,
        /// Coefficient of variation.
        cv: f64,
    },
    /// Weibull by median or mean.
    Weibull {
        /// Shape; 1 is the exponential law.
        shape: f64,
        /// Median or mean.
        centre: Centre,
    },
    /// Weibull by scale: survival exp(-(x/scale)^shape).
    WeibullScale {
        /// Shape; 1 is the exponential law.
        shape: f64,
        /// Scale.
        scale: f64,
    },
    /// Pareto: survival (minimum/x)^index.
    Pareto {
        /// Least length.
        minimum: f64,
        /// Tail index.
        index: f64,
    },
    /// Bins.
    Histogram {
        /// Rising, one more than counts.
        edges: Vec<f64>,
        /// Weight of each bin, in any unit.
        counts: Vec<f64>,
    },
    /// Values that were seen.
    Empirical {
        /// The lengths, in any order.
        values: Vec<f64>,
    },
    /// One column of a table or trace.
    File {
        /// Path, relative paths already resolved.
        file: PathBuf,
        /// Column or JSON key.
        column: String,
        /// Leave out rows without a length instead of refusing the file.
        skip_faulty: bool,
    },
    /// The finished part of a job, corrected for what still runs and what a cap cut (Kaplan and Meier).
    Finished {
        /// Records of the finished requests, in any format of a trace; relative paths already resolved.
        file: PathBuf,
        /// Records of the running requests, with their lengths so far.
        running: Option<PathBuf>,
        /// The law of lengths above the longest that was seen; absent, there are none.
        beyond: Option<Box<LengthLaw>>,
    },
    /// A weighted sum.
    Mixture {
        /// Share (in any unit) and law.
        parts: Vec<(f64, LengthLaw)>,
    },
    /// min(X, `truncate_tokens`).
    Truncated {
        /// The law of X.
        law: Box<LengthLaw>,
        /// The cut.
        truncate_tokens: f64,
    },
}

/// Where a law lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Centre {
    /// By its median, tokens.
    Median(f64),
    /// By its mean, tokens.
    Mean(f64),
}

/// When requests arrive, as described.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ArrivalLaw {
    /// All at once, or whenever the client has a free place.
    AtOnce,
    /// Independent exponential gaps.
    Poisson {
        /// Mean rate, requests per second.
        rate_per_s: f64,
    },
    /// Independent gamma gaps.
    Gamma {
        /// Mean rate, requests per second.
        rate_per_s: f64,
        /// Coefficient of variation of the gaps; above 1 is burstier than Poisson.
        cv: f64,
    },
    /// The times of the trace.
    Trace {
        /// Factor on every time: 0.5 is twice the load.
        time_scale: f64,
    },
}

/// In which order requests are submitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// As in the job file.
    #[default]
    File,
    /// A seeded random permutation.
    Shuffled,
    /// By output length under the cap, longest first; what a scheduler with perfect foresight would do.
    LongestFirst,
}

const LAWS: [&str; 8] = ["constant", "lognormal", "gamma", "weibull", "pareto", "histogram", "empirical", "mixture"];

impl LengthLaw {
    /// The law that `value` describes: a number, a built-in name or path of a law file, or a table. `key` is its place
    /// for errors, `folder` what relative paths start from.
    ///
    /// # Errors
    ///
    /// Unknown, missing or superfluous keys, wrong types, unknown laws and names; an unreadable law file.
    pub fn from_toml(value: &Value, key: &str, folder: &Path) -> Result<LengthLaw> {
        match value {
            Value::Integer(_) | Value::Float(_) => Ok(LengthLaw::Constant { tokens: number(value, key)? }),
            Value::String(name) => LengthLaw::named(name, key, folder),
            Value::Table(table) => LengthLaw::from_fields(Fields::new(table, key), folder),
            other => Err(wrong_type(other, "a number, a name or a table { law = … }", key).into()),
        }
    }

    /// Names of the built-in law files, sorted.
    pub fn built_in() -> Vec<&'static str> {
        let stems = LENGTH_FILES.files().filter_map(|file| file.path().file_stem()?.to_str());
        let mut names: Vec<&str> = stems.collect();
        names.sort_unstable();
        names
    }

    /// A law file by path, else by built-in name.
    fn named(name: &str, key: &str, folder: &Path) -> Result<LengthLaw> {
        let path = folder.join(name);
        let (text, file, inner) = if path.is_file() {
            let inner = path.parent().map(Path::to_owned).unwrap_or_default();
            (crate::files::read_to_string(&path)?, path.display().to_string(), inner)
        } else if let Some(file) = LENGTH_FILES.get_file(format!("{name}.toml")) {
            let file_name = format!("models/lengths/{name}.toml");
            (file.contents_utf8().unwrap_or_default().to_owned(), file_name, PathBuf::new())
        } else {
            let known = LengthLaw::built_in();
            let remedy = match nearest(name, known.iter().copied()) {
                Some(near) => format!("did you mean \"{near}\"?"),
                None => format!("built in are {}; or give a path to a law file", known.join(", ")),
            };
            return Err(InputError::new(format!("no length law named \"{name}\""), remedy).key(key).into());
        };
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            let before = error.span().map_or(0, |span| span.start);
            let line = text[..before].matches('\n').count() as u64 + 1;
            InputError::new(error.message(), "a law file is TOML: law = \"lognormal\" and its keys")
                .line(line)
                .file(&file)
        })?;
        LengthLaw::from_fields(Fields::new(&table, ""), &inner).map_err(|error| match error {
            Error::Input(error) => Error::Input(error.file(file)),
            other => other,
        })
    }

    fn from_fields(mut fields: Fields, folder: &Path) -> Result<LengthLaw> {
        let law = match fields.text("law")? {
            Some(law) => law,
            None if fields.has("finished") => {
                let file = fields.needed("finished", Fields::text, "the file of finished requests")?;
                let running = fields.text("running")?.map(|path| folder.join(path));
                let beyond = fields.value("beyond");
                let beyond_key = fields.path("beyond");
                let beyond = beyond.map(|law| LengthLaw::from_toml(law, &beyond_key, folder)).transpose()?;
                let law = LengthLaw::Finished { file: folder.join(file), running, beyond: beyond.map(Box::new) };
                return fields.truncated(law);
            }
            None => match fields.text("file")? {
                Some(file) => {
                    let column = fields.needed("column", Fields::text, "the column that holds the lengths")?;
                    let skip_faulty = fields.flag("skip_faulty_rows")?.unwrap_or(false);
                    let law = LengthLaw::File { file: folder.join(file), column: column.to_owned(), skip_faulty };
                    return fields.truncated(law);
                }
                None => {
                    fields.finish_unless_missing("law")?;
                    let remedy = format!("law = one of {}; or file and column; or finished", LAWS.join(", "));
                    return Err(InputError::new("no law", remedy).key(fields.key.clone()).into());
                }
            },
        };
        let description = match law {
            "constant" => LengthLaw::Constant { tokens: fields.needed_number("tokens")? },
            "lognormal" => LengthLaw::Lognormal { centre: fields.centre()?, sigma: fields.needed_number("sigma")? },
            "gamma" => LengthLaw::Gamma { mean: fields.needed_number("mean")?, cv: fields.needed_number("cv")? },
            "weibull" => {
                let shape = fields.needed_number("shape")?;
                match fields.number("scale")? {
                    Some(scale) => LengthLaw::WeibullScale { shape, scale },
                    None => LengthLaw::Weibull { shape, centre: fields.centre()? },
                }
            }
            "pareto" => {
                LengthLaw::Pareto { minimum: fields.needed_number("minimum")?, index: fields.needed_number("index")? }
            }
            "histogram" => LengthLaw::Histogram {
                edges: fields.needed("edges", Fields::numbers, "rising bin edges in tokens")?,
                counts: fields.needed("counts", Fields::numbers, "one count per bin")?,
            },
            "empirical" => {
                LengthLaw::Empirical { values: fields.needed("values", Fields::numbers, "the lengths that were seen")? }
            }
            "mixture" => LengthLaw::Mixture { parts: fields.parts(folder)? },
            unknown => {
                let remedy = match nearest(unknown, LAWS) {
                    Some(near) => format!("did you mean \"{near}\"?"),
                    None => format!("known laws are {}", LAWS.join(", ")),
                };
                return Err(InputError::new(format!("no law \"{unknown}\""), remedy).key(fields.path("law")).into());
            }
        };
        fields.truncated(description)
    }
}

impl ArrivalLaw {
    /// The arrivals that `value` describes: `"at_once"`, `"trace"`, or a table `{ law = "poisson", rate_per_s = 5 }`,
    /// `{ law = "gamma", rate_per_s = 5, cv = 3 }`, `{ law = "trace", time_scale = 0.5 }`.
    ///
    /// # Errors
    ///
    /// Unknown, missing or superfluous keys, wrong types, unknown laws.
    pub fn from_toml(value: &Value, key: &str) -> Result<ArrivalLaw> {
        let table = match value {
            Value::String(law) => Table::from_iter([("law".to_owned(), Value::String(law.clone()))]),
            Value::Table(table) => table.clone(),
            other => return Err(wrong_type(other, "a name or a table { law = … }", key).into()),
        };
        let mut fields = Fields::new(&table, key);
        let law = fields.needed("law", Fields::text, "at_once, poisson, gamma or trace")?;
        let arrivals = match law {
            "at_once" => ArrivalLaw::AtOnce,
            "poisson" => ArrivalLaw::Poisson { rate_per_s: fields.needed_number("rate_per_s")? },
            "gamma" => {
                ArrivalLaw::Gamma { rate_per_s: fields.needed_number("rate_per_s")?, cv: fields.needed_number("cv")? }
            }
            "trace" => ArrivalLaw::Trace { time_scale: fields.number("time_scale")?.unwrap_or(1.0) },
            unknown => return Err(unknown_word(unknown, &["at_once", "poisson", "gamma", "trace"], key)),
        };
        fields.finish()?;
        Ok(arrivals)
    }
}

impl Order {
    /// The order named `word`: `file`, `shuffled` or `longest_first`.
    ///
    /// # Errors
    ///
    /// Any other word.
    pub fn from_word(word: &str, key: &str) -> Result<Order> {
        match word {
            "file" => Ok(Order::File),
            "shuffled" => Ok(Order::Shuffled),
            "longest_first" => Ok(Order::LongestFirst),
            unknown => Err(unknown_word(unknown, &["file", "shuffled", "longest_first"], key)),
        }
    }
}

fn unknown_word(word: &str, known: &[&str], key: &str) -> Error {
    let remedy = match nearest(word, known.iter().copied()) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None => format!("one of {}", known.join(", ")),
    };
    InputError::new(format!("\"{word}\" is not known"), remedy).key(key).into()
}

impl<'a> Fields<'a> {
    fn centre(&mut self) -> Result<Centre> {
        match (self.number("median")?, self.number("mean")?) {
            (Some(median), None) => Ok(Centre::Median(median)),
            (None, Some(mean)) => Ok(Centre::Mean(mean)),
            (Some(_), Some(_)) => {
                Err(InputError::new("both median and mean", "give one of them").key(self.path("mean")).into())
            }
            (None, None) => {
                self.finish_unless_missing("median")?;
                Err(InputError::new("missing", "give a median or a mean, in tokens").key(self.path("median")).into())
            }
        }
    }

    fn parts(&mut self, folder: &Path) -> Result<Vec<(f64, LengthLaw)>> {
        let items = self.needed("parts", Fields::array, "a list of laws, each with its share")?;
        let path = self.path("parts");
        let parse = |(place, item): (usize, &'a Value)| {
            let key = format!("{path}[{place}]");
            let Value::Table(table) = item else {
                return Err(wrong_type(item, "a table { share = …, law = … }", &key).into());
            };
            let mut fields = Fields::new(table, &key);
            let share = fields.needed_number("share")?;
            Ok((share, LengthLaw::from_fields(fields, folder)?))
        };
        items.iter().enumerate().map(parse).collect()
    }

    fn truncated(mut self, law: LengthLaw) -> Result<LengthLaw> {
        let truncate = self.number("truncate_tokens")?;
        self.finish()?;
        Ok(match truncate {
            Some(truncate_tokens) => LengthLaw::Truncated { law: Box::new(law), truncate_tokens },
            None => law,
        })
    }
}

#[cfg(test)]
#[path = "workload_tests.rs"]
mod tests;
