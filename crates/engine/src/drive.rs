//! One round of work: takes the fragments that have arrived on each link, responds, sends requests that are ready, and
//! checks the timers.

use crate::context::Context;
use crate::id::Table;
use crate::inbox::{Inbox, OpenInbox};
use crate::link_state::{LinkState, Response};
use crate::numbers::Numbers;
use crate::qp::pair::Qp;
use crate::requester::response::{on_acked, on_response};
use crate::requester::{drop_datagram, pump};
use crate::responder::{Reply, Stepped, on_request, step};
use crate::silence::{Next, Silence};
use crate::timer::Scan;
use crate::{AsyncEvent, CqId, Engine, Event, LinkId, Progress, QpState, Status};
use rkey_base::memory::Memory;
use rkey_link::{DownReason, Link, LinkRole, Malformed, SendError};

/// Both exceed what any link holds: fragments per call, and calls.
const LAST_BUDGET: u32 = 256;
const LAST_ROUNDS: u32 = 64;

impl<L: Link, M: Memory> Engine<L, M> {
    /// Takes arrived fragments, at most about `budget` from each link, sends what is ready, and runs expired timers.
    /// `now_ns` is any monotonic clock. A budget of 0 only updates the time.
    pub fn drive(&mut self, now_ns: u64, budget: u32) -> Progress {
        self.drive_for(now_ns, budget, None)
    }

    /// Like [`Engine::drive`]. Messages of one fragment whose receives would complete in `cq` are offered to `inbox`
    /// first, in order, while it takes them and `cq` is empty. Later messages go to receives.
    pub fn drive_with(
        &mut self,
        now_ns: u64,
        budget: u32,
        cq: CqId,
        inbox: &mut dyn Inbox<M>,
    ) -> Progress {
        self.drive_for(now_ns, budget, Some((cq, inbox)))
    }

    #[inline]
    fn drive_for(
        &mut self,
        now_ns: u64,
        budget: u32,
        inbox: Option<(CqId, &mut dyn Inbox<M>)>,
    ) -> Progress {
        self.x.now = now_ns;
        let mut progress = Progress::default();
        if budget == 0 {
            progress.next_deadline = self.x.timers.next_deadline();
            return progress;
        }
        self.x.timers.no_request_waits();
        let mut inbox = inbox.and_then(|(cq, inbox)| OpenInbox::open(cq, inbox, &self.x));
        let mut next = 0;
        while let Some(index) = self.link_with_work(next) {
            self.drive_link(index, budget, &mut progress, &mut inbox);
            next = index + 1;
        }
        if self.x.timers.may_be_due(now_ns) {
            self.run_timers(now_ns, &mut progress);
        }
        self.send_ready(&mut progress);
        progress.next_deadline = self.x.timers.next_deadline();
        progress
    }

    /// The first link with work, from this index on.
    #[inline(never)]
    fn link_with_work(&self, from: u32) -> Option<u32> {
        let has_work = |&index: &u32| self.links.at(index).is_some_and(LinkState::has_work);
        (from..self.links.bound()).find(has_work)
    }

    #[inline]
    fn drive_link(
        &mut self,
        index: u32,
        budget: u32,
        progress: &mut Progress,
        inbox: &mut Option<OpenInbox<'_, M>>,
    ) {
        let Some(link_state) = self.links.at_mut(index) else {
            return;
        };
        let taken = take_fragments(
            &mut self.x,
            &mut self.qps,
            &self.numbers,
            link_state,
            budget,
            inbox,
        );
        match taken {
            Ok(fragments) => {
                progress.did |= fragments > 0;
                progress.more |= fragments >= budget;
            }
            Err(malformed) => {
                link_state
                    .meta
                    .down
                    .get_or_insert(DownReason::Malformed(malformed));
            }
        }
        if !link_state.meta.blocked.is_empty() {
            self.unblock(index, progress);
        }
        self.send_ready(progress);
        let Some(link_state) = self.links.at_mut(index) else {
            return;
        };
        link_state.link.flush();
        // An acknowledgement that waits to be combined with others also counts as work.
        progress.did = progress.did || (!link_state.meta.stuck && link_state.link.pending());
        let down = link_state
            .meta
            .down
            .or_else(|| link_state.link.is_up().err());
        if let Some(reason) = down {
            let id = link_state.meta.id;
            self.link_down(id, reason);
            progress.did = true;
        }
        self.settle_broken();
    }

    /// Resumes the queue pairs that waited for room on a link, in turn.
    fn unblock(&mut self, link: u32, progress: &mut Progress) {
        let waiting = self
            .links
            .at(link)
            .map_or(0, |link_state| link_state.meta.blocked.len());
        for _ in 0..waiting {
            let Some(link_state) = self.links.at_mut(link) else {
                return;
            };
            let Some(who) = link_state.meta.blocked.pop_front() else {
                return;
            };
            let Some(qp) = self.qps.get_mut(who) else {
                continue;
            };
            qp.req.blocked = false;
            let before = (qp.sq.next, qp.req.offset);
            pump(&mut self.x, &mut self.links, qp);
            progress.did |= before != (qp.sq.next, qp.req.offset);
            if qp.req.blocked {
                // The link is full again: the queue pair has moved to the end of the list.
                return;
            }
        }
    }

    /// Resumes the queue pairs that waited for a response or a timer.
    pub(crate) fn send_ready(&mut self, progress: &mut Progress) {
        while let Some(index) = self.x.ready.pop() {
            if let Some(qp) = self.qps.at_mut(index) {
                progress.did = true;
                pump(&mut self.x, &mut self.links, qp);
            }
        }
    }

    #[cold]
    fn run_timers(&mut self, now: u64, progress: &mut Progress) {
        while let Some((deadline, (index, life))) = self.x.timers.due(now) {
            let Some(qp) = self.qps.at_mut(index) else {
                continue;
            };
            if qp.life != life {
                continue;
            }
            if qp.req.wait == Some(deadline) {
                qp.req.wait = None;
                self.x.ready.push(index);
            } else if qp.req.copies.as_ref().is_some_and(|c| c.until == deadline) {
                // The queue pair stays in the link's list, which costs one superfluous check.
                qp.req.blocked = false;
                self.x.ready.push(index);
            }
        }
        if let Some(scan) = self.x.timers.scan_due(now) {
            self.look_for_silence(scan, progress);
        }
        self.x.timers.have_run();
    }

    /// Fails the queue pairs whose peers have been silent for too long, by the time of [`Timers::scan_due`].
    ///
    /// [`Timers::scan_due`]: crate::timer::Timers::scan_due
    fn look_for_silence(&mut self, scan: Scan, progress: &mut Progress) {
        let now = scan.watching;
        let mut watched = std::mem::take(&mut self.x.timers.watched);
        watched.retain(|&id| {
            let Some(qp) = self.qps.get_mut(id) else {
                return false;
            };
            let idle = qp.sq.head == qp.sq.tail
                || !matches!(qp.state, QpState::Rts | QpState::Sqd)
                || (qp.state == QpState::Sqd && qp.sq.head == qp.sq.next);
            if idle {
                qp.req.seen = None;
                qp.req.watched = scan.is_first;
                return scan.is_first;
            }
            let link = qp.out.and_then(|id| self.links.get_mut(id));
            let moved = link
                .as_ref()
                .map_or(0, |link_state| link_state.meta.progress);
            match qp.req.seen {
                Some((seen, since)) if seen == moved && qp.req.wait.is_none() => {
                    let patience = qp.patience();
                    let silent = now.saturating_sub(since);
                    if patience > 0 && silent >= patience {
                        let asks = self.x.config.asks_about_silence;
                        match qp.req.silence.next(asks, silent, patience) {
                            Next::GiveUp => {}
                            Next::Wait => return true,
                            Next::Again => {
                                qp.req.seen = Some((moved, now));
                                return true;
                            }
                            Next::Ask => {
                                let (id, link, peer) = (qp.id, qp.out, qp.peer_qpn());
                                let event = Event::PeerSilent { qp: id, link, peer };
                                self.x.events.push_back(event);
                                progress.did = true;
                                return true;
                            }
                        }
                        let ours = self.x.config.node;
                        let other = link.filter(|link_state| link_state.meta.node != ours);
                        match other.filter(|_| qp.names_memory()) {
                            // The peer might still execute the request later, which must not happen once the program
                            // owns the memory again.
                            Some(link_state) => {
                                link_state.meta.down.get_or_insert(DownReason::Silent);
                                progress.more = true;
                            }
                            None => self.x.give_up(qp, Status::RetryExceeded),
                        }
                        progress.did = true;
                    }
                }
                _ => {
                    qp.req.seen = Some((moved, now));
                    qp.req.silence = Silence::NONE;
                }
            }
            true
        });
        // Failing a queue pair adds nothing to this list.
        self.x.timers.watched = watched;
        self.settle_broken();
    }

    /// Takes everything that has arrived from a device, over any link, before detaching one of its links. So requests
    /// that the peer executed succeed, and messages that it sent arrive.
    pub(crate) fn take_last_news(&mut self, id: LinkId) {
        let Some(node) = self.links.get(id).map(|link_state| link_state.meta.node) else {
            return;
        };
        for index in 0..self.links.bound() {
            let Some(link_state) = self.links.at_mut(index) else {
                continue;
            };
            if link_state.meta.node != node {
                continue;
            }
            for _ in 0..LAST_ROUNDS {
                let taken = take_fragments(
                    &mut self.x,
                    &mut self.qps,
                    &self.numbers,
                    link_state,
                    LAST_BUDGET,
                    &mut None,
                );
                if !taken.is_ok_and(|fragments| fragments > 0) {
                    break;
                }
            }
        }
    }

    /// Detaches a broken link and notifies its users.
    pub(crate) fn link_down(&mut self, id: LinkId, reason: DownReason) {
        if let Some(link) = self.detach(id, reason) {
            self.detached.push((id, link));
            self.x
                .events
                .push_back(Event::LinkDown { link: id, reason });
        }
    }

    /// Makes all queue pairs release a link.
    pub(crate) fn forget_link(&mut self, id: LinkId) {
        for index in 0..self.qps.bound() {
            let Some(qp) = self.qps.at_mut(index) else {
                continue;
            };
            let mut gone = false;
            if qp.inbound == Some(id) {
                qp.inbound = None;
                qp.resp.current = None;
                gone = true;
            }
            if qp.out == Some(id) {
                qp.out = None;
                qp.req.link_requested = false;
                qp.req.blocked = false;
                gone = true;
                lose_requests(&mut self.x, qp);
            }
            if gone && qp.state.responds() {
                self.x.events.push_back(Event::Async(AsyncEvent::PeerGone {
                    qp: qp.id,
                    qpn: qp.qpn,
                }));
            }
        }
        self.x.routes.retain(|_, link| *link != id);
        self.forget_orphans();
    }
}

/// Handles the loss of a connected queue pair's link.
fn lose_requests<M: Memory>(x: &mut Context<M>, qp: &mut Qp) {
    if qp.sq.head == qp.sq.tail || !matches!(qp.state, QpState::Rts | QpState::Sqd) {
        return;
    }
    if qp.config.qp_type.is_reliable() {
        x.give_up(qp, Status::RetryExceeded);
        return;
    }
    // An unreliable connection does not learn whether its requests arrived.
    qp.req.acked = qp.sq.next;
    x.retire(qp);
    if qp.req.offset > 0 {
        qp.req.offset = 0;
        drop_datagram(x, qp);
    }
    x.forget_requests(qp);
}

/// Takes responses, acknowledgements and requests from a link; returns how many.
#[inline]
fn take_fragments<L: Link, M: Memory>(
    x: &mut Context<M>,
    qps: &mut Table<Qp>,
    numbers: &Numbers,
    link_state: &mut LinkState<L>,
    budget: u32,
    inbox: &mut Option<OpenInbox<'_, M>>,
) -> Result<u32, Malformed> {
    link_state.meta.stuck = false;
    let mut fragments = 0;
    if link_state.meta.role != LinkRole::Responder {
        fragments = take_responses(x, qps, numbers, link_state, budget)?;
    }
    if link_state.meta.role != LinkRole::Requester {
        fragments = take_requests(x, qps, numbers, link_state, (fragments, budget), inbox)?;
    }
    Ok(fragments)
}

/// Takes responses, then the acknowledgement; returns how many.
#[inline]
fn take_responses<L: Link, M: Memory>(
    x: &mut Context<M>,
    qps: &mut Table<Qp>,
    numbers: &Numbers,
    link_state: &mut LinkState<L>,
    budget: u32,
) -> Result<u32, Malformed> {
    let mut fragments = 0;
    while fragments < budget {
        match &link_state.link.next_response() {
            Ok(Some(incoming)) => on_response(x, qps, numbers, &mut link_state.meta, incoming),
            Ok(None) => break,
            Err(malformed) => return Err(*malformed),
        }
        link_state.link.response_done();
        fragments += 1;
    }
    if fragments < budget {
        let ticket = link_state.link.acknowledged()?;
        if ticket > link_state.meta.outstanding.acked {
            fragments += 1;
            on_acked(x, qps, &mut link_state.meta, ticket);
        }
    }
    Ok(fragments)
}

/// Takes requests as long as there are fewer than `budget` fragments, of which there have been some; returns how many there
/// are then.
#[inline]
fn take_requests<L: Link, M: Memory>(
    x: &mut Context<M>,
    qps: &mut Table<Qp>,
    numbers: &Numbers,
    link_state: &mut LinkState<L>,
    (mut fragments, budget): (u32, u32),
    inbox: &mut Option<OpenInbox<'_, M>>,
) -> Result<u32, Malformed> {
    if link_state.meta.since == u64::MAX {
        link_state.meta.since = x.now;
    }
    x.serving = link_state.meta.origin;
    while fragments < budget {
        if link_state.meta.unsent.is_some() || link_state.meta.bulk.is_some() {
            match resume(x, qps, link_state) {
                Resumed::Finished => {}
                Resumed::Waits => {
                    link_state.meta.stuck = true;
                    break;
                }
                // Releases the engine to others between two steps.
                Resumed::More => return Ok(fragments.max(budget)),
            }
            fragments += 1;
            continue;
        }
        // The fragment is handled in place: moving it costs as much as executing it.
        let next = link_state.link.next_request();
        let incoming = match &next {
            Ok(Some(incoming)) => incoming,
            Ok(None) => break,
            Err(malformed) => return Err(*malformed),
        };
        let meta = &mut link_state.meta;
        if !link_state.link.room_to_respond() {
            meta.stuck = true;
            break;
        }
        if let Some(until) = x.guesses.paused_until(&meta.origin, meta.since, x.now) {
            meta.stuck = true;
            x.timers.request_waits(until);
            break;
        }
        let reply = on_request(x, qps, numbers, meta, incoming, inbox);
        conclude(link_state, reply);
        if link_state.meta.stuck {
            break;
        }
        fragments += 1;
    }
    Ok(fragments)
}

/// Acts on the decision about the request at the front.
#[inline]
fn conclude<L: Link>(link_state: &mut LinkState<L>, reply: Reply) {
    match reply {
        Reply::Done => link_state.link.request_done(),
        Reply::Response(answer) => send_response(link_state, answer),
        Reply::Bulk(bulk) => link_state.meta.bulk = Some(bulk),
        Reply::Hold => link_state.meta.stuck = true,
    }
}

fn send_response<L: Link>(link_state: &mut LinkState<L>, answer: Response) {
    let sent = link_state.link.send_response(&answer.header, |mut place| {
        let len = place.len().min(answer.wire.len());
        place.put(0, &answer.wire[..len]);
        Ok(())
    });
    match sent {
        Ok(()) => link_state.link.request_done(),
        Err(SendError::Full) => link_state.meta.unsent = Some(answer),
        Err(SendError::Down | SendError::Fault(_)) => {
            let reason = link_state.link.is_up().err().unwrap_or(DownReason::Closed);
            link_state.meta.down.get_or_insert(reason);
        }
    }
}

enum Resumed {
    Finished,
    More,
    /// It waits for room, or because the link is down.
    Waits,
}

/// Resumes the request at the front.
fn resume<L: Link, M: Memory>(
    x: &mut Context<M>,
    qps: &mut Table<Qp>,
    link_state: &mut LinkState<L>,
) -> Resumed {
    if link_state.meta.down.is_some() || !link_state.link.room_to_respond() {
        return Resumed::Waits;
    }
    if let Some(answer) = link_state.meta.unsent.take() {
        send_response(link_state, answer);
        return if link_state.meta.unsent.is_none() {
            Resumed::Finished
        } else {
            Resumed::Waits
        };
    }
    let Some(mut bulk) = link_state.meta.bulk.take() else {
        return Resumed::Finished;
    };
    match step(x, qps, link_state, &mut bulk) {
        Stepped::Finished(reply) => {
            conclude(link_state, reply);
            Resumed::Finished
        }
        Stepped::More => {
            link_state.meta.bulk = Some(bulk);
            Resumed::More
        }
        Stepped::Full => {
            link_state.meta.bulk = Some(bulk);
            Resumed::Waits
        }
        Stepped::Down(reason) => {
            // The request stays in progress: it is still at the front and must not start again.
            link_state.meta.bulk = Some(bulk);
            link_state.meta.down.get_or_insert(reason);
            Resumed::Waits
        }
    }
}
