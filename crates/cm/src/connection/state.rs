//! The states of a connection, and the table of what each message, call and timer does in each of them.
//!
//! ```text
//!  active    Idle ─► ReqSent ⇄ ReqDelayed ─► RepReceived ─┐                 ┌─► DreqSent ────┐
//!                                                         ├─► Established ──┤                ├─► TimeWait ─► Closed
//!  passive   Idle ─► ReqReceived ─► RepSent ⇄ RepDelayed ─┘                 └─► DreqReceived ┘
//!                         └─► Refused ─► Closed
//!  datagram  Idle ─► SidrSent ─► Closed,   Idle ─► SidrReceived ─► SidrAnswered ─► Closed
//! ```
//!
//! A message that does not fit a state is ignored; a call that does not fit is refused. The table follows Linux's connection
//! manager, with these differences: a side that closes retransmits its DREQ until the other side answers or the retries are used
//! up; a refusal is remembered for a while, so that a retransmitted request gets the same answer instead of a new connection;
//! when both sides send a DREQ, both answer at once; a peer that still tries to establish an ended connection is told that the
//! connection has ended; a message that names a queue pair of another connection is refused, but does not end that connection.

use core::fmt::{self, Write};

/// The state of a connection, or of a request for a datagram queue pair (the `Sidr` states).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Nothing has happened yet.
    Idle,
    /// Active side: the REQ has been sent, and is retransmitted until the peer answers.
    ReqSent,
    /// Active side: an MRA says that the answer to the last REQ takes longer.
    ReqDelayed,
    /// Active side: the peer has accepted; the program has not brought up its queue pair yet.
    RepReceived,
    /// Passive side: the program has not decided yet.
    ReqReceived,
    /// Passive side: accepted; the REP has been sent, and is retransmitted until the peer answers.
    RepSent,
    /// Passive side: an MRA says that the answer to the last REP takes longer.
    RepDelayed,
    /// Both sides are ready.
    Established,
    /// We are ending the connection: the DREQ has been sent, and is retransmitted until the peer answers.
    DreqSent,
    /// The peer is ending the connection; the program has not confirmed yet.
    DreqReceived,
    /// The connection has ended. Late messages are answered, and its queue pair number should not be reused yet.
    TimeWait,
    /// Passive side: refused. A retransmitted REQ gets the same refusal.
    Refused,
    /// Active side: the SIDR_REQ has been sent, and is retransmitted until the peer answers.
    SidrSent,
    /// Passive side: the program has not decided yet.
    SidrReceived,
    /// Passive side: answered. A retransmitted SIDR_REQ gets the same answer.
    SidrAnswered,
    /// Final: the connection can be forgotten.
    Closed,
}

/// An input to the state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// A REQ: the first one, or a retransmission.
    Req,
    /// An MRA for our REQ.
    MraReq,
    /// An MRA for our REP.
    MraRep,
    /// A REP that we can use.
    Rep,
    /// A REP that we cannot use: its queue pair number is impossible, or another connection uses its queue pair or id.
    BadRep,
    /// An RTU.
    Rtu,
    /// A REJ.
    Rej,
    /// A REJ because the peer still remembers an earlier connection of ours.
    RejStale,
    /// A DREQ.
    Dreq,
    /// A DREP.
    Drep,
    /// A SIDR_REQ: the first one, or a retransmission.
    SidrReq,
    /// A SIDR_REP.
    SidrRep,
    /// The program connects.
    Connect,
    /// The program requests a datagram queue pair.
    Resolve,
    /// The program accepts.
    Accept,
    /// The program refuses.
    Reject,
    /// The active side's program has brought up its queue pair.
    Establish,
    /// The passive side's queue pair has received data, so the RTU is late or lost.
    CommunicationEstablished,
    /// The program ends the connection, or confirms its end.
    Disconnect,
    /// The program gives up the connection, in any state.
    Close,
    /// The timer expired, and the message may be retransmitted.
    Repeat,
    /// The timer expired, and the message may not be retransmitted again.
    Expire,
}

/// The reason for a REJ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// The caller supplies the reason, info and private data.
    Given,
    /// The peer did not answer.
    Timeout,
    /// The program gave up the connection.
    Consumer,
    /// The connection has ended.
    Stale,
}

/// A message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Send {
    /// The message that the caller supplies: REQ, REP, SIDR_REQ or SIDR_REP. It is kept for retransmission.
    Given,
    /// The kept message.
    Again,
    /// An MRA for the peer's REQ.
    MraReq,
    /// An MRA for the peer's REP.
    MraRep,
    /// A REJ of the peer's REQ. It is kept for retransmission.
    RejReq(Why),
    /// A REJ of the peer's REP.
    RejRep(Why),
    /// A REJ that does not answer a message.
    RejOther(Why),
    /// An RTU.
    Rtu,
    /// A DREQ. It is kept for retransmission.
    Dreq,
    /// A DREP.
    Drep,
    /// A SIDR_REP that refuses. It is kept for retransmission.
    SidrRefusal,
}

/// A timer to start in place of the running one. Every change of state stops the running timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Timer {
    /// Waits for the answer to a message that is sent for the first time; resets the number of retransmissions.
    First,
    /// Waits for the answer to a retransmission.
    Next,
    /// Waits as long as the peer's MRA says.
    Service,
    /// Keeps an ended connection for late messages.
    TimeWait,
    /// Keeps an answer for retransmitted requests.
    Linger,
}

/// An event for the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Report {
    /// The event that the caller supplies: a request, a response, or a refusal.
    Given,
    /// Passive side: the peer is ready, too.
    Established,
    /// The peer does not answer.
    Unreachable,
    /// The connection has ended, or the peer wants to end it.
    Disconnected,
    /// The queue pair number may be reused.
    TimeWaitExit,
}

/// An action of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send a message.
    Send(Send),
    /// Start a timer.
    Start(Timer),
    /// Report an event to the program.
    Tell(Report),
}

/// A cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The next state.
    pub next: State,
    /// The actions, in order.
    pub actions: &'static [Action],
}

const fn to(next: State, actions: &'static [Action]) -> Option<Step> {
    Some(Step { next, actions })
}

use Action::{Send as S, Start, Tell};

const FIRST: Action = Start(Timer::First);
const AGAIN: &[Action] = &[S(Send::Again), Start(Timer::Next)];
const END: Action = Start(Timer::TimeWait);
const LINGER: Action = Start(Timer::Linger);
const ENDED: &[Action] = &[Tell(Report::Disconnected), END];
const REFUSED: &[Action] = &[Tell(Report::Given), END];

impl State {
    /// All states, in the order of normal use.
    pub const ALL: [Self; 16] = [
        Self::Idle,
        Self::ReqSent,
        Self::ReqDelayed,
        Self::RepReceived,
        Self::ReqReceived,
        Self::RepSent,
        Self::RepDelayed,
        Self::Established,
        Self::DreqSent,
        Self::DreqReceived,
        Self::TimeWait,
        Self::Refused,
        Self::SidrSent,
        Self::SidrReceived,
        Self::SidrAnswered,
        Self::Closed,
    ];

    /// Looks up the step for an input; `None` if it does not fit the state.
    #[must_use]
    pub const fn step(self, input: Input) -> Option<Step> {
        match self {
            Self::Idle => idle(input),
            Self::ReqSent | Self::ReqDelayed => self.waits_for_rep(input),
            Self::RepReceived => rep_received(input),
            Self::ReqReceived => req_received(input),
            Self::RepSent | Self::RepDelayed => self.waits_for_rtu(input),
            Self::Established => established(input),
            Self::DreqSent => dreq_sent(input),
            Self::DreqReceived => dreq_received(input),
            Self::TimeWait => time_wait(input),
            Self::Refused => answered(self, Input::Req, input),
            Self::SidrSent => sidr_sent(input),
            Self::SidrReceived => sidr_received(input),
            Self::SidrAnswered => answered(self, Input::SidrReq, input),
            Self::Closed => None,
        }
    }

    const fn waits_for_rep(self, input: Input) -> Option<Step> {
        const GIVE_UP: Action = S(Send::RejOther(Why::Timeout));
        match input {
            // One MRA for each transmission, so a peer cannot delay the end forever.
            Input::MraReq if matches!(self, Self::ReqSent) => {
                to(Self::ReqDelayed, &[Start(Timer::Service)])
            }
            Input::Rep => to(Self::RepReceived, &[Tell(Report::Given)]),
            Input::BadRep => to(
                Self::Closed,
                &[S(Send::RejRep(Why::Given)), Tell(Report::Given)],
            ),
            Input::Rej => to(Self::Closed, &[Tell(Report::Given)]),
            Input::RejStale => to(Self::TimeWait, REFUSED),
            Input::Repeat => to(Self::ReqSent, AGAIN),
            Input::Expire => to(Self::Closed, &[GIVE_UP, Tell(Report::Unreachable)]),
            Input::Close => to(Self::Closed, &[GIVE_UP]),
            _ => None,
        }
    }

    const fn waits_for_rtu(self, input: Input) -> Option<Step> {
        match input {
            Input::MraRep if matches!(self, Self::RepSent) => {
                to(Self::RepDelayed, &[Start(Timer::Service)])
            }
            Input::Rtu | Input::CommunicationEstablished => {
                to(Self::Established, &[Tell(Report::Established)])
            }
            Input::Rej | Input::RejStale => to(Self::TimeWait, REFUSED),
            Input::Dreq => to(Self::DreqReceived, &[Tell(Report::Disconnected)]),
            Input::Repeat => to(Self::RepSent, AGAIN),
            Input::Expire => to(
                Self::TimeWait,
                &[
                    S(Send::RejOther(Why::Timeout)),
                    Tell(Report::Unreachable),
                    END,
                ],
            ),
            // A peer that has not received the REP understands only the REJ. A peer that has received it understands the DREQ,
            // too, which is retransmitted.
            Input::Close => to(
                Self::DreqSent,
                &[S(Send::RejOther(Why::Consumer)), S(Send::Dreq), FIRST],
            ),
            _ => None,
        }
    }
}

const fn idle(input: Input) -> Option<Step> {
    match input {
        Input::Connect => to(State::ReqSent, &[S(Send::Given), FIRST]),
        Input::Resolve => to(State::SidrSent, &[S(Send::Given), FIRST]),
        Input::Req => to(State::ReqReceived, &[Tell(Report::Given)]),
        Input::SidrReq => to(State::SidrReceived, &[Tell(Report::Given)]),
        _ => None,
    }
}

const fn rep_received(input: Input) -> Option<Step> {
    match input {
        Input::Rep => to(State::RepReceived, &[S(Send::MraRep)]),
        Input::Establish => to(State::Established, &[S(Send::Rtu)]),
        Input::Reject => to(State::TimeWait, &[S(Send::RejRep(Why::Given)), END]),
        Input::Rej | Input::RejStale => to(State::TimeWait, REFUSED),
        Input::Dreq => to(
            State::TimeWait,
            &[S(Send::Drep), Tell(Report::Disconnected), END],
        ),
        Input::Close => to(State::TimeWait, &[S(Send::RejRep(Why::Consumer)), END]),
        _ => None,
    }
}

const fn req_received(input: Input) -> Option<Step> {
    match input {
        Input::Req => to(State::ReqReceived, &[S(Send::MraReq)]),
        Input::Accept => to(State::RepSent, &[S(Send::Given), FIRST]),
        Input::Reject => to(State::Refused, &[S(Send::RejReq(Why::Given)), LINGER]),
        Input::Rej | Input::RejStale => to(State::Closed, &[Tell(Report::Given)]),
        Input::Close => to(State::Refused, &[S(Send::RejReq(Why::Consumer)), LINGER]),
        _ => None,
    }
}

const fn established(input: Input) -> Option<Step> {
    match input {
        // The RTU was lost.
        Input::Rep => to(State::Established, &[S(Send::Rtu)]),
        Input::Rej | Input::RejStale => to(State::TimeWait, REFUSED),
        Input::Dreq => to(State::DreqReceived, &[Tell(Report::Disconnected)]),
        Input::Disconnect | Input::Close => to(State::DreqSent, &[S(Send::Dreq), FIRST]),
        _ => None,
    }
}

const fn dreq_sent(input: Input) -> Option<Step> {
    match input {
        // The peer has not received our REP, which we no longer retransmit.
        Input::Req => to(State::DreqSent, &[S(Send::RejReq(Why::Stale))]),
        Input::Dreq => to(
            State::TimeWait,
            &[S(Send::Drep), Tell(Report::Disconnected), END],
        ),
        Input::Drep | Input::Rej | Input::RejStale | Input::Expire => to(State::TimeWait, ENDED),
        Input::Repeat => to(State::DreqSent, AGAIN),
        Input::Disconnect | Input::Close => to(State::DreqSent, &[]),
        _ => None,
    }
}

const fn dreq_received(input: Input) -> Option<Step> {
    match input {
        Input::Disconnect | Input::Close => to(State::TimeWait, &[S(Send::Drep), END]),
        Input::Rej | Input::RejStale => to(State::TimeWait, &[END]),
        _ => None,
    }
}

const fn time_wait(input: Input) -> Option<Step> {
    match input {
        Input::Req => to(State::TimeWait, &[S(Send::RejReq(Why::Stale))]),
        Input::Rep => to(State::TimeWait, &[S(Send::RejRep(Why::Stale))]),
        Input::Rtu => to(State::TimeWait, &[S(Send::RejOther(Why::Stale))]),
        Input::Dreq => to(State::TimeWait, &[S(Send::Drep)]),
        Input::Disconnect | Input::Close => to(State::TimeWait, &[]),
        Input::Expire => to(State::Closed, &[Tell(Report::TimeWaitExit)]),
        _ => None,
    }
}

const fn sidr_sent(input: Input) -> Option<Step> {
    match input {
        Input::SidrRep => to(State::Closed, &[Tell(Report::Given)]),
        Input::Repeat => to(State::SidrSent, AGAIN),
        Input::Expire => to(State::Closed, &[Tell(Report::Unreachable)]),
        Input::Close => to(State::Closed, &[]),
        _ => None,
    }
}

const fn sidr_received(input: Input) -> Option<Step> {
    match input {
        Input::Accept | Input::Reject => to(State::SidrAnswered, &[S(Send::Given), LINGER]),
        Input::Close => to(State::SidrAnswered, &[S(Send::SidrRefusal), LINGER]),
        _ => None,
    }
}

/// The final answer has been sent: a retransmitted request gets the same answer until the timer expires.
const fn answered(state: State, request: Input, input: Input) -> Option<Step> {
    match input {
        Input::Close => to(state, &[]),
        Input::Expire => to(State::Closed, &[]),
        _ if input as u8 == request as u8 => to(state, &[S(Send::Again)]),
        _ => None,
    }
}

impl Input {
    /// All inputs: messages, calls, time.
    pub const ALL: [Self; 22] = [
        Self::Req,
        Self::MraReq,
        Self::MraRep,
        Self::Rep,
        Self::BadRep,
        Self::Rtu,
        Self::Rej,
        Self::RejStale,
        Self::Dreq,
        Self::Drep,
        Self::SidrReq,
        Self::SidrRep,
        Self::Connect,
        Self::Resolve,
        Self::Accept,
        Self::Reject,
        Self::Establish,
        Self::CommunicationEstablished,
        Self::Disconnect,
        Self::Close,
        Self::Repeat,
        Self::Expire,
    ];

    /// Whether the input is a call of the program, which is refused if it does not fit the state.
    #[must_use]
    pub const fn is_call(self) -> bool {
        matches!(
            self,
            Self::Connect
                | Self::Resolve
                | Self::Accept
                | Self::Reject
                | Self::Establish
                | Self::CommunicationEstablished
                | Self::Disconnect
                | Self::Close
        )
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send(message) => write!(f, "send {message:?}"),
            Self::Start(timer) => write!(f, "start {timer:?}"),
            Self::Tell(report) => write!(f, "tell {report:?}"),
        }
    }
}

/// The whole table as text, one line for each state and input, for readers and for the snapshot test.
#[must_use]
pub fn table_text() -> String {
    let mut text = String::new();
    for state in State::ALL {
        for input in Input::ALL {
            let _ = write!(
                text,
                "{:<12} {:<24} -> ",
                format!("{state:?}"),
                format!("{input:?}")
            );
            match state.step(input) {
                Some(step) => {
                    let _ = write!(text, "{:?}", step.next);
                    for (index, action) in step.actions.iter().enumerate() {
                        let mark = if index == 0 { ": " } else { ", " };
                        let _ = write!(text, "{mark}{action}");
                    }
                }
                None if input.is_call() => text.push_str("refused"),
                None => text.push_str("ignored"),
            }
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A snapshot of the whole table, so that changing a rule takes two edits.
    #[test]
    fn the_state_table_matches_its_snapshot() {
        let recorded = include_str!("state.snapshot.txt");
        assert_eq!(
            table_text(),
            recorded,
            "if this is intended, update the snapshot:\n{}",
            table_text()
        );
    }

    /// Every timer that is started can end its state, and every state that a timer ends starts one when it is entered.
    #[test]
    fn every_timer_that_is_started_can_end_its_state() {
        for state in State::ALL {
            for step in Input::ALL.into_iter().filter_map(|input| state.step(input)) {
                let timer = step.actions.iter().find_map(|action| match action {
                    Start(timer) => Some(*timer),
                    _ => None,
                });
                if timer.is_some() {
                    let end = step.next.step(Input::Expire).expect("the end of the timer");
                    assert_ne!(end.next, step.next, "{state:?}");
                }
                if matches!(timer, Some(Timer::First | Timer::Next | Timer::Service)) {
                    assert!(step.next.step(Input::Repeat).is_some(), "{state:?}");
                }
                let waits = step.next.step(Input::Expire).is_some();
                let stays = step.next == state;
                assert!(
                    !waits || stays || timer.is_some(),
                    "{state:?} waits without a timer"
                );
            }
        }
    }

    /// A connection that the program has closed disappears even if the peer never answers.
    #[test]
    fn every_closed_connection_ends_by_its_timers_alone() {
        for start in State::ALL.into_iter().filter(|state| *state != State::Idle) {
            let mut state = start.step(Input::Close).map_or(start, |step| step.next);
            for _ in 0..3 {
                state = state.step(Input::Expire).map_or(state, |step| step.next);
            }
            assert_eq!(state, State::Closed, "{start:?}");
        }
    }

    /// A message makes us send at most one message, so we cannot be used as an amplifier.
    #[test]
    fn no_message_gets_two_answers() {
        for state in State::ALL {
            for input in Input::ALL.into_iter().filter(|input| !input.is_call()) {
                let actions = state.step(input).map_or(&[][..], |step| step.actions);
                let sent = actions
                    .iter()
                    .filter(|action| matches!(action, S(_)))
                    .count();
                assert!(sent <= 1, "{state:?} {input:?}");
            }
        }
    }
}
