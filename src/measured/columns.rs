//! Which column of a table means what: this project's own names, and those of well-known benchmark scripts.

use crate::error::InputError;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Concurrency,
    /// Tokens per second of the kind that the kind column names.
    Rate,
    Kind,
    OutputRate,
    TotalRate,
    /// Requests per second; times the output length it is the output rate.
    RequestRate,
    InputTokens,
    OutputTokens,
    NumRequests,
    Ttft,
    Tpot,
    Source,
    /// Computed from tpot by the script that wrote the table, so it is no measurement of its own.
    FromTpot,
}

/// Known names in normal form, with the factor that takes the column's unit to the project's.
///
/// vLLM and SGLang print "Output token throughput (tok/s)"; the short names are those of published sweep tables.
/// "Tput Decode" is 1000 / tpot × concurrency and "Tput User" is 1000 / tpot: neither was measured.
const NAMES: &[(&str, Field, f64)] = &[
    ("concurrency", Field::Concurrency, 1.0),
    ("max_concurrency", Field::Concurrency, 1.0),
    ("concurrent_requests", Field::Concurrency, 1.0),
    ("streams", Field::Concurrency, 1.0),
    ("throughput_tok_s", Field::Rate, 1.0),
    ("throughput_kind", Field::Kind, 1.0),
    ("output_tok_s", Field::OutputRate, 1.0),
    ("output_tok_per_s", Field::OutputRate, 1.0),
    ("output_tokens_s", Field::OutputRate, 1.0),
    ("output_throughput", Field::OutputRate, 1.0),
    ("output_throughput_tok_s", Field::OutputRate, 1.0),
    ("output_token_throughput_tok_s", Field::OutputRate, 1.0),
    ("total_tok_s", Field::TotalRate, 1.0),
    ("total_tok_per_s", Field::TotalRate, 1.0),
    ("total_throughput", Field::TotalRate, 1.0),
    ("total_throughput_tok_s", Field::TotalRate, 1.0),
    ("total_token_throughput_tok_s", Field::TotalRate, 1.0),
    ("req_tput", Field::RequestRate, 1.0),
    ("req_tput_rps", Field::RequestRate, 1.0),
    ("request_rate", Field::RequestRate, 1.0),
    ("requests_per_s", Field::RequestRate, 1.0),
    ("request_throughput", Field::RequestRate, 1.0),
    ("request_throughput_req_s", Field::RequestRate, 1.0),
    ("input_tokens", Field::InputTokens, 1.0),
    ("input_len", Field::InputTokens, 1.0),
    ("prompt_tokens", Field::InputTokens, 1.0),
    ("isl", Field::InputTokens, 1.0),
    ("output_tokens", Field::OutputTokens, 1.0),
    ("output_len", Field::OutputTokens, 1.0),
    ("osl", Field::OutputTokens, 1.0),
    ("num_requests", Field::NumRequests, 1.0),
    ("num_prompts", Field::NumRequests, 1.0),
    ("n_req", Field::NumRequests, 1.0),
    ("n_requests", Field::NumRequests, 1.0),
    ("ttft_ms", Field::Ttft, 1.0),
    ("ttft", Field::Ttft, 1.0),
    ("mean_ttft_ms", Field::Ttft, 1.0),
    ("ttft_s", Field::Ttft, 1e3),
    ("tpot_ms", Field::Tpot, 1.0),
    ("tpot", Field::Tpot, 1.0),
    ("mean_tpot_ms", Field::Tpot, 1.0),
    ("tpot_s", Field::Tpot, 1e3),
    ("source", Field::Source, 1.0),
    ("tput_decode", Field::FromTpot, 1.0),
    ("tput_decode_tps", Field::FromTpot, 1.0),
    ("tput_user", Field::FromTpot, 1.0),
    ("tput_user_tps", Field::FromTpot, 1.0),
];

/// Columns of request traces that no measured table has, in normal form.
const TRACE_COLUMNS: [&str; 7] = [
    "contexttokens",
    "generatedtokens",
    "request_tokens",
    "response_tokens",
    "num_prefill_tokens",
    "num_decode_tokens",
    "arrival_timestamp",
];

/// The columns of one table.
#[derive(Debug)]
pub(super) struct Columns {
    found: Vec<(Field, usize, f64)>,
    headers: Vec<String>,
    /// Columns that say nothing the program uses, as written.
    pub unused: Vec<String>,
}

impl Columns {
    /// Recognises `headers`; two columns of one meaning are an error, since either could be the right one.
    pub fn of(headers: &csv::StringRecord) -> Result<Columns, InputError> {
        let mut columns = Columns { found: Vec::new(), headers: Vec::new(), unused: Vec::new() };
        for (index, header) in headers.iter().enumerate() {
            let name = normal(header);
            match NAMES.iter().find(|(known, ..)| *known == name) {
                None | Some((_, Field::FromTpot, _)) => columns.unused.push(header.to_owned()),
                Some(&(_, field, scale)) => {
                    if let Some(other) = columns.index(field) {
                        let remedy = format!("keep one of the two columns `{}` and `{header}`", &headers[other]);
                        return Err(InputError::new("two columns mean the same", remedy).key(header).line(1));
                    }
                    columns.found.push((field, index, scale));
                }
            }
            columns.headers.push(header.to_owned());
        }
        Ok(columns)
    }

    /// Position of the column that holds `field`.
    pub fn index(&self, field: Field) -> Option<usize> {
        self.found.iter().find(|(found, ..)| *found == field).map(|(_, index, _)| *index)
    }

    /// Header of the column that holds `field` and the factor to the project's unit.
    pub fn header(&self, field: Field) -> Option<(&str, f64)> {
        self.found
            .iter()
            .find(|(found, ..)| *found == field)
            .map(|(_, index, scale)| (self.headers[*index].as_str(), *scale))
    }

    /// The error for a missing column `name`, naming a header that may be it.
    pub fn missing(&self, name: &str, why: &str) -> InputError {
        if let Some(column) = self.headers.iter().find(|header| TRACE_COLUMNS.contains(&normal(header).as_str())) {
            let remedy = "give a table of concurrency and throughput, and the trace as `job.trace`";
            return InputError::new(format!("the column {column} belongs to a request trace, not a table"), remedy)
                .line(1);
        }
        let near = crate::error::nearest(name, self.unused.iter().map(String::as_str));
        let remedy = match near {
            Some(near) => format!("{why}; is it `{near}`? the columns are: {}", self.headers.join(", ")),
            None => format!("{why}; the columns are: {}", self.headers.join(", ")),
        };
        InputError::new("missing column", remedy).key(name).line(1)
    }
}

/// Lower case, with every run of other characters than letters and digits as one underscore.
fn normal(header: &str) -> String {
    let lower = header.to_lowercase();
    lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect::<Vec<_>>().join("_")
}
