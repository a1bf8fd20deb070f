//! One replica: memory arithmetic, sequences, key-value pool, policies, and the stretches of steps it runs.
//!
//! Policies decide what a step holds, the replica applies it, `cost` prices it, the fleet in `simulation` moves time.

pub mod host_tier;
pub mod link;
pub mod memory;
pub mod observe;
pub mod policy;
pub mod prefix_cache;
pub mod replica;
pub mod sequence;
pub mod settings;
pub mod speculation;
