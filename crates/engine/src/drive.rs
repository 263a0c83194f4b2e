//! One round of work: takes the fragments that have arrived on each link, responds, sends requests that are ready, and
//! checks the timers.

use crate::context::Context;
use crate::id::Table;
use crate::inbox::{Inbox, OpenInbox};
use crate::link_state::{Bulk, LinkState, Response};
use crate::numbers::Numbers;
use crate::qp::pair::Qp;
use crate::requester::response::{on_acked, on_response};
use crate::requester::send_queued;
use crate::responder::{Reply, Stepped, bulk_step, on_request, take_short_requests};
use crate::{CqId, Engine, LinkId, Progress, wire};
use rkey_base::memory::Memory;
use rkey_link::{DownReason, Link, LinkRole, Malformed, SendError};

impl<L: Link, M: Memory> Engine<L, M> {
    /// Takes arrived fragments, at most about `budget` from each link, sends what is ready, and runs expired timers.
    /// `now_ns` is the time of any monotonic clock, the same one in every call. A budget of 0 only updates the time.
    pub fn drive(&mut self, now_ns: u64, budget: u32) -> Progress {
        self.drive_round(now_ns, budget, None, None)
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
        self.drive_round(now_ns, budget, None, Some((cq, inbox)))
    }

    /// Like [`Engine::drive`], or with an inbox, like [`Engine::drive_with`]. With `only`, looks at no other link.
    #[inline]
    pub fn drive_round(
        &mut self,
        now_ns: u64,
        budget: u32,
        only: Option<LinkId>,
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
        self.x.acks_first = inbox.is_none() && self.links.bound() > 1;
        let mut next = match only {
            Some(link) => Some(link.index),
            None => self.link_with_work(0),
        };
        while let Some(index) = next {
            self.drive_link(index, budget, &mut progress, &mut inbox);
            next = match only {
                Some(_) => None,
                None => self.link_with_work(index + 1),
            };
        }
        self.x.acks_first = false;
        if self.x.is_deferred {
            self.take_deferred(budget, &mut progress);
        }
        if self.x.timers.may_be_due(now_ns) {
            self.run_timers(now_ns, &mut progress);
        }
        self.send_ready(&mut progress);
        progress.next_deadline = self.x.timers.next_deadline();
        progress
    }

    /// Takes the requests that the responder has deferred, after the responses and acknowledgements on other links that were published
    /// before them. If nothing else is outstanding, a peer acknowledges a message before its program can answer it, so the send of the
    /// message completes before the receive of the answer. Programs rely on this order: tgt, for one, ends the connection if it is
    /// violated. Acknowledgements of several outstanding messages may come later than the answers. Endpoints pass an inbox, and do not
    /// need the order.
    #[cold]
    fn take_deferred(&mut self, budget: u32, progress: &mut Progress) {
        self.x.is_deferred = false;
        for responds in [false, true] {
            let mut next = 0;
            while let Some(index) = self.link_with_work(next) {
                next = index + 1;
                let role = self.links.at(index).map(|link| link.meta.role);
                if (role == Some(LinkRole::Responder)) == responds {
                    self.drive_link(index, budget, progress, &mut None);
                }
            }
        }
    }

    /// The index of the first link with work, at or after this index.
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
        link_state.link.end_burst();
        // An acknowledgement that waits to be combined with others also counts as progress.
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
        self.fail_users_of_overrun_cqs();
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
            send_queued(&mut self.x, &mut self.links, qp);
            progress.did |= before != (qp.sq.next, qp.req.offset);
            if qp.req.blocked {
                // The link is full again: the queue pair has moved to the end of the list.
                return;
            }
        }
    }

    /// Resumes the queue pairs that may be able to send again.
    pub(crate) fn send_ready(&mut self, progress: &mut Progress) {
        while let Some(index) = self.x.ready.pop() {
            if let Some(qp) = self.qps.at_mut(index) {
                progress.did = true;
                send_queued(&mut self.x, &mut self.links, qp);
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
            } else if qp.wire.is_some() {
                wire::on_time(&mut self.x, qp);
            }
        }
        if let Some(scan) = self.x.timers.scan_due(now) {
            self.look_for_silence(scan, progress);
        }
        self.x.timers.have_run();
    }
}

/// Takes responses, acknowledgements and requests from a link; returns how many.
#[inline]
pub(crate) fn take_fragments<L: Link, M: Memory>(
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

/// Takes requests until `fragments`, initially the number of responses taken, reaches `budget`; returns the new count.
#[inline]
fn take_requests<L: Link, M: Memory>(
    x: &mut Context<M>,
    qps: &mut Table<Qp>,
    numbers: &Numbers,
    link_state: &mut LinkState<L>,
    (fragments, budget): (u32, u32),
    inbox: &mut Option<OpenInbox<'_, M>>,
) -> Result<u32, Malformed> {
    if link_state.meta.since == u64::MAX {
        link_state.meta.since = x.now;
    }
    let taken = take_short_requests(x, qps, numbers, link_state, (fragments, budget), inbox);
    if taken.was_last {
        return Ok(taken.fragments);
    }
    let so_far = (taken.fragments, budget);
    take_any_requests(x, qps, numbers, link_state, so_far, inbox)
}

/// Like [`take_requests`], for all kinds of requests.
#[inline(never)]
fn take_any_requests<L: Link, M: Memory>(
    x: &mut Context<M>,
    qps: &mut Table<Qp>,
    numbers: &Numbers,
    link_state: &mut LinkState<L>,
    (mut fragments, budget): (u32, u32),
    inbox: &mut Option<OpenInbox<'_, M>>,
) -> Result<u32, Malformed> {
    x.serving = link_state.meta.origin;
    while fragments < budget {
        if link_state.meta.unsent.is_some() || link_state.meta.bulk.is_some() {
            match resume_front_request(x, qps, link_state) {
                Resumed::Finished => {}
                Resumed::Waits => {
                    link_state.meta.stuck = true;
                    break;
                }
                // Lets the owner release the engine between two steps.
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
        carry_out_reply(link_state, reply);
        if link_state.meta.stuck {
            break;
        }
        // A read whose data fit into a slot has only one step, which counts.
        let in_slot = link_state.meta.caps.in_slot_max;
        let counts_later = |bulk: &Bulk| bulk.is_read_of_at_most(in_slot);
        fragments += u32::from(!link_state.meta.bulk.as_ref().is_some_and(counts_later));
    }
    Ok(fragments)
}

/// Carries out the responder's reply to the request at the front of the ring: consumes the request, sends the response,
/// or leaves the request where it is.
#[inline]
fn carry_out_reply<L: Link>(link_state: &mut LinkState<L>, reply: Reply) {
    match reply {
        Reply::Done => link_state.link.request_done(),
        Reply::Response(answer) => send_response(link_state, answer),
        // `resume_front_request` executes its steps.
        Reply::Bulk(bulk) => link_state.meta.bulk = Some(bulk),
        Reply::Hold => link_state.meta.stuck = true,
    }
}

fn send_response<L: Link>(link_state: &mut LinkState<L>, answer: Response) {
    let sent = link_state.link.send_response(&answer.header, |mut into| {
        let len = into.len().min(answer.denial.len());
        into.put(0, &answer.denial[..len]);
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
    /// The request waits for room, or the link is down.
    Waits,
}

/// Resumes the request at the front of the ring: sends its response, or executes its next step.
fn resume_front_request<L: Link, M: Memory>(
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
    match bulk_step(x, qps, link_state, &mut bulk) {
        Stepped::Finished(reply) => {
            carry_out_reply(link_state, reply);
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
