//! `makespan`: how long a batch-generation job takes, why its throughput plateaus, and what to change.
//!
//! A discrete-event simulator of LLM inference serving under continuous batching. Modules in import order: a module
//! uses only those above it.

pub mod error;
pub mod files;
pub mod random;
pub mod stats;
pub mod units;

pub mod format;

pub mod shard;

pub mod measured;
pub mod model;
pub mod workload;

pub mod inspect;

pub mod cost;

pub mod engine;

pub mod simulation;

pub mod experiment;

pub mod calibrate;

pub mod plan;

pub mod report;
