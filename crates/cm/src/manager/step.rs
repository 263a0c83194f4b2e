//! Executes the steps of the state table: sends messages, starts timers, reports events, and removes connections that have
//! ended.

use super::refused::{NotAccepted, Refused};
use super::{Error, Event, Manager, Transmit};
use crate::connection::state::{Action, Input, Report, Send, Timer};
use crate::connection::{Connection, ConnectionId, Refusal, State};
use crate::time::Nanos;
use crate::wire::{About, Mad, Rej, RejectReason};
use core::net::IpAddr;

/// What the caller of a step supplies for its actions.
pub(super) enum Given {
    Nothing,
    /// The message for [`Send::Given`].
    Message(Mad),
    /// The event for [`Report::Given`].
    Event(Event),
    /// The refusal for a REJ with [`Why::Given`](crate::connection::state::Why::Given).
    Refusal(Refusal),
    /// The service timeout of an MRA.
    Service(u8),
}

impl Given {
    /// Our own refusal of a peer's message.
    pub(super) fn reason(about: About, reason: RejectReason) -> Self {
        let rej = Rej::bare(0, 0, about, reason);
        Self::Refusal(Refusal { rej, options: 0 })
    }
}

impl Manager {
    pub(super) fn step(
        &mut self,
        now: Nanos,
        id: ConnectionId,
        input: Input,
        given: Given,
    ) -> Result<(), Error> {
        let it = self.connections.get_mut(&id).ok_or(Error::Unknown)?;
        let before = it.state;
        let step = before.step(input).ok_or(Error::WrongState(before))?;
        it.state = step.next;
        if before != step.next {
            if matches!(step.next, State::Established | State::TimeWait) {
                it.kept = None;
            }
            self.stop_timer(id);
            self.count(id, before, step.next);
        }
        for action in step.actions {
            match *action {
                Action::Send(send) => {
                    let parts = matches!(send, Send::Dreq | Send::Drep) && input.is_call();
                    self.send(id, send, &given, parts);
                }
                Action::Start(timer) => self.start_timer(now, id, timer, &given),
                Action::Tell(report) => self.tell(id, report, &given),
            }
        }
        if step.next == State::Closed {
            self.forget(id);
        }
        Ok(())
    }

    /// Applies a message to a connection. A message that does not fit its state is ignored.
    pub(super) fn step_message(
        &mut self,
        now: Nanos,
        id: ConnectionId,
        input: Input,
        given: Given,
    ) {
        if self.step(now, id, input, given).is_err() {
            self.counters.ignored += 1;
        }
    }

    /// Adds a connection in the state [`State::Idle`]. The caller must apply its first input next.
    pub(super) fn add(&mut self, it: Connection) -> ConnectionId {
        let id = ConnectionId(self.new_id());
        self.tables.add(id, &it);
        self.connections.insert(id, it);
        id
    }

    /// Runs the timers that are due.
    ///
    /// After a long pause of the host, each message is retransmitted only once: the pause is not evidence that the peer is
    /// silent.
    pub fn advance(&mut self, now: Nanos) {
        let due: Vec<ConnectionId> = self
            .timers
            .range(..=(now, ConnectionId(u64::MAX)))
            .map(|(_, id)| *id)
            .collect();
        for id in due {
            self.stop_timer(id);
            let Some(it) = self.connections.get_mut(&id) else {
                continue;
            };
            let again = it.left > 0 && it.state.step(Input::Repeat).is_some();
            let input = match again {
                true => Input::Repeat,
                false => Input::Expire,
            };
            it.left = it.left.saturating_sub(1);
            let fits = self.step(now, id, input, Given::Nothing);
            debug_assert!(fits.is_ok(), "a timer expired in a state that has none");
        }
    }

    fn stop_timer(&mut self, id: ConnectionId) {
        let Some(it) = self.connections.get_mut(&id) else {
            return;
        };
        if let Some(deadline) = it.deadline.take() {
            self.timers.remove(&(deadline, id));
        }
    }

    fn start_timer(&mut self, now: Nanos, id: ConnectionId, timer: Timer, given: &Given) {
        self.stop_timer(id);
        let has_room = self.lingering <= self.config.limits.lingering;
        let Some(it) = self.connections.get_mut(&id) else {
            return;
        };
        let length = match timer {
            Timer::First => {
                it.left = it.retries;
                it.period
            }
            Timer::Next => it.period,
            Timer::Service => match given {
                Given::Service(code) => it.service_time(*code),
                _ => it.period,
            },
            Timer::TimeWait => it.time_wait,
            // Long enough for a peer with the default timing to retransmit twice.
            Timer::Linger if has_room => 2 * self.config.timing.request(u8::MAX),
            Timer::Linger => 0,
        };
        let deadline = now.saturating_add(length);
        it.deadline = Some(deadline);
        self.timers.insert((deadline, id));
    }

    fn send(&mut self, id: ConnectionId, send: Send, given: &Given, is_parting: bool) {
        let timing = self.config.timing;
        let Some(it) = self.connections.get_mut(&id) else {
            return;
        };
        let refusal = match given {
            Given::Refusal(refusal) => Some(refusal),
            _ => None,
        };
        let mad = match (send, given) {
            (Send::Given, Given::Message(mad)) => Some(*mad),
            _ => it.message(send, refusal, &timing),
        };
        let bytes = match (&mad, &it.kept) {
            (Some(mad), _) => mad.encode(),
            (None, Some(kept)) => {
                self.counters.repeated += 1;
                **kept
            }
            (None, None) => return,
        };
        let keeps = matches!(
            send,
            Send::Given | Send::Dreq | Send::RejReq(_) | Send::SidrRefusal
        );
        // An ending connection does not keep the refusal of a retransmitted REQ: `DreqSent` retransmits its DREQ, and
        // `TimeWait` retransmits nothing.
        let ends = matches!(it.state, State::DreqSent | State::TimeWait);
        if keeps && (!ends || send == Send::Dreq) {
            it.kept = Some(Box::new(bytes));
        }
        self.outgoing.push_back(Transmit {
            from: it.local,
            to: it.peer,
            mad: bytes,
            of: Some((id, it.service)),
            is_parting,
        });
    }

    fn tell(&mut self, id: ConnectionId, report: Report, given: &Given) {
        let Some(it) = self.connections.get(&id).filter(|it| !it.is_silent) else {
            return;
        };
        let connection = id;
        let event = match (report, given) {
            (Report::Given, Given::Event(event)) => event.clone(),
            (Report::Given, Given::Refusal(refusal)) => Event::Rejected {
                connection,
                rej: Box::new(Rej {
                    local: it.remote_id.unwrap_or(0),
                    remote: it.local_id,
                    ..refusal.rej
                }),
                options: refusal.options,
            },
            (Report::Given, _) => return,
            (Report::Established, _) => Event::Established { connection },
            (Report::Unreachable, _) => Event::Unreachable { connection },
            (Report::Disconnected, _) => Event::Disconnected { connection },
            (Report::TimeWaitExit, _) => Event::TimeWaitExit { connection },
        };
        if let Some(why) = NotAccepted::of_event(&event) {
            self.refused.push(Refused::connection(id, it, why));
        }
        self.events.push(event);
    }

    /// Updates the counts and the listener's backlog when a connection changes state.
    fn count(&mut self, id: ConnectionId, before: State, after: State) {
        self.lingering += usize::from(Connection::lingers(after));
        self.lingering -= usize::from(Connection::lingers(before));
        let peer = self.connections.get(&id).map(|it| (it.peer, it.party));
        let Some(peer) = peer else {
            return;
        };
        if Connection::is_undecided(after) {
            *self.undecided.entry(peer).or_default() += 1;
        }
        if Connection::is_undecided(before) {
            self.decided(peer);
            match after {
                State::Closed => self.withdraw(id),
                _ => self.listeners.leave(id),
            }
        }
    }

    /// Handles a request that the peer has withdrawn. If the program has not fetched the request's event, the program never
    /// learns of the request. If the program has fetched the event, the request counts against the backlog until the program
    /// takes it, so the backlog also bounds the withdrawn requests that the program must handle.
    fn withdraw(&mut self, id: ConnectionId) {
        if !self.events.drop_those_of(id) {
            return;
        }
        self.listeners.leave(id);
        if let Some(it) = self.connections.get_mut(&id) {
            it.is_silent = true;
        }
    }

    fn decided(&mut self, peer: (IpAddr, u64)) {
        if let Some(count) = self.undecided.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                self.undecided.remove(&peer);
            }
        }
    }

    fn forget(&mut self, id: ConnectionId) {
        self.stop_timer(id);
        if let Some(it) = self.connections.remove(&id) {
            self.tables.remove(id, &it);
        }
    }
}
