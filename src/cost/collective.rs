//! What tensor parallelism costs: all-reduces of the hidden width after attention and after the feed-forward part of
//! each layer, and the gathering of logits.
//!
//! Times come from measured tables (`models/collective`) inside one node and inside a captured graph.

use serde::Deserialize;

use crate::error::{InputError, Result};
use crate::model::builtin::{Kind, find, names};
use crate::model::hardware::{GpuLinkKind, Hardware};
use crate::model::parse::Place;

/// Bytes of a bf16 value, in which partial sums and logits are exchanged.
const BF16_BYTES: f64 = 2.0;

/// All-reduces in a layer: after attention and after the feed-forward part.
const ALL_REDUCES_PER_LAYER: f64 = 2.0;

/// Measured all-reduce times of one kind of hardware.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured {
    name: String,
    title: String,
    /// Hardware that the times hold for.
    hardware: Vec<String>,
    /// Classes of link that these times stand for when there are none of the hardware itself.
    #[serde(default)]
    stands_for: Vec<GpuLinkKind>,
    message_bytes: Vec<f64>,
    table: Vec<Row>,
}

/// The times for a number of GPUs; of several rows for one number the first is the default.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    gpus: u32,
    kernel: String,
    time_us: Vec<f64>,
}

impl Measured {
    fn load(name: &str) -> Result<Measured> {
        let found = find(Kind::Collective, name)?;
        Measured::parse(found.text()?, &found.file)
    }

    fn parse(text: &str, file: &str) -> Result<Measured> {
        let place = Place { file, text };
        let measured: Measured = place.parse()?;
        if measured.message_bytes.len() < 2 {
            return Err(place.error("message_bytes", "fewer than two sizes", "give at least two, rising"));
        }
        let mut below = 0.0;
        for (index, bytes) in measured.message_bytes.iter().enumerate() {
            place.positive(&format!("message_bytes[{index}]"), *bytes)?;
            if *bytes <= below {
                let found = format!("{bytes} is not above the size before it");
                return Err(place.error(&format!("message_bytes[{index}]"), found, "list rising sizes"));
            }
            below = *bytes;
        }
        for (index, row) in measured.table.iter().enumerate() {
            let key = format!("table[{index}].time_us");
            if row.time_us.len() != measured.message_bytes.len() {
                let found = format!("{} times for {} sizes", row.time_us.len(), measured.message_bytes.len());
                return Err(place.error(&key, found, "give a time for each of `message_bytes`"));
            }
            for (place_in_row, time) in row.time_us.iter().enumerate() {
                place.positive(&format!("{key}[{place_in_row}]"), *time)?;
            }
            // The last two times give the bandwidth beyond the table.
            if row.time_us.iter().rev().take(2).is_sorted() {
                return Err(place.error(&key, "the last two times do not rise", "give a larger size at the end"));
            }
        }
        Ok(measured)
    }
}

/// Time of an all-reduce between the GPUs of one replica.
#[derive(Clone, Debug, PartialEq)]
pub struct AllReduce {
    gpus: u32,
    /// Message in bytes and time in seconds, rising in bytes; empty for one GPU.
    points: Vec<(f64, f64)>,
    source: String,
}

/// What tensor parallelism adds to one pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorParallelPass {
    /// All-reduces of all layers, seconds.
    pub all_reduce_s: f64,
    /// Gathering of the logits, seconds.
    pub gather_s: f64,
}

impl AllReduce {
    /// The times for `gpus` GPUs of this hardware, with this kernel or else the one that engines choose.
    ///
    /// Without a table of the hardware itself, that of its class of link stands in, and [`source`](Self::source) says
    /// so. An error when there is none either, or none for this number of GPUs.
    pub fn new(hardware: &Hardware, gpus: u32, kernel: Option<&str>) -> Result<AllReduce> {
        if gpus == 1 {
            return Ok(AllReduce { gpus, points: Vec::new(), source: "one GPU: nothing to exchange".to_owned() });
        }
        let tables = names(Kind::Collective).iter().map(|name| Measured::load(name)).collect::<Result<Vec<_>>>()?;
        let of = |table: &&Measured| table.table.iter().any(|row| row.gpus == gpus);
        let own = tables.iter().find(|table| table.hardware.contains(&hardware.name));
        let standing_in = || tables.iter().find(|table| table.stands_for.contains(&hardware.gpu_link.kind));
        let Some(table) = own.filter(of).or_else(|| standing_in().filter(of)) else {
            let known = own.or_else(standing_in);
            let found = format!("no all-reduce times for {gpus} × {}", hardware.name);
            let remedy = match known {
                Some(table) => format!("known for this kind of link: {} GPUs", counts(table)),
                None => "use one GPU a replica, or describe the times in models/collective".to_owned(),
            };
            return Err(InputError::new(found, remedy).key("fleet.tensor_parallel").into());
        };
        let rows = || table.table.iter().filter(|row| row.gpus == gpus);
        let Some(row) = rows().find(|row| kernel.is_none_or(|kernel| row.kernel == kernel)) else {
            let found = format!("no all-reduce times of `{}` for {gpus} × {}", kernel.unwrap_or(""), table.title);
            let known: Vec<&str> = rows().map(|row| row.kernel.as_str()).collect();
            return Err(InputError::new(found, format!("known: {}", known.join(", "))).into());
        };
        let mut source = format!("{gpus} × {}, {}", table.title, row.kernel);
        if !table.hardware.contains(&hardware.name) {
            source = format!("no table for {gpus} × {}: {source} stands in", hardware.name);
            if hardware.gpu_link.kind == GpuLinkKind::Host {
                source.push_str("; its copies go through host memory, so expect longer times");
            }
        }
        let points = table.message_bytes.iter().zip(&row.time_us).map(|(bytes, us)| (*bytes, us * 1e-6)).collect();
        Ok(AllReduce { gpus, points, source })
    }

    /// Where the times come from, and whether they were measured on other hardware.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// GPUs that take part.
    pub fn gpus(&self) -> u32 {
        self.gpus
    }

    /// Time in seconds of an all-reduce of `message_bytes` bytes.
    ///
    /// Inside the table: linear in the logarithms of size and time. Below: the first time, which is latency. Above:
    /// the last time and the rest at the bandwidth between the last two sizes.
    pub fn time_s(&self, message_bytes: f64) -> f64 {
        if message_bytes <= 0.0 {
            return 0.0;
        }
        let above = self.points.iter().position(|(bytes, _)| *bytes >= message_bytes);
        match (above, self.points.as_slice()) {
            (_, []) => 0.0,
            (Some(0), [(_, floor), ..]) => *floor,
            (Some(above), points) => {
                let ((low, low_s), (high, high_s)) = (points[above - 1], points[above]);
                let share = (message_bytes / low).ln() / (high / low).ln();
                low_s * (high_s / low_s).powf(share)
            }
            (None, [.., (before, before_s), (last, last_s)]) => {
                last_s + (message_bytes - last) * (last_s - before_s) / (last - before)
            }
            (None, [(_, only)]) => *only,
        }
    }

    /// What tensor parallelism adds to a pass of `tokens` tokens through `layers` layers, with logits for
    /// `logit_tokens` of them: 2 · layers · T(tokens · hidden · 2 B), and half an all-reduce of
    /// logit tokens · vocabulary · 2 B (gathering moves half of what reducing and gathering do).
    pub fn pass(&self, layers: u32, hidden: u32, tokens: f64, logit_tokens: f64, vocab: u32) -> TensorParallelPass {
        let message = tokens * f64::from(hidden) * BF16_BYTES;
        TensorParallelPass {
            all_reduce_s: ALL_REDUCES_PER_LAYER * f64::from(layers) * self.time_s(message),
            gather_s: 0.5 * self.time_s(logit_tokens * f64::from(vocab) * BF16_BYTES),
        }
    }
}

/// The numbers of GPUs in a table, as in "2, 4".
fn counts(table: &Measured) -> String {
    let mut counts: Vec<u32> = table.table.iter().map(|row| row.gpus).collect();
    counts.sort_unstable();
    counts.dedup();
    counts.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_reduce(hardware: &str, gpus: u32) -> Result<AllReduce> {
        AllReduce::new(&Hardware::find(hardware).unwrap(), gpus, None)
    }

    #[test]
    fn every_built_in_table_is_sound() {
        for name in names(Kind::Collective) {
            let measured = Measured::load(&name).unwrap();
            assert_eq!(measured.name, name);
            for hardware in &measured.hardware {
                assert_eq!(Hardware::find(hardware).unwrap().name, *hardware);
            }
        }
    }

    #[test]
    fn times_inside_below_and_above_the_table() {
        let pair = all_reduce("rtx-pro-6000-server", 2).unwrap();
        assert_eq!(pair.source(), "2 × RTX PRO 6000 Server over PCIe, custom kernel");
        assert!((pair.time_s(8192.0) - 5.1e-6).abs() < 1e-12);
        assert!((pair.time_s(100.0) - 5.1e-6).abs() < 1e-12);
        assert!((pair.time_s(65_536.0) - (6.2e-6_f64 * 11e-6).sqrt()).abs() < 1e-12);
        let (last, before) = (16.0 * 1024.0 * 1024.0, 4.0 * 1024.0 * 1024.0);
        let expected = 932e-6 + last * (932e-6 - 225e-6) / (last - before);
        assert!((pair.time_s(2.0 * last) - expected).abs() < 1e-12);
        assert_eq!(pair.time_s(0.0), 0.0);
        assert_eq!(all_reduce("rtx-pro-6000", 1).unwrap().time_s(1e6), 0.0);
    }

    #[test]
    fn kernels_are_chosen_by_name() {
        let b200 = Hardware::find("b200").unwrap();
        let all_reduce = AllReduce::new(&b200, 8, Some("TensorRT-LLM")).unwrap();
        assert!((all_reduce.time_s(8192.0) - 5.9e-6).abs() < 1e-12);
        let error = AllReduce::new(&b200, 8, Some("NCCL")).unwrap_err().to_string();
        assert_eq!(error, "no all-reduce times of `NCCL` for 8 × B200 over NVLink; known: vLLM, TensorRT-LLM");
    }

    #[test]
    fn another_table_stands_in_visibly_or_not_at_all() {
        let h20 = all_reduce("h20", 8).unwrap();
        assert_eq!(h20.source(), "no table for 8 × h20: 8 × H200 over NVLink, custom kernel stands in");
        assert!(all_reduce("rtx-5090", 4).unwrap().source().ends_with("expect longer times"));
        let error = all_reduce("mi300x", 8).unwrap_err().to_string();
        assert!(error.contains("no all-reduce times for 8 × mi300x"), "{error}");
        let error = all_reduce("rtx-pro-6000", 3).unwrap_err().to_string();
        assert!(error.ends_with("known for this kind of link: 2, 4, 8 GPUs"), "{error}");
        // Its own table has 2 and 4 GPUs, its class of link 8.
        assert!(all_reduce("gb300", 8).unwrap().source().starts_with("no table for 8 × gb300"));
    }

    /// Milliseconds of all-reduce in a pass of 1, 8, 32, 128 and 512 tokens, derived by hand from the same tables
    /// and rounded to two digits.
    #[test]
    fn cost_per_pass() {
        let rows: [(&str, u32, u32, u32, [f64; 5]); 7] = [
            ("rtx-pro-6000-server", 4, 60, 4096, [1.8, 3.0, 9.4, 17.0, 61.0]),
            ("rtx-pro-6000-server", 8, 92, 5120, [5.1, 11.0, 30.0, 47.0, 151.0]),
            ("rtx-pro-6000-server", 8, 78, 6144, [4.4, 10.0, 27.0, 45.0, 152.0]),
            ("rtx-pro-6000-server", 2, 43, 4096, [0.4, 0.7, 1.5, 4.8, 19.0]),
            ("rtx-pro-6000-server", 2, 64, 5120, [0.7, 1.2, 2.7, 8.8, 36.0]),
            ("h200", 2, 80, 8192, [0.5, 0.6, 1.3, 3.3, 12.0]),
            ("h200", 8, 80, 8192, [0.6, 0.8, 1.7, 4.3, 13.0]),
        ];
        for (hardware, gpus, layers, hidden, expected) in rows {
            let all_reduce = all_reduce(hardware, gpus).unwrap();
            for (tokens, expected_ms) in [1.0, 8.0, 32.0, 128.0, 512.0].into_iter().zip(expected) {
                let ms = 1e3 * all_reduce.pass(layers, hidden, tokens, 0.0, 1).all_reduce_s;
                assert!((ms / expected_ms - 1.0).abs() < 0.15, "{gpus} × {hidden}, {tokens}: {ms}, {expected_ms}");
            }
        }
    }

    /// 64 tokens of a vocabulary of 248,320 are 32 MB: about 2 ms at 4 PCIe cards.
    #[test]
    fn gathering_logits() {
        let gather_s = all_reduce("rtx-pro-6000-server", 4).unwrap().pass(60, 4096, 64.0, 64.0, 248_320).gather_s;
        assert!((gather_s / 2e-3 - 1.0).abs() < 0.1, "{gather_s}");
    }
}
