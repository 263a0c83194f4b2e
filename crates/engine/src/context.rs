//! The state that the requester and the responder share: completion queues, events, reports, timers, the time.

use crate::checked_memory::{AccessError, CheckedMemory, name_element};
use crate::cq::{Cq, Pushed};
use crate::exposure::Exposure;
use crate::groups::{Destinations, Group};
use crate::guesses::Guesses;
use crate::id::Table;
use crate::qp::pair::Qp;
use crate::recv_queue::RecvQueue;
use crate::send_queue::WqeFlags;
use crate::timer::Timers;
use crate::warrants::Warrants;
use crate::wire::WireQueue;
use crate::{
    AsyncEvent, Completion, CqId, DenialReport, EngineConfig, Event, LinkId, Origin, Process, QpId,
    Reports, Sge, Side, SrqId, XrcdId,
};
use rkey_core::{Denial, DomainId};
use rkey_link::NodeId;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// The maximum number of reports that wait to be polled as events. Further reports get an id and an entry in the list of
/// recent reports, but no event: a peer that is refused in a loop must not exhaust our memory.
const REPORTS_MAX: usize = 1024;

/// A shared receive queue.
pub(crate) struct Srq {
    pub(crate) id: SrqId,
    pub(crate) domain: DomainId,
    pub(crate) queue: RecvQueue,
    pub(crate) max_sge: u32,
    /// An event is raised when fewer receives than this are left; 0 means disarmed.
    pub(crate) limit: u32,
    pub(crate) users: u32,
    /// For queues whose receives complete in their own completion queue: that queue, and for extended reliable
    /// connections the XRC domain of its users.
    pub(crate) serves: Option<(Option<XrcdId>, CqId)>,
    /// Whether RSS may deliver frames here.
    pub(crate) ready: bool,
}

/// Orphaned requests with remote iovecs: ended here, but not acknowledged by the peer.
pub(crate) struct OrphanedRequests {
    pub(crate) link: LinkId,
    /// The number of the queue pair that they belonged to.
    pub(crate) qpn: u32,
    pub(crate) life: u32,
    /// The requests' sequence numbers are below this one.
    pub(crate) until: u64,
    pub(crate) sges: Vec<Sge>,
}

/// The state of an engine apart from its queue pairs and links (`x` everywhere). It is separate so that it can be
/// borrowed together with a queue pair or a link.
pub(crate) struct Context<M> {
    pub(crate) config: EngineConfig,
    pub(crate) checked: CheckedMemory<M>,
    pub(crate) cqs: Table<Cq>,
    pub(crate) srqs: Table<Srq>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) timers: Timers,
    /// The time of the current (or last) `drive`.
    pub(crate) now: u64,
    /// Queue pairs that may be able to send again.
    pub(crate) ready: Vec<u32>,
    /// Completion queues that overran and whose queue pairs have not failed yet.
    pub(crate) overrun_cqs: Vec<CqId>,
    /// The local members of each multicast group.
    pub(crate) members: HashMap<Group, Vec<QpId>>,
    /// The links to the devices that have members of each group.
    pub(crate) destinations: HashMap<Group, Destinations>,
    /// The link to each datagram queue pair, by queue pair number.
    pub(crate) routes: HashMap<u32, LinkId>,
    pub(crate) orphans: Vec<OrphanedRequests>,
    pub(crate) wire: WireQueue,
    pub(crate) exposure: Arc<Exposure>,
    pub(crate) warrants: Warrants,
    pub(crate) reports: Arc<Reports>,
    /// The process whose requests are being handled.
    pub(crate) serving: Origin,
    pub(crate) guesses: Guesses,
    /// How many receives have completed, with or without an error.
    pub(crate) received: u64,
    /// Whether a message for a queue pair with outstanding requests waits until this round has taken the responses on all links.
    pub(crate) acks_first: bool,
    /// Whether such a message waits.
    pub(crate) is_deferred: bool,
    next_life: u32,
    reports_waiting: usize,
}

impl<M> Context<M> {
    pub(crate) fn new(config: EngineConfig, checked: CheckedMemory<M>) -> Self {
        let exposure = Arc::default();
        Self {
            config,
            checked,
            cqs: Table::new(),
            srqs: Table::new(),
            events: VecDeque::new(),
            timers: Timers::new(),
            now: 0,
            ready: Vec::new(),
            overrun_cqs: Vec::new(),
            members: HashMap::new(),
            destinations: HashMap::new(),
            routes: HashMap::new(),
            orphans: Vec::new(),
            wire: WireQueue::default(),
            warrants: Warrants::new(&exposure),
            exposure,
            reports: Arc::default(),
            serving: Origin {
                process: Process::default(),
                here: true,
                explain: true,
            },
            guesses: Guesses::default(),
            received: 0,
            acks_first: false,
            is_deferred: false,
            next_life: 0,
            reports_waiting: 0,
        }
    }

    /// A new value for [`Qp::life`]; values repeat after 2^32.
    pub(crate) fn life(&mut self) -> u32 {
        self.next_life = self.next_life.wrapping_add(1);
        self.next_life
    }

    /// Adds an entry to a completion queue.
    #[inline(always)]
    pub(crate) fn push_completion(&mut self, cq: CqId, entry: Completion, solicited: bool) {
        // The queue may have been destroyed: the receiving half of an extended reliable connection does not count as a
        // user of the completion queue of its last shared receive queue.
        let Some(queue) = self.cqs.get_mut(cq) else {
            return;
        };
        let pushed = queue.push(entry, solicited);
        if pushed != Pushed::Quiet {
            self.push_cq_event(cq, pushed);
        }
    }

    /// Like [`Self::push_completion`], for a receive.
    #[inline(always)]
    pub(crate) fn push_recv_completion(&mut self, cq: CqId, entry: Completion, solicited: bool) {
        self.received += 1;
        self.push_completion(cq, entry, solicited);
    }

    /// Removes the entries of a queue pair that is reset or destroyed from its completion queues.
    #[cold]
    pub(crate) fn forget_completions(&mut self, qp: &Qp) {
        let mut queues = vec![qp.config.send_cq, qp.config.recv_cq];
        if qp.home.is_some() {
            let of_domain = self.srqs.iter().filter_map(|srq| srq.serves);
            queues.extend(
                of_domain
                    .filter(|serves| serves.0 == qp.config.xrcd)
                    .map(|serves| serves.1),
            );
        }
        for cq in queues {
            if let Some(queue) = self.cqs.get_mut(cq) {
                queue.forget(qp.qpn);
            }
        }
    }

    /// Raises the events that a new entry causes.
    #[cold]
    fn push_cq_event(&mut self, cq: CqId, pushed: Pushed) {
        match pushed {
            Pushed::Quiet => {}
            Pushed::Ready => self.events.push_back(Event::CqReady(cq)),
            Pushed::Seen => self.events.push_back(Event::CqSeen(cq)),
            Pushed::ReadyAndSeen => {
                self.events.push_back(Event::CqReady(cq));
                self.events.push_back(Event::CqSeen(cq));
            }
            Pushed::Overrun => {
                self.events
                    .push_back(Event::Async(AsyncEvent::CqOverrun(cq)));
                self.overrun_cqs.push(cq);
            }
            Pushed::Broken => {}
        }
    }

    /// Records a denial; returns the report's id. The report is added before any completion or NAK can carry its id.
    #[cold]
    pub(crate) fn report(
        &mut self,
        side: Side,
        qp: &Qp,
        peer: NodeId,
        work_id: Option<u64>,
        denial: Denial,
    ) -> u32 {
        let id = self.reports.new_id();
        self.keep(DenialReport {
            id,
            echo: false,
            side,
            qpn: qp.qpn,
            peer_qpn: qp.peer.map_or(0, |peer| peer.qpn),
            peer,
            host: qp.wire_peer.map(|wire| wire.remote),
            work_id,
            denial,
        });
        id
    }

    /// Records that the target denied one of our requests; returns the report's id. `here` is the id of the target's
    /// own report, if the target is in this process.
    #[cold]
    pub(crate) fn report_answer(
        &mut self,
        qp: &Qp,
        peer: NodeId,
        work_id: u64,
        denial: Denial,
        here: Option<u32>,
    ) -> u32 {
        let Some(id) = here else {
            return self.report(Side::Initiator, qp, peer, Some(work_id), denial);
        };
        if peer != self.config.node || !self.reports.add_work_id(id, Some(work_id)) {
            self.reports.add(Arc::new(DenialReport {
                id,
                echo: true,
                side: Side::Initiator,
                qpn: qp.qpn,
                peer_qpn: qp.peer.map_or(0, |peer| peer.qpn),
                peer,
                host: qp.wire_peer.map(|wire| wire.remote),
                work_id: Some(work_id),
                denial,
            }));
        }
        id
    }

    fn keep(&mut self, report: DenialReport) {
        let report = Arc::new(report);
        self.reports.add(Arc::clone(&report));
        if self.reports_waiting < REPORTS_MAX {
            self.reports_waiting += 1;
            self.events.push_back(Event::Denied(report));
        }
    }

    /// Counts a denied request, if its process may be guessing keys. If processes must wait because of that, their warrants end.
    #[cold]
    pub(crate) fn count_guess(&mut self, origin: &Origin, denial: &Denial) {
        if let Some(guesser) = self.guesses.note(origin, denial, self.now) {
            self.events.push_back(Event::Guessing(guesser));
        }
        self.warrants.revoke_of_paused(&self.guesses, self.now);
    }

    /// Records an error in the local memory of a request with these scatter/gather entries; returns the report's id, or 0
    /// if there is nothing to report.
    pub(crate) fn report_local(
        &mut self,
        qp: &Qp,
        work_id: u64,
        sges: &[Sge],
        trouble: AccessError,
    ) -> u32 {
        match trouble {
            AccessError::Denied(mut denial) => {
                name_element(&mut denial, sges);
                self.report(Side::Local, qp, self.config.node, Some(work_id), *denial)
            }
            AccessError::Fault(_) | AccessError::Pull(_) => 0,
        }
    }

    /// Records the memory that a peer may still access because of these requests, which the queue pair is about to
    /// forget.
    pub(crate) fn leave_orphans(&mut self, qp: &Qp, seqs: Range<u64>) {
        let Some(link) = qp.out else { return };
        let (mut sges, until) = (Vec::new(), seqs.end);
        for seq in seqs {
            if qp.sq.wqe(seq).flags.contains(WqeFlags::REMOTE_IOVEC) {
                sges.extend_from_slice(qp.sq.sges(seq));
            }
        }
        if !sges.is_empty() {
            self.orphans.push(OrphanedRequests {
                link,
                qpn: qp.qpn,
                life: qp.life,
                until,
                sges,
            });
        }
    }

    /// Reports a peer's operation on a region with a counter.
    #[cold]
    pub(crate) fn count(&mut self, counter: u32, endpoint: u32, bytes: u32, write: bool) {
        self.events.push_back(Event::CounterHit {
            counter,
            endpoint,
            bytes,
            write,
        });
    }

    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        if matches!(event, Event::Denied(_)) {
            self.reports_waiting -= 1;
        }
        Some(event)
    }
}
