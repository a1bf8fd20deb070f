//! The engine against theory: shrunk to a textbook queue it must give the textbook's number, and where a run is simple
//! enough to be added up by hand it must give that sum.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers too")]

#[path = "../harness/mod.rs"]
mod harness;

mod by_hand;
mod interval;
mod laws;
mod queues;
mod speculation;
