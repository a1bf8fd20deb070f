//! The job that a file is a finished part of.

use serde::Serialize;

use crate::error::InputError;

/// A job of which a part has finished.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct JobPart {
    /// Requests of the whole job.
    pub total: u64,
    /// Requests that run at once.
    pub slots: u64,
    /// Requests that have finished.
    pub finished: f64,
}

/// Plain mean over true mean against finished requests per slot: closed loop, 256 slots, mixture of mean 2,500 with a
/// cap of 4,096 (computed; without a cap it is lower still).
const BIAS: [(f64, f64); 6] = [(0.25, 0.28), (1.0, 0.49), (2.0, 0.74), (4.0, 0.86), (16.0, 0.97), (64.0, 0.99)];

impl JobPart {
    /// From `total=914000,slots=256`; slots are 256 where not given.
    ///
    /// # Errors
    ///
    /// Unknown keys, no whole numbers, no total.
    pub fn parse(text: &str) -> Result<JobPart, InputError> {
        let mut job = JobPart { total: 0, slots: 256, finished: 0.0 };
        for part in text.split(',') {
            let remedy = "write total=914000, and slots=256 for the requests that run at once";
            let bad = || InputError::new(format!("`{part}`"), remedy).key("--job");
            let (name, value) = part.split_once('=').ok_or_else(bad)?;
            let number: u64 = value.trim().replace('_', "").parse().ok().filter(|n| *n > 0).ok_or_else(bad)?;
            match name.trim() {
                "total" => job.total = number,
                "slots" => job.slots = number,
                _ => return Err(bad()),
            }
        }
        if job.total == 0 {
            return Err(InputError::new("no total", "write total=914000").key("--job"));
        }
        Ok(job)
    }

    /// Plain mean of the finished requests over the true mean, as far as it is known.
    pub fn bias(&self) -> f64 {
        let waves = self.finished / self.slots as f64;
        let (first, last) = (BIAS[0], BIAS[BIAS.len() - 1]);
        if waves <= first.0 {
            return first.1;
        }
        if waves >= last.0 {
            return 1.0;
        }
        let place = BIAS.partition_point(|(at, _)| *at <= waves);
        let ((x0, y0), (x1, y1)) = (BIAS[place - 1], BIAS[place]);
        y0 + (y1 - y0) * (waves / x0).ln() / (x1 / x0).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_and_their_bias() {
        let mut job = JobPart::parse("total=914_000,slots=256").unwrap();
        assert_eq!((job.total, job.slots), (914_000, 256));
        job.finished = 1024.0;
        assert!((job.bias() - 0.86).abs() < 1e-9);
        assert!(JobPart::parse("totel=3").unwrap_err().to_string().contains("total=914000"));
        assert!(JobPart::parse("slots=3").is_err());
    }
}
