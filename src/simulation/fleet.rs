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
    loop {
        for (index, replica) in replicas.iter_mut().enumerate() {
            if replica.ends_at() == Some(now) {
                replica.finish_stride(now, &mut feed.queue(index), observer);
            }
        }
        for (index, replica) in replicas.iter_mut().enumerate() {
            if replica.ends_at().is_none() {
                replica.start(now, &mut feed.queue(index), observer)?;
            }
        }
        while let Some(index) = feed.woken.pop() {
            replicas[index].interrupt(now);
        }
        if !exhausted && feed.is_exhausted() {
            exhausted = true;
            replicas.iter_mut().for_each(|replica| replica.exhausted(now));
        }
        let next_end = replicas.iter().filter_map(Replica::ends_at).min();
        let Some(next) = next_end.into_iter().chain(feed.next_arrival()).min() else { break };
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
