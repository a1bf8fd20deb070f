//! Checked descriptions of LLMs, hardware, engines, workloads and scenarios: the same names as in `models/`.

mod fields;
pub mod sizes;
pub mod workload;
