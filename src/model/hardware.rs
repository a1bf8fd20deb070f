//! A GPU as its description in `models/hardware` gives it: memory, rates, links and power.

use serde::Deserialize;

use crate::error::Result;
use crate::model::builtin::{Kind, find};
use crate::model::parse::Place;
use crate::model::sizes::Arithmetic;

/// A GPU.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// Name, as in `models/hardware`.
    pub name: String,
    /// Full name.
    pub title: String,
    /// Memory in bytes, as the driver reports it.
    pub memory_bytes: f64,
    /// Bytes free before anything is loaded, where that was read off a machine.
    pub free_memory_bytes: Option<f64>,
    /// Nominal memory bandwidth, bytes per second.
    pub hbm_bytes_per_s: f64,
    /// Nominal dense bf16 rate with fp32 accumulation, FLOPs per second.
    pub bf16_flops_per_s: f64,
    /// Nominal dense fp8 rate; absent when the GPU has no fp8 products.
    pub fp8_flops_per_s: Option<f64>,
    /// Nominal dense fp4 rate; absent when the GPU has no fp4 products.
    pub fp4_flops_per_s: Option<f64>,
    /// Power limit as sold, W.
    pub power_w: f64,
    /// What lower power limits leave of the arithmetic, by rising limit; empty when not measured.
    #[serde(default)]
    pub power_limits: Vec<PowerLimit>,
    /// Copies between host and GPU.
    pub host_link: HostLink,
    /// Copies between GPUs of one host.
    pub gpu_link: GpuLink,
    /// Shares of the nominal rates to expect before anything is measured.
    #[serde(default)]
    pub priors: Priors,
}

/// Share of the dense rates that is left at a power limit. Memory bandwidth is not touched.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerLimit {
    /// The limit, W.
    pub watts: f64,
    /// What is left, relative to the highest limit of the table.
    pub share: f64,
}

/// The link between host memory and one GPU, with what copy engines achieve from pinned memory.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostLink {
    /// Bus and width.
    pub kind: HostLinkKind,
    /// Host to device, bytes per second.
    pub h2d_bytes_per_s: f64,
    /// Device to host, bytes per second.
    pub d2h_bytes_per_s: f64,
    /// Both directions at once, added up, bytes per second.
    pub both_bytes_per_s: f64,
    /// Time of a copy of no bytes, seconds.
    pub copy_latency_s: f64,
}

/// Bus between host and GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum HostLinkKind {
    /// PCIe 4, 16 lanes.
    #[serde(rename = "pcie-4-x16")]
    Pcie4X16,
    /// PCIe 5, 8 lanes.
    #[serde(rename = "pcie-5-x8")]
    Pcie5X8,
    /// PCIe 5, 16 lanes.
    #[serde(rename = "pcie-5-x16")]
    Pcie5X16,
    /// PCIe 6, 16 lanes.
    #[serde(rename = "pcie-6-x16")]
    Pcie6X16,
    /// NVLink-C2C to a Grace CPU.
    #[serde(rename = "nvlink-c2c")]
    NvlinkC2c,
    /// One memory for both.
    #[serde(rename = "unified")]
    Unified,
}

/// The link between two GPUs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuLink {
    /// Class of link.
    pub kind: GpuLinkKind,
    /// One direction, bytes per second.
    pub bytes_per_s: f64,
}

/// Class of link between GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GpuLinkKind {
    /// Copies from GPU to GPU over PCIe.
    Pcie,
    /// Over PCIe through host memory, because the driver refuses GPU-to-GPU copies.
    Host,
    /// PCIe, with a bridge for pairs of cards if fitted.
    NvlinkBridge,
    /// NVLink between all GPUs of a host.
    Nvlink,
    /// AMD Infinity Fabric.
    InfinityFabric,
    /// A network between two machines.
    Network,
}

/// Shares of nominal rates that kernels achieve, to start a calibration from.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Priors {
    /// Of the memory bandwidth, while weights are read.
    pub bandwidth_share: f64,
    /// Of the dense rate, in large products.
    pub flops_share: f64,
}

impl Default for Priors {
    /// The prior of aisimulate 0.13 for bandwidth (large bf16 weights reach 0.80 to 0.92, small layers less), and the
    /// middle of what was measured of large bf16 products: 0.66 to 0.83 on RTX PRO 6000, 0.75 on H200.
    fn default() -> Self {
        Priors { bandwidth_share: 0.8, flops_share: 0.7 }
    }
}

impl Hardware {
    /// Reads and checks a description.
    pub fn parse(text: &str, file: &str) -> Result<Hardware> {
        let place = Place { file, text };
        let hardware: Hardware = place.parse()?;
        hardware.check(place)?;
        Ok(hardware)
    }

    /// Finds a description by path, or else by built-in name.
    pub fn find(name_or_path: &str) -> Result<Hardware> {
        let found = find(Kind::Hardware, name_or_path)?;
        Hardware::parse(found.text()?, &found.file)
    }

    /// The nominal dense rate for this arithmetic in FLOPs per second, and the arithmetic that it runs in: a GPU
    /// without fp8 or fp4 products keeps the weights small and multiplies in bf16.
    pub fn flops_per_s(&self, arithmetic: Arithmetic) -> (f64, Arithmetic) {
        let own = match arithmetic {
            Arithmetic::Bf16 => None,
            Arithmetic::Fp8 => self.fp8_flops_per_s,
            Arithmetic::Fp4 => self.fp4_flops_per_s,
        };
        own.map_or((self.bf16_flops_per_s, Arithmetic::Bf16), |rate| (rate, arithmetic))
    }

    /// Share of the dense rates that a power limit in W leaves, between the points of the table; `None` when the
    /// table does not reach there.
    pub fn flops_share_at(&self, watts: f64) -> Option<f64> {
        let above = self.power_limits.iter().position(|point| point.watts >= watts)?;
        let high = self.power_limits[above];
        if high.watts == watts {
            return Some(high.share);
        }
        let low = self.power_limits[above.checked_sub(1)?];
        Some(low.share + (high.share - low.share) * (watts - low.watts) / (high.watts - low.watts))
    }

    fn check(&self, place: Place<'_>) -> Result<()> {
        let positive = [
            ("memory_bytes", Some(self.memory_bytes)),
            ("free_memory_bytes", self.free_memory_bytes),
            ("hbm_bytes_per_s", Some(self.hbm_bytes_per_s)),
            ("bf16_flops_per_s", Some(self.bf16_flops_per_s)),
            ("fp8_flops_per_s", self.fp8_flops_per_s),
            ("fp4_flops_per_s", self.fp4_flops_per_s),
            ("power_w", Some(self.power_w)),
            ("host_link.h2d_bytes_per_s", Some(self.host_link.h2d_bytes_per_s)),
            ("host_link.d2h_bytes_per_s", Some(self.host_link.d2h_bytes_per_s)),
            ("host_link.both_bytes_per_s", Some(self.host_link.both_bytes_per_s)),
            ("host_link.copy_latency_s", Some(self.host_link.copy_latency_s)),
            ("gpu_link.bytes_per_s", Some(self.gpu_link.bytes_per_s)),
        ];
        for (key, value) in positive {
            value.map_or(Ok(()), |value| place.positive(key, value))?;
        }
        place.share("priors.bandwidth_share", self.priors.bandwidth_share)?;
        place.share("priors.flops_share", self.priors.flops_share)?;
        if let Some(free) = self.free_memory_bytes.filter(|free| *free > self.memory_bytes) {
            let found = format!("{free} bytes are more than the GPU has");
            return Err(place.error("free_memory_bytes", found, "give at most `memory_bytes`"));
        }
        let mut below = 0.0;
        for (index, point) in self.power_limits.iter().enumerate() {
            place.share(&format!("power_limits[{index}].share"), point.share)?;
            let rising = point.watts.is_finite() && point.watts > below;
            if !rising {
                let found = format!("{} W is not above the limit before it", point.watts);
                return Err(place.error(&format!("power_limits[{index}].watts"), found, "list rising limits"));
            }
            below = point.watts;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::builtin::names;

    #[test]
    fn every_built_in_description_is_sound() {
        let names = names(Kind::Hardware);
        assert_eq!(names.len(), 20);
        for name in names {
            assert_eq!(Hardware::find(&name).unwrap().name, name);
        }
    }

    #[test]
    fn gpus_without_fp8_multiply_in_bf16() {
        let a100 = Hardware::find("a100").unwrap();
        assert_eq!(a100.flops_per_s(Arithmetic::Fp8), (312e12, Arithmetic::Bf16));
        let h200 = Hardware::find("h200").unwrap();
        assert_eq!(h200.flops_per_s(Arithmetic::Fp8), (1979e12, Arithmetic::Fp8));
        assert_eq!(h200.flops_per_s(Arithmetic::Fp4), (989e12, Arithmetic::Bf16));
    }

    #[test]
    fn power_limits_are_interpolated_and_never_extrapolated() {
        let card = Hardware::find("rtx-pro-6000").unwrap();
        assert_eq!(card.flops_share_at(400.0), Some(0.73));
        assert!((card.flops_share_at(450.0).unwrap() - 0.80).abs() < 1e-9);
        assert_eq!(card.flops_share_at(600.0), Some(1.0));
        assert_eq!(card.flops_share_at(299.0), None);
        assert_eq!(card.flops_share_at(700.0), None);
        assert_eq!(Hardware::find("h200").unwrap().flops_share_at(500.0), None);
    }

    #[test]
    fn bad_values_name_file_line_and_key() {
        let found = find(Kind::Hardware, "h200").unwrap();
        let text = found.text().unwrap();
        let shown = |text: &str| Hardware::parse(text, "mine.toml").unwrap_err().to_string();
        for bad in ["-4.8e12", "0", "nan", "inf"] {
            let shown = shown(&text.replace("hbm_bytes_per_s = 4.8e12", &format!("hbm_bytes_per_s = {bad}")));
            assert!(shown.contains("hbm_bytes_per_s: "), "{shown}");
            assert!(shown.starts_with("mine.toml:"), "{shown}");
            assert!(shown.ends_with("is not a number above 0; give a finite number above 0"), "{shown}");
        }
        let shown = shown(&text.replace("hbm_bytes_per_s", "hbm_bytes_per_sec"));
        assert!(shown.contains("unknown key `hbm_bytes_per_sec`; did you mean `hbm_bytes_per_s`?"), "{shown}");
    }
}
