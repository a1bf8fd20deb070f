//! Ranges and combinations of a scenario's keys, as far as they do not depend on a description.

use super::*;
use crate::error::Result;

impl Scenario {
    fn positive(&self, key: &str, value: Option<f64>, most: f64) -> Result<()> {
        match value {
            Some(value) if !(value > 0.0 && value <= most) => {
                Err(self.error(key, format!("found {value}"), format!("give a number above 0 and at most {most}")))
            }
            _ => Ok(()),
        }
    }

    fn not_negative(&self, key: &str, value: Option<f64>, most: f64) -> Result<()> {
        match value {
            Some(value) if !(value >= 0.0 && value <= most) => {
                Err(self.error(key, format!("found {value}"), format!("give a number between 0 and {most}")))
            }
            _ => Ok(()),
        }
    }

    fn whole(&self, key: &str, value: Option<u64>, most: u64) -> Result<()> {
        match value {
            Some(value) if value == 0 || value > most => {
                Err(self.error(key, format!("found {value}"), format!("give a whole number between 1 and {most}")))
            }
            _ => Ok(()),
        }
    }

    /// Ranges of everything that does not depend on anything else.
    pub(super) fn check(&self) -> Result<()> {
        const TOKENS: u64 = 1 << 30;
        let Tables { job, fleet, client, engine, benchmark, .. } = &self.tables;
        self.whole("job.requests", job.requests, 1_000_000_000)?;
        self.whole("job.max_tokens", job.max_tokens, TOKENS)?;
        self.whole("job.context_tokens", job.context_tokens, TOKENS)?;
        match (&job.trace, &job.prompt_tokens, &job.output_tokens) {
            (Some(_), None, None) | (None, Some(_), Some(_)) => {}
            (Some(_), ..) => {
                return Err(self.error(
                    "job.trace",
                    "a trace and a law of lengths",
                    "give either a trace, or prompt_tokens and output_tokens",
                ));
            }
            (None, prompt, _) => {
                let key = if prompt.is_none() { "job.prompt_tokens" } else { "job.output_tokens" };
                return Err(self.error(key, "missing", "give a law of lengths, a number, or a trace in job.trace"));
            }
        }
        if job.trace.is_some() {
            if let Some(correlation) = job.rank_correlation {
                return Err(self.error(
                    "job.rank_correlation",
                    format!("found {correlation} beside a trace"),
                    "rows of a trace keep their own correlation: leave it out",
                ));
            }
        } else {
            let belonging = [
                ("job.rows", job.rows.is_some()),
                ("job.skip_empty_rows", job.skip_empty_rows.is_some()),
                ("job.skip_faulty_rows", job.skip_faulty_rows.is_some()),
                ("job.tokenizer", job.tokenizer.is_some()),
            ];
            if let Some((key, _)) = belonging.into_iter().find(|(_, given)| *given) {
                return Err(self.error(key, "found without a trace", "it belongs to job.trace: leave it out"));
            }
            if job.requests.is_none() {
                return Err(self.error("job.requests", "missing", "give the number of requests"));
            }
        }
        if let Some(napkin) = job.napkin {
            self.positive("job.napkin.tok_per_s_per_gpu", Some(napkin.tok_per_s_per_gpu), 1e9)?;
            self.positive("job.napkin.mean_output_tokens", Some(napkin.mean_output_tokens), 1e9)?;
        }
        self.whole("fleet.gpus", Some(u64::from(fleet.gpus)), 4096)?;
        self.whole("fleet.tensor_parallel", fleet.tensor_parallel.map(u64::from), 64)?;
        if let Some(root) = &fleet.pcie_root {
            self.whole("fleet.pcie_root.gpus", Some(u64::from(root.gpus)), 64)?;
            self.positive("fleet.pcie_root.h2d_bytes_per_s", Some(root.h2d_bytes_per_s), 1e15)?;
            self.positive("fleet.pcie_root.d2h_bytes_per_s", Some(root.d2h_bytes_per_s), 1e15)?;
            self.positive("fleet.pcie_root.both_bytes_per_s", Some(root.both_bytes_per_s), 1e15)?;
        }
        let ranks = fleet.tensor_parallel.unwrap_or(1);
        if fleet.gpus % ranks != 0 {
            return Err(self.error(
                "fleet.tensor_parallel",
                format!("{} GPUs do not divide into replicas of {ranks}", fleet.gpus),
                "gpus must be a multiple of tensor_parallel",
            ));
        }
        self.not_negative("fleet.speed_spread", fleet.speed_spread, 0.5)?;
        self.not_negative("fleet.startup_s", fleet.startup_s, 1e6)?;
        self.positive("fleet.power_limit_w", fleet.power_limit_w, 10_000.0)?;
        self.not_negative("client.submit_interval_s", client.submit_interval_s, 3600.0)?;
        if self.concurrency()?.is_none() && client.per.is_some() {
            let remedy = "leave it out, or give client.concurrency a number";
            return Err(self.error("client.per", "found without a limit on requests in flight", remedy));
        }
        if let Some(benchmark) = benchmark {
            self.whole("benchmark.prompt_tokens", benchmark.prompt_tokens, TOKENS)?;
            self.whole("benchmark.output_tokens", benchmark.output_tokens, TOKENS)?;
            self.whole("benchmark.waves", benchmark.waves, 10_000)?;
        }
        self.check_engine(engine)
    }

    fn check_engine(&self, engine: &EngineTable) -> Result<()> {
        const MANY: u64 = 1 << 40;
        let whole = [
            ("max_running", engine.max_running, 1 << 20),
            ("kv_pool_tokens", engine.kv_pool_tokens, MANY),
            ("state_slots", engine.state_slots, 1 << 20),
            ("state_slots_per_request", engine.state_slots_per_request, 1024),
            ("state_slots_held_per_request", engine.state_slots_held_per_request, 1024),
            ("max_prefill_tokens", engine.max_prefill_tokens, 1 << 24),
            ("cuda_graph_max_bs", engine.cuda_graph_max_bs, 1 << 16),
            ("max_running_requests", engine.max_running_requests, 1 << 20),
            ("page_size", engine.page_size, 1 << 16),
            ("max_mamba_cache_size", engine.max_mamba_cache_size, 1 << 20),
            ("max_num_seqs", engine.max_num_seqs, 1 << 20),
            ("max_num_batched_tokens", engine.max_num_batched_tokens, 1 << 24),
            ("block_size", engine.block_size, 1 << 16),
            ("num_gpu_blocks_override", engine.num_gpu_blocks_override, 1 << 32),
            ("batch_size", engine.batch_size, 1 << 16),
        ];
        for (key, value, most) in whole {
            self.whole(&format!("engine.{key}"), value, most)?;
        }
        let shares = [
            ("mem_fraction", engine.mem_fraction),
            ("mem_fraction_static", engine.mem_fraction_static),
            ("gpu_memory_utilization", engine.gpu_memory_utilization),
        ];
        for (key, value) in shares {
            self.positive(&format!("engine.{key}"), value, 1.0)?;
        }
        self.positive("engine.mamba_full_memory_ratio", engine.mamba_full_memory_ratio, 100.0)?;
        self.positive("engine.schedule_conservativeness", engine.schedule_conservativeness, 10.0)?;
        self.positive("engine.activation_bytes", engine.activation_bytes, 1e13)?;
        self.positive("engine.tok_per_s_per_gpu", engine.tok_per_s_per_gpu, 1e9)?;
        self.not_negative("engine.watermark", engine.watermark, 0.99)?;
        if let Some(size) = engine.chunked_prefill_size
            && (size == 0 || !(-1..=1 << 24).contains(&size))
        {
            return Err(self.error(
                "engine.chunked_prefill_size",
                format!("found {size}"),
                "give a whole number of tokens of at least 1, or -1 to read prompts whole",
            ));
        }
        if let (Some(reserved), Some(held)) = (engine.state_slots_per_request, engine.state_slots_held_per_request)
            && held > reserved
        {
            return Err(self.error(
                "engine.state_slots_held_per_request",
                format!("{held} held of {reserved} reserved"),
                "a request holds at most what is reserved for it",
            ));
        }
        Ok(())
    }
}
