//! Checked descriptions of LLMs, hardware, engines, workloads and scenarios: the same names as in `models/`.

pub mod engine;
pub mod sizes;
