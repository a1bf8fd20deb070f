//! Max-min fair rates: nobody can be given more without taking from someone who has no more than they.

use crate::engine::link::Direction;

#[derive(Clone, Copy, Debug)]
struct Claim {
    /// The two limits that it shares: its GPU's link, the root.
    limits: [usize; 2],
    /// Most that it can use.
    pace: u64,
}

/// Claims on links and a root, and the rates that come out.
#[derive(Clone, Debug)]
pub(super) struct Share {
    gpus: usize,
    /// Bytes per second not yet given away: links by GPU and direction, then the root's directions.
    room: Vec<u64>,
    claims: Vec<Claim>,
    rates: Vec<u64>,
    /// Open claims by limit, claims still open.
    open_at: Vec<u64>,
    open: Vec<usize>,
    /// Those settled in one round.
    settled: Vec<usize>,
}

impl Share {
    pub(super) fn new(gpus: usize) -> Share {
        let limits = 2 * (gpus + 1);
        Share {
            gpus,
            room: vec![0; limits],
            claims: Vec::new(),
            rates: Vec::new(),
            open_at: vec![0; limits],
            open: Vec::new(),
            settled: Vec::new(),
        }
    }

    /// Forgets all claims.
    pub(super) fn begin(&mut self) {
        self.claims.clear();
    }

    pub(super) fn limit_link(&mut self, gpu: usize, direction: Direction, bytes_per_s: u64) {
        self.room[2 * gpu + direction as usize] = bytes_per_s;
    }

    pub(super) fn limit_root(&mut self, direction: Direction, bytes_per_s: u64) {
        self.room[2 * self.gpus + direction as usize] = bytes_per_s;
    }

    pub(super) fn add(&mut self, gpu: usize, direction: Direction, pace: u64) {
        let limits = [2 * gpu + direction as usize, 2 * self.gpus + direction as usize];
        self.claims.push(Claim { limits, pace });
    }

    /// Rates in the order of `add`, by progressive filling: the claims that can get least are settled first. Uses the
    /// limits up.
    pub(super) fn rates(&mut self) -> &[u64] {
        let Share { room, claims, rates, open_at, open, settled, .. } = self;
        rates.clear();
        rates.resize(claims.len(), 0);
        open.clear();
        open.extend(0..claims.len());
        open_at.fill(0);
        for limit in claims.iter().flat_map(|claim| claim.limits) {
            open_at[limit] += 1;
        }
        while !open.is_empty() {
            let most = |claim: &Claim, room: &[u64], open_at: &[u64]| {
                claim.limits.iter().map(|&limit| room[limit] / open_at[limit]).fold(claim.pace, u64::min)
            };
            let least = open.iter().map(|&index| most(&claims[index], room, open_at)).min().unwrap_or(0);
            settled.clear();
            open.retain(|&index| {
                let settles = most(&claims[index], room, open_at) == least;
                if settles {
                    settled.push(index);
                }
                !settles
            });
            for &index in settled.iter() {
                rates[index] = least;
                for limit in claims[index].limits {
                    room[limit] -= least;
                    open_at[limit] -= 1;
                }
            }
        }
        rates
    }
}
