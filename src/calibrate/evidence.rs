//! What was read off the engine itself, by its log, its metrics or a benchmark tool, and how it bears on a plateau.

use crate::inspect::{EngineReadings, Held};
use crate::measured::Server;

use super::mechanism::Mechanism;

/// Chance of a log that contradicts what happened: it is of another run, or of another hour.
const ANOTHER_RUN: f64 = 0.01;

/// What is known of the engine that ran the benchmark.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Requests that it runs at once at most: a steady number beside a queue, or the cap that it resolved at start-up.
    pub running_cap: Option<u32>,
    /// What held requests back in the log.
    pub held: Option<Held>,
    /// Tokens of one request and step, the bonus token included.
    pub acceptance: Option<f64>,
    /// Tokens that the KV pool of one replica holds.
    pub kv_pool_tokens: Option<u64>,
}

impl Evidence {
    /// What a log or a snapshot of metrics tells.
    pub fn of_log(readings: &EngineReadings) -> Evidence {
        let resolved = readings.max_running.and_then(|cap| u32::try_from(cap).ok()).filter(|cap| *cap > 0);
        let running_cap = match readings.held {
            Some(Held::Cap { running }) => Some(running.max(1)),
            // More ran than the cap allows: the line is of another start.
            Some(Held::Nothing { most_running }) => resolved.filter(|cap| *cap >= most_running),
            Some(Held::KvPool | Held::Unclear) => None,
            None => resolved,
        };
        Evidence {
            running_cap,
            held: readings.held,
            acceptance: readings.acceptance.filter(|length| *length >= 1.0),
            kv_pool_tokens: readings.kv_pool_tokens.filter(|tokens| *tokens > 0),
        }
    }

    /// What a benchmark tool recorded of the server.
    pub fn of_table(server: Server) -> Evidence {
        Evidence { running_cap: server.running_cap, acceptance: server.acceptance, ..Evidence::default() }
    }

    /// The same, with what it lacks taken from `other`.
    #[must_use]
    pub fn or(self, other: Evidence) -> Evidence {
        Evidence {
            running_cap: self.running_cap.or(other.running_cap),
            held: self.held.or(other.held),
            acceptance: self.acceptance.or(other.acceptance),
            kv_pool_tokens: self.kv_pool_tokens.or(other.kv_pool_tokens),
        }
    }

    /// Logarithm of the chance of what was seen under `mechanism`, in a table with at most `in_flight` requests.
    ///
    /// Only a running cap lets a steady number run beside a queue, and only a full pool holds requests back while it is
    /// full; the other mechanisms make steps longer, and nothing waits for a place.
    pub fn log_likelihood(&self, mechanism: Mechanism, in_flight: u32) -> f64 {
        use Mechanism::{Client, KvPool, RunningCap};
        let agrees = match (self.held, self.running_cap) {
            (Some(Held::Cap { running }), _) if running < in_flight => mechanism == RunningCap,
            (Some(Held::KvPool), _) => mechanism == KvPool,
            // As many ran as the table has in flight, and nothing waited.
            (Some(Held::Nothing { most_running }), _) if most_running >= in_flight => {
                !matches!(mechanism, RunningCap | KvPool | Client)
            }
            (_, Some(cap)) if cap < in_flight => mechanism == RunningCap,
            _ => true,
        };
        if agrees { 0.0 } else { ANOTHER_RUN.ln() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_beside_a_steady_number_is_a_cap_and_nothing_else() {
        let seen = Evidence { held: Some(Held::Cap { running: 8 }), running_cap: Some(8), ..Evidence::default() };
        assert_eq!(seen.log_likelihood(Mechanism::RunningCap, 48), 0.0);
        assert!(seen.log_likelihood(Mechanism::Compute, 48) < -4.0);
        // A cap above what the table has in flight explains nothing in it.
        assert_eq!(seen.log_likelihood(Mechanism::Compute, 8), 0.0);
        let full = Evidence { held: Some(Held::KvPool), ..Evidence::default() };
        assert!(full.log_likelihood(Mechanism::RunningCap, 48) < full.log_likelihood(Mechanism::KvPool, 48));
        let free = Evidence { held: Some(Held::Nothing { most_running: 48 }), ..Evidence::default() };
        assert!(free.log_likelihood(Mechanism::RunningCap, 48) < free.log_likelihood(Mechanism::Compute, 48));
        // A log of light load says nothing of the plateau.
        assert_eq!(free.log_likelihood(Mechanism::RunningCap, 64), 0.0);
        assert_eq!(Evidence::default().log_likelihood(Mechanism::Client, 48), 0.0);
    }

    #[test]
    fn the_resolved_cap_counts_unless_more_ran() {
        let start = "max_total_num_tokens=215040, max_running_requests=8, context_len=32768\n";
        let of = |decode: &str| {
            let text = format!("{start}{decode}");
            Evidence::of_log(&EngineReadings::of_log(text.as_bytes(), std::path::Path::new("log")).unwrap())
        };
        assert_eq!((of("").running_cap, of("").kv_pool_tokens), (Some(8), Some(215_040)));
        assert_eq!(of("Decode batch, #running-req: 4, #queue-req: 0\n").running_cap, Some(8));
        assert_eq!(of("Decode batch, #running-req: 12, #queue-req: 0\n").running_cap, None);
        let seen = of("Decode batch, #running-req: 6, #queue-req: 40\n");
        assert_eq!((seen.running_cap, seen.held), (Some(6), Some(Held::Cap { running: 6 })));
        let full = of("Decode batch, #running-req: 6, token usage: 0.99, #queue-req: 40\n");
        assert_eq!((full.running_cap, full.held), (None, Some(Held::KvPool)));
        let table = Evidence::of_table(Server { acceptance: Some(2.4), running_cap: Some(16) });
        assert_eq!(Evidence::default().or(table).running_cap, Some(16));
    }
}
