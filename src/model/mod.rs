//! Checked descriptions of LLMs, hardware, engines, workloads and scenarios: the same names as in `models/`.

pub mod builtin;
mod config_json;
pub mod engine;
mod fields;
pub mod hardware;
pub mod llm;
mod llm_check;
mod llm_sizes;
pub mod parse;
pub mod quantisation;
pub mod scenario;
pub mod sizes;
pub mod uncertain;
mod weights;
pub mod workload;

pub use config_json::Configured;
