//! Measured benchmark tables: reading them, and checking them before anything is fitted to them.
//!
//! A table is one configuration: points of concurrency against tokens per second, with what its description
//! says. Functions take text, and opening files is left to the caller; only a folder of results is read here. Nothing here
//! knows of engines or models.

mod about;
mod check;
mod columns;
mod curve;
pub mod import;
mod jobs;
mod outlier;
mod separator;
mod table;

pub use about::{About, AboutJob, Given, read_about};
pub use check::{Finding, Severity, Topic, check};
pub use curve::{Curve, EffectiveBatch, Plateau, Point, capped, effective_batch, expected_noise, knee, plateau};
pub use jobs::{Job, read_jobs};
pub use outlier::{Oddity, OddityKind, oddities};
pub(crate) use separator::{separator, table_reader};
pub use table::{RateKind, Row, Server, Shape, Table, output_tok_per_s, read_table};

#[cfg(test)]
mod tests;
