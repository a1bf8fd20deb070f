//! The loop: take the earliest instant, apply all its events, let replicas with work start a stretch of steps.

use crate::engine::observe::Observer;
use crate::engine::replica::Replica;
use crate::error::{Error, Result};
use crate::simulation::feed::{Dispatch, Feed, InFlight, RequestStream};
use crate::simulation::outcome::Outcome;
use crate::units::{SimTime, Span};

/// A fleet of replicas and how requests reach it.
#[derive(Debug)]
pub struct Fleet {
    /// The replicas.
    pub replicas: Vec<Replica>,
    /// GPUs that one replica spans.
    pub gpus_per_replica: u32,
    /// How requests find their replica.
    pub dispatch: Dispatch,
    /// How many requests the client keeps in flight.
    pub in_flight: InFlight,
    /// Time between two requests that the client sends.
    pub submit_interval: Span,
    /// Time before any replica serves.
    pub startup: Span,
}

/// Runs a job to its end.
///
/// # Errors
/// [`Error::Impossible`] when a request can never be served.
pub fn simulate<R, O>(fleet: Fleet, requests: R, observer: &mut O) -> Result<Outcome>
where
    R: RequestStream + Clone,
    O: Observer,
{
    let total = requests.len();
    let Fleet { mut replicas, gpus_per_replica, dispatch, in_flight, submit_interval, startup } = fleet;
    let mut feed = Feed::new(requests, replicas.len(), dispatch, in_flight, submit_interval);
    let serving_from = SimTime::ZERO + startup;
    let mut now = serving_from;
    let mut exhausted = false;
    feed.arrive(now);
    // When each replica's stretch ends; NEVER when idle. Kept apart from the replicas, which are large.
    let mut ends = vec![SimTime::NEVER; replicas.len()];
    let mut idle: Vec<usize> = (0..replicas.len()).collect();
    let mut ready = Vec::with_capacity(replicas.len());
    loop {
        ready.append(&mut idle);
        for (index, end) in ends.iter_mut().enumerate() {
            if *end == now {
                *end = SimTime::NEVER;
                replicas[index].finish_stride(now, &mut feed.queue(index), observer);
                ready.push(index);
            }
        }
        loop {
            // In order of their numbers, so that who takes the next request does not depend on who was idle.
            ready.sort_unstable();
            for index in ready.drain(..) {
                replicas[index].start(now, &mut feed.queue(index), observer)?;
                match replicas[index].ends_at() {
                    Some(end) => ends[index] = end,
                    None => idle.push(index),
                }
            }
            while let Some(index) = feed.woken.pop() {
                replicas[index].interrupt(now);
                ends[index] = replicas[index].ends_at().unwrap_or(SimTime::NEVER);
            }
            if !exhausted && feed.is_exhausted() {
                exhausted = true;
                for (replica, end) in replicas.iter_mut().zip(&mut ends) {
                    replica.exhausted(now);
                    *end = replica.ends_at().unwrap_or(SimTime::NEVER);
                }
            }
            // The replica that ends first is alone as long as it comes to its next boundary before anything else
            // happens: then nothing else needs looking at.
            let mut disturbed = false;
            while !disturbed && idle.is_empty() {
                let (index, others) = first_and_others(&ends);
                let horizon = others.min(feed.next_arrival().unwrap_or(SimTime::NEVER));
                if ends[index] >= horizon {
                    break;
                }
                let replica = &mut replicas[index];
                while ends[index] < horizon && !disturbed {
                    now = ends[index];
                    ends[index] = SimTime::NEVER;
                    replica.finish_stride(now, &mut feed.queue(index), observer);
                    if !feed.woken.is_empty() || exhausted != feed.is_exhausted() {
                        ready.push(index);
                        disturbed = true;
                        break;
                    }
                    replica.start(now, &mut feed.queue(index), observer)?;
                    match replica.ends_at() {
                        Some(end) => ends[index] = end,
                        None => idle.push(index),
                    }
                    disturbed = !feed.woken.is_empty() || exhausted != feed.is_exhausted();
                }
            }
            if !disturbed {
                break;
            }
        }
        let next_end = ends.iter().copied().min().unwrap_or(SimTime::NEVER);
        let next = next_end.min(feed.next_arrival().unwrap_or(SimTime::NEVER));
        if next == SimTime::NEVER {
            break;
        }
        debug_assert!(next >= now, "time never falls");
        now = next;
        feed.arrive(now);
    }
    let outcome = Outcome::new(&replicas, gpus_per_replica, feed.rejected);
    if outcome.completed + outcome.rejected != total {
        return Err(Error::Impossible(format!(
            "{} of {total} requests could never be admitted",
            total - outcome.completed - outcome.rejected
        )));
    }
    Ok(outcome)
}

/// Who ends first, and when the first of the others does.
#[inline]
fn first_and_others(ends: &[SimTime]) -> (usize, SimTime) {
    let (mut first, mut others) = (0, SimTime::NEVER);
    for (index, &end) in ends.iter().enumerate().skip(1) {
        if end < ends[first] {
            (first, others) = (index, ends[first]);
        } else if end < others {
            others = end;
        }
    }
    (first, others)
}
