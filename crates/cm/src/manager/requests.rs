//! Requests from peers. A REQ or SIDR_REQ creates a connection only if it is possible, a listener exists, and there is
//! room.

use super::listeners::Listener;
use super::receive::Arrival;
use super::refused::{NotAccepted, Refused};
use super::step::Given;
use super::{ConnectRequest, DatagramRequest, Event, Kind, Manager};
use crate::address::{Gid, Guid, ServiceId};
use crate::connection::state::Input;
use crate::connection::{Connection, ConnectionId, ListenerId, State};
use crate::time::{nanos, time_wait};
use crate::wire::{
    About, Detail, IpHeader, Message, PrivateData, Rej, RejectReason, Req, SidrRep, SidrReq,
    SidrStatus, Transport,
};
use core::net::SocketAddr;

/// Why a request does not create a connection.
enum NoConnection {
    /// Drop the request. The peer retransmits it.
    Drop(NotAccepted),
    /// Refuse a REQ.
    Reject(RejectReason, NotAccepted),
}

impl NoConnection {
    /// For a reason without further detail.
    fn reject(reason: RejectReason) -> Self {
        Self::Reject(reason, NotAccepted::Here(reason))
    }
}

/// A REQ that can become a connection.
struct Acceptable {
    listener: ListenerId,
    transport: Transport,
    header: IpHeader,
    data: PrivateData<{ Req::DATA }>,
}

impl Manager {
    pub(super) fn on_req(&mut self, at: &Arrival, req: &Req) {
        // Nothing is sent to an address that the peer merely claims to have.
        if req.path.local != Gid::from(at.from) {
            return self.ignore();
        }
        let known = self.tables.by_remote(at.from, req.guid, req.local);
        let same = |id: &ConnectionId| self.connections.get(id).is_some_and(|it| it.tid == at.tid);
        if let Some(id) = known.filter(same) {
            return self.step_message(at.now, id, Input::Req, Given::Nothing);
        }
        let made = self
            .acceptable(at, req)
            .and_then(|it| self.make_passive(at, req, &it));
        let (reason, why) = match made {
            Ok(()) => return,
            Err(NoConnection::Drop(why)) => {
                self.counters.overload += 1;
                return self.note_refused(at, req.service, req.source_port(), why);
            }
            Err(NoConnection::Reject(reason, why)) => (reason, why),
        };
        let rej = Rej::bare(0, req.local, About::Req, reason);
        let rej = match (reason, why) {
            (RejectReason::GID, _) => rej.with_info(&Gid::from(at.to).0),
            (_, NotAccepted::Transport { .. }) => rej.with_detail(Detail::QueuePairType),
            _ => rej,
        };
        self.answer(at, Message::Rej(rej));
        self.note_refused(at, req.service, req.source_port(), why);
    }

    /// Performs the checks that are possible before a connection exists, in the same order as Linux.
    fn acceptable(&self, at: &Arrival, req: &Req) -> Result<Acceptable, NoConnection> {
        if req.path.remote != Gid::from(at.to) {
            return Err(NoConnection::reject(RejectReason::GID));
        }
        req.check().map_err(NoConnection::reject)?;
        let transport = req
            .transport()
            .ok_or(NoConnection::reject(RejectReason::TRANSPORT))?;
        if self.is_taken(at, req.guid, req.local, req.qpn) {
            return Err(NoConnection::reject(RejectReason::STALE));
        }
        let found = self.listeners.find(req.service, at.to);
        let (listener, it) = found.ok_or(NoConnection::reject(RejectReason::SERVICE_ID))?;
        let data = req.ip_data();
        let data = data.filter(|(header, _)| header.agrees_with(at.from, at.to));
        let (header, data) = data.ok_or(NoConnection::reject(RejectReason::CONSUMER))?;
        let (asked, offered) = (Kind::Connected(transport), it.kind);
        if asked != offered {
            let why = NotAccepted::Transport { asked, offered };
            return Err(NoConnection::Reject(RejectReason::CONSUMER, why));
        }
        if let Some(why) = self.lacks_room(at, it) {
            return Err(NoConnection::Drop(why));
        }
        Ok(Acceptable {
            listener,
            transport,
            header,
            data,
        })
    }

    /// Whether an earlier connection uses this communication id or queue pair of the peer.
    ///
    /// Linux concludes that the peer has forgotten that connection, and ends it. But any host that knows the peer's GUID
    /// and queue pair number can send such a message, so here the earlier connection is unaffected.
    ///
    /// As on Linux, a queue pair is free when its connection enters time wait: the peer may reuse the number of a queue
    /// pair that it has destroyed.
    pub(super) fn is_taken(&self, at: &Arrival, guid: Guid, id: u32, qpn: u32) -> bool {
        let by_qpn = self.tables.by_queue_pair(at.from, guid, qpn);
        let by_qpn = by_qpn.and_then(|id| self.state(id));
        // A refused peer may try again with the same queue pair, and in the other states the peer has ended the connection.
        let is_free = |state: &State| {
            matches!(
                state,
                State::Refused | State::DreqReceived | State::TimeWait
            )
        };
        by_qpn.is_some_and(|state| !is_free(&state))
            || self.tables.by_remote(at.from, guid, id).is_some()
    }

    /// Why a listener has no room for another request; `None` if it has room.
    fn lacks_room(&self, at: &Arrival, listener: &Listener) -> Option<NotAccepted> {
        if listener.is_full() {
            let backlog = listener.backlog;
            return Some(NotAccepted::Backlog { backlog });
        }
        self.has_too_many(at).then_some(NotAccepted::TooMany)
    }

    /// Records that a request did not create a connection.
    fn note_refused(&mut self, at: &Arrival, service: ServiceId, port: u16, why: NotAccepted) {
        self.refused.push(Refused {
            connection: None,
            is_active: false,
            local: SocketAddr::new(at.to, service.port()),
            peer: SocketAddr::new(at.from, port),
            service,
            party: at.party,
            remote_id: None,
            why,
        });
    }

    /// Whether the peer has reached its limit of undecided requests.
    fn has_too_many(&self, at: &Arrival) -> bool {
        let count = self
            .undecided
            .get(&(at.from, at.party))
            .copied()
            .unwrap_or(0);
        count >= self.config.limits.undecided_per_peer
    }

    fn make_passive(
        &mut self,
        at: &Arrival,
        req: &Req,
        from: &Acceptable,
    ) -> Result<(), NoConnection> {
        let new = self.new_connection(at.to, at.from, req.service);
        let mut it = new.map_err(|_| NoConnection::reject(RejectReason::NO_RESOURCES))?;
        it.is_active = false;
        it.ports = (req.service.port(), from.header.source_port);
        let timing = &self.config.timing;
        it.transport = Some(from.transport);
        it.party = at.party;
        it.remote_id = Some(req.local);
        it.guid = Some(req.guid);
        it.tid = at.tid;
        it.remote_qpn = Some(req.qpn);
        it.period = nanos(timing.bounded(req.local_response));
        it.retries = req.max_retries;
        it.time_wait = time_wait(req.path.ack_timeout);
        let id = self.add_passive(it, from.listener);
        let (from_address, to_address) = ends(&from.header, req.service.port());
        let event = Event::ConnectRequest(Box::new(ConnectRequest {
            connection: id,
            listener: from.listener,
            from: from_address,
            to: to_address,
            req: *req,
            ece: at.ece(req.ece_vendor),
            data: from.data,
        }));
        self.step_message(at.now, id, Input::Req, Given::Event(event));
        Ok(())
    }

    fn add_passive(&mut self, it: Connection, listener: ListenerId) -> ConnectionId {
        let id = self.add(it);
        self.listeners.enter(listener, id);
        id
    }

    pub(super) fn on_sidr_req(&mut self, at: &Arrival, sidr: &SidrReq) {
        if let Some(id) = self.tables.by_resolution(at.from, sidr.request) {
            return self.step_message(at.now, id, Input::SidrReq, Given::Nothing);
        }
        let refuse = |status| Message::SidrRep(SidrRep::refusal(sidr, status));
        let data = sidr.ip_data();
        let port = data.as_ref().map_or(0, |(header, _)| header.source_port);
        let Some((listener, found)) = self.listeners.find(sidr.service, at.to) else {
            self.answer(at, refuse(SidrStatus::UNSUPPORTED));
            let why = NotAccepted::Here(RejectReason::SERVICE_ID);
            return self.note_refused(at, sidr.service, port, why);
        };
        let data = data.filter(|(header, _)| header.agrees_with(at.from, at.to));
        let (asked, offered) = (Kind::Datagram, found.kind);
        let (Some((header, data)), true, true) =
            (data, asked == offered, sidr.is_in_default_partition())
        else {
            let (rep, why) = match asked == offered {
                true => (
                    SidrRep::refusal(sidr, SidrStatus::REJECT),
                    NotAccepted::Here(RejectReason::CONSUMER),
                ),
                false => (
                    SidrRep::refusal(sidr, SidrStatus::REJECT).with_detail(Detail::QueuePairType),
                    NotAccepted::Transport { asked, offered },
                ),
            };
            self.answer(at, Message::SidrRep(rep));
            return self.note_refused(at, sidr.service, port, why);
        };
        if let Some(why) = self.lacks_room(at, found) {
            self.counters.overload += 1;
            return self.note_refused(at, sidr.service, port, why);
        }
        let Ok(mut it) = self.new_connection(at.to, at.from, sidr.service) else {
            self.counters.overload += 1;
            let why = NotAccepted::Here(RejectReason::NO_RESOURCES);
            return self.note_refused(at, sidr.service, port, why);
        };
        it.is_active = false;
        it.ports = (sidr.service.port(), header.source_port);
        it.party = at.party;
        it.remote_id = Some(sidr.request);
        it.tid = at.tid;
        let id = self.add_passive(it, listener);
        let (from, to) = ends(&header, sidr.service.port());
        let event = Event::DatagramRequest(Box::new(DatagramRequest {
            connection: id,
            listener,
            from,
            to,
            data,
        }));
        self.step_message(at.now, id, Input::SidrReq, Given::Event(event));
    }
}

/// The addresses and ports of both sides: first the peer's, then ours.
fn ends(header: &IpHeader, port: u16) -> (SocketAddr, SocketAddr) {
    (
        SocketAddr::new(header.source, header.source_port),
        SocketAddr::new(header.destination, port),
    )
}
