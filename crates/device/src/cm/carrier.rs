//! Brings messages from one process's connection manager to another's.
//!
//! A process claims a block of communication ids, and a port for each service, by binding names to sockets: the kernel makes a
//! claim unique and ends it with the process. A request goes to the port's name, all other messages to the block that the
//! receiver's communication id names. Connections carry packets one way only, from the process that connected: so no process can
//! pose as the owner of a name. When the owner's end of a connection closes, the owner counts as ended.
//!
//! A message without a receiver goes to the sender's own manager, which answers as a manager does that does not know the service
//! or the connection.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rkey_cm::ConnectionId;
use rkey_cm::address::ServiceId;
use rkey_cm::manager::Transmit;
use rkey_cm::time::Nanos;
use rkey_cm::wire::{Addressee, Mad};
use rkey_link::peer::Credentials;

use super::packet::Packet;
use super::socket::{self, Reached, Received, Sent};
use crate::peers::names::{self, Scope};
use crate::progress::reactor::{Reactor, Token};

/// The maximum number of connections from other processes. For a further one, the process with the most loses its oldest.
pub(super) const INCOMING_MAX: usize = 256;
/// The maximum number of connections to blocks, and of connections to ports, of other processes.
const OUTGOING_MAX: usize = 256;
/// The maximum number of messages that wait for a receiver. The senders repeat dropped ones.
const WAITING_MAX: usize = 4096;
/// How long a message other than a request waits for a busy receiver.
const WAITING_TIME: Nanos = 1_000_000_000;
/// The maximum number of packets that are read from a connection before its process counts as ended. A socket holds fewer.
const LAST_WORDS: usize = 4096;
/// The maximum number of packets, or of new connections, that are taken from one socket at a time.
const BATCH: usize = 64;

/// What a watched descriptor belongs to.
#[derive(Clone, Copy, Debug)]
enum Watched {
    Block,
    Port(ServiceId),
    Incoming,
    Outgoing(u16),
    Request(ServiceId),
}

/// A port that this process has.
#[derive(Debug)]
struct Port {
    socket: OwnedFd,
    /// Set once other processes may connect.
    token: Option<Token>,
    claims: usize,
}

/// A connection to another process.
#[derive(Debug)]
struct Outgoing {
    socket: OwnedFd,
    token: Token,
}

/// The process that got the requests for a port, and the connections that wait for its first answer.
#[derive(Debug)]
struct Requested {
    to: Outgoing,
    who: Credentials,
    waiting: BTreeSet<ConnectionId>,
}

/// What belonged to processes that have ended.
#[derive(Debug, Default)]
pub(super) struct Gone {
    /// Blocks of communication ids without an owner.
    pub(super) blocks: Vec<u16>,
    /// Connections whose request has gone to a process that ended.
    pub(super) connections: BTreeSet<ConnectionId>,
}

/// The sockets of the connection manager.
#[derive(Debug)]
pub(super) struct Carrier {
    scope: Scope,
    reactor: Arc<Reactor>,
    block: u16,
    listening: OwnedFd,
    watched: BTreeMap<Token, Watched>,
    ports: BTreeMap<ServiceId, Port>,
    incoming: BTreeMap<Token, (OwnedFd, Credentials)>,
    outgoing: BTreeMap<u16, Outgoing>,
    requested: BTreeMap<ServiceId, Requested>,
    /// Messages for busy receivers and requests without a listener, and when to give them up.
    waiting: VecDeque<(Nanos, Transmit)>,
    /// How long a request waits for a listener.
    listener_wait: Nanos,
    /// Packets for our own manager.
    arrived: VecDeque<Packet>,
    gone: Gone,
}

impl Carrier {
    /// Claims a block.
    pub(super) fn new(
        scope: Scope,
        reactor: Arc<Reactor>,
        listener_wait: Nanos,
    ) -> io::Result<Self> {
        let start = getrandom::u32().map_err(io::Error::other)? as u16;
        // Some blocks may be taken, but not all.
        for step in 0..=u16::MAX {
            // Block 0 would contain the id 0, which means "none".
            let block = start.wrapping_add(step).max(1);
            let Some(listening) = socket::bind(&names::cm_name(scope, block))? else {
                continue;
            };
            socket::listen(&listening)?;
            let token = reactor.new_token();
            reactor.add(&listening, token).map_err(io::Error::other)?;
            return Ok(Self {
                scope,
                reactor,
                block,
                listening,
                watched: BTreeMap::from([(token, Watched::Block)]),
                ports: BTreeMap::new(),
                incoming: BTreeMap::new(),
                outgoing: BTreeMap::new(),
                requested: BTreeMap::new(),
                waiting: VecDeque::new(),
                listener_wait,
                arrived: VecDeque::new(),
                gone: Gone::default(),
            });
        }
        Err(io::ErrorKind::AddrInUse.into())
    }

    /// The block of communication ids that is ours.
    pub(super) fn block(&self) -> u16 {
        self.block
    }

    /// Claims a port for this process, which may claim it several times. Returns `false` if another process has it.
    pub(super) fn claim(&mut self, service: ServiceId) -> io::Result<bool> {
        if let Some(port) = self.ports.get_mut(&service) {
            port.claims += 1;
            return Ok(true);
        }
        let Some(socket) = socket::bind(&names::cm_port_name(self.scope, service.0))? else {
            return Ok(false);
        };
        let port = Port {
            socket,
            token: None,
            claims: 1,
        };
        self.ports.insert(service, port);
        Ok(true)
    }

    /// Lets other processes send requests to a port that this process has claimed.
    pub(super) fn open(&mut self, service: ServiceId) -> io::Result<()> {
        let Some(port) = self.ports.get(&service).filter(|it| it.token.is_none()) else {
            return Ok(());
        };
        socket::listen(&port.socket)?;
        let token = self.reactor.new_token();
        self.reactor
            .add(&port.socket, token)
            .map_err(io::Error::other)?;
        self.watched.insert(token, Watched::Port(service));
        if let Some(port) = self.ports.get_mut(&service) {
            port.token = Some(token);
        }
        Ok(())
    }

    /// Gives up a claim.
    pub(super) fn release(&mut self, service: ServiceId) {
        let Some(port) = self.ports.get_mut(&service) else {
            return;
        };
        port.claims -= 1;
        if port.claims > 0 {
            return;
        }
        if let Some(port) = self.ports.remove(&service) {
            if let Some(token) = port.token {
                self.unwatch(&port.socket, token);
            }
            // A forked child may hold a copy of the socket.
            let _ = rustix::net::shutdown(&port.socket, rustix::net::Shutdown::Both);
        }
    }

    fn watch(&mut self, socket: &OwnedFd, as_what: Watched) -> io::Result<Token> {
        let token = self.reactor.new_token();
        self.reactor.add(socket, token).map_err(io::Error::other)?;
        self.watched.insert(token, as_what);
        Ok(token)
    }

    fn unwatch(&mut self, socket: &OwnedFd, token: Token) {
        self.reactor.remove(socket);
        self.watched.remove(&token);
    }

    /// Sends a message. Keeps it for a moment if its receiver is busy, or no process listens yet: programs that exchange their
    /// addresses in another way (perftest) connect a moment before the other side listens.
    pub(super) fn carry(&mut self, now: Nanos, message: Transmit) {
        let time = match is_request(&message) {
            true => self.listener_wait,
            false => WAITING_TIME,
        };
        self.carry_until(now, now.saturating_add(time), message);
    }

    fn carry_until(&mut self, now: Nanos, until: Nanos, message: Transmit) {
        let sent = self.try_carry(&message);
        let may_wait = now < until && self.waiting.len() < WAITING_MAX;
        match sent {
            Sent::Yes => {}
            Sent::Busy if may_wait => self.waiting.push_back((until, message)),
            // The sender repeats the message.
            Sent::Busy => {}
            Sent::Gone if may_wait && is_request(&message) && !self.is_ours(&message) => {
                self.waiting.push_back((until, message));
            }
            Sent::Gone => self.arrived.push_back(Packet {
                from: message.from,
                to: message.to,
                mad: message.mad,
            }),
        }
    }

    /// Whether a request is for an open port of this process.
    fn is_ours(&self, request: &Transmit) -> bool {
        let port = |(_, service)| self.ports.get(&service).and_then(|port| port.token);
        request.of.and_then(port).is_some()
    }

    /// Whether messages wait for busy receivers or listeners.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether the thread has something to do.
    pub(super) fn needs_thread(&self) -> bool {
        self.has_waiting() || !self.gone.blocks.is_empty()
    }

    /// Tries again to send what waits.
    pub(super) fn retry(&mut self, now: Nanos) {
        for (until, message) in std::mem::take(&mut self.waiting) {
            self.carry_until(now, until, message);
        }
    }

    fn try_carry(&mut self, message: &Transmit) -> Sent {
        // Our manager writes only valid messages.
        let Ok(mad) = Mad::decode(&message.mad) else {
            return Sent::Yes;
        };
        let packet = Packet {
            from: message.from,
            to: message.to,
            mad: message.mad,
        };
        let sent = match (mad.message.addressee(), message.of) {
            // Without an answer, the peer's communication id is unknown, so the message goes where the request went.
            (Addressee::Communication(0), Some((_, service))) => {
                self.send_to_port(service, &packet, None)
            }
            (Addressee::Communication(id), _) => self.send_to_block((id >> 16) as u16, &packet),
            (Addressee::Service(service), of) => {
                self.send_to_port(service, &packet, of.map(|(id, _)| id))
            }
        };
        sent.unwrap_or_else(|error| {
            tracing::warn!("the connection manager cannot reach another process: {error}");
            Sent::Busy
        })
    }

    fn send_to_block(&mut self, block: u16, packet: &Packet) -> io::Result<Sent> {
        if block == self.block {
            return Ok(Sent::Gone);
        }
        if let Some(link) = self.outgoing.get(&block) {
            // If the receiver has ended, the thread notices, too, and ends the connections to it.
            return Ok(socket::send(&link.socket, packet));
        }
        if self.outgoing.len() >= OUTGOING_MAX {
            return Ok(Sent::Busy);
        }
        let socket = match socket::connect(self.scope, &names::cm_name(self.scope, block))? {
            Reached::Process(socket, _) => socket,
            Reached::Busy => return Ok(Sent::Busy),
            Reached::NoOwner => {
                self.gone.blocks.push(block);
                return Ok(Sent::Gone);
            }
        };
        let sent = socket::send(&socket, packet);
        let token = self.watch(&socket, Watched::Outgoing(block))?;
        self.outgoing.insert(block, Outgoing { socket, token });
        Ok(sent)
    }

    /// Sends to the process that has a port. `waits` is the connection that waits for the answer.
    fn send_to_port(
        &mut self,
        service: ServiceId,
        packet: &Packet,
        waits: Option<ConnectionId>,
    ) -> io::Result<Sent> {
        if self
            .ports
            .get(&service)
            .is_some_and(|port| port.token.is_some())
        {
            return Ok(Sent::Gone);
        }
        let name = names::cm_port_name(self.scope, service.0);
        // Always a new connection: the port may belong to another process by now.
        let (socket, who) = match socket::connect(self.scope, &name)? {
            Reached::Process(socket, who) => (socket, who),
            Reached::Busy => return Ok(Sent::Busy),
            Reached::NoOwner => return Ok(Sent::Gone),
        };
        let sent = socket::send(&socket, packet);
        let (Sent::Yes, Some(waits)) = (sent, waits) else {
            return Ok(sent);
        };
        if let Some(known) = self.requested.get_mut(&service) {
            if known.who.pid == who.pid {
                known.waiting.insert(waits);
            }
            // If a later owner of the port ends, requests to it are repeated, and then refused.
            return Ok(sent);
        }
        if self.requested.len() < OUTGOING_MAX {
            let token = self.watch(&socket, Watched::Request(service))?;
            let to = Outgoing { socket, token };
            let waiting = BTreeSet::from([waits]);
            self.requested
                .insert(service, Requested { to, who, waiting });
        }
        Ok(sent)
    }

    /// The next packet for our own manager.
    pub(super) fn next_arrived(&mut self) -> Option<Packet> {
        self.arrived.pop_front()
    }

    /// Drops the waiting requests, and the sockets to other processes, that no connection of the manager needs any more.
    pub(super) fn tidy(
        &mut self,
        waits: impl Fn(ConnectionId) -> bool,
        needs: impl Fn(u16) -> bool,
    ) {
        let is_needed = |message: &Transmit| match message.of {
            Some((id, _)) if is_request(message) => waits(id),
            _ => true,
        };
        self.waiting.retain(|(_, message)| is_needed(message));
        let mut unneeded = Vec::new();
        self.requested.retain(|_, requested| {
            requested.waiting.retain(|id| waits(*id));
            let needed = !requested.waiting.is_empty();
            if !needed {
                self.reactor.remove(&requested.to.socket);
                unneeded.push(requested.to.token);
            }
            needed
        });
        self.outgoing.retain(|block, link| {
            let needed = needs(*block);
            if !needed {
                self.reactor.remove(&link.socket);
                unneeded.push(link.token);
            }
            needed
        });
        for token in unneeded {
            self.watched.remove(&token);
        }
    }

    /// Handles a descriptor that is ready: accepts, reads, or notes the end of a process. Packets are in
    /// [`Carrier::next_arrived`] afterwards.
    pub(super) fn ready(&mut self, token: Token) {
        match self.watched.get(&token).copied() {
            Some(Watched::Block) => self.accept(None),
            Some(Watched::Port(service)) => self.accept(Some(service)),
            Some(Watched::Incoming) => self.read(token, BATCH),
            Some(Watched::Outgoing(block)) => {
                if let Some(link) = self.outgoing.remove(&block) {
                    self.unwatch(&link.socket, link.token);
                    self.gone.blocks.push(block);
                }
            }
            Some(Watched::Request(service)) => {
                if let Some(requested) = self.requested.remove(&service) {
                    self.unwatch(&requested.to.socket, requested.to.token);
                    self.gone.connections.extend(requested.waiting);
                }
            }
            None => {}
        }
    }

    /// What belonged to processes that have ended since the last call. Their packets are in [`Carrier::next_arrived`] by then.
    pub(super) fn take_gone(&mut self) -> Option<Gone> {
        if self.gone.blocks.is_empty() && self.gone.connections.is_empty() {
            return None;
        }
        self.accept(None);
        let services: Vec<ServiceId> = self.ports.keys().copied().collect();
        for service in services {
            self.accept(Some(service));
        }
        let tokens: Vec<Token> = self.incoming.keys().copied().collect();
        for token in tokens {
            self.read(token, LAST_WORDS);
        }
        Some(std::mem::take(&mut self.gone))
    }

    fn accept(&mut self, port: Option<ServiceId>) {
        for _ in 0..BATCH {
            let listening = match port {
                None => &self.listening,
                Some(service) => match self.ports.get(&service) {
                    Some(port) => &port.socket,
                    None => return,
                },
            };
            let (socket, who) = match socket::accept(listening) {
                Ok(Some(accepted)) => accepted,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!("the connection manager cannot accept a connection: {error}");
                    // For example, no descriptor is left. The socket stays readable, so without a pause the thread would spin.
                    crate::time::sleep(std::time::Duration::from_millis(1));
                    return;
                }
            };
            if !self.scope.admits(who.uid) {
                continue;
            }
            self.make_room();
            if let Ok(token) = self.watch(&socket, Watched::Incoming) {
                self.incoming.insert(token, (socket, who));
                self.read(token, BATCH);
            }
        }
    }

    /// Makes room for a connection: the process with the most loses its oldest one.
    fn make_room(&mut self) {
        if self.incoming.len() < INCOMING_MAX {
            return;
        }
        let mut counts: BTreeMap<(u32, Option<u32>), (usize, Token)> = BTreeMap::new();
        for (token, (_, who)) in &self.incoming {
            let entry = counts.entry((who.uid, who.pid)).or_insert((0, *token));
            entry.0 += 1;
        }
        let most = counts.values().max_by_key(|(count, _)| *count).copied();
        if let Some((_, oldest)) = most {
            self.close_incoming(oldest);
        }
    }

    fn close_incoming(&mut self, token: Token) {
        if let Some((socket, _)) = self.incoming.remove(&token) {
            self.unwatch(&socket, token);
        }
    }

    fn read(&mut self, token: Token, most: usize) {
        for _ in 0..most {
            let Some((socket, who)) = self.incoming.get(&token) else {
                return;
            };
            match socket::receive(socket) {
                Received::Packet(packet) => {
                    if names::is_of_this_host(packet.from) && names::is_of_this_host(packet.to) {
                        self.arrived.push_back(*packet);
                    }
                }
                Received::Nothing => return,
                Received::End => return self.close_incoming(token),
                Received::Violation => {
                    tracing::warn!(
                        "process {} of user {} violated the connection manager's protocol; closing its connection",
                        who.pid.unwrap_or(0),
                        who.uid
                    );
                    return self.close_incoming(token);
                }
            }
        }
    }
}

/// Whether a message asks for a connection or a datagram queue pair.
fn is_request(message: &Transmit) -> bool {
    let mad = Mad::decode(&message.mad);
    mad.is_ok_and(|mad| matches!(mad.message.addressee(), Addressee::Service(_)))
}
