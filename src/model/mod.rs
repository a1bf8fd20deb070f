//! Checked descriptions of LLMs, hardware, engines, workloads and scenarios: the same names as in `models/`.

mod llm_check;
pub mod builtin;
pub mod engine;
pub mod hardware;
pub mod llm;
pub mod llm_sizes;
pub mod parse;
pub mod quantisation;
pub mod sizes;
pub mod weights;
