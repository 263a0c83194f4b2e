//! Peers, and the connections to them: made when they are needed, in either direction.
//!
//! An endpoint sends to a peer over one connection only, so that order is kept. It is the one that the
//! endpoint asked for, or the peer's if that came first; when both ask at the same time there are two, and
//! each side sends on its own.

use super::credit::{Credit, Debt};
use super::header::{Header, MAX_LEN};
use super::operation::Hold;
use super::*;
use crate::cm::Coming;
use crate::complaint::complain;
use crate::identity::Identity;
use parking_lot::MutexGuard;
use rkey_device::core::Denial;
use rkey_device::engine::{QpAttributes, QpState, SendFlags, SendRequest, Status, Work};
use rkey_device::{DeviceError, Incoming};
use rkey_device::{Qp, QpOptions};
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// How long an endpoint tries to reach a peer whose address the program has.
const REACH: Duration = Duration::from_secs(3);
/// How long a failure is told to a program that comes again.
const REMEMBERED: Duration = Duration::from_secs(10);
/// In place of an operation: nobody waits for the completion.
pub(super) const NOBODY: u64 = u64::MAX;

/// Somebody to talk to.
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    pub(super) way: Way,
    /// Why it could not be reached, until the program has heard of it.
    pub(super) failed: Option<(FiError, Instant)>,
}

/// How messages to a peer go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    None,
    /// A thread is connecting.
    Coming,
    Open(usize),
}

/// A connection.
pub(super) struct Connection {
    pub(super) qp: Option<Qp>,
    pub(super) peer: SocketAddr,
    /// By which regions for one peer know it.
    pub(super) identity: Option<Arc<Identity>>,
    /// Both sides are ready, and it did not fail: operations of ours may begin on it. Answers go before that: the
    /// peer may be ready a moment before we know.
    pub(super) up: bool,
    /// It failed, or the peer went.
    pub(super) lost: bool,
    /// The peer did not keep the rules.
    pub(super) cut: bool,
    /// The queue pair of a lost one has ended, too.
    pub(super) ended: bool,
    /// Its place is free.
    pub(super) buried: bool,
    /// A thread is still connecting it.
    pub(super) pinned: bool,
    /// Messages of it that no receive has taken yet.
    pub(super) kept: u32,
    /// Those of them that were only announced.
    pub(super) announced: u32,
    /// What we may send, and what the peer has sent.
    pub(super) credit: Credit,
    pub(super) debt: Debt,
    /// Requests that were posted and not completed.
    pub(super) outstanding: u32,
    /// Answers that found no room.
    pub(super) waiting: VecDeque<Later>,
    /// Keys of regions there are chosen by the device.
    pub(super) device_keys: bool,
}

impl Connection {
    /// By which number regions for one peer know it.
    pub(super) fn identity(&self) -> Option<u32> {
        self.identity.as_ref().map(|identity| identity.number)
    }

    /// The peer asked in a message for what it may not: noted here, and the error that it gets.
    #[cold]
    pub(super) fn refuse(&self, denial: Box<Denial>) -> FiError {
        let error = crate::errno::of_status(Status::RemoteAccess, Some(&denial));
        if let Some(qp) = &self.qp {
            qp.note_refusal(*denial);
        }
        error
    }
}

/// What is posted when there is room.
pub(super) enum Later {
    /// A message, and the operation that is told of its completion.
    Message(Vec<u8>, u64),
    Fetch(u64),
}

/// What the two sides of a connection tell each other.
pub(super) struct Hello {
    pub(super) ep_type: u8,
    pub(super) device_keys: bool,
    pub(super) authorization: u64,
    pub(super) name: SocketAddr,
    pub(super) data: Vec<u8>,
}

const HELLO: [u8; 3] = *b"fi2";

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let name = crate::address::to_text(self.name);
        let mut bytes = HELLO.to_vec();
        bytes.push(self.ep_type << 1 | u8::from(self.device_keys));
        bytes.extend(self.authorization.to_le_bytes());
        bytes.push(name.len() as u8);
        bytes.extend(name.as_bytes());
        bytes.extend(&self.data);
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&HELLO)?;
        let (&flags, rest) = rest.split_first()?;
        let (authorization, rest) = rest.split_first_chunk::<8>()?;
        let (&len, rest) = rest.split_first()?;
        let (name, data) = rest.split_at_checked(len.into())?;
        Some(Self {
            ep_type: flags >> 1,
            device_keys: flags & 1 != 0,
            authorization: u64::from_le_bytes(*authorization),
            name: crate::address::from_text(std::str::from_utf8(name).ok()?)?,
            data: data.to_vec(),
        })
    }
}

impl Endpoint {
    /// What this endpoint tells about itself.
    pub(super) fn hello(&self, live: &Live, data: &[u8]) -> Hello {
        let mut hasher = DefaultHasher::new();
        self.group.key.hash(&mut hasher);
        Hello {
            ep_type: self.ep_type as u8,
            device_keys: self.domain.has(FI_MR_PROV_KEY),
            authorization: hasher.finish(),
            name: *live.name.lock(),
            data: data.to_vec(),
        }
    }

    /// Whether a peer may talk to us: the same kind of endpoint, the same authorization key (FI-119).
    pub(super) fn admits(
        &self,
        live: &Live,
        peer: &Hello,
    ) -> std::result::Result<(), &'static str> {
        let ours = self.hello(live, &[]);
        if peer.ep_type != ours.ep_type {
            return Err("the endpoints are of different types");
        }
        if peer.authorization != ours.authorization {
            return Err("the endpoints have different authorization keys");
        }
        Ok(())
    }

    /// Who a peer is, where regions can be limited to one (FI-212).
    fn identity(&self, peer: &Hello) -> Option<Arc<Identity>> {
        let limited = self.domain.av_keys && self.domain.directed;
        limited.then(|| self.domain.identities.of(peer.name))
    }

    pub(super) fn new_qp(&self, live: &Live, peer: Option<&Identity>) -> Result<Qp> {
        let options = QpOptions {
            srq: Some(live.srq.clone()),
            max_send: SENDS,
            max_recv: 1,
            max_send_sge: crate::info::offer::IOV_LIMIT as u32 + 1,
            max_recv_sge: 1,
            max_inline: INLINE_MAX as u32,
            survive_remote_error: true,
            endpoint: Some(self.number),
            peer: peer.map(|peer| peer.number),
            ..QpOptions::new(self.group.id, &live.cq)
        };
        Ok(self.domain.device.create_qp(&options)?)
    }

    /// A queue pair, and the connection that it is to be.
    fn prepare_connection(&self, live: &Live, peer: &Hello) -> Result<(Qp, usize)> {
        let prepare = || {
            let identity = self.identity(peer);
            let qp = self.new_qp(live, identity.as_deref())?;
            let index = self.add_connection(live, &mut live.state.lock(), qp.clone(), peer)?;
            Ok((qp, index))
        };
        prepare().or_else(|_: FiError| {
            // Connections that are over may take the room. They go in two steps.
            for _ in 0..2 {
                self.look_for_lost(live);
            }
            prepare()
        })
    }

    /// Adds a connection; it is not used for sending before it is `up`.
    pub(super) fn add_connection(
        &self,
        live: &Live,
        state: &mut State,
        qp: Qp,
        peer: &Hello,
    ) -> Result<usize> {
        let depth = BUFFERS + (state.connection_count() as u32 + 2) * SENDS;
        if depth as usize > live.cq.depth() {
            live.cq.resize(depth * 2)?;
        }
        let qpn = qp.qpn();
        let index = state.place_connection(Connection {
            qp: Some(qp),
            peer: peer.name,
            identity: self.identity(peer),
            up: false,
            lost: false,
            cut: false,
            ended: false,
            buried: false,
            pinned: true,
            kept: 0,
            announced: 0,
            credit: Credit::default(),
            debt: Debt::default(),
            outstanding: 0,
            waiting: VecDeque::new(),
            device_keys: peer.device_keys,
        });
        state.by_qpn.insert(qpn, index);
        Ok(index)
    }

    pub(super) fn peer(state: &mut State, address: SocketAddr) -> usize {
        if let Some(&peer) = state.by_address.get(&address) {
            return peer;
        }
        let new = Peer {
            address,
            way: Way::None,
            failed: None,
        };
        let peer = match state.free_peers.pop() {
            Some(peer) => {
                state.peers[peer] = new;
                peer
            }
            None => {
                state.peers.push(new);
                state.peers.len() - 1
            }
        };
        state.by_address.insert(address, peer);
        peer
    }

    /// A peer asks for a connection to this (unconnected) endpoint. Runs in the thread of the listeners.
    pub(super) fn take(self: &Arc<Self>, incoming: Incoming) -> Option<Coming> {
        let refuse = |incoming: Incoming, why| {
            incoming.reject(why);
            None
        };
        let Some(live) = self.live.get() else {
            return refuse(incoming, "not ready");
        };
        let Some(hello) = Hello::decode(&incoming.peer().private_data) else {
            return refuse(incoming, "not an endpoint of libfabric");
        };
        if let Err(why) = self.admits(live, &hello) {
            complain(format_args!(
                "a connection from {} was refused: {why}",
                hello.name
            ));
            return refuse(incoming, why);
        }
        // What we send to that address goes over this connection: nobody else's may be claimed.
        if !incoming.listens_at(hello.name) {
            complain(format_args!(
                "a connection from {} was refused: the peer, process {} of user {}, does not listen there",
                hello.name,
                incoming.peer().pid,
                incoming.peer().uid
            ));
            return refuse(incoming, "the address is not yours");
        }
        if live.state.lock().is_littered() {
            complain(format_args!(
                "a connection from {} was refused: the program has to receive what peers have left that are gone",
                hello.name
            ));
            return refuse(incoming, "too many messages of others are unread there");
        }
        // Known before it is ready: messages may come as soon as the peer has our answer.
        let answered = self
            .prepare_connection(live, &hello)
            .and_then(|(qp, connection)| {
                let ours = self.hello(live, &[]).encode();
                let answered = incoming.answer(&[&qp], &ours).map_err(FiError::from);
                answered
                    .map(|accepting| (accepting, connection))
                    .inspect_err(|_| self.given_up(live, connection))
            });
        let (accepting, connection) = match answered {
            Ok(answered) => answered,
            Err(error) => {
                tracing::info!("a connection from {} was not made: {error:?}", hello.name);
                return None;
            }
        };
        let ep = Arc::clone(self);
        let then = move |ready: std::result::Result<(), DeviceError>| {
            let Some(live) = ep.live.get() else { return };
            match ready {
                Ok(()) => ep.taken_up(live, connection, hello.name),
                Err(error) => {
                    tracing::info!(%error, "a connection from {} was not made", hello.name);
                    ep.given_up(live, connection);
                }
            }
        };
        Some(Coming {
            accepting,
            then: Box::new(then),
        })
    }

    /// A peer that was accepted is ready.
    fn taken_up(&self, live: &Live, connection: usize, name: SocketAddr) {
        let mut state = live.state.lock();
        state.connections[connection].pinned = false;
        if state.connections[connection].lost {
            return;
        }
        state.connections[connection].up = true;
        let peer = Self::peer(&mut state, name);
        if state.peers[peer].way == Way::None {
            state.peers[peer].way = Way::Open(connection);
            state.peers[peer].failed = None;
        }
    }

    /// A connection was not made.
    fn given_up(&self, live: &Live, connection: usize) {
        let mut state = live.state.lock();
        state.connections[connection].pinned = false;
        self.lose(live, &mut state, connection);
    }

    /// The connection to a peer, by the number that the program passed, and the state of the endpoint.
    #[inline]
    pub(super) fn connection_to<'a>(
        &self,
        live: &'a Live,
        number: u64,
    ) -> Result<(MutexGuard<'a, State>, usize)> {
        let mut state = live.state.lock();
        if self.ep_type == FI_EP_MSG {
            return match state.connections.first() {
                Some(connection) if connection.up => Ok((state, 0)),
                _ if state.shut => Err(FiError::SHUTDOWN),
                _ => Err(FiError::NOTCONN),
            };
        }
        if let Some(av) = &live.av
            && av.removals() != state.removals
        {
            state.removals = av.removals();
            state.by_number.clear();
        }
        let known = usize::try_from(number)
            .ok()
            .and_then(|n| state.by_number.get(n))
            .copied();
        let peer = match known {
            Some(peer) if peer > 0 => peer as usize - 1,
            _ => self.look_up(live, &mut state, number)?,
        };
        if let Way::Open(connection) = state.peers[peer].way {
            return Ok((state, connection));
        }
        Err(self.reach(live, &mut state, peer))
    }

    #[cold]
    fn look_up(&self, live: &Live, state: &mut State, number: u64) -> Result<usize> {
        let address = live
            .av
            .as_ref()
            .filter(|av| av.allows(number, &self.group.key))
            .and_then(|av| av.get(number))
            .ok_or(FiError::INVAL)?;
        let peer = Self::peer(state, address);
        let index = usize::try_from(number).map_err(|_| FiError::INVAL)?;
        if state.by_number.len() <= index {
            state.by_number.resize(index + 1, 0);
        }
        state.by_number[index] = peer as u32 + 1;
        Ok(peer)
    }

    /// Connects to a peer, in a thread of its own: the program is asked to come again, or told why there is no way.
    #[cold]
    pub(super) fn reach(&self, live: &Live, state: &mut State, peer: usize) -> FiError {
        let it = &mut state.peers[peer];
        if it.way == Way::Coming {
            return FiError::AGAIN;
        }
        if let Some((error, at)) = it.failed.take()
            && at.elapsed() < REMEMBERED
        {
            return error;
        }
        let Some(ep) = live.this.upgrade() else {
            return FiError::SHUTDOWN;
        };
        let address = it.address;
        it.way = Way::Coming;
        let spawned = std::thread::Builder::new()
            .name("rkey-fi-connect".to_owned())
            .spawn(move || ep.call(peer, address));
        if spawned.is_err() {
            it.way = Way::None;
            return FiError::NOMEM;
        }
        FiError::AGAIN
    }

    /// The thread that connects to a peer.
    fn call(&self, peer: usize, address: SocketAddr) {
        let Some(live) = self.live.get() else { return };
        let unknown = Hello {
            name: address,
            ..self.hello(live, &[])
        };
        // Nothing can come over it before the peer has heard from us, but then at once.
        let made = self
            .prepare_connection(live, &unknown)
            .and_then(|(qp, index)| {
                let hello = self.hello(live, &[]).encode();
                let there = self.domain.device.connect(address, &[&qp], &hello, REACH);
                let there = match there {
                    Ok(there) => Hello::decode(&there.private_data).ok_or(FiError::CONNRESET),
                    Err(error) => {
                        tracing::warn!(
                            "{} cannot be reached: {error}",
                            crate::address::to_text(address)
                        );
                        Err(crate::errno::of_device(&error))
                    }
                };
                there
                    .map(|hello| (index, hello))
                    .inspect_err(|_| self.given_up(live, index))
            });
        let mut state = live.state.lock();
        let made = made.and_then(|(index, hello)| {
            let connection = &mut state.connections[index];
            connection.pinned = false;
            if connection.lost {
                return Err(FiError::CONNRESET);
            }
            connection.up = true;
            connection.device_keys = hello.device_keys;
            Ok(index)
        });
        let it = &mut state.peers[peer];
        match made {
            Ok(index) => it.way = Way::Open(index),
            Err(error) => {
                it.way = Way::None;
                it.failed = Some((error, Instant::now()));
            }
        }
        drop(state);
        // A program may wait for the descriptor of its queue before it comes again.
        for side in [&live.tx, &live.rx].into_iter().flatten() {
            side.cq.wake();
        }
    }

    /// Whether a connection takes so many more requests of the program's.
    #[inline]
    pub(super) fn check_room(state: &State, connection: usize, requests: u32) -> Result<()> {
        let connection = &state.connections[connection];
        if connection.outstanding + requests + RESERVE > SENDS {
            return Err(FiError::AGAIN);
        }
        Ok(())
    }

    /// Makes sure of room for so many requests of the program's, whose success is reported or not:
    /// `FI_EAGAIN` when there is none, also for their completions.
    #[inline]
    pub(super) fn make_room(
        &self,
        live: &Live,
        state: &mut State,
        connection: usize,
        requests: u32,
        report: bool,
    ) -> Result<()> {
        if state.operations.len() < OPERATIONS_MAX
            && Self::check_room(state, connection, requests).is_ok()
        {
            match &live.tx {
                Some(tx) if report && tx.cq.is_full() => {}
                _ => return Ok(()),
            }
        }
        self.advance(live, state);
        if !state.connections[connection].up {
            return Err(FiError::AGAIN);
        }
        if state.operations.len() >= OPERATIONS_MAX
            || report && live.tx.as_ref().is_some_and(|tx| tx.cq.is_full())
        {
            return Err(FiError::AGAIN);
        }
        Self::check_room(state, connection, requests)
    }

    /// Posts one request. `operation` is told of its completion.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(super) fn post(
        &self,
        state: &mut State,
        connection: usize,
        work: Work,
        sges: &[Sge],
        inline: Option<&[u8]>,
        flags: SendFlags,
        operation: u64,
    ) -> Result<()> {
        let connection = &mut state.connections[connection];
        let qp = connection.qp.as_ref().ok_or(FiError::NOTCONN)?;
        let request = SendRequest {
            inline,
            flags: flags | SendFlags::SIGNALED,
            ..SendRequest::new(operation, work, sges)
        };
        qp.post_send(&request)?;
        connection.outstanding += 1;
        Ok(())
    }

    /// Sends a message of our own making, now or when there is room.
    pub(super) fn say(
        &self,
        state: &mut State,
        connection: usize,
        header: &Header,
        payload: &[u8],
    ) {
        self.say_for(state, connection, header, payload, NOBODY);
    }

    /// The same for an operation, which is told of its completion.
    pub(super) fn say_for(
        &self,
        state: &mut State,
        connection: usize,
        header: &Header,
        payload: &[u8],
        operation: u64,
    ) {
        let mut head = [0; MAX_LEN];
        let len = header.encode(&mut head);
        let mut bytes = head[..len].to_vec();
        bytes.extend_from_slice(payload);
        let it = &state.connections[connection];
        if it.outstanding < SENDS && it.waiting.is_empty() {
            self.say_now(state, connection, bytes, operation);
        } else {
            let later = Later::Message(bytes, operation);
            state.connections[connection].waiting.push_back(later);
            if state.connections[connection].waiting.len() > ANSWERS_MAX
                && let Some(live) = self.live.get()
            {
                self.cut_off(live, state, connection, "it asks much and takes no answers");
            }
        }
    }

    fn say_now(&self, state: &mut State, connection: usize, bytes: Vec<u8>, operation: u64) {
        let send = Work::Send {
            imm: None,
            invalidate: None,
        };
        let none = SendFlags::empty();
        // A connection that fails meanwhile loses what it was to carry.
        if bytes.len() <= INLINE_MAX {
            let posted = self.post(state, connection, send, &[], Some(&bytes), none, operation);
            if posted.is_err()
                && let Some(live) = self.live.get()
            {
                self.fail_with(live, state, operation, FiError::CONNRESET);
            }
            return;
        }
        debug_assert_eq!(operation, NOBODY, "what operations say is short");
        let bytes = bytes.into_boxed_slice();
        let sge = Sge {
            addr: bytes.as_ptr() as u64,
            len: bytes.len() as u32,
            key: self.group.everything(),
        };
        let id = state.operations.add(operation::Operation {
            left: 1,
            error: None,
            what: operation::What::Transmit,
            entry: crate::cq::Entry::default(),
            report: false,
            counts: None,
            connection,
            answered: false,
            turn: None,
            hold: Hold::Bytes(bytes),
        });
        if self
            .post(state, connection, send, &[sge], None, none, id)
            .is_err()
        {
            state.operations.take(id);
        }
    }

    /// Posts what waited for room on a connection.
    pub(super) fn catch_up(&self, state: &mut State, connection: usize) {
        while state.connections[connection].outstanding < SENDS {
            match state.connections[connection].waiting.pop_front() {
                None => return,
                Some(Later::Message(bytes, operation)) => {
                    self.say_now(state, connection, bytes, operation);
                }
                Some(Later::Fetch(id)) => self.fetch_now(state, connection, id),
            }
        }
    }

    /// A peer does not keep the rules: nothing that it says is heard any more.
    #[cold]
    pub(super) fn cut_off(&self, live: &Live, state: &mut State, connection: usize, why: &str) {
        let it = &mut state.connections[connection];
        if !std::mem::replace(&mut it.cut, true) {
            complain(format_args!("the connection to {} ends: {why}", it.peer));
            // It need not take what we have sent: then that would never end.
            if let Some(qp) = &it.qp {
                let _ = qp.modify(&QpAttributes::to(QpState::Error));
            }
        }
        self.lose(live, state, connection);
    }

    /// A connection failed: what waits for the peer's answer gets none.
    pub(super) fn lose(&self, live: &Live, state: &mut State, connection: usize) {
        if std::mem::replace(&mut state.connections[connection].lost, true) {
            return;
        }
        let up = std::mem::replace(&mut state.connections[connection].up, false);
        state.burial.waiting += 1;
        if let Some(collective) = &mut state.collective {
            collective.forget_connection(connection, state.connections[connection].peer, up);
        }
        let waiting = std::mem::take(&mut state.connections[connection].waiting);
        let address = state.connections[connection].peer;
        let open = state.operations.of(connection).len();
        tracing::info!(peer = %address, open, "a connection is over; operations that are open on it fail");
        if let Some(&peer) = state.by_address.get(&address)
            && state.peers[peer].way == Way::Open(connection)
        {
            state.peers[peer].way = Way::None;
        }
        for later in waiting {
            let (Later::Message(_, id) | Later::Fetch(id)) = later;
            self.fail_with(live, state, id, FiError::CONNRESET);
        }
        for id in state.operations.of(connection) {
            let Some(operation) = state.operations.get(id) else {
                continue;
            };
            if operation.answered {
                operation.answered = false;
                operation
                    .error
                    .get_or_insert((FiError::CONNRESET, Vec::new()));
                self.step(live, state, id);
            }
        }
        if self.ep_type == FI_EP_MSG {
            self.flush_receives(live, state);
            self.tell_shutdown(live, state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hellos_survive_the_way() {
        let hello = Hello {
            ep_type: FI_EP_RDM as u8,
            device_keys: true,
            authorization: 77,
            name: "127.0.0.1:7471".parse().unwrap(),
            data: vec![1, 2, 3],
        };
        let bytes = hello.encode();
        let back = Hello::decode(&bytes).unwrap();
        assert_eq!(
            (back.ep_type, back.device_keys, back.authorization),
            (3, true, 77)
        );
        assert_eq!((back.name, back.data), (hello.name, hello.data));
        for cut in 0..bytes.len() - 3 {
            assert!(Hello::decode(&bytes[..cut]).is_none());
        }
    }
}
