//! Instants and spans of simulated time.
//!
//! Both count attoseconds (1e-18 s) in integers: sums over any number of steps are then exact, so pricing a stretch
//! of steps at once gives bit for bit what pricing them one by one gives, and instants order without ties by
//! rounding. 128 bits hold 1e13 years.

use std::fmt;
use std::ops::{Add, AddAssign, Mul, Sub};

/// Attoseconds in a second.
pub const ATTOSECONDS_PER_S: f64 = 1e18;

/// Seconds in a day.
pub const SECONDS_PER_DAY: f64 = 86_400.0;

/// A span of simulated time, in attoseconds. Never negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub u128);

/// An instant of simulated time, in attoseconds since the start of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SimTime(pub u128);

impl Span {
    /// No time at all.
    pub const ZERO: Span = Span(0);

    /// The span of `seconds`, rounded to the nearest attosecond. `None` when negative, not finite, or above 1e18 s.
    pub fn from_s(seconds: f64) -> Option<Span> {
        (seconds.is_finite() && (0.0..=1e18).contains(&seconds)).then(|| Span(attoseconds(seconds)))
    }

    /// Seconds, to within two units in the last place.
    pub fn as_s(self) -> f64 {
        seconds(self.0)
    }
}

/// Seconds of so many attoseconds. The conversion of 128 bits is slow, so the low 20 bits are dropped where they are
/// below the precision of an `f64` anyway.
fn seconds(attoseconds: u128) -> f64 {
    match u64::try_from(attoseconds) {
        Ok(small) => small as f64 / ATTOSECONDS_PER_S,
        Err(_) => match u64::try_from(attoseconds >> 20) {
            Ok(large) => large as f64 * ((1 << 20) as f64 / ATTOSECONDS_PER_S),
            Err(_) => attoseconds as f64 / ATTOSECONDS_PER_S,
        },
    }
}

/// Whole attoseconds of a time in seconds that is known to be finite and not negative.
#[inline]
pub(crate) fn attoseconds(seconds: f64) -> u128 {
    debug_assert!(seconds.is_finite() && seconds >= 0.0, "a time of {seconds} s");
    let attoseconds = seconds * ATTOSECONDS_PER_S + 0.5;
    // Almost every time fits, and 63 bits convert in far fewer instructions than 128.
    if attoseconds < (1u64 << 63) as f64 { u128::from(attoseconds as i64 as u64) } else { attoseconds as u128 }
}

impl SimTime {
    /// The start of the run.
    pub const ZERO: SimTime = SimTime(0);
    /// Later than every event.
    pub const NEVER: SimTime = SimTime(u128::MAX);

    /// The instant `seconds` after the start. `None` when negative, not finite, or above 1e18 s.
    pub fn from_s(seconds: f64) -> Option<SimTime> {
        Span::from_s(seconds).map(|span| SimTime(span.0))
    }

    /// Seconds since the start, to within two units in the last place.
    pub fn as_s(self) -> f64 {
        seconds(self.0)
    }

    /// Time since `earlier`; zero when `earlier` is later.
    pub fn since(self, earlier: SimTime) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Span> for SimTime {
    type Output = SimTime;
    fn add(self, span: Span) -> SimTime {
        SimTime(self.0 + span.0)
    }
}

impl Sub<Span> for SimTime {
    type Output = SimTime;
    fn sub(self, span: Span) -> SimTime {
        SimTime(self.0 - span.0)
    }
}

impl Add for Span {
    type Output = Span;
    fn add(self, other: Span) -> Span {
        Span(self.0 + other.0)
    }
}

impl AddAssign for Span {
    fn add_assign(&mut self, other: Span) {
        self.0 += other.0;
    }
}

impl Sub for Span {
    type Output = Span;
    fn sub(self, other: Span) -> Span {
        Span(self.0 - other.0)
    }
}

impl Mul<u64> for Span {
    type Output = Span;
    fn mul(self, times: u64) -> Span {
        Span(self.0 * u128::from(times))
    }
}

impl std::iter::Sum for Span {
    fn sum<I: Iterator<Item = Span>>(spans: I) -> Span {
        spans.fold(Span::ZERO, Add::add)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", self.as_s())
    }
}
