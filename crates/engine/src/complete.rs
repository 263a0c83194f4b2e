//! How work ends: completions in posting order, and the effect of an error on a queue pair.

use crate::context::Context;
use crate::qp::pair::Qp;
use crate::send_queue::{Detail, WqeFlags};
use crate::{AsyncEvent, Completion, CompletionFlags, CompletionOp, Event, QpState, Status};

impl<M> Context<M> {
    /// Completes sends, oldest first, up to the first that has not ended.
    pub(crate) fn complete_ended_sends(&mut self, qp: &mut Qp) {
        while qp.sq.head != qp.sq.next {
            let seq = qp.sq.head;
            let wqe = qp.sq.wqe_mut(seq);
            if !wqe.flags.contains(WqeFlags::DONE) {
                if seq >= qp.req.acked {
                    break;
                }
                if wqe.needs_response() {
                    // The link acknowledged the request, but its response never arrived.
                    wqe.end(Status::BadResponse, 0);
                }
            }
            let status = wqe.status;
            qp.sq.head = seq + 1;
            self.complete_send(qp, seq, status);
            if !status.is_success() {
                if qp.req.reads.front() == Some(&seq) {
                    qp.req.reads.pop_front();
                }
                if !qp.config.survive_remote_error {
                    self.send_error(qp);
                    return;
                }
            }
        }
        if qp.draining && qp.sq.head == qp.sq.next && qp.req.offset == 0 {
            self.drained(qp);
        }
    }

    #[inline(always)]
    fn complete_send(&mut self, qp: &Qp, seq: u64, status: Status) {
        let wqe = qp.sq.wqe(seq);
        if status.is_success() && !wqe.flags.contains(WqeFlags::SIGNALED) && !qp.config.signal_all {
            return;
        }
        let entry = Completion {
            id: wqe.id,
            status,
            opcode: wqe.op,
            flags: CompletionFlags::empty(),
            bytes: wqe.total,
            imm: 0,
            qpn: qp.qpn,
            src_qpn: 0,
            vendor: wqe.vendor,
        };
        self.push_completion(qp.config.send_cq, entry, false);
    }

    /// Takes the queue pair out of service after a failed send: to the error state, or to Sqe if it is unreliable.
    #[cold]
    fn send_error(&mut self, qp: &mut Qp) {
        if qp.config.qp_type.is_reliable() {
            self.enter_error(qp);
        } else {
            qp.state = QpState::Sqe;
            self.flush_sends(qp);
        }
    }

    /// Fails the oldest send and moves the queue pair to the error state, whether or not it has `survive_remote_error`.
    #[cold]
    pub(crate) fn give_up(&mut self, qp: &mut Qp, status: Status) {
        if qp.sq.head != qp.sq.tail {
            self.leave_orphans(qp, qp.sq.head..qp.sq.head + 1);
            let seq = qp.sq.head;
            self.forfeit(qp, seq);
            qp.sq.head = seq + 1;
            qp.sq.next = qp.sq.next.max(qp.sq.head);
            self.complete_send(qp, seq, status);
        }
        self.enter_error(qp);
    }

    /// Moves the queue pair to the error state: everything that is posted is flushed.
    #[cold]
    pub(crate) fn enter_error(&mut self, qp: &mut Qp) {
        if qp.state == QpState::Error {
            return;
        }
        qp.state = QpState::Error;
        self.warrants.revoke_of_qp(qp.id);
        qp.req.warrants.clear();
        if let Some(wire) = &mut qp.wire {
            wire.flush();
        }
        self.flush_sends(qp);
        self.flush_receives(qp);
        if qp.config.srq.is_some() && qp.home.is_none() {
            self.events
                .push_back(Event::Async(AsyncEvent::LastWqeReached {
                    qp: qp.id,
                    qpn: qp.qpn,
                }));
        }
    }

    /// Completes all sends as flushed, and detaches the queue pair from its requests on the link.
    pub(crate) fn flush_sends(&mut self, qp: &mut Qp) {
        self.leave_orphans(qp, qp.started());
        while qp.sq.head != qp.sq.tail {
            let seq = qp.sq.head;
            self.forfeit(qp, seq);
            qp.sq.head = seq + 1;
            self.complete_send(qp, seq, Status::Flushed);
        }
        qp.sq.next = qp.sq.tail;
        qp.draining = false;
        self.forget_requests(qp);
    }

    /// Detaches the queue pair from its requests on the link.
    pub(crate) fn forget_requests(&mut self, qp: &mut Qp) {
        qp.life = self.life();
        qp.req.acked = qp.sq.next;
        qp.req.offset = 0;
        qp.req.in_flight = 0;
        qp.req.reads.clear();
        qp.req.rewinding = false;
        qp.req.stopped = false;
        qp.req.wait = None;
        qp.req.not_ready_for = None;
        qp.req.seen = None;
    }

    /// Releases the reserved key of a bind that will never execute.
    pub(crate) fn forfeit(&mut self, qp: &Qp, seq: u64) {
        if qp.sq.wqe(seq).op == CompletionOp::Bind
            && seq >= qp.sq.next
            && let Detail::Bind(bind) = qp.sq.detail(seq)
            && let Some(key) = bind.key
        {
            self.checked.protection.forfeit_window_key(bind.window, key);
        }
    }

    /// Flushes the receive that is being filled, and all receives in the queue pair's own receive queue.
    fn flush_receives(&mut self, qp: &mut Qp) {
        qp.resp.current = None;
        if qp.resp.recv.taken {
            self.fail_receive(qp, Status::Flushed, 0);
        }
        if qp.config.srq.is_none() {
            while qp.rq.take(&mut qp.resp.recv) {
                self.fail_receive(qp, Status::Flushed, 0);
            }
        }
    }

    /// Fails the receive that the queue pair has taken, if any.
    #[cold]
    pub(crate) fn fail_receive(&mut self, qp: &mut Qp, status: Status, vendor: u32) {
        if !qp.resp.recv.taken {
            return;
        }
        qp.resp.recv.taken = false;
        let entry = Completion {
            id: qp.resp.recv.id,
            status,
            opcode: CompletionOp::Recv,
            qpn: qp.qpn,
            vendor,
            ..Completion::default()
        };
        self.push_recv_completion(qp.config.recv_cq, entry, true);
    }

    /// Reports that all sends that were started before Sqd are complete.
    #[cold]
    pub(crate) fn drained(&mut self, qp: &mut Qp) {
        qp.draining = false;
        self.events.push_back(Event::Async(AsyncEvent::SqDrained {
            qp: qp.id,
            qpn: qp.qpn,
        }));
    }
}
