//! The host tier of a job whose prompts share nothing: nobody reads back what is written, so what is left of it is the
//! traffic. It is kept without a tree of blocks until something could be found again, which only a preempted request can,
//! or until the copies in flight hold pages that somebody may lack.
//!
//! A request's blocks are written when it ends, in one copy, and a copy lengthens the next decode step by all that it
//! costs: exact in the sum, without ending a stretch of steps when the copy ends.

use crate::engine::host_tier::{Copy, HostSize, WritePolicy};
use crate::engine::link::{Copier, Direction, LinkSettings};
use crate::engine::prefix_cache::Prompts;
use crate::engine::settings::EngineSettings;
use crate::units::{SimTime, Span};

/// Share of the pool, in tenths, that running requests and copies in flight may fill before every block is kept: requests
/// write far less than a tenth of a pool while one copy is under way.
const ROOMY_TENTHS: u64 = 9;

/// A copy to the host in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub started: SimTime,
    /// When its first byte moves, behind those before it.
    begin: SimTime,
    pub end: SimTime,
    pub copy: Copy,
    pub pages: u64,
}

/// Traffic without blocks.
#[derive(Clone, Debug)]
pub(super) struct WriteOnly {
    link: LinkSettings,
    /// Millionths by which a decode step beside a copy is longer.
    ppm: u128,
    /// Copies since the link was last idle.
    flights: Vec<Flight>,
    bytes: u64,
    busy: Span,
    /// What the next decode step is longer by.
    slowed: Span,
}

impl WriteOnly {
    /// `None` where blocks have to be kept from the start.
    pub(super) fn new(settings: &EngineSettings) -> Option<WriteOnly> {
        let (cache, host) = (settings.prefix_cache.as_ref()?, settings.host?);
        let device = &host.tier.device;
        let (pages, _) = host.tier.capacity();
        // A host pool smaller than the device's may refuse blocks.
        let takes_all = pages >= device.pages && !matches!(host.tier.size, HostSize::Ratio(ratio) if ratio < 1.0);
        if *cache.prompts != Prompts::Distinct || host.tier.write != WritePolicy::Through || !takes_all {
            return None;
        }
        let kernel = match host.link.copier {
            Copier::SmKernel { share_ppm } => share_ppm,
            Copier::CopyEngine => 0,
        };
        Some(WriteOnly {
            link: host.link,
            ppm: u128::from(kernel) + u128::from(host.link.contention_ppm[1]),
            flights: Vec::new(),
            bytes: 0,
            busy: Span::ZERO,
            slowed: Span::ZERO,
        })
    }

    /// Begins a copy of `pages`; true while it and those before it, beside `used` pages, leave the pool roomy.
    pub(super) fn write(&mut self, now: SimTime, copy: Copy, pages: u64, used: u64, pool: u64) -> bool {
        if self.flights.last().is_none_or(|last| last.end <= now) {
            self.flights.clear();
        }
        let begin = self.flights.last().map_or(now, |last| last.end);
        let time = self.link.time_alone(Direction::ToHost, copy.bytes, copy.pieces);
        self.flights.push(Flight { started: now, begin, end: begin + time, copy, pages });
        self.bytes += copy.bytes;
        self.busy += time;
        self.slowed += Span(time.0 * self.ppm / 1_000_000);
        let flying: u64 = self.flights.iter().filter(|flight| flight.end > now).map(|flight| flight.pages).sum();
        10 * (flying + used) <= ROOMY_TENTHS * pool
    }

    /// Bytes moved and time spent on them by `now`.
    pub(super) fn moved(&self, now: SimTime) -> (u64, Span) {
        let (mut bytes, mut busy) = (self.bytes, self.busy);
        for flight in self.flights.iter().rev().take_while(|flight| flight.end > now) {
            let left = flight.end.since(flight.begin.max(now));
            let time = flight.end.since(flight.begin);
            bytes -= (u128::from(flight.copy.bytes) * left.0).div_ceil(time.0.max(1)) as u64;
            busy = busy - left;
        }
        (bytes, busy)
    }

    /// What the coming decode step is longer by.
    pub(super) fn take_slowed(&mut self) -> Span {
        std::mem::take(&mut self.slowed)
    }

    /// Gives the copies up to links that move them on from their starts, and the bytes and busy time of those before.
    pub(super) fn hand_over(mut self) -> (Vec<Flight>, (u64, Span)) {
        let flights = std::mem::take(&mut self.flights);
        for flight in &flights {
            self.bytes -= flight.copy.bytes;
        }
        if let (Some(first), Some(last)) = (flights.first(), flights.last()) {
            self.busy = self.busy - last.end.since(first.started);
        }
        (flights, (self.bytes, self.busy))
    }
}
