//! What one step costs: from work and hardware to seconds.

pub mod collective;
