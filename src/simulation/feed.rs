//! The router and the client: which request a replica sees, and when.
//!
//! Requests come in the order of the job. Where everything is submitted at once, replicas simply take the next one
//! (from a queue they share, or from their own share of the job). Otherwise requests become known one by one: at their
//! arrival times, or when the client, which keeps a number of requests in flight, learns of a completion.

use std::collections::VecDeque;

use crate::engine::replica::Queue;
use crate::engine::sequence::Waiting;
use crate::units::{SimTime, Span};
use crate::workload::Request;

/// The requests of a job, by position in the order in which they are sent.
pub trait RequestStream {
    /// How many there are.
    fn len(&self) -> u64;
    /// The request at a position; `None` when it can never be served (its prompt fills the context).
    fn request(&mut self, position: u64) -> Option<Request>;
    /// When it arrives, for open arrivals; `None` when it is there from the start.
    fn arrival(&mut self, position: u64) -> Option<SimTime>;
    /// True when there are no requests.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How requests find their replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Dispatch {
    /// One queue that replicas take from.
    #[default]
    Shared,
    /// The job is cut into one contiguous part per replica.
    Static,
    /// Request i goes to replica i mod N.
    RoundRobin,
}

/// How many requests the client keeps in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum InFlight {
    /// Everything is submitted as soon as it arrives.
    #[default]
    All,
    /// So many for each replica.
    PerReplica(u32),
    /// So many in all, sent to the replica that has the fewest.
    Total(u32),
}

/// One reader's share of the job.
#[derive(Clone, Debug)]
struct Share<R> {
    requests: R,
    next: u64,
    step: u64,
    end: u64,
    /// The head, where requests are taken straight from the job and a replica has looked at it.
    shown: Option<Waiting>,
}

impl<R: RequestStream> Share<R> {
    /// The next request that can be served, and its position; counts those rejected before it.
    fn next(&mut self, rejected: &mut u64) -> Option<(u64, Request)> {
        while self.next < self.end {
            let position = self.next;
            self.next += self.step;
            match self.requests.request(position) {
                Some(request) => return Some((position, request)),
                None => *rejected += 1,
            }
        }
        None
    }

    fn is_done(&self) -> bool {
        self.next >= self.end
    }

    /// Requests that nobody has taken, rejected ones included.
    fn left(&self) -> u64 {
        self.end.saturating_sub(self.next).div_ceil(self.step) + u64::from(self.shown.is_some())
    }
}

/// The router and the client of one run.
#[derive(Debug)]
pub(super) struct Feed<R> {
    replicas: usize,
    /// One share, or one per replica.
    shares: Vec<Share<R>>,
    /// One queue for all, or one per replica.
    queues: Vec<VecDeque<Waiting>>,
    /// Requests that a preemption sent back: before and behind the queue, per replica.
    resumed: Vec<VecDeque<Waiting>>,
    retracted: Vec<VecDeque<Waiting>>,
    /// Requests on their way, by arrival.
    coming: VecDeque<(SimTime, usize, Waiting)>,
    mode: Mode,
    dispatch: Dispatch,
    /// Requests that each replica holds; in a closed loop, those on their way to it as well.
    in_flight: Vec<u32>,
    in_flight_of_all: u64,
    submit_interval: Span,
    last_submit: Option<SimTime>,
    /// Replicas that got something new at the present instant.
    pub(super) woken: Vec<usize>,
    pub(super) rejected: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Everything is there from the start.
    Pull,
    /// A closed loop: completions bring the next request.
    Closed(InFlight),
    /// Arrival times.
    Open,
}

impl<R: RequestStream + Clone> Feed<R> {
    pub(super) fn new(
        mut requests: R,
        replicas: usize,
        dispatch: Dispatch,
        in_flight: InFlight,
        submit_interval: Span,
    ) -> Self {
        let open = requests.arrival(0).is_some();
        let mode = match in_flight {
            _ if open => Mode::Open,
            InFlight::All if submit_interval == Span::ZERO => Mode::Pull,
            // A client that sends everything, one by one, is a closed loop without end.
            other => Mode::Closed(other),
        };
        let length = requests.len();
        let share = |next, step, end| Share { requests: requests.clone(), next, step, end, shown: None };
        let count = replicas as u64;
        let shares: Vec<Share<R>> = match dispatch {
            // Arrivals come in the order of the job whoever serves them.
            _ if mode == Mode::Open => vec![share(0, 1, length)],
            Dispatch::Shared => vec![share(0, 1, length)],
            Dispatch::Static => (0..count).map(|r| share(length * r / count, 1, length * (r + 1) / count)).collect(),
            Dispatch::RoundRobin => (0..count).map(|r| share(r, count, length)).collect(),
        };
        let queues = if mode == Mode::Open && dispatch == Dispatch::Shared { 1 } else { replicas };
        let mut feed = Feed {
            replicas,
            shares,
            queues: vec![VecDeque::new(); queues],
            resumed: vec![VecDeque::new(); replicas],
            retracted: vec![VecDeque::new(); replicas],
            coming: VecDeque::new(),
            mode,
            dispatch,
            in_flight: vec![0; replicas],
            in_flight_of_all: 0,
            submit_interval,
            last_submit: None,
            woken: Vec::new(),
            rejected: 0,
        };
        match mode {
            Mode::Pull => {}
            Mode::Open => feed.fetch_arrival(),
            Mode::Closed(limit) => feed.fill(limit, replicas),
        }
        feed
    }

    /// Sends what the client keeps in flight from the start, a request to each replica in turn.
    fn fill(&mut self, limit: InFlight, replicas: usize) {
        match limit {
            InFlight::All => {
                // In turn until every part of the job is at its end: parts differ in length.
                while self.shares.iter().any(|share| !share.is_done()) {
                    for replica in 0..replicas {
                        self.submit(replica, SimTime::ZERO);
                    }
                }
            }
            InFlight::PerReplica(each) => {
                for _ in 0..each {
                    for replica in 0..replicas {
                        self.submit(replica, SimTime::ZERO);
                    }
                }
            }
            InFlight::Total(total) => {
                for _ in 0..total {
                    self.submit_to_fewest(0, SimTime::ZERO);
                }
            }
        }
    }

    /// The client sends the next request to the replica with the fewest in flight of those whose part of the job is not
    /// at its end; to `own` on a tie, else to the first.
    fn submit_to_fewest(&mut self, own: usize, now: SimTime) {
        let left = |feed: &Self, replica: usize| !feed.shares[feed.share_of(replica)].is_done();
        while let Some(replica) = (0..self.replicas)
            .filter(|&replica| left(self, replica))
            .min_by_key(|&replica| (self.in_flight[replica], replica != own, replica))
        {
            // What is left of a part may never be served: then another part has its turn.
            if self.submit(replica, now) {
                return;
            }
        }
    }

    #[inline]
    fn share_of(&self, replica: usize) -> usize {
        if self.shares.len() == 1 { 0 } else { replica }
    }

    #[inline]
    fn queue_of(&self, replica: usize) -> usize {
        if self.queues.len() == 1 { 0 } else { replica }
    }

    /// The head of a share, where requests are taken straight from the job, becomes visible; false when none is left.
    #[inline(never)]
    fn show(&mut self, share: usize) -> bool {
        let share = &mut self.shares[share];
        let next = share.next(&mut self.rejected);
        share.shown = next.map(|(_, request)| Waiting { request, submitted_at: SimTime::ZERO, progress: None });
        share.shown.is_some()
    }

    fn draw(&mut self, replica: usize) -> Option<(u64, Request)> {
        let share = self.share_of(replica);
        self.shares[share].next(&mut self.rejected)
    }

    /// The client sends the next request of `replica` at `now`, or as soon after as it can; false when none is left.
    fn submit(&mut self, replica: usize, now: SimTime) -> bool {
        let Some((_, request)) = self.draw(replica) else { return false };
        let at = match self.last_submit {
            Some(last) => now.max(last + self.submit_interval),
            None => now,
        };
        self.last_submit = Some(at);
        self.in_flight[replica] += 1;
        self.in_flight_of_all += 1;
        let waiting = Waiting { request, submitted_at: at, progress: None };
        if at > now || now == SimTime::ZERO {
            self.coming.push_back((at, replica, waiting));
        } else {
            let queue = self.queue_of(replica);
            self.queues[queue].push_back(waiting);
            self.woken.push(replica);
        }
        true
    }

    /// Fetches the next open arrival, one ahead.
    fn fetch_arrival(&mut self) {
        let Some((position, request)) = self.draw(0) else { return };
        let share = &mut self.shares[0];
        let at = share.requests.arrival(position).unwrap_or(SimTime::ZERO);
        let replicas = self.replicas as u64;
        let replica = match self.dispatch {
            Dispatch::Shared => 0,
            Dispatch::RoundRobin => position % replicas,
            Dispatch::Static => {
                u64::try_from(u128::from(position) * u128::from(replicas) / u128::from(share.end)).unwrap_or(0)
            }
        };
        self.coming.push_back((at, replica as usize, Waiting { request, submitted_at: at, progress: None }));
    }

    /// When the next request on its way arrives.
    #[inline]
    pub(super) fn next_arrival(&self) -> Option<SimTime> {
        self.coming.front().map(|(at, ..)| *at)
    }

    /// Delivers what arrives at `now`.
    pub(super) fn arrive(&mut self, now: SimTime) {
        while self.coming.front().is_some_and(|(at, ..)| *at <= now) {
            let Some((_, replica, waiting)) = self.coming.pop_front() else { return };
            let queue = self.queue_of(replica);
            self.queues[queue].push_back(waiting);
            if self.queues.len() == 1 {
                self.woken.extend(0..self.replicas);
            } else {
                self.woken.push(replica);
            }
            if self.mode == Mode::Open {
                self.fetch_arrival();
            }
        }
    }

    /// True when nothing is left to hand out.
    #[inline]
    pub(super) fn is_exhausted(&self) -> bool {
        self.shares.iter().all(|share| share.is_done() && share.shown.is_none()) && self.coming.is_empty()
    }

    /// The view of one replica.
    pub(super) fn queue(&mut self, replica: usize) -> ReplicaQueue<'_, R> {
        ReplicaQueue { feed: self, replica, found: None }
    }
}

/// What one replica sees of the feed.
pub(super) struct ReplicaQueue<'a, R> {
    feed: &'a mut Feed<R>,
    replica: usize,
    /// Where `peek` has found its head.
    found: Option<Head>,
}

/// Where the head of a replica's queue stands.
#[derive(Clone, Copy)]
enum Head {
    Resumed,
    Queued(usize),
    Shown(usize),
    Retracted,
}

impl<R: RequestStream + Clone> ReplicaQueue<'_, R> {
    #[inline(always)]
    fn head(&mut self, known: SimTime) -> Option<Head> {
        match self.shown_share() {
            Some(share) => Some(Head::Shown(share)),
            None => self.other_head(known),
        }
    }

    /// The share whose head this replica sees, where requests are taken straight from the job and none comes before.
    #[inline(always)]
    fn shown_share(&mut self) -> Option<usize> {
        if self.feed.mode != Mode::Pull || !self.feed.resumed[self.replica].is_empty() {
            return None;
        }
        let share = self.feed.share_of(self.replica);
        let Share { next, end, shown, .. } = &self.feed.shares[share];
        let shown = shown.is_some();
        let left = end.saturating_sub(*next) + u64::from(shown);
        let seen = !self.holds_its_part_of(left) && (shown || self.feed.show(share));
        seen.then_some(share)
    }

    /// The head of the queues that are not taken straight from the job.
    fn other_head(&self, known: SimTime) -> Option<Head> {
        let replica = self.replica;
        if !self.feed.resumed[replica].is_empty() {
            return Some(Head::Resumed);
        }
        let queue = self.feed.queue_of(replica);
        let holds_its_part = match self.feed.mode {
            Mode::Pull => true,
            Mode::Closed(_) => false,
            Mode::Open => {
                let arrived = self.feed.queues[queue].partition_point(|waiting| waiting.submitted_at <= known);
                self.holds_its_part_of(arrived as u64)
            }
        };
        if let Some(waiting) = self.feed.queues[queue].front().filter(|_| !holds_its_part) {
            return (waiting.submitted_at <= known).then_some(Head::Queued(queue));
        }
        // What was sent back to this replica is its own even when it holds its part.
        (!self.feed.retracted[replica].is_empty()).then_some(Head::Retracted)
    }

    /// True when this replica holds its even part of all that is outstanding: `left` requests and those that replicas
    /// hold. Replicas that share a queue leave the rest to the others: a router that filled one replica before it looked at the next
    /// would be none.
    #[inline]
    fn holds_its_part_of(&self, left: u64) -> bool {
        let feed = &self.feed;
        feed.dispatch == Dispatch::Shared
            && feed.replicas > 1
            && u64::from(feed.in_flight[self.replica]) * feed.replicas as u64 >= left + feed.in_flight_of_all
    }

    /// This replica takes a request that nobody has counted yet.
    fn count_in(&mut self) {
        self.feed.in_flight[self.replica] += 1;
        self.feed.in_flight_of_all += 1;
    }
}

impl<R: RequestStream + Clone> Queue for ReplicaQueue<'_, R> {
    #[inline]
    fn peek(&mut self, known: SimTime) -> Option<&Waiting> {
        let replica = self.replica;
        self.found = self.head(known);
        match self.found? {
            Head::Resumed => self.feed.resumed[replica].front(),
            Head::Queued(queue) => self.feed.queues[queue].front(),
            Head::Shown(share) => self.feed.shares[share].shown.as_ref(),
            Head::Retracted => self.feed.retracted[replica].front(),
        }
    }

    #[inline]
    fn unknown(&mut self, known: SimTime, now: SimTime) -> bool {
        self.feed.mode != Mode::Pull && known < now && self.peek(known).is_none() && self.peek(now).is_some()
    }

    #[inline]
    fn take(&mut self) -> Option<Waiting> {
        let replica = self.replica;
        match self.found.take()? {
            Head::Resumed => self.feed.resumed[replica].pop_front(),
            Head::Queued(queue) => {
                if self.feed.mode == Mode::Open {
                    self.count_in();
                }
                self.feed.queues[queue].pop_front()
            }
            Head::Shown(share) => {
                self.count_in();
                self.feed.shares[share].shown.take()
            }
            Head::Retracted => self.feed.retracted[replica].pop_front(),
        }
    }

    fn put_back(&mut self, waiting: Waiting, first: bool) {
        self.found = None;
        if first {
            self.feed.resumed[self.replica].push_front(waiting);
        } else {
            self.feed.retracted[self.replica].push_back(waiting);
        }
    }

    #[inline]
    fn completed(&mut self, at: SimTime) {
        self.feed.in_flight[self.replica] -= 1;
        self.feed.in_flight_of_all -= 1;
        let Mode::Closed(limit) = self.feed.mode else { return };
        match limit {
            InFlight::All => {}
            InFlight::PerReplica(_) => {
                self.feed.submit(self.replica, at);
            }
            InFlight::Total(_) => self.feed.submit_to_fewest(self.replica, at),
        }
    }

    #[inline]
    fn more(&mut self) -> bool {
        let replica = self.replica;
        let share = self.feed.share_of(replica);
        !self.feed.shares[share].is_done()
            || self.feed.shares[share].shown.is_some()
            || !self.feed.coming.is_empty()
            || !self.feed.queues[self.feed.queue_of(replica)].is_empty()
            || !self.feed.resumed[replica].is_empty()
            || !self.feed.retracted[replica].is_empty()
    }

    #[inline]
    fn reacts(&self) -> bool {
        matches!(self.feed.mode, Mode::Closed(limit) if limit != InFlight::All)
    }

    fn waiting(&self) -> u64 {
        let replica = self.replica;
        let queued = match self.feed.mode {
            Mode::Pull => self.feed.shares[self.feed.share_of(replica)].left(),
            _ => self.feed.queues[self.feed.queue_of(replica)].len() as u64,
        };
        queued + (self.feed.resumed[replica].len() + self.feed.retracted[replica].len()) as u64
    }
}
