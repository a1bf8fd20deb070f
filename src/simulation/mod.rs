//! The fleet in time: who offers which request to which replica, and the loop that moves from event to event.

mod feed;
mod fleet;
mod outcome;

pub use feed::{Dispatch, InFlight, RequestStream};
pub use fleet::{Fleet, simulate};
pub use outcome::{Outcome, ReplicaOutcome, ReuseTotals, main_limit};
