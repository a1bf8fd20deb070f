//! Captured graphs: the batch sizes an engine has recorded, to which it pads a decode batch.

/// Sizes of captured decode graphs and the token range of captured prefill pieces.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CapturedGraphs {
    /// Captured decode batch sizes, ascending; empty when decode steps are launched kernel by kernel.
    decode_sizes: Vec<u32>,
    /// Prefill steps of at most this many tokens run in captured pieces.
    pub prefill_max_tokens: u32,
}

impl CapturedGraphs {
    /// Graphs of these decode sizes (sorted here) and prefill pieces up to `prefill_max_tokens`.
    pub fn new(mut decode_sizes: Vec<u32>, prefill_max_tokens: u32) -> Self {
        decode_sizes.sort_unstable();
        decode_sizes.dedup();
        CapturedGraphs { decode_sizes, prefill_max_tokens }
    }

    /// The captured size that a decode batch of `batch` requests runs at; `None` when no graph is large enough.
    pub fn padded(&self, batch: u32) -> Option<u32> {
        let at = self.decode_sizes.partition_point(|&size| size < batch);
        self.decode_sizes.get(at).copied()
    }
}
