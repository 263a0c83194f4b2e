//! Carries messages from one process's connection manager to another's.
//!
//! A process claims a block of communication ids, and a port for each service, by binding names to sockets: the kernel makes
//! each name unique and releases it when the process ends (`ports`). A request goes to the port's name; every other message goes to the
//! block that the receiver's communication id is in. Links carry packets one way only, away from the process that connected,
//! so no process can pose as the owner of a name. `receivers` has the links to other processes, `senders` those from other
//! processes.
//!
//! A message without a receiver is returned to the sender's own manager, which answers as it would for an unknown service or
//! connection.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rkey_cm::ConnectionId;
use rkey_cm::address::ServiceId;
use rkey_cm::manager::Transmit;
use rkey_cm::time::Nanos;
use rkey_cm::wire::{Addressee, Mad};
use rkey_link::peer::Credentials;

use super::inbox::Inbox;
use super::limits::Limits;
use super::notices::Notices;
use super::packet::{CmPacket, Protection};
use super::ports::Ports;
use super::presence::{Presence, Route, Unanswered};
use super::receivers::Receivers;
use super::refusals::Why;
use super::senders::Senders;
use super::socket::{self, MessageSent, Reached};
use super::waiting::MessageQueues;
use super::watches::{Watched, Watches};
use crate::peers::names::{self, Scope};
use crate::progress::reactor::{Reactor, Token};
use crate::wire::Wire;

/// How long a message other than a request waits for a busy receiver.
const WAITING_TIME: Nanos = 1_000_000_000;
/// How long links that nothing needs may stay open after a change.
const TIDY_PAUSE: Nanos = 50_000_000;
/// How many times a message leaves for another host if the process may exit before it could repeat it.
const PARTING_COPIES: usize = 3;

/// An address for messages, owned by one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Name {
    /// A block of communication ids.
    Block(u16),
    /// A port.
    Port(ServiceId),
}

impl Name {
    /// The abstract name of this name's socket.
    pub(super) fn text(self, scope: Scope) -> String {
        match self {
            Self::Block(block) => names::cm_name(scope, block),
            Self::Port(service) => names::cm_port_name(scope, service.0),
        }
    }

    /// A message's destination, and whether it is a request. `None` if the bytes are not a message (our manager sends none).
    fn of(message: &Transmit) -> Option<(Self, bool)> {
        let mad = Mad::decode(&message.mad).ok()?;
        Some(match (mad.message.addressee(), message.of) {
            // The peer's communication id is not known yet, so the message goes to the request's port.
            (Addressee::Communication(0), Some((_, service))) => (Self::Port(service), false),
            (Addressee::Communication(id), _) => (Self::Block((id >> 16) as u16), false),
            (Addressee::Service(service), _) => (Self::Port(service), true),
        })
    }
}

/// What to do when a timer expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// Send the messages queued for a name.
    Retry(Name),
    /// Check whether a name still has its owner.
    Check(Name),
    /// Accept connections again.
    Accept,
    /// Close the links that nothing needs.
    Tidy,
    /// Check whether any program listens at a host.
    Presence(Route),
}

/// A message that has not been delivered yet.
#[derive(Debug)]
pub(super) struct PendingMessage {
    pub(super) message: Transmit,
    pub(super) is_request: bool,
    /// When to stop retrying.
    pub(super) until: Nanos,
}

/// The questions that the carrier asks the manager about connections.
pub(super) struct Needs<'a> {
    /// Whether a connection still waits for the first answer to its request.
    pub(super) waits: &'a dyn Fn(ConnectionId) -> bool,
    /// Whether a connection still waits for the answer to its last message.
    pub(super) awaits: &'a dyn Fn(ConnectionId) -> bool,
    /// Whether any connection has its peer in this block.
    pub(super) has_connections: &'a dyn Fn(u16) -> bool,
}

/// The state to clean up after processes that have ended.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// Blocks of communication ids whose owner has ended.
    pub(super) blocks: BTreeSet<u16>,
    /// Connections whose request went to a process that has ended.
    pub(super) connections: BTreeSet<ConnectionId>,
    /// The PIDs of these processes.
    pub(super) pids: BTreeSet<Option<u32>>,
    /// Whether the owner of one of the blocks is unknown.
    pub(super) is_unknown: bool,
}

/// The sockets of the connection manager.
pub(super) struct Carrier {
    pub(super) scope: Scope,
    pub(super) watches: Watches,
    pub(super) ports: Ports,
    pub(super) senders: Senders,
    pub(super) receivers: Receivers,
    pub(super) waiting: MessageQueues,
    pub(super) timers: BTreeSet<(Nanos, Timer)>,
    tidies: bool,
    /// How long a request waits for a listener.
    listener_wait: Nanos,
    pub(super) inbox: Inbox,
    pub(super) ended: Ended,
    /// The processes that have asked for an inspection.
    pub(super) queries: Vec<(OwnedFd, Credentials)>,
    pub(super) notices: Notices,
    pub(super) limits: Box<dyn Fn() -> Limits + Send>,
    wire: Option<Arc<Wire>>,
    pub(super) presence: Presence,
    /// Whether the process exits, so that it repeats no message later.
    pub(super) exits: bool,
}

impl Carrier {
    /// Claims a block.
    pub(super) fn new(
        scope: Scope,
        reactor: Arc<Reactor>,
        listener_wait: Nanos,
        limits: Box<dyn Fn() -> Limits + Send>,
    ) -> io::Result<Self> {
        let mut watches = Watches::new(reactor);
        Ok(Self {
            scope,
            ports: Ports::new(scope, &mut watches)?,
            watches,
            senders: Senders::default(),
            receivers: Receivers::default(),
            waiting: MessageQueues::default(),
            timers: BTreeSet::new(),
            tidies: false,
            listener_wait,
            inbox: Inbox::default(),
            ended: Ended::default(),
            queries: Vec::new(),
            notices: Notices::default(),
            limits,
            wire: None,
            presence: Presence::default(),
            exits: false,
        })
    }

    /// Sends messages to other hosts over this wire, and accepts theirs.
    pub(super) fn use_wire(&mut self, wire: Option<Arc<Wire>>) {
        self.inbox.wire.clone_from(&wire);
        self.wire = wire;
    }

    pub(super) fn wire(&self) -> Option<&Wire> {
        self.wire.as_deref()
    }

    /// This process's block of communication ids.
    pub(super) fn block(&self) -> u16 {
        self.ports.block()
    }

    /// Claims a port, which a process may do several times. Returns `false` if another process owns the port.
    pub(super) fn claim(&mut self, service: ServiceId) -> io::Result<bool> {
        self.ports.claim(service)
    }

    /// Lets other processes send requests to a port that this process has claimed.
    pub(super) fn open(&mut self, service: ServiceId) -> io::Result<()> {
        self.ports.open(&mut self.watches, service)
    }

    /// Releases a claim.
    pub(super) fn release(&mut self, service: ServiceId) {
        self.ports.release(&mut self.watches, service);
    }

    /// Whether a name is an open port of this process.
    fn is_open(&self, name: Name) -> bool {
        matches!(name, Name::Port(service) if self.ports.is_open(service))
    }

    /// Sends a message. Retries for a short time if the receiver is busy or no process listens yet: programs that exchange
    /// their addresses out of band (perftest) may connect just before the other side listens.
    pub(super) fn carry(&mut self, now: Nanos, message: Transmit) {
        if let Some(wire) = &self.wire
            && !self.inbox.is_of_this_host(message.to)
        {
            let copies = match message.is_parting || self.exits {
                true => PARTING_COPIES,
                false => 1,
            };
            for _ in 0..copies {
                wire.send_message(message.from, message.to, &message.mad);
            }
            return self.expect_answer(now, &message);
        }
        let Some((name, is_request)) = Name::of(&message) else {
            return;
        };
        let time = match is_request {
            true => self.listener_wait,
            false => WAITING_TIME,
        };
        let pending = PendingMessage {
            message,
            is_request,
            until: now.saturating_add(time),
        };
        // Keep the order: queue after the messages that already wait.
        if self.waiting.has(name) {
            return self.waiting.push(name, pending);
        }
        let sent = self.try_send(now, name, &pending);
        self.after_attempt(now, name, pending, sent);
        if let Some(at) = self.waiting.begin(now, name) {
            self.timers.insert((at, Timer::Retry(name)));
        }
    }

    /// If another host should answer this message, checks after a while whether any program listens there.
    fn expect_answer(&mut self, now: Nanos, message: &Transmit) {
        let Some(((id, _), unanswered)) = message.of.zip(Unanswered::of(&message.mad)) else {
            return;
        };
        let route = Route {
            local: message.from,
            peer: message.to,
        };
        let at = self.presence.expect(now, route, id, unanswered);
        self.timers
            .extend(at.map(|at| (at, Timer::Presence(route))));
    }

    fn try_send(&mut self, now: Nanos, name: Name, pending: &PendingMessage) -> MessageSent {
        let message = &pending.message;
        let packet = CmPacket {
            from: message.from,
            to: message.to,
            protection: Protection::default(),
            mad: message.mad,
        };
        match name {
            Name::Block(block) if block == self.block() => MessageSent::NoReceiver,
            Name::Port(_) if self.is_open(name) => MessageSent::NoReceiver,
            Name::Block(_) => self.send_to_block(now, name, &packet, message.of.is_some()),
            Name::Port(_) => {
                let of = message.of.filter(|_| pending.is_request);
                self.send_to_port(now, name, &packet, of.map(|(id, _)| id))
            }
        }
    }

    /// Handles the result of an attempt to send: the message is sent, queued, dropped, or returned to our manager.
    fn after_attempt(
        &mut self,
        now: Nanos,
        name: Name,
        pending: PendingMessage,
        sent: MessageSent,
    ) {
        let may_wait = now < pending.until && self.waiting.has_room();
        match sent {
            MessageSent::Yes => {}
            MessageSent::Busy if may_wait => self.waiting.push(name, pending),
            // Drop the message: its sender retransmits it.
            MessageSent::Busy => {}
            MessageSent::NoReceiver if may_wait && pending.is_request && !self.is_open(name) => {
                self.waiting.push(name, pending);
            }
            MessageSent::NoReceiver => self.inbox.push_own(pending.message),
        }
    }

    /// Sends the messages queued for a name. Stops trying at the first message that cannot be sent.
    fn retry(&mut self, now: Nanos, name: Name, needs: &Needs<'_>) {
        let mut stuck = None;
        let messages = self.waiting.take(name);
        let count = messages.len();
        for pending in messages {
            let id = pending.message.of.map(|(id, _)| id);
            if pending.is_request && !id.is_none_or(needs.waits) {
                continue;
            }
            let sent = match stuck {
                Some(sent) => sent,
                None => self.try_send(now, name, &pending),
            };
            stuck = Some(sent).filter(|sent| *sent != MessageSent::Yes);
            self.after_attempt(now, name, pending, sent);
        }
        if let Some(at) = self.waiting.again(now, name, count) {
            self.timers.insert((at, Timer::Retry(name)));
        }
    }

    /// The PID at the other end of a connection that our program initiated, if known.
    pub(super) fn pid_of(
        &self,
        id: ConnectionId,
        service: ServiceId,
        remote: Option<u32>,
    ) -> Option<u32> {
        let block = remote.map(|remote| (remote >> 16) as u16);
        if block == Some(self.block()) {
            return Some(std::process::id());
        }
        let of_block = block.and_then(|block| self.receivers.pid(Name::Block(block), None));
        of_block.or_else(|| self.receivers.pid(Name::Port(service), Some(id)))
    }

    /// Whether a request still waits for a process to listen.
    pub(super) fn waits_for_listener(&self, id: ConnectionId, service: ServiceId) -> bool {
        self.waiting.has_request(Name::Port(service), id)
    }

    /// Why this process cannot reach a port that another process owns; `None` if the port has no owner.
    pub(super) fn inaccessible_owner(&self, service: ServiceId) -> Option<Why> {
        let name = Name::Port(service).text(self.scope);
        if let Ok(Reached::OtherUser(uid)) = socket::connect(self.scope, &name) {
            return Some(Why::OtherUser(uid));
        }
        let owners = names::other_port_owners(self.scope, service.0).unwrap_or_default();
        owners.first().map(|owner| match (self.scope, owner) {
            (Scope::User(_), Scope::User(uid)) => Why::OtherUser(*uid),
            _ => Why::OtherShare,
        })
    }

    /// When to call [`Carrier::run_timers`] next; `None` if no timer runs.
    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Runs the timers that are due.
    pub(super) fn run_timers(&mut self, now: Nanos, needs: &Needs<'_>) {
        while let Some((at, timer)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, timer));
            match timer {
                Timer::Retry(name) => self.retry(now, name, needs),
                Timer::Check(name) => self.check(now, name),
                Timer::Accept => self.resume_accepting(now),
                Timer::Presence(route) => {
                    let may_open = (self.limits)().files_left > 0;
                    let (watches, waits) = (&mut self.watches, needs.awaits);
                    let at = self.presence.run(now, route, watches, waits, may_open);
                    self.timers.extend(at.map(|at| (at, timer)));
                }
                Timer::Tidy => {
                    self.tidies = false;
                    self.tidy(needs);
                }
            }
        }
    }

    /// Schedules closing the links that are no longer needed.
    pub(super) fn tidy_soon(&mut self, now: Nanos) {
        if !self.tidies && !self.receivers.is_empty() {
            self.tidies = true;
            self.timers.insert((now + TIDY_PAUSE, Timer::Tidy));
        }
    }

    /// Handles a ready descriptor: accepts, reads, or notes the end of a link. Packets are then in the inbox.
    pub(super) fn ready(&mut self, now: Nanos, token: Token) {
        match self.watches.get(token) {
            Some(Watched::Block) => self.accept_from(now, None),
            Some(Watched::Port(service)) => self.accept_from(now, Some(service)),
            Some(Watched::Sender) => self.read_link(now, token),
            Some(Watched::Receiver(name)) => self.unlink(now, name),
            Some(Watched::Presence(route)) => self.presence.ready(now, route, &mut self.watches),
            None => {}
        }
    }

    /// Whether [`Carrier::take_ended`] has something to return.
    pub(super) fn has_ended_peers(&self) -> bool {
        !self.ended.blocks.is_empty() || !self.ended.connections.is_empty()
    }

    /// Takes the state to clean up after processes that have ended since the last call, and reads their last packets into the
    /// inbox.
    pub(super) fn take_ended(&mut self, now: Nanos) -> Option<Ended> {
        if !self.has_ended_peers() {
            return None;
        }
        let ended = std::mem::take(&mut self.ended);
        self.accept_from(now, None);
        for service in self.ports.open_services() {
            self.accept_from(now, Some(service));
        }
        self.drain_ended(now, |pid| ended.is_unknown || ended.pids.contains(&pid));
        Some(ended)
    }

    fn accept_from(&mut self, now: Nanos, port: Option<ServiceId>) {
        for _ in 0..super::senders::BATCH {
            let Some(listening) = self.ports.socket(port) else {
                return;
            };
            match socket::accept(listening) {
                Ok(Some((socket, who))) => self.add_link(now, socket, who),
                Ok(None) => return,
                Err(error) => {
                    let text = "the connection manager cannot accept connections and will retry";
                    self.notices.add(now, format!("{text}: {error}"));
                    return self.pause_accepting(now);
                }
            }
        }
    }

    /// Pauses accepting after an error.
    fn pause_accepting(&mut self, now: Nanos) {
        let at = self.ports.pause(&self.watches, now);
        self.timers.extend(at.map(|at| (at, Timer::Accept)));
    }

    fn resume_accepting(&mut self, now: Nanos) {
        let at = self.ports.resume(&self.watches, now);
        self.timers.extend(at.map(|at| (at, Timer::Accept)));
    }

    /// Closes a forked child's copies of the sockets. The parent's sockets are not affected.
    pub(super) fn close_in_child(&mut self) {
        self.ports.close();
        self.senders = Senders::default();
        self.receivers = Receivers::default();
        self.queries.clear();
        self.presence.close_in_child();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Share, WireConfig, WireSetting};
    use rkey_cm::wire::{Drep, Message, PrivateData};
    use std::net::Ipv4Addr;
    use std::time::Duration;

    fn carrier(reactor: &Arc<Reactor>) -> Carrier {
        let limits = Box::new(|| Limits::now(256));
        let scope = Scope::of(Share::User);
        Carrier::new(scope, Arc::clone(reactor), 1, limits).unwrap()
    }

    /// Any process can cause an unlimited number of such answers.
    #[test]
    fn an_undeliverable_answer_ends_no_connection() {
        let mut carrier = carrier(&Arc::new(Reactor::new().unwrap()));
        let drep = Drep {
            local: 1,
            // No process has block 0.
            remote: 1,
            data: PrivateData::default(),
        };
        let here = Ipv4Addr::LOCALHOST.into();
        let answer = Transmit {
            from: here,
            to: here,
            mad: Mad::new(1, Message::Drep(drep)).encode(),
            of: None,
            is_parting: false,
        };
        carrier.carry(0, answer);
        assert!(carrier.inbox.pop().is_some(), "it was returned");
        assert!(!carrier.has_ended_peers());
    }

    /// Nothing repeats the last message of a program that exits.
    #[test]
    fn a_message_to_another_host_leaves_three_times_if_the_program_may_exit() {
        let from = crate::wire::tests::address();
        let setting = WireConfig {
            addresses: WireSetting::Addresses(vec![from]),
            ..WireConfig::OFF
        };
        let mut carrier = carrier(&Arc::new(Reactor::new().unwrap()));
        carrier.use_wire(Wire::of_process(&setting));
        let mut left = 0;
        for (is_parting, exits, copies) in [(false, false, 1), (true, false, 3), (false, true, 3)] {
            carrier.exits = exits;
            let message = Transmit {
                from,
                // For documentation, so no host has it. The kernel may refuse to send the message.
                to: [192, 0, 2, 1].into(),
                mad: [0; rkey_cm::wire::MAD],
                of: None,
                is_parting,
            };
            carrier.carry(0, message);
            left += copies;
            let counts = carrier.wire().unwrap().describe().counts;
            let refused: u64 = counts.dropped.iter().map(|(_, count)| count).sum();
            assert_eq!(counts.sent + refused, left);
        }
    }

    /// For example when no descriptor is left: the socket stays readable and `accept` fails.
    #[test]
    fn accepting_pauses_after_an_error() {
        let reactor = Arc::new(Reactor::new().unwrap());
        let mut carrier = carrier(&reactor);
        let reader = {
            let (reader, writer) = rustix::pipe::pipe().unwrap();
            rustix::io::write(&writer, b"x").unwrap();
            reader
        };
        let (socket, token) = carrier.ports.listening.take().unwrap();
        reactor.remove(&socket);
        reactor.add(&reader, token).unwrap();
        carrier.ports.listening = Some((reader, token));
        assert_eq!(reactor.wait(None), [token]);
        carrier.ready(7, token);
        assert_eq!(reactor.wait(Some(Duration::ZERO)), []);
        let at = carrier.next_deadline().unwrap();
        assert!(at > 7);
        let needs = Needs {
            waits: &|_| true,
            awaits: &|_| true,
            has_connections: &|_| true,
        };
        carrier.run_timers(at, &needs);
        assert_eq!(reactor.wait(Some(Duration::ZERO)), [token]);
    }
}
