//! The program's calls for connections.

use super::options::{Accept, Connect};
use super::refused::{NotAccepted, Refused};
use super::step::Given;
use super::{Error, Manager};
use crate::address::{Gid, PortSpace, ServiceId, is_queue_pair, is_unicast};
use crate::connection::state::Input;
use crate::connection::{Connection, ConnectionId, Refusal, State};
use crate::time::{Nanos, time_wait};
use crate::wire::{
    About, IpHeader, Mad, Message, Path, PrivateData, Rej, RejectReason, Rep, Req, Transport,
};
use core::net::{IpAddr, SocketAddr};

/// The target ACK delay in our REPs, as a time code: Linux's value.
const TARGET_ACK_DELAY: u8 = 15;
pub(super) const DEFAULT_PARTITION: u16 = 0xffff;

impl Manager {
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

    /// The part that all our own requests share.
    pub(super) fn outgoing_connection(
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
}

pub(super) fn check_queue_pair(qpn: u32) -> Result<(), Error> {
    match is_queue_pair(qpn) {
        true => Ok(()),
        false => Err(Error::QueuePair(qpn)),
    }
}

pub(super) fn ip_header(from: SocketAddr, to: SocketAddr) -> IpHeader {
    IpHeader {
        source_port: from.port(),
        source: from.ip().to_canonical(),
        destination: to.ip().to_canonical(),
    }
}
