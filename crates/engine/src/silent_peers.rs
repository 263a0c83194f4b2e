//! The periodic scan for silent peers, which acts on the decision of [`crate::silence`] for each.

use crate::context::Context;
use crate::link_state::LinkState;
use crate::qp::pair::Qp;
use crate::silence::{Next, Silence};
use crate::timer::Scan;
use crate::{Engine, Event, Progress, QpId, QpState, Status};
use rkey_base::memory::Memory;
use rkey_link::{DownReason, Link};

impl<L: Link, M: Memory> Engine<L, M> {
    /// The reply to [`Event::PeerSilent`]: whether a queue pair's peer had a chance to
    /// respond. If it had, the queue pair's outstanding requests fail soon unless the peer responds first; if not, it
    /// gets its whole timeout again, until it has been silent for a minute in total (or for its timeout, if that is
    /// longer).
    pub fn judge_silence(&mut self, qp: QpId, had_its_chance: bool) {
        if let Some(qp) = self.qps.get_mut(qp) {
            qp.req.silence.answer(had_its_chance);
        }
    }

    /// Acts on the peers that have been silent for too long: asks about them, or fails their queue pairs. `scan` is the
    /// result of [`Timers::scan_due`].
    ///
    /// [`Timers::scan_due`]: crate::timer::Timers::scan_due
    pub(crate) fn look_for_silence(&mut self, scan: Scan, progress: &mut Progress) {
        let now = scan.watching;
        let mut watched = std::mem::take(&mut self.x.timers.watched);
        watched.retain(|&id| {
            let Some(qp) = self.qps.get_mut(id) else {
                return false;
            };
            if awaits_nothing(qp) {
                qp.req.seen = None;
                qp.req.timeout_runs = scan.is_first;
                return scan.is_first;
            }
            let link = qp.out.and_then(|id| self.links.get_mut(id));
            let moved = link
                .as_ref()
                .map_or(0, |link_state| link_state.meta.progress);
            match qp.req.seen {
                Some((seen, since)) if seen == moved && qp.req.wait.is_none() => {
                    let silent = now.saturating_sub(since);
                    if decide(&mut self.x, link, qp, silent, progress) == Some(Next::Again) {
                        qp.req.seen = Some((moved, now));
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
        self.fail_users_of_overrun_cqs();
    }
}

/// Whether a queue pair awaits nothing from its peer.
fn awaits_nothing(qp: &Qp) -> bool {
    qp.sq.head == qp.sq.tail
        || qp.wire.is_some() // it has its own timers
        || !matches!(qp.state, QpState::Rts | QpState::Sqd)
        || (qp.state == QpState::Sqd && qp.sq.head == qp.sq.next)
}

/// Acts on the silence of a queue pair's peer, if it has lasted long enough; returns the decision.
fn decide<L: Link, M: Memory>(
    x: &mut Context<M>,
    link: Option<&mut LinkState<L>>,
    qp: &mut Qp,
    silent: u64,
    progress: &mut Progress,
) -> Option<Next> {
    let patience = qp.patience();
    if patience == 0 || silent < patience {
        return None;
    }
    let asks = x.config.asks_about_silence;
    let next = qp.req.silence.next(asks, silent, patience);
    match next {
        Next::Wait | Next::Again => return Some(next),
        Next::Ask => {
            let (id, link, peer) = (qp.id, qp.out, qp.peer_qpn());
            let event = Event::PeerSilent { qp: id, link, peer };
            x.events.push_back(event);
        }
        Next::GiveUp => {
            let ours = x.config.node;
            let other = link.filter(|link_state| link_state.meta.node != ours);
            match other.filter(|_| qp.names_memory()) {
                // Without the link, the peer cannot execute the request later, when the program may have reused the
                // memory.
                Some(link_state) => {
                    link_state.meta.down.get_or_insert(DownReason::Silent);
                    progress.more = true;
                }
                None => x.give_up(qp, Status::RetryExceeded),
            }
        }
    }
    progress.did = true;
    Some(next)
}
