//! What follows from a scenario before anything runs: derived sizes, the engine's limits with their arithmetic, priors.

use std::io::{self, Write};

use serde::Serialize;

use crate::cost::CostParameters;
use crate::experiment::Setup;
use crate::report::format::{rate, thousands};

/// What `show SCENARIO` says.
#[derive(Clone, Debug, Serialize)]
pub struct SetupReport {
    scenario: String,
    title: String,
    llm: String,
    hardware: Option<String>,
    replicas: u32,
    gpus_per_replica: u32,
    resident_weight_bytes: f64,
    decode_read_bytes: f64,
    draft_read_bytes: f64,
    kv_bytes_per_token: f64,
    state_bytes_per_request: f64,
    derivation: Vec<String>,
    running_cap: u32,
    kv_pool_tokens: u64,
    arithmetic: Vec<String>,
    messages: Vec<String>,
    priors: Vec<(&'static str, f64)>,
    single_stream_step_ms: f64,
    full_batch_step_ms: f64,
    #[serde(skip)]
    cap_note: String,
}

fn priors(parameters: &CostParameters) -> Vec<(&'static str, f64)> {
    vec![
        ("bandwidth_share", parameters.bandwidth_share),
        ("flops_share", parameters.flops_share),
        ("prefill_flops_share", parameters.prefill_flops_share),
        ("smooth_exponent", parameters.smooth_exponent),
        ("step_gap_s", parameters.step_gap_s),
        ("draft_pass_gap_s", parameters.draft_pass_gap_s),
        ("per_request_s", parameters.per_request_s),
        ("prefill_launch_s", parameters.prefill_launch_s),
        ("eager_launch_s", parameters.eager_launch_s),
    ]
}

impl SetupReport {
    /// The report of a setup.
    pub fn new(setup: &Setup) -> Self {
        let sizes = &setup.sizes;
        let cost = setup.step_cost();
        let step_ms = |batch: u32| crate::units::Span(cost.decode(batch).fixed_attoseconds).as_s() * 1e3;
        SetupReport {
            scenario: setup.scenario.name.clone(),
            title: setup.scenario.tables.title.clone().unwrap_or_else(|| setup.scenario.name.clone()),
            llm: sizes.name.clone(),
            hardware: setup.hardware.as_ref().map(|hardware| hardware.title.clone()),
            replicas: setup.replicas,
            gpus_per_replica: setup.tensor_parallel,
            resident_weight_bytes: sizes.resident_bytes,
            decode_read_bytes: sizes.body_read_bytes + sizes.head_bytes,
            draft_read_bytes: sizes.draft.as_ref().map_or(0.0, |draft| draft.body_read_bytes + sizes.head_bytes),
            kv_bytes_per_token: sizes.kv.stored_bytes_per_token,
            state_bytes_per_request: sizes.state.as_ref().map_or(0.0, |state| state.bytes_per_request),
            derivation: setup.derivation.clone(),
            running_cap: setup.settings.running_cap,
            kv_pool_tokens: setup.settings.kv_pool_tokens,
            arithmetic: setup.limits.as_ref().map(|limits| limits.trail.clone()).unwrap_or_default(),
            messages: setup.limits.as_ref().map(|limits| limits.messages.clone()).unwrap_or_default(),
            priors: priors(&setup.parameters),
            single_stream_step_ms: step_ms(1),
            full_batch_step_ms: step_ms(setup.settings.running_cap),
            cap_note: setup.cap_note(),
        }
    }

    /// As JSON, one object.
    ///
    /// # Errors
    /// What writing gives.
    pub fn write_json(&self, out: &mut impl Write) -> io::Result<()> {
        let mut object = serde_json::to_value(self)?;
        object["priors"] =
            self.priors.iter().map(|(name, value)| ((*name).to_owned(), serde_json::Value::from(*value))).collect();
        serde_json::to_writer_pretty(&mut *out, &object)?;
        writeln!(out)
    }

    /// As text.
    ///
    /// # Errors
    /// What writing gives.
    pub fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        let gigabytes = |bytes: f64| format!("{} GB", rate(bytes / 1e9));
        writeln!(out, "{}\n", self.title)?;
        if let Some(hardware) = &self.hardware {
            writeln!(out, "fleet     {} replicas of {} GPU, {hardware}", self.replicas, self.gpus_per_replica)?;
            writeln!(
                out,
                "model     {}: {} of weights, {} read by a decode pass, {} by a draft pass",
                self.llm,
                gigabytes(self.resident_weight_bytes),
                gigabytes(self.decode_read_bytes),
                gigabytes(self.draft_read_bytes)
            )?;
            writeln!(
                out,
                "          {} bytes of KV per token, {} bytes of recurrent state per request",
                thousands(self.kv_bytes_per_token as u64),
                thousands(self.state_bytes_per_request as u64)
            )?;
            writeln!(out, "limits    {}; KV pool of {} tokens", self.cap_note, thousands(self.kv_pool_tokens))?;
            writeln!(
                out,
                "step      {:.2} ms with 1 request, {:.2} ms with {} (without context)",
                self.single_stream_step_ms, self.full_batch_step_ms, self.running_cap
            )?;
        } else {
            writeln!(out, "fleet     {} GPUs at a fixed rate", self.replicas * self.gpus_per_replica)?;
        }
        if !self.derivation.is_empty() {
            writeln!(out, "\nthe model's sizes, from its config.json")?;
            self.derivation.iter().try_for_each(|line| writeln!(out, "    {line}"))?;
        }
        if !self.arithmetic.is_empty() {
            writeln!(out, "\nthe engine's memory arithmetic")?;
            self.arithmetic.iter().try_for_each(|line| writeln!(out, "    {line}"))?;
        }
        if !self.messages.is_empty() {
            writeln!(out, "\nwhat its log would say")?;
            self.messages.iter().try_for_each(|line| writeln!(out, "    {line}"))?;
        }
        writeln!(out, "\npriors of the step cost (override with --set engine.cost.NAME=…)")?;
        self.priors.iter().try_for_each(|(name, value)| writeln!(out, "    {name} = {value}"))
    }
}
