//! The price of a step: a smooth maximum of weight reading and compute, plus what adds to it.
//!
//! A decode step of n requests that hold X tokens of context together costs an affine function of X. Given the batch,
//! the context grows by a constant per step, so k steps are an arithmetic series and cost O(1).

use std::cell::RefCell;

use crate::cost::{CapturedGraphs, Cause, CostParameters, Ledger, StepTable};
use crate::model::sizes::{ExpertSizes, ModelSizes};
use crate::units::{ATTOSECONDS_PER_S, Span, attoseconds};

/// Fractions of a token are counted in units of 1/65536: with speculation a request's context grows by a fraction.
pub const CONTEXT_UNIT_BITS: u32 = 16;

/// What a [`StepCost`] is built from.
pub struct StepCostInputs<'a> {
    /// Sizes of the model.
    pub sizes: &'a ModelSizes,
    /// Nominal memory bandwidth of one GPU, bytes/s.
    pub hbm_bytes_per_s: f64,
    /// Nominal dense matrix rate of one GPU for the model's arithmetic, FLOP/s.
    pub flops_per_s: f64,
    /// GPUs that share one replica.
    pub tensor_parallel: u32,
    /// Seconds of communication in a pass of so many tokens, of which so many rows meet the head; zero for one GPU.
    pub communication_s: Box<dyn Fn(f64, f64) -> f64 + Send + Sync + 'a>,
    /// Efficiencies and fixed costs.
    pub parameters: &'a CostParameters,
    /// Draft passes per step; 0 without speculation.
    pub draft_steps: u32,
    /// Recurrent states moved per request and step without speculation, and on top of the draft positions with it.
    pub state_moves: (f64, f64),
    /// Captured graphs.
    pub graphs: CapturedGraphs,
    /// True where the drafter also reads the prompt during prefill.
    pub draft_prefill: bool,
    /// Decode step times that replace the roofline.
    pub step_table: Option<&'a StepTable>,
}

/// The price of decode steps at one batch size.
#[derive(Clone, Debug)]
pub struct DecodeCost {
    /// Causes of everything that does not depend on the context.
    pub fixed: Ledger,
    /// Sum of `fixed`, attoseconds.
    pub fixed_attoseconds: u128,
    /// Affine pieces over the total context, ascending by their upper end; the last has no end.
    segments: Vec<Segment>,
}

/// One affine piece: `fixed + extra + slope · context`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Largest total context, in context units, that this piece covers.
    pub last_context: u64,
    /// Attoseconds on top of the fixed cost (a launch that hides the GPU's work, a table's intercept).
    pub extra_attoseconds: u128,
    /// Attoseconds per context unit.
    pub slope_attoseconds: u64,
}

impl DecodeCost {
    /// The piece that covers a total context (in context units).
    #[inline]
    pub fn segment(&self, context: u64) -> Segment {
        if self.segments.len() == 1 {
            return self.segments[0];
        }
        let at = self.segments.partition_point(|segment| segment.last_context < context);
        self.segments[at.min(self.segments.len() - 1)]
    }
}

/// Memory and compute time of one weight pass, seconds.
#[derive(Clone, Copy, Debug)]
struct Pass {
    memory_s: f64,
    compute_s: f64,
}

impl Pass {
    /// Smooth maximum (wᵖ + cᵖ)^(1/p); p = 1 is the sum, p → ∞ the maximum.
    fn time_s(self, exponent: f64) -> f64 {
        let high = self.memory_s.max(self.compute_s);
        if high <= 0.0 {
            return 0.0;
        }
        let low = self.memory_s.min(self.compute_s);
        high * (1.0 + (low / high).powf(exponent)).powf(1.0 / exponent)
    }

    /// Share of the time that memory is responsible for.
    fn memory_share(self, exponent: f64) -> f64 {
        let memory = self.memory_s.powf(exponent);
        let sum = memory + self.compute_s.powf(exponent);
        if sum > 0.0 { memory / sum } else { 1.0 }
    }
}

/// Prices the steps of one replica.
#[derive(Debug)]
pub struct StepCost {
    parameters: CostParameters,
    prefill_launch: Span,
    eager_launch: Span,
    sizes: ModelSizes,
    bytes_per_s: f64,
    flops_per_s: f64,
    draft_steps: u32,
    state_moves: f64,
    graphs: CapturedGraphs,
    draft_prefill: bool,
    /// Attoseconds per context unit in a decode step.
    context_slope: u64,
    /// Slower than nominal by this factor.
    slowness: f64,
    /// `None` for one GPU.
    communication: Option<Communication>,
    step_table: Option<StepTable>,
    decode: RefCell<Vec<Option<std::rc::Rc<DecodeCost>>>>,
    dense_prefill_s: RefCell<Vec<f64>>,
}

/// Communication tabulated at powers of two of the tokens in a pass: decode rows meet the head, prompts do not.
#[derive(Debug)]
struct Communication {
    decode_s: Vec<f64>,
    prefill_s: Vec<f64>,
}

impl Communication {
    const STEPS_PER_OCTAVE: f64 = 4.0;

    fn tabulate(time_s: &dyn Fn(f64, f64) -> f64) -> Self {
        let at = |index: i32| 2f64.powf(f64::from(index) / Self::STEPS_PER_OCTAVE);
        Communication {
            decode_s: (0..=80).map(|i| time_s(at(i), at(i))).collect(),
            prefill_s: (0..=80).map(|i| time_s(at(i), 1.0)).collect(),
        }
    }

    fn look_up(table: &[f64], tokens: f64) -> f64 {
        let position = (tokens.max(1.0).log2() * Self::STEPS_PER_OCTAVE).min(table.len() as f64 - 1.0);
        let low = position.floor() as usize;
        let high = (low + 1).min(table.len() - 1);
        table[low] + (table[high] - table[low]) * (position - low as f64)
    }
}

impl StepCost {
    /// The price list of one replica.
    pub fn new(inputs: StepCostInputs<'_>) -> Self {
        let ranks = f64::from(inputs.tensor_parallel);
        let parameters = inputs.parameters;
        let sizes = inputs.sizes.clone();
        let bytes_per_s = inputs.hbm_bytes_per_s * parameters.bandwidth_share * ranks;
        let flops_per_s = inputs.flops_per_s * ranks;
        // KV heads that cannot be split any further are read by several ranks each.
        let kv_ranks = if sizes.kv.replicated { 1.0 } else { ranks.min(f64::from(sizes.kv.heads)) };
        let kv_bytes_per_s = inputs.hbm_bytes_per_s * parameters.bandwidth_share * kv_ranks;
        let draft_kv = sizes.draft.as_ref().map_or(0.0, |draft| draft.kv_bytes_per_token);
        let kv_bytes = sizes.kv.read_bytes_per_token + f64::from(inputs.draft_steps) * draft_kv;
        let width = f64::from(inputs.draft_steps) + 1.0;
        let attention = Pass {
            memory_s: kv_bytes / kv_bytes_per_s,
            compute_s: sizes.attention_flops_per_pair * width / (flops_per_s * parameters.flops_share),
        };
        let context_units = f64::from(1u32 << CONTEXT_UNIT_BITS);
        let context_slope =
            (attention.time_s(parameters.smooth_exponent) / context_units * ATTOSECONDS_PER_S).round() as u64;
        let (plain, beside_drafts) = inputs.state_moves;
        let state_moves = if inputs.draft_steps == 0 { plain } else { width + beside_drafts };
        StepCost {
            parameters: parameters.clone(),
            prefill_launch: Span(attoseconds(parameters.prefill_launch_s)),
            eager_launch: Span(attoseconds(parameters.eager_launch_s)),
            bytes_per_s,
            flops_per_s,
            draft_steps: inputs.draft_steps,
            state_moves,
            graphs: inputs.graphs,
            draft_prefill: inputs.draft_prefill,
            context_slope,
            slowness: 1.0,
            communication: (inputs.tensor_parallel > 1).then(|| Communication::tabulate(&*inputs.communication_s)),
            step_table: inputs.step_table.cloned(),
            decode: RefCell::new(Vec::new()),
            dense_prefill_s: RefCell::new(Vec::new()),
            sizes,
        }
    }

    /// The same replica, slower by `slowness` (1.02 = every GPU time 2% longer).
    #[must_use]
    pub fn slowed(mut self, slowness: f64) -> Self {
        self.slowness = slowness;
        self.context_slope = (self.context_slope as f64 * slowness).round() as u64;
        self.decode.get_mut().clear();
        self.dense_prefill_s.get_mut().clear();
        self
    }

    /// Tokens per request in a decode pass: 1, or the drafted ones and the bonus token.
    #[inline]
    pub fn verify_width(&self) -> u32 {
        self.draft_steps + 1
    }

    /// Captured graphs.
    pub fn graphs(&self) -> &CapturedGraphs {
        &self.graphs
    }

    /// Attoseconds that the bounded attention of one request (sliding windows, sparse selections) adds to each step,
    /// for a typical context of `context_tokens`.
    #[inline]
    pub fn window_attoseconds(&self, context_tokens: f64) -> u128 {
        if self.sizes.kv.windows.is_empty() {
            return 0;
        }
        let bytes: f64 = self
            .sizes
            .kv
            .windows
            .iter()
            .map(|window| window.bytes_per_token * f64::from(window.tokens).min(context_tokens))
            .sum();
        attoseconds(bytes / self.bytes_per_s * self.slowness)
    }

    fn experts_s(&self, experts: Option<&ExpertSizes>, tokens: f64) -> f64 {
        experts.map_or(0.0, |sizes| f64::from(sizes.layers) * sizes.touched(tokens) * sizes.bytes / self.bytes_per_s)
    }

    /// One pass of the target model over `tokens` tokens of which `rows` meet the output head.
    fn target_pass(&self, tokens: f64, rows: f64, flops_share: f64) -> Pass {
        let sizes = &self.sizes;
        let memory_s = (sizes.body_read_bytes + sizes.head_bytes) / self.bytes_per_s
            + self.experts_s(sizes.experts.as_ref(), tokens);
        let routed = sizes.experts.as_ref().map_or(0.0, |e| f64::from(e.layers) * f64::from(e.routed) * e.parameters);
        let flops = 2.0 * ((sizes.body_parameters + routed) * tokens + sizes.head_parameters * rows);
        Pass { memory_s, compute_s: flops / (self.flops_per_s * flops_share) }
    }

    /// One pass of the drafter over `tokens` tokens of which `rows` meet the output head.
    fn draft_pass(&self, tokens: f64, rows: f64, flops_share: f64) -> Pass {
        let Some(draft) = &self.sizes.draft else {
            return Pass { memory_s: 0.0, compute_s: 0.0 };
        };
        let memory_s = (draft.body_read_bytes + self.sizes.head_bytes) / self.bytes_per_s
            + self.experts_s(draft.experts.as_ref(), tokens);
        let routed = draft.experts.as_ref().map_or(0.0, |e| f64::from(e.layers) * f64::from(e.routed) * e.parameters);
        let flops = 2.0 * ((draft.body_parameters + routed) * tokens + self.sizes.head_parameters * rows);
        Pass { memory_s, compute_s: flops / (self.flops_per_s * flops_share) }
    }

    /// The price list of decode steps with `batch` requests (at least 1).
    pub fn decode(&self, batch: u32) -> std::rc::Rc<DecodeCost> {
        let mut table = self.decode.borrow_mut();
        let index = batch as usize;
        if table.len() <= index {
            table.resize(index + 1, None);
        }
        table[index].get_or_insert_with(|| std::rc::Rc::new(self.price_decode(batch))).clone()
    }

    /// The fixed cost, attoseconds, and the affine piece of a decode step with `batch` requests (at least 1) and a total
    /// context in context units.
    #[inline]
    pub fn decode_at(&self, batch: u32, context: u64) -> (u128, Segment) {
        if let Some(Some(price)) = self.decode.borrow().get(batch as usize) {
            return (price.fixed_attoseconds, price.segment(context));
        }
        let price = self.decode(batch);
        (price.fixed_attoseconds, price.segment(context))
    }

    fn price_decode(&self, batch: u32) -> DecodeCost {
        let parameters = &self.parameters;
        let exponent = parameters.smooth_exponent;
        let padded = self.graphs.padded(batch);
        let rows = f64::from(padded.unwrap_or(batch));
        let width = f64::from(self.verify_width());
        let target = self.target_pass(rows * width, rows * width, parameters.flops_share);
        let target_s = target.time_s(exponent) * self.slowness;
        let memory_share = target.memory_share(exponent);
        let draft_passes = f64::from(self.draft_steps);
        // The first draft token comes from a pass over the whole verified window, the others from one token each.
        let draft_s = if self.draft_steps == 0 {
            0.0
        } else {
            (draft_passes - 1.0) * self.draft_pass(rows, rows, parameters.flops_share).time_s(exponent)
                + self.draft_pass(rows * width, rows * width, parameters.flops_share).time_s(exponent)
        } * self.slowness;
        let state_s = self
            .sizes
            .state
            .as_ref()
            .map_or(0.0, |state| f64::from(batch) * state.bytes_per_request * self.state_moves / self.bytes_per_s)
            * self.slowness;
        let communication_s = self.communication.as_ref().map_or(0.0, |communication| {
            let drafts = draft_passes * Communication::look_up(&communication.decode_s, rows);
            Communication::look_up(&communication.decode_s, rows * width) + drafts / f64::from(self.sizes.layers.max(1))
        });
        let gap_s = parameters.step_gap_s
            + parameters.draft_pass_gap_s * draft_passes
            + parameters.per_request_s * f64::from(batch);

        let mut fixed = Ledger::default();
        fixed[Cause::Weights] = Span(attoseconds(target_s * memory_share));
        fixed[Cause::VerifyCompute] = Span(attoseconds(target_s * (1.0 - memory_share)));
        fixed[Cause::Draft] = Span(attoseconds(draft_s));
        fixed[Cause::State] = Span(attoseconds(state_s));
        fixed[Cause::Communication] = Span(attoseconds(communication_s));
        fixed[Cause::StepGap] = Span(attoseconds(gap_s));

        if let Some(table) = &self.step_table {
            return self.price_from_table(table, batch, &fixed);
        }
        let fixed_attoseconds = fixed.total().0;
        let affine = Segment { last_context: u64::MAX, extra_attoseconds: 0, slope_attoseconds: self.context_slope };
        // A step launched kernel by kernel never ends before its launch does; a longer context hides the launch.
        let launch = if padded.is_none() { self.eager_launch.0 } else { 0 };
        let mut segments = vec![affine];
        if launch > fixed_attoseconds {
            let hidden = launch - fixed_attoseconds;
            let crossing = hidden / u128::from(self.context_slope.max(1));
            segments.insert(
                0,
                Segment {
                    last_context: u64::try_from(crossing).unwrap_or(u64::MAX),
                    extra_attoseconds: hidden,
                    slope_attoseconds: 0,
                },
            );
        }
        DecodeCost { fixed, fixed_attoseconds, segments }
    }

    /// Replaces the roofline by a measured step table; its causes are split as the roofline splits them.
    fn price_from_table(&self, table: &StepTable, batch: u32, roofline: &Ledger) -> DecodeCost {
        let pieces = table.pieces(f64::from(batch));
        let intercept_s = pieces[0].step_s * self.slowness;
        let total = roofline.total().as_s();
        let mut fixed = Ledger::default();
        let mut rest = attoseconds(intercept_s);
        for cause in Cause::ALL {
            let part = attoseconds(intercept_s * roofline[cause].as_s() / total).min(rest);
            fixed[cause] = Span(part);
            rest -= part;
        }
        fixed[Cause::StepGap] += Span(rest);
        let fixed_attoseconds = fixed.total().0;
        let units = f64::from(1u32 << CONTEXT_UNIT_BITS);
        let mut segments = Vec::new();
        for (index, piece) in pieces.iter().enumerate() {
            let slope = (piece.slope_s_per_token * self.slowness / units * ATTOSECONDS_PER_S).round() as u64;
            let start = (piece.context_tokens * units).round();
            let end = pieces.get(index + 1).map_or(u64::MAX, |next| (next.context_tokens * units).round() as u64);
            let value = attoseconds(piece.step_s * self.slowness);
            let at_zero = value.saturating_sub(start as u128 * u128::from(slope));
            segments.push(Segment {
                last_context: end,
                extra_attoseconds: at_zero.saturating_sub(fixed_attoseconds),
                slope_attoseconds: slope,
            });
        }
        DecodeCost { fixed, fixed_attoseconds, segments }
    }

    /// GPU seconds that `prefill_tokens` of prompt (with `pairs` query–context pairs of attention) add to a step that
    /// decodes `decode_rows` requests besides; a step without decodes pays its own weight pass and gap here.
    #[inline]
    pub fn prefill_s(&self, prefill_tokens: u64, pairs: f64, decode_rows: u32, sequences: u32) -> f64 {
        let parameters = &self.parameters;
        let decode_tokens = f64::from(decode_rows) * f64::from(self.verify_width());
        let tokens = prefill_tokens as f64 + decode_tokens;
        let dense_s = if decode_rows == 0 {
            self.dense_prefill_s(prefill_tokens)
        } else {
            let alone = self.target_pass(decode_tokens, decode_tokens, parameters.flops_share);
            let exponent = parameters.smooth_exponent;
            let together =
                self.target_pass(tokens, decode_tokens + f64::from(sequences), parameters.prefill_flops_share);
            (together.time_s(exponent) - alone.time_s(exponent)).max(0.0)
        };
        let attention_s =
            self.sizes.prefill_attention_flops_per_pair * pairs / (self.flops_per_s * parameters.prefill_flops_share);
        let communication_s = self.communication.as_ref().map_or(0.0, |communication| {
            let alone =
                if decode_rows == 0 { 0.0 } else { Communication::look_up(&communication.prefill_s, decode_tokens) };
            (Communication::look_up(&communication.prefill_s, tokens) - alone).max(0.0)
        });
        let gap_s = if decode_rows == 0 { parameters.step_gap_s } else { 0.0 }
            + parameters.per_request_s * f64::from(sequences);
        (dense_s + attention_s) * self.slowness + communication_s + gap_s
    }

    /// Weight pass of a prefill-only step, cached by its tokens: most steps read one short prompt.
    #[inline]
    fn dense_prefill_s(&self, tokens: u64) -> f64 {
        const CACHED_TOKENS: u64 = 1 << 15;
        let price = || {
            let share = self.parameters.prefill_flops_share;
            let exponent = self.parameters.smooth_exponent;
            let target = self.target_pass(tokens as f64, 1.0, share).time_s(exponent);
            let drafts = if self.draft_steps > 0 && self.draft_prefill {
                self.draft_pass(tokens as f64, 1.0, share).time_s(exponent)
            } else {
                0.0
            };
            target + drafts
        };
        if tokens >= CACHED_TOKENS {
            return price();
        }
        let mut cache = self.dense_prefill_s.borrow_mut();
        let index = tokens as usize;
        if cache.len() <= index {
            cache.resize(index + 1, f64::NAN);
        }
        if cache[index].is_nan() {
            cache[index] = price();
        }
        cache[index]
    }

    /// Host time to launch a step that holds prefill: captured pieces, or kernel by kernel above their range.
    #[inline]
    pub fn prefill_launch(&self, tokens: u64) -> Span {
        if tokens <= u64::from(self.graphs.prefill_max_tokens) { self.prefill_launch } else { self.eager_launch }
    }

    /// Attoseconds per context unit of a decode row beside a prefill.
    pub fn context_slope(&self) -> u64 {
        self.context_slope
    }
}
