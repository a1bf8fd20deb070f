//! Random numbers that belong to a request, not to the order in which code runs.
//!
//! A stream is named by (seed, replication, purpose); request *i* owns block *i* of it: eight 64-bit draws, read or
//! not. So a cap, a policy or the number of GPUs can change and request *i* stays the same request.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// What a stream is for. The numbers are part of the results: never renumber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Prompt and output lengths, acceptance, steps: the properties of one request.
    Request = 0,
    /// Gaps between arrivals.
    Arrival = 1,
    /// The order of the job file.
    Order = 2,
    /// Every drawn step of the token-exact reference.
    ExactSteps = 3,
    /// Properties of replicas: speed, failures.
    Replica = 4,
    /// One draw a replication: what is uncertain rather than variable.
    Uncertainty = 5,
}

/// Draws in one block.
pub const DRAWS_PER_BLOCK: usize = 8;

/// The streams of one replication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streams {
    /// The user's seed.
    pub seed: u64,
    /// Number of the replication, below 2^48.
    pub replication: u64,
}

impl Streams {
    /// The streams of `replication` under `seed`.
    pub fn new(seed: u64, replication: u64) -> Self {
        Streams { seed, replication }
    }

    fn generator(self, purpose: Purpose) -> ChaCha8Rng {
        let mut key = [0u8; 32];
        key[..8].copy_from_slice(&self.seed.to_le_bytes());
        let mut generator = ChaCha8Rng::from_seed(key);
        generator.set_stream((self.replication << 8) | purpose as u64);
        generator
    }

    /// A reader of the blocks of `purpose`.
    pub fn blocks(self, purpose: Purpose) -> Blocks {
        Blocks { generator: self.generator(purpose), next: 0 }
    }

    /// An endless generator for one id of `purpose`, for the few places that need an unknown number of draws.
    pub fn endless(self, purpose: Purpose, id: u64) -> ChaCha8Rng {
        let mut key = [0u8; 32];
        key[..8].copy_from_slice(&self.seed.to_le_bytes());
        key[8..16].copy_from_slice(&id.to_le_bytes());
        key[16] = 1;
        let mut generator = ChaCha8Rng::from_seed(key);
        generator.set_stream((self.replication << 8) | purpose as u64);
        generator
    }
}

/// Reads blocks by id; reading them in order costs least.
#[derive(Clone, Debug)]
pub struct Blocks {
    generator: ChaCha8Rng,
    next: u64,
}

impl Blocks {
    /// The uniform draws of block `id`, each in the open interval (0, 1).
    pub fn draws(&mut self, id: u64) -> [f64; DRAWS_PER_BLOCK] {
        self.bits(id).map(open_unit)
    }

    /// The bits of the draws of block `id`, for [`open_unit`].
    #[inline]
    pub fn bits(&mut self, id: u64) -> [u64; DRAWS_PER_BLOCK] {
        if id != self.next {
            // A ChaCha block is 16 words of 32 bits: 8 draws.
            self.generator.set_word_pos(u128::from(id) * 16);
        }
        self.next = id + 1;
        let mut bits = [[0u8; 8]; DRAWS_PER_BLOCK];
        self.generator.fill_bytes(bits.as_flattened_mut());
        bits.map(u64::from_le_bytes)
    }
}

/// Maps 64 random bits to the open interval (0, 1): never 0, never 1, so that quantile functions stay finite.
#[inline]
pub fn open_unit(bits: u64) -> f64 {
    // Signed integers convert in one instruction.
    ((bits >> 12) as i64 as f64 + 0.5) * (1.0 / (1u64 << 52) as f64)
}

/// FNV-1a, 64 bits: the same on every machine, unlike the standard library's hashes.
pub fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
