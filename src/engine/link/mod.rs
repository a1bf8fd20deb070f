//! Copies between host memory and GPUs: a fluid model of their links.
//!
//! Every transfer in flight moves at a constant rate between events (a start or an end). Rates are max-min fair under the
//! limits of each GPU's link and of the root that the GPUs may share; a direction is slower while the other one is busy.
//! A transfer of many small copies also has a pace of its own: copies are submitted one after another, each takes at
//! least `submit`, and between two copies the link rests for `gap`. One latency added to every copy does not fit what was
//! measured (`traces/measured/h200/pcie`): copies of 4 to 256 KiB all take 11.2 to 11.8 µs, as if bytes were free, and
//! from 1 MiB on only 3 to 4 µs are added to bytes / bandwidth.
//!
//! Everything is counted in integers. Bytes left are kept in 1e-18 bytes, so that rate × attoseconds is exact and the
//! state at an instant does not depend on how often it was looked at.

mod fair;
mod port;
#[cfg(test)]
mod tests;

use crate::model::hardware::HostLink;
use crate::units::{SimTime, Span};
use fair::Share;
pub use port::LinkPort;

/// Units of `left` in a byte: attoseconds in a second.
const UNITS_PER_BYTE: u128 = 1_000_000_000_000_000_000;

/// Millionths, the unit of shares here.
const MILLION: u128 = 1_000_000;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Host memory to GPU (H2D).
    ToDevice,
    /// GPU to host memory (D2H).
    ToHost,
}

impl Direction {
    /// Both, in the order in which pairs of numbers give them.
    pub const BOTH: [Direction; 2] = [Direction::ToDevice, Direction::ToHost];

    fn other(self) -> Direction {
        match self {
            Direction::ToDevice => Direction::ToHost,
            Direction::ToHost => Direction::ToDevice,
        }
    }
}

/// Limits of a link or a root, bytes per second, as (to device, to host).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// While only that direction is busy.
    pub alone: [u64; 2],
    /// While both are.
    pub both: [u64; 2],
}

impl Rates {
    fn limit(&self, direction: Direction, other_is_busy: bool) -> u64 {
        let rates = if other_is_busy { &self.both } else { &self.alone };
        rates[direction as usize].max(1)
    }
}

/// What makes the copies of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copier {
    /// Copy engines: they take no multiprocessors, only memory bandwidth.
    CopyEngine,
    /// Kernels on the multiprocessors (SGLang's io backend `kernel`), which decode steps then lack.
    SmKernel {
        /// Millionths by which a decode step is longer while one runs, beside the memory bandwidth it takes.
        share_ppm: u32,
    },
}

/// The link of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSettings {
    /// Limits of the two directions.
    pub rates: Rates,
    /// Shortest time from copy to copy.
    pub submit: Span,
    /// Rest of the link between two copies of one transfer.
    pub gap: Span,
    /// True when transfers of one direction follow each other, as on one stream; else they share.
    pub in_order: bool,
    /// What makes the copies.
    pub copier: Copier,
    /// Millionths by which a decode step is longer while a direction runs at its full rate: the memory bandwidth that
    /// copies take.
    pub contention_ppm: [u32; 2],
}

/// Time between copies that the link spends at rest, as a share of the time of a copy of no bytes. Measured on an H200
/// from 1 MiB on: 4.2 of 11.6 µs to the device, 3.2 of 11.3 µs to the host.
const GAP_SHARE: f64 = 0.32;

/// Memory traffic that a copied byte is worth to a decode step, (to device, to host). Measured on an H200
/// (`traces/measured/h200/decode-with-copies`): 55 GB/s of 4.8 TB/s lengthen a weight-reading step by 3.9 to 5.2 % to the
/// device and by 0.8 to 1.0 % to the host. That it scales with copy rate over memory bandwidth on other GPUs is assumed.
const MEMORY_WEIGHT: [f64; 2] = [3.6, 0.8];

impl LinkSettings {
    /// The link of a GPU of `hbm_bytes_per_s`. The rate of both directions together is split as their rates alone are.
    pub fn new(link: &HostLink, hbm_bytes_per_s: f64, copier: Copier, in_order: bool) -> LinkSettings {
        let alone = [link.h2d_bytes_per_s, link.d2h_bytes_per_s];
        let kept = (link.both_bytes_per_s / (alone[0] + alone[1])).min(1.0);
        let submit = Span::from_s(link.copy_latency_s).unwrap_or(Span::ZERO);
        let contention = |index: usize| (1e6 * MEMORY_WEIGHT[index] * alone[index] / hbm_bytes_per_s).round() as u32;
        LinkSettings {
            rates: Rates { alone: alone.map(|rate| rate as u64), both: alone.map(|rate| (rate * kept) as u64) },
            submit,
            gap: Span((submit.0 as f64 * GAP_SHARE) as u128),
            in_order,
            copier,
            contention_ppm: [contention(0), contention(1)],
        }
    }

    /// Bytes per second that `bytes` in `pieces` equal copies reach on a link that allows `limit`.
    fn pace(&self, bytes: u64, pieces: u64, limit: u64) -> u64 {
        let units = u128::from(bytes) * UNITS_PER_BYTE;
        let pieces = u128::from(pieces);
        let time = (self.submit.0 * pieces).max(self.gap.0 * pieces + units / u128::from(limit));
        let pace = units / time.max(1);
        (pace.min(u128::from(limit)) as u64).max(1)
    }

    /// Time of a transfer that has the link to itself.
    pub fn time_alone(&self, direction: Direction, bytes: u64, pieces: u64) -> Span {
        let pace = self.pace(bytes, pieces, self.rates.limit(direction, false));
        Span((u128::from(bytes) * UNITS_PER_BYTE).div_ceil(u128::from(pace)))
    }
}

/// Names a transfer; rises with every start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransferId(pub u64);

/// A transfer that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Its name.
    pub id: TransferId,
    /// What the caller gave it.
    pub tag: u64,
    /// The GPU.
    pub gpu: usize,
    /// Its direction.
    pub direction: Direction,
    /// Bytes moved.
    pub bytes: u64,
    /// When it was handed in.
    pub started: SimTime,
    /// When its last byte arrived.
    pub ended: SimTime,
}

#[derive(Clone, Copy, Debug)]
struct Transfer {
    id: TransferId,
    tag: u64,
    gpu: usize,
    direction: Direction,
    bytes: u64,
    pieces: u64,
    started: SimTime,
    /// Bytes left × 1e18 at `settled_at`.
    left: u128,
    /// Bytes per second since then; 0 while it waits for its turn.
    rate: u64,
    /// When it ends at that rate.
    end: SimTime,
}

/// What one direction of a GPU's link has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Transfers ended.
    pub transfers: u64,
    /// Bytes × 1e18, those of transfers in flight included.
    moved: u128,
    /// Time with a transfer in flight.
    pub busy: Span,
}

impl Traffic {
    /// Whole bytes moved.
    pub fn bytes(&self) -> u64 {
        (self.moved / UNITS_PER_BYTE) as u64
    }
}

/// By how much decode steps are longer while copies run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slowdown {
    /// Millionths.
    pub ppm: u32,
}

impl Slowdown {
    /// What it adds to `attoseconds`, rounded down. To be applied to the fixed part of a step and to its slope, each on
    /// its own: both are the same for every step of a stretch, so the sum does not depend on how the stretch is cut.
    pub fn of(self, attoseconds: u128) -> u128 {
        attoseconds * u128::from(self.ppm) / MILLION
    }
}

/// The links of the GPUs of one host.
#[derive(Clone, Debug)]
pub struct HostLinks {
    settings: LinkSettings,
    root: Option<Rates>,
    /// In order of start.
    transfers: Vec<Transfer>,
    settled_at: SimTime,
    next_id: u64,
    finished: Vec<Finished>,
    /// By GPU and direction.
    traffic: Vec<[Traffic; 2]>,
    /// Which directions have a transfer moving, and which transfers move, at the present rates.
    busy: Vec<[bool; 2]>,
    moving: Vec<usize>,
    share: Share,
    /// A transfer has been handed in since [`HostLinks::take_started`].
    started: bool,
}

impl HostLinks {
    /// Idle links of `gpus` GPUs, behind a root if one limits them together.
    pub fn new(gpus: usize, settings: LinkSettings, root: Option<Rates>) -> HostLinks {
        HostLinks {
            settings,
            root,
            transfers: Vec::new(),
            settled_at: SimTime::ZERO,
            next_id: 0,
            finished: Vec::new(),
            traffic: vec![[Traffic::default(); 2]; gpus],
            busy: vec![[false; 2]; gpus],
            moving: Vec::new(),
            share: Share::new(gpus),
            started: false,
        }
    }

    /// Hands in a transfer of `bytes` in `pieces` equal copies (at least 1).
    pub fn start(
        &mut self,
        now: SimTime,
        gpu: usize,
        direction: Direction,
        bytes: u64,
        pieces: u64,
        tag: u64,
    ) -> TransferId {
        self.run_to(now);
        self.started = true;
        let id = TransferId(self.next_id);
        self.next_id += 1;
        let left = u128::from(bytes) * UNITS_PER_BYTE;
        let pieces = pieces.max(1);
        let (rate, end) = (0, SimTime::NEVER);
        self.transfers.push(Transfer { id, tag, gpu, direction, bytes, pieces, started: now, left, rate, end });
        self.set_rates();
        id
    }

    /// When the next transfer ends if nothing else starts.
    pub fn next_end(&self) -> Option<SimTime> {
        self.transfers.iter().map(|transfer| transfer.end).min().filter(|end| *end != SimTime::NEVER)
    }

    /// When `id` ends if nothing else starts; the present time when it has ended.
    pub fn end_of(&self, id: TransferId) -> SimTime {
        let end = |links: &HostLinks| links.transfers.iter().find(|transfer| transfer.id == id).map(|found| found.end);
        if let (Some(end), true) = (end(self), self.transfers.len() == 1) {
            return end;
        }
        let mut ahead = self.clone();
        while end(&ahead).is_some()
            && let Some(next) = ahead.next_end()
        {
            ahead.run_to(next);
        }
        ahead.settled_at
    }

    /// Moves time to `now` and returns what has ended since the last call, in order of their ends.
    pub fn advance(&mut self, now: SimTime) -> Vec<Finished> {
        self.run_to(now);
        std::mem::take(&mut self.finished)
    }

    /// The same for one GPU's transfers: those of others stay for their own calls.
    pub fn advance_of(&mut self, gpu: usize, now: SimTime) -> Vec<Finished> {
        self.run_to(now);
        self.finished.extract_if(.., |finished| finished.gpu == gpu).collect()
    }

    /// True when a transfer of a GPU is in flight.
    pub fn is_busy(&self, gpu: usize) -> bool {
        self.transfers.iter().any(|transfer| transfer.gpu == gpu)
    }

    /// True when a transfer has been handed in and has not ended.
    pub fn is_in_flight(&self, id: TransferId) -> bool {
        self.transfers.iter().any(|transfer| transfer.id == id)
    }

    /// True when a transfer has been handed in since the last call.
    pub fn take_started(&mut self) -> bool {
        std::mem::take(&mut self.started)
    }

    /// True when nothing is in flight.
    pub fn is_idle(&self) -> bool {
        self.transfers.is_empty()
    }

    /// What a direction of a GPU's link has done up to the last `start` or `advance`.
    pub fn traffic(&self, gpu: usize, direction: Direction) -> Traffic {
        self.traffic[gpu][direction as usize]
    }

    /// Share of what the link alone could have moved from the start of the run to the last `start` or `advance`.
    pub fn utilisation(&self, gpu: usize, direction: Direction) -> f64 {
        let limit = self.settings.rates.limit(direction, false) as f64;
        let possible = limit * self.settled_at.0 as f64;
        if possible > 0.0 { self.traffic(gpu, direction).moved as f64 / possible } else { 0.0 }
    }

    /// By how much decode steps on `gpu` are longer at present.
    pub fn decode_slowdown(&self, gpu: usize) -> Slowdown {
        let mut ppm = 0;
        let mut copies = false;
        for transfer in self.transfers.iter().filter(|transfer| transfer.gpu == gpu && transfer.rate > 0) {
            let index = transfer.direction as usize;
            let full = u128::from(self.settings.rates.limit(transfer.direction, false));
            ppm += u128::from(self.settings.contention_ppm[index]) * u128::from(transfer.rate) / full;
            copies = true;
        }
        if let (Copier::SmKernel { share_ppm }, true) = (self.settings.copier, copies) {
            ppm += u128::from(share_ppm);
        }
        Slowdown { ppm: ppm as u32 }
    }

    fn run_to(&mut self, now: SimTime) {
        debug_assert!(now >= self.settled_at, "time does not fall");
        while let Some(end) = self.next_end().filter(|end| *end <= now) {
            self.settle(end);
            let (finished, traffic) = (&mut self.finished, &mut self.traffic);
            self.transfers.retain(|transfer| {
                let flies = transfer.left > 0 || transfer.rate == 0;
                if !flies {
                    let &Transfer { id, tag, gpu, direction, bytes, started, .. } = transfer;
                    finished.push(Finished { id, tag, gpu, direction, bytes, started, ended: end });
                    traffic[gpu][direction as usize].transfers += 1;
                }
                flies
            });
            self.set_rates();
        }
        self.settle(now);
    }

    /// Moves bytes at the present rates up to `now`, which is no later than the next end.
    fn settle(&mut self, now: SimTime) {
        let span = now.since(self.settled_at);
        if span == Span::ZERO {
            return;
        }
        for transfer in self.transfers.iter_mut().filter(|transfer| transfer.rate > 0) {
            // The attosecond in which it ends may have room for more than is left.
            let moved = (u128::from(transfer.rate) * span.0).min(transfer.left);
            transfer.left -= moved;
            self.traffic[transfer.gpu][transfer.direction as usize].moved += moved;
        }
        for (traffic, busy) in self.traffic.iter_mut().zip(&self.busy) {
            for direction in Direction::BOTH {
                if busy[direction as usize] {
                    traffic[direction as usize].busy += span;
                }
            }
        }
        self.settled_at = now;
    }

    fn set_rates(&mut self) {
        self.moving.clear();
        self.busy.fill([false; 2]);
        for (index, transfer) in self.transfers.iter_mut().enumerate() {
            (transfer.rate, transfer.end) = (0, SimTime::NEVER);
            let in_use = &mut self.busy[transfer.gpu][transfer.direction as usize];
            if !(self.settings.in_order && *in_use) {
                *in_use = true;
                self.moving.push(index);
            }
        }
        if self.moving.is_empty() {
            return;
        }
        self.share.begin();
        let root_busy = Direction::BOTH.map(|direction| self.busy.iter().any(|gpu| gpu[direction as usize]));
        for direction in Direction::BOTH {
            let other = direction.other() as usize;
            for (gpu, busy) in self.busy.iter().enumerate() {
                self.share.limit_link(gpu, direction, self.settings.rates.limit(direction, busy[other]));
            }
            let root = self.root.map_or(u64::MAX, |root| root.limit(direction, root_busy[other]));
            self.share.limit_root(direction, root);
        }
        for &index in &self.moving {
            let &Transfer { gpu, direction, bytes, pieces, .. } = &self.transfers[index];
            let limit = self.settings.rates.limit(direction, self.busy[gpu][direction.other() as usize]);
            self.share.add(gpu, direction, self.settings.pace(bytes, pieces, limit));
        }
        for (&index, &rate) in self.moving.iter().zip(self.share.rates()) {
            let transfer = &mut self.transfers[index];
            transfer.rate = rate;
            if rate > 0 {
                transfer.end = self.settled_at + Span(transfer.left.div_ceil(u128::from(rate)));
            }
        }
    }
}
