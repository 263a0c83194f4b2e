//! The program's calls.

use super::listeners::Listener;
use super::refused::{NotAccepted, Refused};
use super::step::Given;
use super::{Error, Kind, ListenOn, Manager};
use crate::address::{Gid, PortSpace, ServiceId, is_queue_pair, is_unicast};
use crate::connection::state::Input;
use crate::connection::{Connection, ConnectionId, ListenerId, Refusal, State};
use crate::time::{Nanos, time_wait};
use crate::wire::{
    About, Ece, IpHeader, Mad, Message, Mtu, Path, PrivateData, Rej, RejectReason, Rep, Req,
    SidrRep, SidrReq, SidrStatus, Transport,
};
use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeSet;

/// The program's queue pair as described to the peer (`struct rdma_conn_param`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePair {
    /// The queue pair number.
    pub qpn: u32,
    /// The first PSN that the queue pair expects to receive.
    pub starting_psn: u32,
    /// The maximum number of outstanding reads and atomics that the queue pair accepts.
    pub responder_resources: u8,
    /// The maximum number of outstanding reads and atomics that the queue pair initiates.
    pub initiator_depth: u8,
    /// How many times the queue pair retries without an answer, at most 7. A REP does not carry this number.
    pub retry_count: u8,
    /// How many times the queue pair retries when the receiver is not ready, at most 7.
    pub rnr_retry: u8,
    /// Whether the queue pair has a shared receive queue.
    pub srq: bool,
    /// Whether the queue pair uses end-to-end flow control.
    pub flow_control: bool,
}

/// The path of a new connection. Both sides use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathOptions {
    /// The largest payload of a packet.
    pub mtu: Mtu,
    /// The flow label, 20 bits.
    pub flow_label: u32,
    /// The traffic class.
    pub traffic_class: u8,
    /// The hop limit.
    pub hop_limit: u8,
    /// The local ACK timeout as a time code.
    pub ack_timeout: u8,
}

impl Default for PathOptions {
    fn default() -> Self {
        Self {
            mtu: Mtu::B1024,
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 64,
            ack_timeout: 19,
        }
    }
}

/// A connection to establish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Our address and port.
    pub from: SocketAddr,
    /// The peer's address and port.
    pub to: SocketAddr,
    /// The port space of the peer's port.
    pub space: PortSpace,
    /// The transport.
    pub transport: Transport,
    /// Our queue pair.
    pub queue_pair: QueuePair,
    /// The path.
    pub path: PathOptions,
    /// The vendor options.
    pub ece: Ece,
    /// Private data for the peer's program.
    pub data: PrivateData<{ Req::DATA }>,
}

/// The answer to a connect request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accept {
    /// Our queue pair.
    pub queue_pair: QueuePair,
    /// The vendor options.
    pub ece: Ece,
    /// Private data for the peer's program.
    pub data: PrivateData<{ Rep::DATA }>,
}

/// A datagram queue pair to resolve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolve {
    /// Our address and port.
    pub from: SocketAddr,
    /// The peer's address and port.
    pub to: SocketAddr,
    /// The port space of the peer's port.
    pub space: PortSpace,
    /// Private data for the peer's program.
    pub data: PrivateData<{ SidrReq::DATA }>,
}

/// The answer to a [`DatagramRequest`](super::DatagramRequest): the datagram queue pair to use, sent in a SIDR_REP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramAnswer {
    /// The number of our queue pair.
    pub qpn: u32,
    /// The Q_Key for datagrams to it.
    pub qkey: u32,
    /// Private data for the peer's program.
    pub data: PrivateData<{ SidrRep::DATA }>,
}

/// The target ACK delay in our REPs, as a time code: Linux's value.
const TARGET_ACK_DELAY: u8 = 15;
const DEFAULT_PARTITION: u16 = 0xffff;

impl Manager {
    /// Listens for requests for a service. At most `backlog` of them wait for [`take_request`](Self::take_request); further
    /// ones are dropped, and their senders retransmit them. If the peer withdraws a request before the program has fetched
    /// its event, the event disappears. If the peer withdraws the request later,
    /// [`Event::Rejected`](super::Event::Rejected) follows, and the request counts against the backlog until the program
    /// takes or closes it.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] if another listener for the service overlaps in address; [`Error::NoBacklog`] if `backlog` is 0.
    pub fn listen(
        &mut self,
        on: ListenOn,
        service: ServiceId,
        kind: Kind,
        backlog: usize,
    ) -> Result<ListenerId, Error> {
        if backlog == 0 {
            return Err(Error::NoBacklog);
        }
        let id = ListenerId(self.new_id());
        let listener = Listener {
            service,
            on,
            kind,
            backlog,
            waiting: BTreeSet::new(),
        };
        match self.listeners.add(id, listener) {
            true => Ok(id),
            false => Err(Error::InUse),
        }
    }

    /// Ends a listener. Requests that the program has not taken are refused, and their events are dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`].
    pub fn unlisten(&mut self, now: Nanos, listener: ListenerId) -> Result<(), Error> {
        let listener = self.listeners.remove(listener).ok_or(Error::Unknown)?;
        for id in listener.waiting {
            // A request that the peer has withdrawn no longer has a connection.
            if self.connections.contains_key(&id) {
                self.close(now, id)?;
            }
        }
        Ok(())
    }

    /// Takes a request from the backlog: the program has fetched it.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`] if the peer has withdrawn the request. Even then it no longer counts against the backlog.
    pub fn take_request(&mut self, connection: ConnectionId) -> Result<(), Error> {
        self.listeners.leave(connection);
        match self.connections.contains_key(&connection) {
            true => Ok(()),
            false => Err(Error::Unknown),
        }
    }

    /// Starts a connection by sending a REQ. The result is an event: `ConnectResponse`, `Rejected` or `Unreachable`.
    ///
    /// # Errors
    ///
    /// [`Error::Addresses`], [`Error::QueuePair`], [`Error::Full`].
    pub fn connect(&mut self, now: Nanos, to: &Connect) -> Result<ConnectionId, Error> {
        check_queue_pair(to.queue_pair.qpn)?;
        let mut it = self.outgoing_connection(to.from, to.to, to.space)?;
        it.transport = Some(to.transport);
        it.qpn = to.queue_pair.qpn;
        it.period = self.config.timing.request(to.path.ack_timeout);
        it.time_wait = time_wait(to.path.ack_timeout);
        let mad = Mad {
            tid: it.tid,
            modifier: to.ece.options,
            message: Message::Req(self.req(&it, to)),
        };
        let id = self.add(it);
        self.step(now, id, Input::Connect, Given::Message(mad))?;
        Ok(id)
    }

    fn req(&self, it: &Connection, to: &Connect) -> Req {
        let timing = &self.config.timing;
        let (qp, path) = (&to.queue_pair, &to.path);
        Req {
            local: it.local_id,
            ece_vendor: to.ece.vendor,
            service: it.service,
            guid: it.own_guid,
            qpn: qp.qpn,
            responder_resources: qp.responder_resources,
            initiator_depth: qp.initiator_depth,
            remote_response: timing.response,
            transport: Req::transport_code(to.transport),
            flow_control: qp.flow_control,
            starting_psn: qp.starting_psn,
            local_response: timing.response,
            retry_count: qp.retry_count,
            pkey: DEFAULT_PARTITION,
            mtu: path.mtu as u8,
            rnr_retry: qp.rnr_retry,
            max_retries: it.retries,
            srq: qp.srq,
            path: Path {
                local: it.local_gid(),
                remote: Gid::from(it.peer),
                flow_label: path.flow_label,
                traffic_class: path.traffic_class,
                hop_limit: path.hop_limit,
                rate: 0,
                service_level: 0,
                ack_timeout: path.ack_timeout,
            },
            has_alternate_path: false,
            data: Req::with_header(&ip_header(to.from, to.to), &to.data),
        }
    }

    /// Requests a datagram queue pair by sending a SIDR_REQ. The result is an event: `DatagramResponse` or `Unreachable`.
    ///
    /// # Errors
    ///
    /// [`Error::Addresses`], [`Error::Full`].
    pub fn resolve_datagram(&mut self, now: Nanos, to: &Resolve) -> Result<ConnectionId, Error> {
        let it = self.outgoing_connection(to.from, to.to, to.space)?;
        let sidr = SidrReq {
            request: it.local_id,
            pkey: DEFAULT_PARTITION,
            service: it.service,
            data: SidrReq::with_header(&ip_header(to.from, to.to), &to.data),
        };
        let mad = Mad::new(it.tid, Message::SidrReq(sidr));
        let id = self.add(it);
        self.step(now, id, Input::Resolve, Given::Message(mad))?;
        Ok(id)
    }

    /// The part that all our own requests share.
    fn outgoing_connection(
        &mut self,
        from: SocketAddr,
        to: SocketAddr,
        space: PortSpace,
    ) -> Result<Connection, Error> {
        let (local, peer) = (from.ip().to_canonical(), to.ip().to_canonical());
        let same_family = local.is_ipv4() == peer.is_ipv4();
        if !same_family || !is_unicast(local) || !is_unicast(peer) {
            return Err(Error::Addresses(from.ip(), to.ip()));
        }
        let service = ServiceId::new(space, to.port());
        let mut it = self.new_connection(local, peer, service)?;
        it.ports = (from.port(), to.port());
        Ok(it)
    }

    /// A connection in the state [`State::Idle`], with fresh ids.
    pub(super) fn new_connection(
        &mut self,
        local: IpAddr,
        peer: IpAddr,
        service: ServiceId,
    ) -> Result<Connection, Error> {
        let full = Error::Full(self.connections.len());
        if self.connections.len() >= self.config.limits.connections {
            return Err(full);
        }
        let tables = &self.tables;
        let in_use = |id| tables.by_local(id).is_some();
        let local_id = self.ids.communication(tables.ids_in_use(), in_use);
        let timing = &self.config.timing;
        Ok(Connection {
            state: State::Idle,
            transport: None,
            local_id: local_id.ok_or(full)?,
            remote_id: None,
            local,
            peer,
            ports: (0, service.port()),
            is_active: true,
            party: 0,
            own_guid: self.ids.guid(self.config.guid, peer, service),
            guid: None,
            service,
            tid: self.ids.transaction(),
            dreq_tid: self.ids.transaction(),
            peer_dreq_tid: 0,
            qpn: 0,
            remote_qpn: None,
            period: crate::time::nanos(timing.response),
            retries: timing.retries.min(15),
            left: 0,
            time_wait: 0,
            deadline: None,
            kept: None,
            is_silent: false,
        })
    }

    /// Accepts a connect request by sending a REP. `Established` follows when the peer is ready, too.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`], [`Error::WrongState`], [`Error::WrongKind`], [`Error::QueuePair`].
    pub fn accept(&mut self, now: Nanos, id: ConnectionId, with: &Accept) -> Result<(), Error> {
        check_queue_pair(with.queue_pair.qpn)?;
        let it = self.connections.get_mut(&id).ok_or(Error::Unknown)?;
        let transport = it.transport.ok_or(Error::WrongKind)?;
        if it.state != State::ReqReceived {
            return Err(Error::WrongState(it.state));
        }
        let qp = &with.queue_pair;
        it.qpn = qp.qpn;
        let is_xrc = transport == Transport::Xrc;
        let rep = Rep {
            local: it.local_id,
            remote: it.remote_id.unwrap_or(0),
            qpn: if is_xrc { 0 } else { qp.qpn },
            eecn: if is_xrc { qp.qpn } else { 0 },
            ece_vendor: with.ece.vendor,
            starting_psn: qp.starting_psn,
            responder_resources: qp.responder_resources,
            initiator_depth: qp.initiator_depth,
            target_ack_delay: TARGET_ACK_DELAY,
            failover: 0,
            flow_control: qp.flow_control,
            rnr_retry: qp.rnr_retry,
            srq: qp.srq || is_xrc,
            guid: it.own_guid,
            data: with.data,
        };
        let mad = Mad {
            tid: it.tid,
            modifier: with.ece.options,
            message: Message::Rep(rep),
        };
        self.step(now, id, Input::Accept, Given::Message(mad))
    }

    /// Refuses a connect request or, on the active side, the peer's response to ours. `options` are the ECE options of a
    /// refusal that is due to them. No event follows a refused request; `TimeWaitExit` follows a refused response.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`], [`Error::WrongState`], [`Error::WrongKind`].
    pub fn reject(
        &mut self,
        now: Nanos,
        id: ConnectionId,
        reason: RejectReason,
        data: PrivateData<{ Rej::DATA }>,
        options: u32,
    ) -> Result<(), Error> {
        let it = self.connections.get(&id).ok_or(Error::Unknown)?;
        it.transport.ok_or(Error::WrongKind)?;
        let refused = Refused::connection(id, it, NotAccepted::Program(reason));
        let rej = Rej {
            data,
            ..Rej::bare(0, 0, About::Req, reason)
        };
        let given = Given::Refusal(Refusal { rej, options });
        self.step(now, id, Input::Reject, given)?;
        self.refused.push(refused);
        Ok(())
    }

    /// Active side, after `ConnectResponse`: our queue pair is ready. Sends an RTU.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`], [`Error::WrongState`].
    pub fn establish(&mut self, now: Nanos, id: ConnectionId) -> Result<(), Error> {
        self.step(now, id, Input::Establish, Given::Nothing)
    }

    /// Passive side: our queue pair has received data, so the peer is ready although its RTU has not arrived
    /// (`rdma_notify(3)`). `Established` follows.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`], [`Error::WrongState`].
    pub fn communication_established(&mut self, now: Nanos, id: ConnectionId) -> Result<(), Error> {
        self.step(now, id, Input::CommunicationEstablished, Given::Nothing)
    }

    /// Ends a connection, or confirms that the peer ends it. `Disconnected` follows in the first case; `TimeWaitExit`
    /// follows in both. A second call has no effect.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`]; [`Error::WrongState`] before the connection is established.
    pub fn disconnect(&mut self, now: Nanos, id: ConnectionId) -> Result<(), Error> {
        self.step(now, id, Input::Disconnect, Given::Nothing)
    }

    /// Gives up a connection or request in any state: the program gets no more events. The manager still ends the exchange
    /// with the peer, so the connection may remain for a while.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`] if it has already ended.
    pub fn close(&mut self, now: Nanos, id: ConnectionId) -> Result<(), Error> {
        self.listeners.leave(id);
        self.events.drop_those_of(id);
        let it = self.connections.get_mut(&id).ok_or(Error::Unknown)?;
        it.is_silent = true;
        self.step(now, id, Input::Close, Given::Nothing)
    }

    /// Answers a request for a datagram queue pair (SIDR_REQ).
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`], [`Error::WrongState`], [`Error::WrongKind`], [`Error::QueuePair`].
    pub fn accept_datagram(
        &mut self,
        now: Nanos,
        id: ConnectionId,
        with: &DatagramAnswer,
    ) -> Result<(), Error> {
        check_queue_pair(with.qpn)?;
        self.answer_datagram(now, id, Input::Accept, SidrStatus::VALID, with)
    }

    /// Refuses a request for a datagram queue pair (SIDR_REQ).
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`], [`Error::WrongState`], [`Error::WrongKind`].
    pub fn reject_datagram(
        &mut self,
        now: Nanos,
        id: ConnectionId,
        status: SidrStatus,
        data: PrivateData<{ SidrRep::DATA }>,
    ) -> Result<(), Error> {
        let answer = DatagramAnswer {
            qpn: 0,
            qkey: 0,
            data,
        };
        let it = self.connections.get(&id).ok_or(Error::Unknown)?;
        let why = NotAccepted::Program(RejectReason::CONSUMER);
        let refused = Refused::connection(id, it, why);
        self.answer_datagram(now, id, Input::Reject, status, &answer)?;
        self.refused.push(refused);
        Ok(())
    }

    fn answer_datagram(
        &mut self,
        now: Nanos,
        id: ConnectionId,
        input: Input,
        status: SidrStatus,
        with: &DatagramAnswer,
    ) -> Result<(), Error> {
        let it = self.connections.get(&id).ok_or(Error::Unknown)?;
        if it.transport.is_some() {
            return Err(Error::WrongKind);
        }
        let rep = SidrRep {
            request: it.remote_id.unwrap_or(0),
            status,
            info_len: 0,
            qpn: with.qpn,
            service: it.service,
            qkey: with.qkey,
            info: PrivateData::default(),
            data: with.data,
        };
        let mad = Mad::new(it.tid, Message::SidrRep(rep));
        self.step(now, id, input, Given::Message(mad))
    }
}

fn check_queue_pair(qpn: u32) -> Result<(), Error> {
    match is_queue_pair(qpn) {
        true => Ok(()),
        false => Err(Error::QueuePair(qpn)),
    }
}

fn ip_header(from: SocketAddr, to: SocketAddr) -> IpHeader {
    IpHeader {
        source_port: from.port(),
        source: from.ip().to_canonical(),
        destination: to.ip().to_canonical(),
    }
}
